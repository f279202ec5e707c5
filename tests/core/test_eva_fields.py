"""Fields of `EvaSpec` that matter only beside others: the tensors are those that timm makes of the
same arguments.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import timm

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.eva import host
from learngene_zoo.families.eva.names import ARCHITECTURES, choose_architecture
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.tensors import get_shapes, read_shapes

SPEC = EvaSpec(layers=2, width=24, heads=2, image_size=32, patch_size=8, classes=5)


def timms(spec: EvaSpec) -> dict[str, tuple[int, ...]]:
    """The shapes of timm's own model."""
    model = timm.create_model(choose_architecture(spec), **spec.timm_args())
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    "fields",
    [
        {"rotary": False, "rope_type": "mixed"},
        {"rotary": False, "rope_type": "mixed", "rope_half": True},
        {"rotary": True, "rope_type": "mixed"},
        {"rotary": True, "rope_type": "cat"},
        {"swiglu": True},
        {"swiglu": True, "swiglu_multiple": 40},
        {"swiglu": True, "swiglu_multiple": 40, "post_norm": True},
        {"swiglu": True, "mlp_norm": True, "post_norm": True},
        {"swiglu": True, "mlp_norm": True, "swiglu_multiple": 40},
        {"swiglu": False, "swiglu_multiple": 40},
        {"layer_scale": 0.1},
        {"layer_scale": 0.1, "post_norm": True},
        {"pool": "map"},
        {"pool": "map", "pool_heads": 3},
        {"pool": "map", "pool_mlp_ratio": 2.0},
        {"pool": "map", "pool_mlp_ratio": 2.0, "mlp_ratio": 3.0},
    ],
    ids=str,
)
def test_fields_together_give_timms_tensors(fields: dict[str, Any]) -> None:
    spec = SPEC.with_(**fields)
    assert dict(get_shapes(spec)) == timms(spec)


def test_a_layer_scale_is_built_only_where_the_model_has_one() -> None:
    spec = ARCHITECTURES["vit_pe_spatial_large_patch14_448"].with_(width=64, heads=2, layers=23)
    assert dict(get_shapes(spec)) == timms(spec)


@pytest.mark.parametrize("norm_eps", [1e-6, 1e-5])
@pytest.mark.parametrize("post_norm", [False, True])
@pytest.mark.parametrize("pool", [{}, {"pool": "map"}, {"pool": "map", "pool_heads": 3}], ids=str)
@pytest.mark.parametrize("rope_type", [None, "cat", "mixed", "dinov3"])
def test_no_default_of_timms_replaces_a_value_of_none(
    norm_eps: float, post_norm: bool, pool: dict[str, Any], rope_type: str | None
) -> None:
    rotary = {"rotary": True, "rope_type": rope_type} if rope_type else {}
    values = {"norm_eps": norm_eps, "post_norm": post_norm, **pool, **rotary}
    for layer_scale, reference in product((None, 0.1), (None, 8)):
        try:
            spec = replace(SPEC, **values, layer_scale=layer_scale, rope_reference=reference)
        except WrongCall:
            assert (norm_eps, post_norm, rope_type) == (1e-5, False, "cat")
            assert layer_scale is reference is None
            continue
        model = host.create(spec)
        assert dict(get_shapes(spec)) == read_shapes(model.state_dict())
        theirs = host.read_spec(model)
        assert (theirs.layer_scale is None) == (layer_scale is None or post_norm)
        assert theirs.rope_reference == (reference if rope_type == "cat" else None)
        if pool:
            assert theirs.heads_of_pool == spec.heads_of_pool
            assert theirs.hidden_of_pool == spec.hidden_of_pool


def test_only_rotary_positions_need_heads_of_a_multiple_of_four_and_neighbouring_channels() -> None:
    half = {"rope_type": "mixed", "rope_half": True}
    assert not SPEC.with_(rotary=False, **half).frequencies
    with pytest.raises(WrongCall, match="rope_half must be false"):
        SPEC.with_(rotary=True, **half)
    assert SPEC.with_(rotary=False, heads=4).head_width == 6
    with pytest.raises(WrongCall, match="need a multiple of 4 channels per head"):
        SPEC.with_(rotary=True, heads=4)


@pytest.mark.parametrize(
    "sizes", [{"img_size": (56, 28)}, {"img_size": (28, 56)}, {"patch_size": (14, 28)}]
)
def test_images_and_patches_that_are_not_square_are_refused(sizes: dict[str, Any]) -> None:
    small = {"depth": 1, "embed_dim": 24, "num_heads": 2, "img_size": 56}
    model = timm.create_model("eva02_tiny_patch14_336", **{**small, **sizes})
    with pytest.raises(WrongCall, match=r"images of .* and patches of"):
        host.read_spec(model)


@pytest.mark.parametrize("name", ["eva02_base_patch14_448", "vit_pe_core_tiny_patch16_384"])
@pytest.mark.parametrize("ratio", [None, 2.5])
def test_a_model_that_bears_another_architectures_name_keeps_its_own_widths(
    name: str, ratio: float | None
) -> None:
    architecture = ARCHITECTURES[name]
    spec = architecture.with_(
        layers=1, width=64, heads=2, image_size=4 * architecture.patch_size, classes=5
    )
    spec = spec.with_(mlp_ratio=ratio or spec.mlp_ratio)
    model = host.create(spec)
    for other in (name, "vit_small_patch16_dinov3", "eva_giant_patch14_224", "unknown"):
        model.pretrained_cfg = {"architecture": other}
        spec_of_model = host.read_spec(model)
        assert (
            spec_of_model.hidden,
            spec_of_model.hidden_of_pool if spec_of_model.pool == "map" else 0,
        ) == (
            spec.hidden,
            spec.hidden_of_pool if spec.pool == "map" else 0,
        )
        assert get_shapes(spec_of_model) == get_shapes(spec)
