"""Surgery is pure: identity, composition, preserved shapes, no mutation, and no reads of tensors
that are not used.
"""

from collections.abc import Iterator, Mapping

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from learngene_zoo.errors import WrongCall
from learngene_zoo.families import tensors
from learngene_zoo.families.family import get_table
from learngene_zoo.families.surgery import map_axes
from learngene_zoo.families.tensors import (
    build_model,
    check_state,
    get_shapes,
    initialise,
    take_blocks,
)
from learngene_zoo.families.vit.spec import ViTSpec, list_axis_sizes

SPEC = ViTSpec(
    layers=3,
    width=32,
    heads=4,
    image_size=32,
    patch_size=8,
    classes=5,
    registers=2,
    qk_norm=True,
    layer_scale=0.1,
)
STATE = initialise(SPEC, 0)


class Recording(Mapping[str, torch.Tensor]):
    """A state that records which of its tensors were read."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self.state, self.read = state, []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return self.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)


@pytest.fixture(autouse=True)
def _nothing_is_mutated() -> Iterator[None]:
    before = {name: tensor.clone() for name, tensor in STATE.items()}
    yield
    assert same(STATE, before)


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two states have the same names in the same order and equal tensors."""
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_taking_every_block_is_identity() -> None:
    assert same(take_blocks(STATE, SPEC, range(3)), STATE)


def test_taking_composes() -> None:
    twice = take_blocks(take_blocks(STATE, SPEC, [2, 0, 0, 1]), SPEC, [3, 1, 0])
    assert same(twice, take_blocks(STATE, SPEC, [1, 0, 2]))


def test_a_taken_state_fits_its_spec_and_shares_what_repeats() -> None:
    selected = take_blocks(STATE, SPEC, [1, 1, 2, 2, 0])
    check_state(selected, SPEC.with_(layers=5), "taken")
    assert list(selected) == list(get_shapes(SPEC.with_(layers=5)))
    assert (
        selected["blocks.0.mlp.fc1.weight"]
        is selected["blocks.1.mlp.fc1.weight"]
        is STATE["blocks.1.mlp.fc1.weight"]
    )


def test_taking_reads_what_it_keeps_and_that_once() -> None:
    state = Recording(STATE)
    take_blocks(state, SPEC, [1, 1, 1])
    assert len(state.read) == len(set(state.read))
    assert not any(name.startswith(("blocks.0.", "blocks.2.")) for name in state.read)


def test_taking_what_is_not_there() -> None:
    with pytest.raises(WrongCall, match="no block 3; expected one of 0, 1, 2"):
        take_blocks(STATE, SPEC, [0, 3])


def test_removing_the_head() -> None:
    assert set(STATE) - set(tensors.remove_head(STATE, SPEC)) == {"head.weight", "head.bias"}


def test_selecting_everything_is_identity() -> None:
    for axis, size in list_axis_sizes(SPEC).items():
        assert same(map_axes(STATE, SPEC, {axis: range(size)}), STATE)


def test_selecting_a_head_takes_its_rows_of_query_key_and_value() -> None:
    cut = map_axes(STATE, SPEC, {"heads": [2]})
    rows = [part * 32 + 2 * 8 + row for part in range(3) for row in range(8)]
    assert torch.equal(cut["blocks.1.attn.qkv.weight"], STATE["blocks.1.attn.qkv.weight"][rows])
    assert torch.equal(
        cut["blocks.1.attn.proj.weight"], STATE["blocks.1.attn.proj.weight"][:, 16:24]
    )
    assert cut["blocks.1.mlp.fc1.weight"] is STATE["blocks.1.mlp.fc1.weight"]


def test_half_of_every_width_is_a_model() -> None:
    half = map_axes(STATE, SPEC, {"width": range(0, 32, 2), "heads": [0, 3], "hidden": range(64)})
    narrow = SPEC.with_(width=16, heads=2)
    check_state(half, narrow, "half")
    assert build_model(narrow, half)(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_a_permutation_of_the_hidden_units_is_the_same_function() -> None:
    images_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    turned = map_axes(STATE, SPEC, {"hidden": list(reversed(range(128))), "heads": [3, 1, 0, 2]})
    outputs = [build_model(SPEC, state)(images_BCHW) for state in (STATE, turned)]
    assert torch.allclose(*outputs, atol=1e-6)
    assert not same(STATE, turned)


def test_selecting_composes() -> None:
    first = map_axes(STATE, SPEC, {"hidden": [5, 3, 1]})
    second = map_axes(first, SPEC.with_(mlp_ratio=3 / 32), {"hidden": [2, 0]})
    assert same(second, map_axes(STATE, SPEC, {"hidden": [1, 5]}))


@pytest.mark.parametrize(
    ("axis", "indices", "message"),
    [
        ("head", [0], "no axis named 'head'; did you mean heads"),
        ("heads", [4], "from 0 to 3, got 4"),
        ("heads", [-1], "from 0 to 3, got -1"),
        ("heads", [], "from 0 to 3, got none"),
    ],
)
def test_selecting_what_is_not_there(axis: str, indices: list[int], message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        map_axes(STATE, SPEC, {axis: indices})


def test_positions_are_resized_as_timm_does() -> None:
    larger = SPEC.with_(image_size=64)
    resized = tensors.resize_positions(STATE, SPEC, larger)
    check_state(resized, larger, "resized")
    assert torch.equal(
        resized["pos_embed"],
        resample_abs_pos_embed(STATE["pos_embed"], [8, 8], num_prefix_tokens=3),
    )
    assert torch.equal(resized["pos_embed"][:, :3], STATE["pos_embed"][:, :3])
    assert same(tensors.resize_positions(STATE, SPEC, SPEC), STATE)


def test_positions_without_tokens_before_the_patches() -> None:
    spec = SPEC.with_(no_embed_class=True)
    resized = tensors.resize_positions(initialise(spec, 0), spec, spec.with_(image_size=64))
    assert resized["pos_embed"].shape == (1, 64, 32)
    with pytest.raises(WrongCall, match="positions for 3 tokens before the patches, got 0"):
        tensors.resize_positions(initialise(spec, 0), spec, SPEC.with_(image_size=64))


def test_shuffling_keeps_the_numbers_and_loses_their_places() -> None:
    names = ["pos_embed", "blocks.0.mlp.fc1.weight"]
    mixed = tensors.shuffle_tensors(STATE, names, 3)
    assert list(mixed) == list(STATE)
    for name in STATE:
        assert torch.equal(mixed[name].flatten().sort()[0], STATE[name].flatten().sort()[0])
        assert torch.equal(mixed[name], STATE[name]) == (name not in names)
    assert same(mixed, tensors.shuffle_tensors(STATE, names, 3))
    assert not torch.equal(
        mixed["pos_embed"], tensors.shuffle_tensors(STATE, names, 4)["pos_embed"]
    )


def test_a_tensor_is_shuffled_by_its_own_name_alone() -> None:
    alone = tensors.shuffle_tensors({"pos_embed": STATE["pos_embed"]}, ["pos_embed"], 3)
    assert torch.equal(alone["pos_embed"], tensors.shuffle_tensors(STATE, STATE, 3)["pos_embed"])


def test_casting_keeps_sharing_and_leaves_integers() -> None:
    state = {**take_blocks(STATE, SPEC, [0, 0]), "count": torch.tensor([3])}
    half = tensors.cast(state, torch.float16)
    assert half["blocks.0.norm1.weight"] is half["blocks.1.norm1.weight"]
    assert half["count"].dtype == torch.int64
    assert all(tensor.dtype == torch.float16 for name, tensor in half.items() if name != "count")
    assert tensors.cast(STATE, torch.float32)["pos_embed"] is STATE["pos_embed"]


def test_every_tensor_has_as_many_axes_as_the_table_says() -> None:
    for name, kind, _ in get_table(SPEC).parameters(SPEC):
        assert STATE[name].dim() == len(kind.axes)
