"""A fresh tensor depends only on its seed, name and shape, and is drawn as timm does."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch

from learngene_zoo.families.spec import Segment
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.names import choose_architecture, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec

TINY = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)
WIDE = ViTSpec(
    layers=2,
    width=192,
    heads=3,
    image_size=64,
    patch_size=8,
    classes=50,
    registers=2,
    layer_scale=0.1,
)


def test_a_tensor_is_a_function_of_seed_and_name() -> None:
    full, part = (
        initialise(TINY, 3),
        initialise(TINY.with_(layers=5), 3, names=["blocks.1.mlp.fc1.weight"]),
    )
    assert list(part) == ["blocks.1.mlp.fc1.weight"]
    assert torch.equal(part["blocks.1.mlp.fc1.weight"], full["blocks.1.mlp.fc1.weight"])
    assert not torch.equal(full["blocks.0.mlp.fc1.weight"], full["blocks.1.mlp.fc1.weight"])
    assert not torch.equal(initialise(TINY, 4)["head.weight"], full["head.weight"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mlp": "swiglu", "activation": "silu", "embed_norm": True},
        {"mlp": "swiglu", "proj_bias": False, "norm": "rms", "norm_eps": 1e-5},
        {"mlp": "swiglu_packed", "activation": "silu"},
        {"mlp": "swiglu_packed", "scale_norms": True, "proj_bias": False},
        {"pool": "map"},
    ],
    ids=str,
)
def test_timm_starts_as_timm_does(changes: dict[str, Any]) -> None:
    compare_with_timm(WIDE.with_(**changes))


def test_norms_after_the_branches_start_near_zero_as_in_timm() -> None:
    spec = replace(WIDE, layer_scale=None, post_norm=True, pool="map")
    compare_with_timm(spec)
    assert initialise(spec, 0)["blocks.1.norm2.weight"].unique().tolist() == pytest.approx([1e-5])
    assert initialise(spec, 0, "fan_in")["blocks.1.norm2.weight"].unique().tolist() == [1]


def compare_with_timm(spec: ViTSpec) -> None:
    torch.manual_seed(0)
    ours = initialise(spec, 0)
    theirs = timm.create_model(choose_architecture(spec), **list_arguments(spec)).state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        # Of few numbers neither the deviation nor the largest says much.
        if tensor.numel() > 1000:
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), rel=0.1), name
            assert ours[name].abs().max().item() == pytest.approx(
                tensor.abs().max().item(), rel=0.35
            ), name
            assert ours[name].mean().item() == pytest.approx(
                tensor.mean().item(), abs=0.05 * tensor.std().item()
            ), name
        elif "token" not in name and "patch_embed.proj" not in name and "latent" not in name:
            assert torch.equal(ours[name], tensor), name
    assert ours["cls_token"].abs().max() < 1e-5


def test_the_gate_of_a_packed_mlp_starts_near_one_in_all_segments() -> None:
    front = (Segment(layers=1, width=32, heads=4, mlp_ratio=2.0, stitch=False),)
    spec = replace(TINY, mlp="swiglu_packed", front=front)
    for block, hidden in (("blocks.0", 32), ("blocks.1", 64)):
        state = initialise(spec, 0)
        values, gate = state[f"{block}.mlp.fc1.weight"].split(hidden)
        assert values.std().item() == pytest.approx(0.02, rel=0.1)
        assert gate.std().item() == pytest.approx(1e-6, rel=0.1)
        assert state[f"{block}.mlp.fc1.bias"].tolist() == [0.0] * hidden + [1.0] * hidden


@pytest.mark.slow
def test_the_query_of_the_pooling_is_truncated_as_timms() -> None:
    spec = replace(TINY, width=4096, pool="map")
    name = "attn_pool.latent"
    ours = initialise(spec, 0, names=[name])[name]
    torch.manual_seed(0)
    theirs = timm.layers.AttentionPoolLatent(4096, num_heads=4).latent
    assert ours.abs().max() <= 2 / 64
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.05)


def test_fan_in_has_unit_gain() -> None:
    initial_state = initialise(WIDE, 0, "fan_in")
    assert initial_state["blocks.0.mlp.fc2.weight"].std().item() == pytest.approx(
        768**-0.5, rel=0.02
    )
    assert initial_state["patch_embed.proj.weight"].std().item() == pytest.approx(
        192**-0.5, rel=0.02
    )
    assert initial_state["pos_embed"].std().item() == pytest.approx(0.02, rel=0.05)
    assert initial_state["patch_embed.proj.bias"].abs().sum() == 0
    assert initial_state["blocks.0.ls1.gamma"].unique().tolist() == pytest.approx([0.1])
