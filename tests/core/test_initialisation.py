"""A fresh tensor depends only on its seed, name and shape, and is drawn as timm does."""

import pytest
import timm
import torch

from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.names import ARCHITECTURE, list_arguments
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


def test_timm_starts_as_timm_does() -> None:
    torch.manual_seed(0)
    ours = initialise(WIDE, 0)
    theirs = timm.create_model(ARCHITECTURE, **list_arguments(WIDE)).state_dict()
    for name, tensor in theirs.items():
        # Of few numbers neither the deviation nor the largest says much.
        if tensor.numel() > 1000:
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), rel=0.1), name
            assert ours[name].abs().max().item() == pytest.approx(
                tensor.abs().max().item(), rel=0.3
            ), name
        elif "token" not in name and "patch_embed" not in name:
            assert torch.equal(ours[name], tensor), name
    assert ours["cls_token"].abs().max() < 1e-5


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
