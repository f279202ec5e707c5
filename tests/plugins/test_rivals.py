"""Baselines without training: chosen and stacked blocks, selected and subcloned weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import get_table, load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_model, get_shapes
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_baselines.blocks.block_choice import (
    BlockChoiceExtractor,
    choose_evenly,
    choose_first,
    choose_last,
    choose_middle,
)
from lgzoo_baselines.blocks.stacked import repeat_blocks
from lgzoo_baselines.weights.weight_selection import select_entries
from lgzoo_baselines.weights.weight_subcloning import (
    NeuronRanking,
    WeightSubcloningExpander,
    WeightSubcloningExtractor,
    choose_ends,
    reorder_neurons,
)

CHOICES = {
    "first_k": choose_first,
    "last_k": choose_last,
    "middle_k": choose_middle,
    "evenly_spaced": choose_evenly,
}

VIT = (
    load_family("vit").examples[0].with_(layers=4, width=48, heads=3, registers=2, layer_scale=0.1)
)
EVA = load_family("eva").examples[0].with_(layers=4, width=48, heads=3)
SPECS = [pytest.param(VIT, id="vit"), pytest.param(EVA, id="eva")]


def perturb(spec: Spec) -> Ancestry:
    """Random numbers everywhere, so that no gain is 1 and no shift 0."""
    generator, plain = torch.Generator().manual_seed(0), make_tiny_ancestry(spec=spec)
    noisy = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in plain.state.items()
    }
    return replace(plain, state=noisy)


def extract(name: str, ancestry: Ancestry, **settings: Any) -> lg.Learngene:
    method = METHODS.load(name)
    extractor = replace(method.presets["smoke"], **settings)
    learngene = extractor([ancestry], [make_tiny_task()] if method.tasks == "one" else [], Run())
    return learngene.with_config(method=name, ancestries=(ancestry.record,))


# Blocks by their places.


@pytest.mark.parametrize(
    ("name", "whole", "layers", "expected"),
    [
        ("first_k", 12, 3, [0, 1, 2]),
        ("last_k", 12, 3, [9, 10, 11]),
        ("middle_k", 12, 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("middle_k", 12, 3, [4, 5, 6]),
        ("evenly_spaced", 12, 6, [0, 2, 4, 7, 9, 11]),
        ("evenly_spaced", 12, 3, [0, 6, 11]),  # 5.5 is rounded up
        ("evenly_spaced", 12, 1, [0]),
    ],
)
def test_the_places_of_the_blocks(name: str, whole: int, layers: int, expected: list[int]) -> None:
    assert CHOICES[name](whole, layers) == expected


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_depth_has_blocks_in_their_order_and_the_full_depth_all(name: str) -> None:
    for depth in (1, 2, 5, 12):
        for layers in range(1, depth + 1):
            actual = CHOICES[name](depth, layers)
            assert len(actual) == layers
            assert actual == sorted(set(actual))
            assert set(actual) <= set(range(depth))
        assert CHOICES[name](depth, depth) == list(range(depth))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", [*sorted(CHOICES), "stacked"])
def test_the_blocks_are_the_ancestry_models(name: str, spec: Spec) -> None:
    ancestry, table = perturb(spec), get_table(spec)
    learngene = extract(name, ancestry)
    small = lg.expand(learngene, layers=2, classes=5)
    places = small.provenance["blocks"]
    assert small.inherited == {name for name in small.state if not table.is_head(name)}
    for inherited in small.inherited:
        block = table.block_of(inherited)
        source = (
            inherited
            if block is None
            else table.block_name(places[block], table.inner_name(inherited))
        )
        expected = ancestry.state[source]
        if inherited == "rope.freqs":
            expected = expected[:, places]
        assert torch.equal(small.state[inherited], expected), inherited


def test_no_more_blocks_than_there_are() -> None:
    with pytest.raises(
        WrongCall, match="layers is 5; the ancestry model has 4, and first_k builds no deeper one"
    ):
        lg.expand(extract("first_k", perturb(VIT)), layers=5)


def test_without_stored_weights_the_ancestry_model_is_opened_again() -> None:
    stored, named = (
        lg.extract("first_k", extractor=BlockChoiceExtractor(store=store))
        for store in (True, False)
    )
    assert not named.state
    small = [lg.expand(learngene, layers=2) for learngene in (stored, named)]
    assert small[0].inherited == small[1].inherited
    assert all(torch.equal(small[0].state[name], small[1].state[name]) for name in small[0].state)
    with pytest.raises(WrongCall, match="neither stores nor records its ancestry model"):
        lg.expand(named.with_config(ancestries=()), layers=2)


def test_a_learngene_that_lost_a_tensor_is_refused() -> None:
    learngene = extract("last_k", perturb(VIT))
    fewer = {
        name: tensor for name, tensor in learngene.state.items() if name != "blocks.3.norm1.weight"
    }
    with pytest.raises(
        BadFile, match=r"blocks\.3\.norm1\.weight is missing; expected shape \(48,\)"
    ):
        lg.expand(replace(learngene, state=fewer), layers=2)


# Stacked ones.


def test_stacks_and_interlaced_blocks() -> None:
    assert repeat_blocks(3, 7, "stack") == [0, 1, 2, 0, 1, 2, 0]
    assert repeat_blocks(3, 6, "interlace") == [0, 0, 1, 1, 2, 2]
    assert repeat_blocks(3, 7, "interlace") == [0, 0, 0, 1, 1, 2, 2]
    for order in ("stack", "interlace"):
        assert repeat_blocks(4, 4, order) == [0, 1, 2, 3]  # type: ignore[arg-type]


def test_a_stack_is_deeper_than_the_ancestry_model() -> None:
    learngene = extract("stacked", perturb(VIT))
    deep = lg.expand(learngene, layers=9, base=3)
    assert deep.provenance["blocks"] == [0, 1, 2] * 3
    assert deep.spec.layers == 9
    with pytest.raises(WrongCall, match="base is 5; the ancestry model has 4 blocks"):
        lg.expand(learngene, layers=9, base=5)


# Weight selection.


def select_as_published(teacher: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the authors' selection: in one dimension after the other, entries at equal steps."""
    for dimension, size in enumerate(shape):
        full = teacher.shape[dimension]
        places = (
            torch.arange(size) * (full // size)
            if full % size == 0
            else torch.linspace(0, full - 1, size).round()
        )
        teacher = teacher.index_select(dimension, places.long())
    return teacher


@pytest.mark.parametrize("sizes", [(2, 16, 1), (3, 32, 2), (4, 40, 5), (1, 48, 3)])
@pytest.mark.parametrize(
    "spec", [*SPECS, pytest.param(VIT.with_(mlp="swiglu_packed", qk_norm=False), id="packed")]
)
def test_it_is_the_authors_function(spec: Spec, sizes: tuple[int, int, int]) -> None:
    layers, width, heads = sizes
    if spec is EVA and heads > spec.heads:
        pytest.skip("learned frequencies of five heads cannot be selected from those of three")
    ancestry = perturb(spec)
    small = lg.expand(
        extract("weight_selection", ancestry), layers=layers, width=width, heads=heads, classes=5
    )
    for name, shape in get_shapes(small.spec).items():
        if "head." in name:
            assert name not in small.inherited
        elif name == "rope.freqs":
            assert torch.equal(
                small.state[name][0, 1:layers],
                select_as_published(ancestry.state[name][:, :layers], shape)[0, 1:],
            )
        else:
            assert torch.equal(
                small.state[name], select_as_published(ancestry.state[name], shape)
            ), name


def test_the_selected_entries() -> None:
    assert select_entries(12, 4, "uniform") == [0, 3, 6, 9]
    assert select_entries(12, 5, "uniform") == [0, 3, 6, 8, 11]  # 5.5 becomes 6, as torch rounds
    assert select_entries(7, 1, "uniform") == [0]
    assert select_entries(12, 5, "consecutive") == [0, 1, 2, 3, 4]


def test_the_full_size_is_the_ancestry_model_and_blocks_are_the_first() -> None:
    ancestry = perturb(VIT)
    learngene = extract("weight_selection", ancestry)
    full = lg.expand(learngene)
    assert all(torch.equal(full.state[name], ancestry.state[name]) for name in full.inherited)
    assert lg.expand(learngene, layers=2).provenance["blocks"] == [0, 1]
    assert lg.expand(learngene, layers=2, blocks="uniform").provenance["blocks"] == [0, 2]


def test_whole_heads_are_taken_where_that_is_asked() -> None:
    ancestry = perturb(VIT)
    small = lg.expand(extract("weight_selection", ancestry), width=32, whole_heads=True)
    columns = select_as_published(torch.arange(48), (32,))
    rows = [
        part * 48 + head * 16 + row for part in range(3) for head in (0, 2) for row in range(16)
    ]
    expected = ancestry.state["blocks.0.attn.qkv.weight"][rows][:, columns]
    assert torch.equal(small.state["blocks.0.attn.qkv.weight"], expected)


def test_no_dimension_grows() -> None:
    learngene = extract("weight_selection", perturb(VIT))
    with pytest.raises(WrongCall, match="would be 64, but is 48 in the ancestry model"):
        lg.expand(learngene, width=64, mlp_ratio=2.0)
    with pytest.raises(WrongCall, match="hidden would be 256, but is 192"):
        lg.expand(learngene, width=32, mlp_ratio=8.0)


# Weight subcloning.


def outputs(spec: Spec, state: StateDict) -> torch.Tensor:
    images = torch.randn(
        2, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        answer: torch.Tensor = build_model(spec, state)(images)
    return answer


def test_the_middle_is_left_out() -> None:
    assert choose_ends(12, 6) == [0, 1, 2, 9, 10, 11]
    assert choose_ends(12, 5) == [0, 1, 2, 10, 11]
    assert choose_ends(4, 1) == [0]
    assert choose_ends(4, 4) == [0, 1, 2, 3]


def test_neurons_are_ranked_by_their_mean_magnitude() -> None:
    """Weights are set so that the places of large values are known."""
    ancestry = make_tiny_ancestry(spec=VIT.with_(layers=2, registers=0, layer_scale=None))
    state = {name: tensor.clone() for name, tensor in ancestry.state.items()}
    state["pos_embed"][..., 7] += 100  # the stream's largest channel
    state["blocks.1.mlp.fc1.bias"][11] += 100
    state["blocks.0.attn.qkv.bias"][96 + 16 : 96 + 32] -= 100  # the values of head 1
    actual = extract("weight_subcloning", replace(ancestry, state=state)).state
    assert actual["importance.width"].argmax() == 7
    assert actual["importance.hidden"][1].argmax() == 11
    assert actual["importance.heads"][0].argmax() == 1
    for axis, shape in (("width", (48,)), ("heads", (2, 3)), ("hidden", (2, 192))):
        assert tuple(actual[f"importance.{axis}"].shape) == shape
        assert torch.allclose(actual[f"importance.{axis}"].mean(dim=-1), torch.ones(()), atol=1e-5)


def test_the_mean_is_over_images_and_tokens_and_all_blocks() -> None:
    ancestry, task, run = perturb(VIT.with_(layers=2)), make_tiny_task(), Run(seed=3)
    actual = WeightSubcloningExtractor(each=NeuronRanking(images=48))(
        [ancestry], [task], run
    ).state["importance.width"]
    options: dict[str, Any] = {"batch_size": 48, "seed": 0, "shuffle": False}
    (batch,) = Loader(task, "train", ancestry.input_format, **options).epoch(0)
    model = ancestry.model()
    with torch.no_grad():
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(batch.inputs)))
        total = tokens.abs().sum(dim=(0, 1))
        for block in model.blocks:
            tokens = block(tokens)
            total += tokens.abs().sum(dim=(0, 1))
    torch.testing.assert_close(actual, total / total.mean(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", SPECS)
def test_reordering_changes_no_answer(spec: Spec) -> None:
    ancestry = perturb(spec)
    learngene = extract("weight_subcloning", ancestry)
    turned = reorder_neurons(ancestry.state, spec, learngene.state)
    assert not torch.equal(
        turned["blocks.1.mlp.fc1.weight"], ancestry.state["blocks.1.mlp.fc1.weight"]
    )
    torch.testing.assert_close(
        outputs(spec, turned), outputs(spec, ancestry.state), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("spec", SPECS)
def test_a_smaller_one_has_the_most_important_neurons_rescaled(spec: Spec) -> None:
    ancestry = perturb(spec)
    learngene = extract("weight_subcloning", ancestry)
    small = lg.expand(learngene, layers=3, width=32, classes=5)
    assert small.provenance["blocks"] == [0, 1, 3]
    stream, hidden = (
        learngene.state[f"importance.{axis}"].argsort(dim=-1, descending=True)
        for axis in ("width", "hidden")
    )
    kept, neurons = stream[:32], hidden[3][: small.spec.hidden]
    fc2 = ancestry.state["blocks.3.mlp.fc2.weight"][kept][:, neurons]
    torch.testing.assert_close(small.state["blocks.2.mlp.fc2.weight"], (48 / 32) ** 0.5 * fc2)
    torch.testing.assert_close(
        small.state["blocks.2.mlp.fc2.bias"], ancestry.state["blocks.3.mlp.fc2.bias"][kept]
    )
    torch.testing.assert_close(
        small.state["blocks.2.norm1.weight"], ancestry.state["blocks.3.norm1.weight"][kept]
    )
    patches = ancestry.state["patch_embed.proj.weight"][kept]
    torch.testing.assert_close(
        small.state["patch_embed.proj.weight"], patches
    )  # it reads as many pixels as before
    plain = lg.expand(
        learngene, layers=3, width=32, classes=5, expander=WeightSubcloningExpander(rescale=False)
    )
    torch.testing.assert_close(plain.state["blocks.2.mlp.fc2.weight"], fc2)


def test_smaller_sizes_are_nested_but_for_their_scale() -> None:
    learngene = extract("weight_subcloning", perturb(VIT))
    wide, narrow = (lg.expand(learngene, width=width, rescale=False) for width in (32, 16))
    for name in ("blocks.1.attn.proj.weight", "blocks.1.mlp.fc1.weight", "pos_embed"):
        inner = narrow.state[name]
        assert torch.equal(wide.state[name][tuple(slice(size) for size in inner.shape)], inner)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"layers": 5}, "layers is 5; the ancestry model has 4"),
        ({"width": 64}, "width is 64; the ancestry model has 48"),
        ({"width": 24, "heads": 2}, "whole heads are kept: choose width 16, 32, 48"),
        ({"mlp_ratio": 8.0}, "hidden is 384; the ancestry model has 192"),
    ],
)
def test_sizes_that_cannot_be_cut_are_refused(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        lg.expand(extract("weight_subcloning", perturb(VIT)), **sizes)


def test_importances_that_are_not_there_are_refused() -> None:
    learngene = extract("weight_subcloning", perturb(VIT))
    fewer = {name: tensor for name, tensor in learngene.state.items() if name != "importance.heads"}
    with pytest.raises(BadFile, match=r"lacks importance\.heads of shape \(4, 3\)"):
        lg.expand(replace(learngene, state=fewer), layers=2)
