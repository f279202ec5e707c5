"""timm's and torchvision's names of one model: each other's inverse, and the same function under both."""

from __future__ import annotations

import pytest
import torch
from lgzoo_tal.names import to_timm, to_torchvision, with_timm_names, with_torchvision_names
from torchvision.models import VisionTransformer

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.initialisation import initial
from learngene_zoo.families.model import model_of, shapes
from learngene_zoo.families.vit.spec import ViTSpec

SPEC = ViTSpec(layers=11, width=24, heads=3, patch_size=4, image_size=16, classes=5)


def released() -> VisionTransformer:
    return VisionTransformer(16, 4, SPEC.layers, SPEC.heads, SPEC.width, SPEC.hidden, num_classes=5).eval()


def test_the_names_and_shapes_are_torchvisions() -> None:
    ours = with_torchvision_names(shapes(SPEC))
    assert ours == {name: tuple(tensor.shape) for name, tensor in released().state_dict().items()}


def test_both_ways_are_each_others_inverse() -> None:
    for name in shapes(SPEC):
        assert to_timm(to_torchvision(name)) == name
    assert with_timm_names(with_torchvision_names(shapes(SPEC))) == shapes(SPEC)
    assert len(set(with_torchvision_names(shapes(SPEC)))) == len(shapes(SPEC))


@torch.no_grad()
def test_renamed_weights_are_the_same_function() -> None:
    state = initial(SPEC, 0, "fan_in")
    other = released()
    other.load_state_dict(with_torchvision_names(state), strict=True)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(other(images), model_of(SPEC, state)(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["head.scale", "blocks.0.ls1.gamma", "blocks.x.norm1.weight", "conv_proj.weight", ""])
def test_a_name_that_timms_plain_vit_lacks(name: str) -> None:
    with pytest.raises(WrongCall, match="no parameter of a plain ViT in timm's naming"):
        to_torchvision(name)


@pytest.mark.parametrize(
    "name", ["encoder.layers.encoder_layer_x.ln_1.weight", "encoder.layers.encoder_layer_1.ls", "head.weight", ""]
)
def test_a_name_that_torchvisions_vit_lacks(name: str) -> None:
    with pytest.raises(WrongCall, match="no parameter of a plain ViT in torchvision's naming"):
        to_timm(name)
