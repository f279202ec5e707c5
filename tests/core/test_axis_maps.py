"""A linear map along an axis: identity, one-hot, composition, separate factors, and
function-preserving growth, in both families.
"""

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.surgery import Along, list_axes, map_axes
from learngene_zoo.families.tensors import build_model, check_state, initialise
from learngene_zoo.storage import StateDict

VIT = (
    load_family("vit")
    .examples[0]
    .with_(
        layers=3,
        width=16,
        heads=2,
        registers=2,
        qk_norm=True,
        layer_scale=0.1,
        mlp="swiglu",
        classes=3,
    )
)
EVA = load_family("eva").examples[0].with_(layers=3, width=16, heads=2, classes=3)
OCCURRING = (
    "layers",
    "width",
    "heads",
    "head_width",
    "hidden",
    "registers",
    "qkv heads head_width",
)
SCALES = re.compile(r"norm\d?\.weight|gamma")
SPECS = [pytest.param(VIT, id="vit"), pytest.param(EVA, id="eva")]


def state_of(spec: Spec) -> StateDict:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator = torch.Generator().manual_seed(0)
    fresh = initialise(spec, 0, "fan_in")
    return {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in fresh.items()
    }


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def one_hot(indices: list[int], size: int) -> torch.Tensor:
    return torch.eye(size)[indices]


def outputs(spec: Spec, state: StateDict) -> torch.Tensor:
    images = torch.randn(
        2, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        logits: torch.Tensor = build_model(spec, state)(images)
    return logits


@pytest.mark.parametrize("spec", SPECS)
def test_identity_returns_the_model(spec: Spec) -> None:
    state = state_of(spec)
    for axis, size in list_axes(spec).items():
        full = map_axes(state, spec, {axis: range(size)})
        assert same(full, state), axis
        assert all(full[name].data_ptr() == state[name].data_ptr() for name in state), (
            axis
        )  # nothing is copied
        assert same(map_axes(state, spec, {axis: torch.eye(size)}), state), axis


@pytest.mark.parametrize("spec", SPECS)
def test_a_selection_is_its_one_hot_matrix(spec: Spec) -> None:
    state = state_of(spec)
    for axis, size in list_axes(spec).items():
        chosen = [*reversed(range(size)), 0][: max(size - 1, 1)]
        selected = map_axes(state, spec, {axis: chosen})
        assert same(map_axes(state, spec, {axis: one_hot(chosen, size)}), selected), axis
        assert size == 1 or axis not in OCCURRING or not same(selected, state), axis


@pytest.mark.parametrize("spec", SPECS)
def test_selections_compose_along_every_axis(spec: Spec) -> None:
    state, few = state_of(spec), spec.with_(layers=2)
    first, second = [2, 0], [1, 1, 0]
    twice = map_axes(map_axes(state, spec, {"layers": first}), few, {"layers": second})
    assert same(twice, map_axes(state, spec, {"layers": [first[index] for index in second]}))
    narrow = spec.with_(width=8, heads=1)
    cut = {"width": range(1, 16, 2), "heads": [1], "hidden": range(0, spec.hidden, 2)}
    once = map_axes(state, spec, cut)
    check_state(once, narrow, "cut")
    turned = map_axes(once, narrow, {"width": list(reversed(range(8)))})
    assert same(turned, map_axes(state, spec, {**cut, "width": list(reversed(range(1, 16, 2)))}))


@pytest.mark.parametrize("spec", SPECS)
def test_matrices_compose_where_nothing_is_scaled(spec: Spec) -> None:
    generator, state = torch.Generator().manual_seed(0), state_of(spec)
    for axis in ("width", "hidden", "layers"):
        size = list_axes(spec)[axis]
        P, Q = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2))
        twice, once = (
            map_axes(map_axes(state, spec, {axis: P}), spec, {axis: Q}),
            map_axes(state, spec, {axis: Q @ P}),
        )
        for name in state:
            if axis == "layers" or not SCALES.search(name):
                torch.testing.assert_close(twice[name], once[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("spec", SPECS)
def test_heads_keep_queries_keys_and_values_apart(spec: Spec) -> None:
    state = state_of(spec)
    mix = torch.tensor([[2.0, -1.0]])
    mapped = map_axes(state, spec, {"heads": mix})
    parts = state["blocks.1.attn.qkv.weight"].reshape(3, 2, 8, 16)
    expected = 2 * parts[:, 0] - parts[:, 1]
    torch.testing.assert_close(mapped["blocks.1.attn.qkv.weight"], expected.reshape(24, 16))
    columns = state["blocks.1.attn.proj.weight"]
    torch.testing.assert_close(
        mapped["blocks.1.attn.proj.weight"], 2 * columns[:, :8] - columns[:, 8:]
    )
    assert mapped["blocks.1.mlp.fc2.weight"] is state["blocks.1.mlp.fc2.weight"]


def test_a_whole_dimension_is_mapped_before_its_factors() -> None:
    state = state_of(VIT)
    mapped = map_axes(state, VIT, {"qkv heads head_width": range(0, 48, 2), "heads": [0]})
    assert torch.equal(mapped["blocks.0.attn.qkv.weight"], state["blocks.0.attn.qkv.weight"][::2])
    assert torch.equal(
        mapped["blocks.0.attn.proj.weight"], state["blocks.0.attn.proj.weight"][:, :8]
    )


@pytest.mark.parametrize("spec", SPECS)
def test_stem_norms_and_scales_follow_the_stream(spec: Spec) -> None:
    state = state_of(spec)
    M = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    mapped = map_axes(state, spec, {"width": M})
    torch.testing.assert_close(mapped["cls_token"], state["cls_token"] @ M.T)
    torch.testing.assert_close(mapped["reg_token"], state["reg_token"] @ M.T)
    torch.testing.assert_close(mapped["patch_embed.proj.bias"], M @ state["patch_embed.proj.bias"])
    assert mapped["patch_embed.proj.weight"].shape == (
        5,
        *state["patch_embed.proj.weight"].shape[1:],
    )
    torch.testing.assert_close(
        mapped["blocks.2.norm1.weight"], M.square() @ state["blocks.2.norm1.weight"]
    )
    torch.testing.assert_close(mapped["blocks.2.norm1.bias"], M @ state["blocks.2.norm1.bias"])
    gamma = "blocks.2.gamma_1" if spec is EVA else "blocks.2.ls1.gamma"
    torch.testing.assert_close(mapped[gamma], M.square() @ state[gamma])
    if "pos_embed" in state:
        torch.testing.assert_close(mapped["pos_embed"], state["pos_embed"] @ M.T)


@pytest.mark.parametrize("spec", SPECS)
def test_what_reads_may_be_mapped_otherwise_than_what_writes(spec: Spec) -> None:
    """Net2Net: neurons, heads and the stream are doubled, and the layers that read them use half of
    each copy.
    """

    def doubled(size: int) -> Along:
        twice = [*range(size), *range(size)]
        return Along(write=twice, read=one_hot(twice, size) / 2)

    state = state_of(spec)
    wide = {"hidden": (spec.with_(mlp_ratio=2 * spec.mlp_ratio), ["hidden"])}
    wide["width"] = (
        spec.with_(width=32, heads=4, mlp_ratio=spec.mlp_ratio / 2),
        ["width", "heads"],
    )
    for larger, axes in wide.values():
        grown: dict[str, Any] = {axis: doubled(list_axes(spec)[axis]) for axis in axes}
        mapped = map_axes(state, spec, grown)
        check_state(mapped, larger, "grown")
        torch.testing.assert_close(
            outputs(larger, mapped), outputs(spec, state), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("spec", SPECS)
def test_a_block_is_mixed_of_others(spec: Spec) -> None:
    state = state_of(spec)
    mapped = map_axes(state, spec, {"layers": torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])})
    check_state(mapped, spec.with_(layers=2), "mixed")
    for inner in ("attn.qkv.weight", "norm2.weight", "mlp.fc2.bias"):
        ends = state[f"blocks.0.{inner}"], state[f"blocks.2.{inner}"]
        torch.testing.assert_close(mapped[f"blocks.1.{inner}"], (ends[0] + ends[1]) / 2)
    if "rope.freqs" in state:
        torch.testing.assert_close(
            mapped["rope.freqs"][:, 1], state["rope.freqs"][:, [0, 2]].mean(dim=1)
        )


def test_a_matrix_computes_in_its_own_precision() -> None:
    state = state_of(VIT)
    M = torch.randn(4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mapped = map_axes(state, VIT, {"width": M})["blocks.0.mlp.fc2.weight"]
    assert torch.equal(mapped, (M @ state["blocks.0.mlp.fc2.weight"].double()).float())


@pytest.mark.parametrize(
    ("axis", "how", "said"),
    [
        (
            "width",
            torch.zeros(4, 15),
            r"matrix for width has shape \(4, 15\); expected \(new size, 16\)",
        ),
        ("heads", Along(write=[0], read=torch.zeros(2)), r"matrix for heads has shape \(2,\)"),
        ("heads", Along(write=[0], read=[2]), "expected indices of heads from 0 to 1, got 2"),
        ("layers", [3], "expected indices of layers from 0 to 2, got 3"),
        ("depth", [0], "no axis named 'depth'"),
    ],
)
def test_maps_that_do_not_fit_are_refused(axis: str, how: Any, said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        map_axes(state_of(VIT), VIT, {axis: how})
