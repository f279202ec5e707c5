"""Learngenes of some complete blocks, beside random ones: Vanilla-LG, Heuristic-LG, Auto-LG."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import get_table, load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.distillation import Teacher
from learngene_zoo.training.objectives import Classification
from lgzoo_baselines.blocks.auto_lg import choose_highest
from lgzoo_baselines.blocks.heur_lg import (
    HeurLgTraining,
    choose_steadiest,
    count_gradients,
    measure_variations,
    train_and_count_gradients,
)
from lgzoo_baselines.blocks.vanilla_lg import VanillaLgExtractor
from lgzoo_baselines.modules.auto_lg import MetaMatching, compute_linear_cka, compute_matching_loss

VIT = load_family("vit").examples[0].with_(layers=4)
EVA = load_family("eva").examples[0].with_(layers=4)


@cache
def extract(name: str, spec: Spec = VIT, tasks: int = 1, **settings: Any) -> lg.Learngene:
    method = METHODS.load(name)
    extractor = with_settings(method.presets["smoke"], settings)
    data = [make_tiny_task(f"tiny-{number}", classes=3 + number) for number in range(tasks)]
    ancestry = make_tiny_ancestry(spec=spec)
    return extractor([ancestry], data if extractor.needs_tasks() else [], Run()).with_config(
        method=name, ancestries=(ancestry.record,)
    )


@pytest.mark.parametrize("spec", [pytest.param(VIT, id="vit"), pytest.param(EVA, id="eva")])
@pytest.mark.parametrize(
    ("place", "layers", "places"),
    [
        ("last", 4, [None, None, 3, 4]),
        ("last", 1, [4]),
        ("last", 6, [None, None, None, None, 3, 4]),
        ("first", 3, [3, 4, None]),
        ("first", 1, [3]),
    ],
)
def test_the_kept_blocks_are_at_their_end_and_the_others_random(
    spec: Spec, place: str, layers: int, places: list[int | None]
) -> None:
    learngene, table = extract("vanilla_lg", spec, count=2), get_table(spec)
    assert {table.block_of(name) for name in learngene.state} == {None, 2, 3}
    model, other = (
        lg.expand(learngene, layers=layers, classes=5, place=place, run=Run(seed=seed))
        for seed in (0, 1)
    )
    assert model.provenance["blocks"] == places
    for i, block in enumerate(places):
        name = table.block_name(i, "attn.proj.weight")
        assert (name in model.inherited) == (block is not None)
        if block is None:
            assert not torch.equal(model.state[name], other.state[name])
        else:
            assert torch.equal(
                model.state[name], learngene.state[table.block_name(block - 1, "attn.proj.weight")]
            )
    assert "patch_embed.proj.weight" in model.inherited


def test_the_last_three_are_kept() -> None:
    ancestry = make_tiny_ancestry(layers=12)
    config = VanillaLgExtractor().outline([ancestry.spec])
    assert config.details == {"kept": [10, 11, 12]}
    with pytest.raises(WrongCall, match="count is 13; the ancestry model has 12 blocks"):
        VanillaLgExtractor(count=13).outline([ancestry.spec])


def test_random_blocks_have_the_scale_that_is_asked_for() -> None:
    learngene, name = extract("vanilla_lg"), "blocks.0.attn.qkv.weight"
    stds = [
        lg.expand(learngene, layers=4, init=init).state[name].std().item()
        for init in ("timm", "fan_in")
    ]
    assert stds == pytest.approx([0.02, VIT.width**-0.5], rel=0.1)


@pytest.mark.parametrize("kept", [[], [0], [5], [2, 1], [1, 1], "12"])
def test_kept_blocks_of_an_artifact_are_not_trusted(kept: Any) -> None:
    with pytest.raises(BadFile, match=r"vanilla_lg learngene.*kept"):
        lg.expand(extract("vanilla_lg").with_config(details={"kept": kept}), layers=2)


# Heuristic-LG.


def test_the_steadiest_blocks_vary_least_in_proportion_to_their_mean() -> None:
    shares = [[0.1, 0.5, 0.9, 0.0], [0.3, 0.5, 0.7, 0.0]]
    assert measure_variations(shares) == pytest.approx([0.5, 0.0, 0.125, float("inf")])
    assert choose_steadiest(measure_variations(shares), 1) == (2,)
    assert choose_steadiest(measure_variations(shares), 2) == (2, 3)
    assert choose_steadiest([0.5, 0.5, 0.7], 1) == (2,)  # of equal ones the later


def test_the_share_of_gradients_is_counted_block_by_block() -> None:
    model = nn.Module()
    model.blocks = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for block, numbers in zip(model.blocks, ([1.0, -1.0, 0.1, 0.0], [0.0, 0.0, 0.2, -0.3])):
        block.weight.grad, block.bias.grad = (
            torch.tensor(numbers).view(2, 2),
            torch.tensor([0.0, 5.0]),
        )
    assert count_gradients(model, 0.15).tolist() == pytest.approx([3 / 6, 3 / 6])
    assert count_gradients(model, 0.25).tolist() == pytest.approx([3 / 6, 2 / 6])
    assert count_gradients(model, 0.0).tolist() == pytest.approx([4 / 6, 3 / 6])


def test_the_shares_of_an_epoch_are_the_mean_over_its_steps() -> None:
    ancestry, task = make_tiny_ancestry(layers=2), make_tiny_task()
    settings = METHODS.load("heur_lg").presets["smoke"].each  # type: ignore[attr-defined]
    start = assemble(ancestry.spec.with_(classes=3), {}, seed=0, scheme="fan_in")
    _, record = train_and_count_gradients(replace(settings, eps=0.0), start, task, Run())
    assert record["shares"] == [pytest.approx([1.0, 1.0], abs=0.2)] * 2
    _, record = train_and_count_gradients(replace(settings, eps=1e9), start, task, Run())
    assert record["shares"] == [[0.0, 0.0]] * 2


def test_the_kept_blocks_have_learnt_one_task_after_another() -> None:
    first, second = extract("heur_lg"), extract("heur_lg", tasks=2)
    assert set(second.config.metrics) == {"tiny-0", "tiny-1", "variations"}
    (kept,) = second.config.details["kept"]
    assert second.config.metrics["variations"][kept - 1] == min(second.config.metrics["variations"])
    assert first.config.metrics["tiny-0"] == second.config.metrics["tiny-0"]
    name = "patch_embed.proj.weight"
    assert not torch.equal(first.state[name], second.state[name])
    assert len(extract("heur_lg", tasks=2, epochs=1).config.metrics) == 3
    with pytest.raises(
        WrongCall, match="epochs is 1; gradients of two or more epochs are compared"
    ):
        extract("heur_lg", epochs=1)
    with pytest.raises(WrongCall, match=r"ema is 0\.9"):
        extract("heur_lg", ema=0.9)
    with pytest.raises(WrongCall, match="no gradient is above the threshold, eps 1e"):
        extract("heur_lg", eps=1e9)
    assert HeurLgTraining().eps == 5e-10


def test_blocks_without_gradients_above_the_threshold_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variations = measure_variations([[0.0, 0.5, 0.5, 0.5], [0.0, 0.5, 0.25, 0.5]])
    monkeypatch.setattr(
        "lgzoo_baselines.blocks.heur_lg.measure_variations", lambda _shares: variations
    )
    learngene = extract("heur_lg", tasks=3)
    assert learngene.config.details["kept"] == [4]
    assert learngene.config.metrics["variations"] == [None, 0, pytest.approx(1 / 3), 0]
    json.dumps(learngene.config.metrics, allow_nan=False)


# Auto-LG.


def test_cka_does_not_mind_rotations_and_scales_and_sees_what_differs() -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(50, 4, generator=draw, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw, dtype=torch.float64))[0]
    assert compute_linear_cka(features, 3 * features @ turn + 7) == pytest.approx(1)
    assert compute_linear_cka(features, torch.ones(50, 4)) == 0
    # Two orthogonal features over four images, by hand:
    # |Y'X|^2 = 16, |X'X| = 4, |Y'Y| = 4 sqrt 2.
    first, second = torch.tensor([1.0, 1, -1, -1]), torch.tensor([1.0, -1, 1, -1])
    assert compute_linear_cka(first[:, None], torch.stack([first, second], dim=1)) == pytest.approx(
        16 / (4 * 32**0.5)
    )
    assert compute_linear_cka(first[:, None], second[:, None]) == 0


def test_the_highest_scores_are_kept() -> None:
    assert choose_highest([0.1, 0.9, 0.5, 0.5], 2) == (2, 3)
    assert choose_highest([0.1, 0.9, 0.5, 0.6], 2) == (2, 4)


def test_named_blocks_need_no_task() -> None:
    learngene = extract("auto_lg", keep=(2, 1))
    assert learngene.config.details == {"kept": [1, 2]}
    model = lg.expand(learngene, layers=3)
    assert model.provenance["blocks"] == [1, 2, None]
    assert torch.equal(
        model.state["blocks.1.mlp.fc1.weight"], learngene.state["blocks.1.mlp.fc1.weight"]
    )
    for wrong, text in (
        ((5,), "keep names block 5; the ancestry model has 4"),
        ((), "keep is empty"),
    ):
        with pytest.raises(WrongCall, match=text):
            extract("auto_lg", keep=wrong)


@pytest.mark.parametrize("criterion", ["cka", pytest.param("meta", marks=pytest.mark.slow)])
def test_the_blocks_that_resemble_the_small_model_most_are_kept(criterion: str) -> None:
    learngene = extract("auto_lg", criterion=criterion, pseudo_layers=2)
    scores, resemblance = (
        torch.tensor(learngene.config.metrics[name]) for name in ("scores", "resemblance")
    )
    assert resemblance.shape == (4, 2)
    torch.testing.assert_close(scores, resemblance.mean(dim=1))
    assert learngene.config.details["kept"] == list(choose_highest(scores.tolist(), 2))
    assert learngene.config.spec.layers == 4
    if criterion == "meta":
        torch.testing.assert_close(resemblance.sum(dim=0), torch.ones(2))


def test_the_meta_network_learns_from_the_loss_after_the_inner_steps() -> None:
    ancestry = make_tiny_ancestry(spec=VIT.with_(layers=3, classes=3))
    model = build_model(
        VIT.with_(layers=2, classes=3), initialise(VIT.with_(layers=2, classes=3), 5, "fan_in")
    )
    objective, teacher = Classification(model), Teacher(ancestry.model(), range(3))
    meta = MetaMatching(objective, model, teacher, inner_steps=1, inner_lr=0.5)
    task = make_tiny_task()
    from learngene_zoo.tasks.loader import Loader

    batch = next(Loader(task, "train", ancestry.input_format, batch_size=8, seed=0).epoch(0))
    losses = meta.train()(batch)
    assert set(losses) == {"cross_entropy", "match", "meta"}

    # Both steps by hand.
    tokens = meta.record_tokens(batch)
    shares = meta.compute_shares(tokens)
    torch.testing.assert_close(shares, torch.full((8, 3, 2), 1 / 3))
    weights = dict(objective.named_parameters())
    before = _match(meta, model, batch, tokens, shares)
    torch.testing.assert_close(before, losses["match"])
    steps = torch.autograd.grad(before, list(weights.values()), allow_unused=True)
    moved = {name: w if g is None else w - 0.5 * g for (name, w), g in zip(weights.items(), steps)}
    (after,) = functional_call(objective, moved, (batch,)).values()
    steps = torch.autograd.grad(after, list(moved.values()))
    moved = {name: w - 0.5 * g for (name, w), g in zip(moved.items(), steps)}
    (after,) = functional_call(objective, moved, (batch,)).values()
    torch.testing.assert_close(losses["meta"], after)

    shared = torch.autograd.grad(
        losses["match"], list(meta.meta.parameters()), allow_unused=True, retain_graph=True
    )
    assert shared == (None,) * 6
    losses["meta"].backward()
    assert all(parameter.grad is None for parameter in objective.parameters())
    assert all(layer.weight.grad.abs().sum() > 0 for layer in meta.meta)
    _finite_difference(meta, batch, meta.meta[0].bias.grad[1].item())


def _match(meta: MetaMatching, model: Any, batch: Any, tokens: Any, shares: Any) -> torch.Tensor:
    from learngene_zoo.training.distillation import record_features

    with record_features(model, meta.blocks) as features:
        model(batch.inputs)
    return compute_matching_loss(tokens, features.blocks, shares)


def _finite_difference(meta: MetaMatching, batch: Any, expected: float, by: float = 0.1) -> None:
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            meta.meta[0].bias[1] += sign * by
        values.append(meta(batch)["meta"].item())
        with torch.no_grad():
            meta.meta[0].bias[1] -= sign * by
    assert (values[0] - values[1]) / (2 * by) == pytest.approx(expected, rel=0.05, abs=1e-6)
