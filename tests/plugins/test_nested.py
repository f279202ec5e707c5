"""Nested models: every slice is a complete model, all of them trained together."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_params, load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_model, get_shapes, initialise
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.loop import find_layer_scales
from lgzoo_baselines.blocks.block_choice import choose_evenly
from lgzoo_baselines.learnt.nested import NESTED, NestedExtractor
from lgzoo_baselines.learnt.nested_sizes import NestedGrid, derive_slice_spec
from lgzoo_baselines.modules.nested import (
    SampledSlices,
    assemble_with_head,
    draw_slice,
    slice_state,
)

BASE = load_family("vit").architectures["deit_base_patch16_224"]
FULL = make_tiny_ancestry().spec.with_(
    layers=4, classes=3, layer_scale=0.1, qk_norm=True, registers=2
)  # 2 heads of 16
GRID = NestedGrid(hidden=(0.25, 0.5), attention=(0.5,), stream=(0.5,), blocks=(0.5,))


@cache
def extract() -> lg.Learngene:
    ancestry = make_tiny_ancestry()
    return NESTED.presets["smoke"]([ancestry], [make_tiny_task()], Run()).with_config(
        method="nested", ancestries=(ancestry.record,)
    )


def random_state() -> dict[str, torch.Tensor]:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in initialise(FULL, 1, "fan_in").items()
    }


def sample_slices(grid: NestedGrid = GRID, full: Spec = FULL) -> SampledSlices:
    slices = [(small, choose_evenly(full.layers, small.layers)) for small in grid.list_specs(full)]
    return SampledSlices(
        build_model(full, random_state()), full, slices, lambda model, _: Answer(model), 7
    )


class Answer(nn.Module):
    """An objective whose loss is the logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.model(images)}


@pytest.mark.slow
def test_every_slice_answers_in_training_as_the_model_alone() -> None:
    objective, images = sample_slices().eval(), torch.randn(2, 3, FULL.image_size, FULL.image_size)
    sizes, full = GRID.list_specs(FULL), random_state()
    for number, small in enumerate(sizes):
        step = next(step for step in range(1000) if draw_slice(len(sizes), 7, step + 1) == number)
        objective.finished.fill_(step)
        alone = build_model(small, slice_by_hand(full, small))
        torch.testing.assert_close(objective(images)["logits"], alone(images))


def slice_by_hand(full: dict[str, torch.Tensor], small: Spec) -> dict[str, torch.Tensor]:
    """Return the tensors of a slice by its shapes: the first rows of queries, keys and values."""
    chosen, sliced = choose_evenly(FULL.layers, small.layers), {}
    for name, shape in get_shapes(small).items():
        parts = name.split(".")
        source = (
            ".".join([parts[0], str(chosen[int(parts[1])]), *parts[2:]])
            if parts[0] == "blocks"
            else name
        )
        tensors = full[source].chunk(3) if ".qkv." in name else (full[source],)
        ends = (shape[0] // len(tensors), *shape[1:])
        sliced[name] = torch.cat([tensor[tuple(slice(end) for end in ends)] for tensor in tensors])
    return sliced


def test_gradients_reach_what_a_slice_has_and_nothing_else() -> None:
    objective = sample_slices(NestedGrid(hidden=(0.25,)))
    step = next(step for step in range(9) if draw_slice(2, 7, step + 1) == 0)
    objective.finished.fill_(step)
    objective(torch.randn(2, 3, FULL.image_size, FULL.image_size))[
        "logits"
    ].square().sum().backward()
    gradient = objective.model.blocks[1].mlp.fc1.weight.grad
    assert gradient[:32].ne(0).all()
    assert gradient[32:].eq(0).all()
    names = {name for name, _ in objective.named_parameters()}
    assert names == {f"model.{name}" for name in get_shapes(FULL)}, (
        "slices have no parameters of their own"
    )


def test_the_slice_of_full_size_adds_no_tensors_to_checkpoints() -> None:
    objective = sample_slices()
    names, sizes = set(objective.state_dict()), GRID.list_specs(FULL)
    full = sizes.index(FULL)
    step = next(step for step in range(1000) if draw_slice(len(sizes), 7, step + 1) == full)
    objective.finished.fill_(step)
    objective(torch.randn(2, 3, FULL.image_size, FULL.image_size))
    assert set(objective.state_dict()) == names


def test_the_full_model_alone_has_rates_by_layer() -> None:
    objective = sample_slices()
    scales = find_layer_scales(objective, 0.5)
    assert scales.keys() == {
        name for name, _ in objective.named_parameters() if name.startswith("model.")
    }
    assert scales["model.blocks.0.mlp.fc1.weight"] < scales["model.blocks.1.mlp.fc1.weight"] < 1


def test_the_slice_of_a_step_is_a_function_of_seed_and_step() -> None:
    draws = [draw_slice(4, 3, step) for step in range(1, 4001)]
    assert draws == [draw_slice(4, 3, step) for step in range(1, 4001)]
    assert draws[:40] != [draw_slice(4, 4, step) for step in range(1, 41)]
    for number in range(4):
        assert (
            abs(draws.count(number) - 1000) < 4 * (4000 * 3 / 16) ** 0.5
        )  # four standard deviations


def test_the_sizes() -> None:
    sizes = {(s.layers, s.width, s.heads, s.hidden) for s in GRID.list_specs(FULL)}
    assert sizes == {
        (layers, width, heads, width * ratio)
        for layers in (2, 4)
        for width, heads in ((16, 1), (32, 1), (32, 2))
        for ratio in (1, 2, 4)
    }
    assert GRID.list_specs(FULL)[-1] == FULL
    assert NestedGrid(hidden=()).list_specs(FULL) == [FULL]
    assert [s.layers for s in NestedGrid(hidden=(), blocks=(0.3, 0.5)).list_specs(FULL)] == [
        2,
        4,
    ], "rounded up, each once"


def test_matformers_parameters() -> None:
    config = METHODS.load("nested").preset("paper").outline([BASE])
    members = NESTED.expander.family(config)
    full = 86_567_656  # DeiT-Base with 1000 classes
    for member, share in zip(members, (1 / 8, 1 / 4, 1 / 2, 1)):
        lost = round((1 - share) * 3072)
        assert member.cost().params == full - 12 * lost * (2 * 768 + 1)
    assert len(members) == 4


def test_a_descendant_is_a_slice() -> None:
    learngene = extract()
    model = lg.expand(learngene, layers=2, width=16, mlp_ratio=2.0, classes=5)
    assert model.provenance["blocks"] == [0, 2]
    fc1 = learngene.state["blocks.2.mlp.fc1.weight"]
    assert torch.equal(model.state["blocks.1.mlp.fc1.weight"], fc1[:32, :16])
    apart = lg.expand(
        learngene, width=32, heads=1, classes=5
    )  # half of the heads, the stream as wide as it was
    assert (apart.spec.heads, apart.spec.heads_width, apart.spec.width) == (1, 16, 32)
    proj = learngene.state["blocks.1.attn.proj.weight"]
    assert torch.equal(apart.state["blocks.1.attn.proj.weight"], proj[:, :16])


def test_blocks_of_different_granularity() -> None:
    model = lg.expand(extract(), granularity=(1.0, 0.5, 0.5), classes=5)
    assert [(s.layers, s.hidden) for s in model.spec.segments] == [(1, 128), (2, 64)]
    assert sum(t.numel() for t in model.state.values()) == count_params(model.spec)
    for block, neurons in enumerate((128, 64, 64)):
        name = f"blocks.{block}.mlp.fc2.weight"
        assert torch.equal(model.state[name], extract().state[name][:, :neurons])
    model.model()(torch.randn(1, 3, 16, 16))
    with pytest.raises(WrongCall, match="granularity has 2 shares and the model 3 layers"):
        lg.expand(extract(), granularity=(1.0, 0.5))
    same = lg.expand(extract(), granularity=(0.5, 0.5, 0.5), classes=5)
    assert same.spec == lg.expand(extract(), mlp_ratio=2.0, classes=5).spec


def test_it_starts_as_the_ancestry_model_with_its_neurons_in_order() -> None:
    task, ancestry, images = make_tiny_task(), make_tiny_ancestry(), torch.randn(2, 3, 16, 16)
    still = replace(
        NESTED.presets["smoke"].each,
        ranked=task.sizes["train"],
        training=Recipe(epochs=0, batch_size=16),
    )

    def start(**changes: Any) -> dict[str, torch.Tensor]:
        extractor = NestedExtractor(
            each=replace(still, **changes), teaching=Recipe(epochs=0, batch_size=16)
        )
        return dict(extractor([ancestry], [task], Run()).state)

    plain, ordered = start(order="none"), start()
    spec = ancestry.spec.with_(classes=task.classes)
    assert all(
        torch.equal(plain[name], ancestry.state[name])
        for name in plain
        if not name.startswith("head")
    )
    assert not torch.equal(plain["blocks.0.mlp.fc1.weight"], ordered["blocks.0.mlp.fc1.weight"])
    torch.testing.assert_close(build_model(spec, plain)(images), build_model(spec, ordered)(images))
    model, seen = build_model(spec, ordered), []
    model.blocks[0].mlp.fc2.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    options: Any = {
        "batch_size": task.sizes["train"],
        "seed": 0,
        "shuffle": False,
        "augment": "none",
        "workers": 0,
    }
    with torch.no_grad():
        model(next(iter(Loader(task, "train", ancestry.input_format, **options).epoch(0))).inputs)
    sizes = seen[0].abs().mean(dim=(0, 1))
    assert sizes.diff().max() < 1e-5, "neurons fall in importance"


def test_with_another_teacher_it_starts_with_a_fresh_head() -> None:
    ancestry, task = make_tiny_ancestry(), make_tiny_task()
    start = assemble_with_head(ancestry, task, 0)
    assert (start.spec.classes, start.class_names) == (task.classes, task.class_names)
    assert all(
        torch.equal(start.state[name], ancestry.state[name])
        for name in start.state
        if "head" not in name
    )


def test_without_a_share_no_teacher_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("the teacher was asked")

    monkeypatch.setattr("lgzoo_baselines.modules.nested.guide", fail)
    smoke = NESTED.presets["smoke"]
    replace(smoke, each=replace(smoke.each, share=0.0))(
        [make_tiny_ancestry()], [make_tiny_task()], Run()
    )
    with pytest.raises(AssertionError, match="the teacher was asked"):
        smoke([make_tiny_ancestry()], [make_tiny_task()], Run())


def test_slices_of_every_width_learn_the_teachers_tokens_too() -> None:
    smoke = NESTED.presets["smoke"]
    learngene = replace(smoke, each=replace(smoke.each, tokens=20.0))(
        [make_tiny_ancestry()], [make_tiny_task()], Run()
    )
    assert not torch.equal(
        learngene.state["blocks.1.mlp.fc1.weight"], extract().state["blocks.1.mlp.fc1.weight"]
    )
    assert learngene.state.keys() == extract().state.keys()


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ({"layers": 4}, "layers is 4; the nested model has 3"),
        ({"mlp_ratio": 8.0}, "mlp_ratio is 8.0; the nested model has 4.0"),
        ({"width": 64}, "a slice has whole heads of 16 channels"),
        ({"width": 16, "heads": 2}, "width is 16 with 2 heads"),
    ],
)
def test_what_is_no_slice_is_refused(size: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        lg.expand(extract(), **size)


def test_wrong_learngenes_and_ancestries_are_refused() -> None:
    fewer = {name: tensor for name, tensor in extract().state.items() if name != "norm.weight"}
    with pytest.raises(BadFile, match=r"norm\.weight is missing"):
        lg.expand(replace(extract(), state=fewer))
    with pytest.raises(WrongCall, match="nested takes models whose blocks all have one size"):
        NESTED.extractor.outline([derive_slice_spec(FULL, 4, 2, 1, 4.0)])
    with pytest.raises(WrongCall, match=r"hidden is 1\.5; it must be above 0 and at most 1"):
        NestedGrid(hidden=(1.5,))


def test_a_slice_of_a_slice_is_a_slice() -> None:
    full, middle, small = (
        random_state(),
        derive_slice_spec(FULL, 4, 2, 2, 2.0),
        derive_slice_spec(FULL, 4, 1, 1, 2.0),
    )
    twice = slice_state(slice_state(full, FULL, middle, range(4)), middle, small, range(4))
    once = slice_state(full, FULL, small, range(4))
    assert all(torch.equal(twice[name], once[name]) for name in once)


@pytest.mark.parametrize("share", [0.25, 0.75, 1.0])
def test_the_teacher_has_its_share_of_the_loss_and_the_labels_have_the_rest(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoke, weights = NESTED.presets["smoke"], list[Any]()

    def record_weights(*arguments: Any) -> None:
        weights.append(arguments[4])
        raise InterruptedError

    monkeypatch.setattr("lgzoo_baselines.modules.nested.Distilled", record_weights)
    with pytest.raises(InterruptedError):
        replace(smoke, each=replace(smoke.each, share=share))(
            [make_tiny_ancestry()], [make_tiny_task()], Run()
        )
    assert weights == [(1 - share, share)]
