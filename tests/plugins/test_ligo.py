"""LiGO: larger models by learnt linear operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_model, get_shapes, remove_head
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.loop import Engine
from lgzoo_baselines.modules.ligo import (
    OperatorObjective,
    Operators,
    apply_operators,
    init_operators,
    train_operators,
)
from lgzoo_baselines.weights.growth import choose_copies, stack_blocks
from lgzoo_baselines.weights.ligo import LigoExpander, LigoExtractor

ARCHITECTURES = load_family("vit").architectures
VIT = (
    load_family("vit")
    .examples[0]
    .with_(layers=3, width=32, heads=2, registers=2, layer_scale=0.1, qk_norm=True)
)
PLAIN = make_tiny_ancestry().spec  # 3 layers, 2 heads of 16
STEPS = Recipe(epochs=20, batch_size=16, lr=3e-3, warmup=0.0, weight_decay=0.0, augment="none")


def perturb(spec: Spec) -> Ancestry:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator, plain = torch.Generator().manual_seed(0), make_tiny_ancestry(spec=spec)
    noisy = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in plain.state.items()
    }
    return replace(plain, state=noisy)


def extract(ancestry: Ancestry, method: str = "ligo") -> lg.Learngene:
    learngene = METHODS.load(method).extractor([ancestry], [], Run())
    return learngene.with_config(method=method, ancestries=(ancestry.record,))


def init_from_growth(state: Any, small: Spec, large: Spec) -> Operators:
    return init_operators(
        state,
        small,
        choose_copies(small, large, "even", 0),
        stack_blocks(small.layers, large.layers),
    )


def randomise(operators: Operators) -> Operators:
    """Return random operators of the same shapes."""
    generator = torch.Generator().manual_seed(1)
    return replace(
        operators,
        tensors={
            name: torch.randn(t.shape, generator=generator).double()
            for name, t in operators.tensors.items()
        },
    )


@pytest.mark.parametrize(
    "sizes", [{"width": 48}, {"layers": 7}, {"layers": 4, "width": 80, "mlp_ratio": 5.0}, {}]
)
@pytest.mark.parametrize("copies", ["even", "drawn"])
def test_operators_that_have_not_learnt_grow_as_growth_does(
    sizes: dict[str, Any], copies: str
) -> None:
    ancestry = perturb(VIT)
    expected, actual = (
        lg.expand(extract(ancestry, name), copies=copies, **sizes) for name in ("growth", "ligo")
    )
    assert actual.spec == expected.spec
    assert not [
        name
        for name, tensor in expected.state.items()
        if not torch.equal(tensor, actual.state[name])
    ]
    assert actual.provenance["learnt"] is False


@torch.no_grad()
def test_before_they_learn_the_function_is_preserved() -> None:
    ancestry, images = perturb(VIT), torch.randn(2, 3, VIT.image_size, VIT.image_size).double()
    wide = lg.expand(extract(ancestry), width=64, mlp_ratio=6.0)
    small = build_model(VIT, ancestry.state).double().forward_features(images)
    assert (
        wide.model().double().forward_features(images) - small.repeat(1, 1, 2)
    ).abs().max() < 1e-5


@pytest.mark.slow
def test_the_factors_are_one_large_matrix() -> None:
    large, state = PLAIN.with_(layers=4, width=48, heads=3), perturb(PLAIN).state
    operators = randomise(init_from_growth(remove_head(state, PLAIN), PLAIN, large))
    actual = apply_operators(
        {name: t.double() for name, t in remove_head(state, PLAIN).items()}, PLAIN, operators
    )

    def stack_identity(name: str) -> torch.Tensor:
        return torch.cat(
            [torch.eye(operators.tensors[name].shape[1]).double(), operators.tensors[name]]
        )

    def reading(name: str) -> torch.Tensor:
        return stack_identity(name) @ torch.diag(operators.shares[name])

    def check(
        kind: str, rows: slice, part: int, i: int, out: torch.Tensor, into: torch.Tensor
    ) -> None:
        """vec U_i = (A (x) B) (w_i' (x) I) [vec W_0 ; vec W_1 ; ...], vec column by column."""
        columns = [state[f"blocks.{j}.{kind}"].double()[rows].T.flatten() for j in range(3)]
        weights = operators.tensors[f"depth.{kind}"][part, i]
        mixed = torch.kron(weights[None], torch.eye(len(columns[0])).double()) @ torch.cat(columns)
        expected_columns = torch.kron(into, out) @ mixed
        size = len(out)
        torch.testing.assert_close(
            actual[f"blocks.{i}.{kind}"][part * size : (part + 1) * size].T.flatten(),
            expected_columns,
        )

    for i in (0, 3):
        for part, kind in enumerate("qkv"):
            rows = slice(32 * part, 32 * part + 32)
            check(
                "attn.qkv.weight", rows, part, i, stack_identity(f"{i}.{kind}"), reading("stream")
            )
        every = slice(None)
        check("attn.proj.weight", every, 0, i, stack_identity("stream"), reading(f"{i}.v"))
        check("mlp.fc1.weight", every, 0, i, stack_identity(f"{i}.hidden"), reading("stream"))
        check("mlp.fc2.weight", every, 0, i, stack_identity("stream"), reading(f"{i}.hidden"))
    bias = sum(
        w * state[f"blocks.{j}.mlp.fc1.bias"].double()
        for j, w in enumerate(operators.tensors["depth.mlp.fc1.bias"][0, 2])
    )
    torch.testing.assert_close(actual["blocks.2.mlp.fc1.bias"], stack_identity("2.hidden") @ bias)
    torch.testing.assert_close(
        actual["pos_embed"], state["pos_embed"].double() @ stack_identity("stream").T
    )
    expected = get_shapes(large)
    assert {name: tuple(tensor.shape) for name, tensor in actual.items()} == {
        name: shape for name, shape in expected.items() if not name.startswith("head")
    }


@pytest.mark.slow
def test_the_parameters_of_the_operators() -> None:
    small, base = (ARCHITECTURES[f"deit_{size}_patch16_224"] for size in ("small", "base"))
    names = [name for name in get_shapes(small) if not name.startswith("head")]
    operators = init_from_growth(dict.fromkeys(names, torch.zeros(())), small, base)
    actual = sum(tensor.numel() for tensor in operators.tensors.values())
    stream, attention, hidden, depth = 384 * 384, 3 * 384 * 384, 1536 * 1536, 16 * 12 * 12
    assert actual == stream + 12 * (attention + hidden) + depth == 33_769_728
    deeper = init_from_growth(dict.fromkeys(names, torch.zeros(())), small, small.with_(layers=16))
    assert sum(tensor.numel() for tensor in deeper.tensors.values()) == 16 * 16 * 12, (
        "what does not grow has none"
    )


@pytest.mark.slow
def test_the_loss_falls_and_the_smaller_model_stays() -> None:
    task, ancestry = make_tiny_task(), perturb(PLAIN)
    learngene = extract(ancestry)
    start = lg.expand(learngene, width=64, layers=4, classes=task.classes).for_task(
        task.name, task.class_names, seed=0
    )
    state = {name: tensor.clone() for name, tensor in remove_head(ancestry.state, PLAIN).items()}
    operators = init_from_growth(state, PLAIN, start.spec)
    trained = train_operators(STEPS, start, state, PLAIN, operators, task, Run())
    assert all(torch.equal(state[name], ancestry.state[name]) for name in state)
    options: Any = {"batch_size": task.sizes["train"], "seed": 0, "shuffle": False}
    batch = next(iter(Loader(task, "train", start.input_format, **options).epoch(0)))
    losses = [
        torch.nn.functional.cross_entropy(model.model()(batch.inputs), batch.labels).item()
        for model in (start, trained)
    ]
    assert losses[1] < 0.8 * losses[0]
    assert not [
        n
        for n in get_shapes(start.spec)
        if n != "norm.bias" and torch.equal(trained.state[n], start.state[n])
    ]


def test_all_operators_and_the_head_learn_and_nothing_else() -> None:
    task, ancestry = make_tiny_task(), perturb(PLAIN)
    start = lg.expand(extract(ancestry), width=48, classes=task.classes).for_task(
        task.name, task.class_names, seed=0
    )
    state = remove_head(ancestry.state, PLAIN)
    operators = init_from_growth(state, PLAIN, start.spec)
    growing = OperatorObjective(start, state, PLAIN, operators, task, STEPS, 0)
    names = {name for name, _ in growing.named_parameters()}
    assert {name for name in names if name.startswith("operators.")} == {
        f"operators.{n}" for n in operators.tensors
    }
    assert {name for name in names if name.startswith("model.")} == {
        "model.head.weight",
        "model.head.bias",
    }
    options: Any = {"batch_size": 16, "seed": 0, "shuffle": False}
    batch = next(iter(Loader(task, "train", start.input_format, **options).epoch(0)))
    sum(growing(batch).values()).backward()  # type: ignore[union-attr]
    still = [n for n, p in growing.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still
    made = {
        **growing.compute_tensors(),
        **{name: start.state[name] for name in ("head.weight", "head.bias")},
    }
    torch.testing.assert_close(
        growing.model(batch.inputs), build_model(start.spec, made)(batch.inputs)
    )


def test_with_a_task_they_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_tiny_task()
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.open_task", lambda *_, **__: task)
    learngene, target = (
        extract(perturb(PLAIN)),
        Target(width=64, classes=task.classes, task=task.name),
    )
    trained = LigoExpander(learning=replace(STEPS, epochs=1))(learngene, target, Run())
    still = LigoExpander(learning=replace(STEPS, epochs=0))(learngene, target, Run())
    assert (trained.provenance["learnt"], still.provenance["learnt"]) == (True, False)
    assert not torch.equal(
        trained.state["blocks.1.mlp.fc1.weight"], still.state["blocks.1.mlp.fc1.weight"]
    )
    grown_alone = lg.expand(learngene, width=64, classes=task.classes)
    assert torch.equal(
        still.state["blocks.1.mlp.fc1.weight"], grown_alone.state["blocks.1.mlp.fc1.weight"]
    )


@pytest.fixture
def train_briefly(monkeypatch: pytest.MonkeyPatch) -> Callable[[lg.Learngene, Run], StateDict]:
    """Return a learngene trained for twelve steps."""
    task = make_tiny_task()
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.open_task", lambda *_, **__: task)
    target = Target(width=64, layers=4, classes=task.classes, task=task.name)
    learn = LigoExpander(learning=replace(STEPS, epochs=2, batch_size=8, clip=1.0))
    return lambda learngene, run: learn(learngene, target, run).state


@pytest.mark.slow
def test_the_order_of_the_stored_tensors_changes_no_bit(
    train_briefly: Callable[[lg.Learngene, Run], StateDict], tmp_path: Path
) -> None:
    """Gradients of tied operators are summed over layers, in the order of the layers."""
    inside = extract(perturb(PLAIN))
    on_disk = load_learngene(inside.save(tmp_path / "learngene"))
    assert list(on_disk.state) != list(inside.state)
    first, second = train_briefly(inside, Run()), train_briefly(on_disk, Run())
    assert [name for name, tensor in first.items() if not torch.equal(tensor, second[name])] == []


@pytest.mark.slow
def test_interrupted_and_resumed_it_learns_the_same(
    train_briefly: Callable[[lg.Learngene, Run], StateDict],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    learngene, run, save = extract(perturb(PLAIN)), Run(folder=tmp_path), Engine.save

    def interrupt(engine: Engine, step: int) -> float:
        if step == 3:
            raise KeyboardInterrupt
        return save(engine, step)

    with monkeypatch.context() as patch:
        patch.setattr(
            "learngene_zoo.training.loop.time", SimpleNamespace(monotonic=count(0, 3600).__next__)
        )
        patch.setattr(
            "learngene_zoo.training.loop.MIN_PAUSE_FACTOR", 0
        )  # a checkpoint after every step
        patch.setattr(Engine, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_briefly(learngene, run)
    assert (tmp_path / "checkpoint-2").is_dir(), "or all steps are taken again"
    uninterrupted, resumed = (
        train_briefly(learngene, Run()),
        train_briefly(learngene, replace(run, resume=True)),
    )
    assert [
        name for name, tensor in uninterrupted.items() if not torch.equal(tensor, resumed[name])
    ] == []


def test_what_it_cannot_grow_is_refused() -> None:
    with pytest.raises(
        WrongCall, match="layers is 2; the ancestry model has 3, and ligo builds larger ones only"
    ):
        lg.expand(extract(perturb(PLAIN)), layers=2)
    for spec in (PLAIN.with_(attention_width=16, heads=1), PLAIN.with_(pool="map")):
        with pytest.raises(
            WrongCall, match="ligo takes models of equal blocks that do not pool by attention"
        ):
            LigoExtractor().outline([spec])
