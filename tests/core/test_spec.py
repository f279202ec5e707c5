"""A spec describes a ViT completely in plain numbers, and refuses impossible ones."""

from dataclasses import replace

import pytest
import timm
import torch

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.host import read_spec
from learngene_zoo.families.vit.names import ARCHITECTURES, TIMM_NAMES, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec

TINY = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_table_says_what_timm_builds(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, weight_init="skip")
    assert read_spec(model) == ARCHITECTURES[name]


def test_an_architecture_is_known_with_and_without_its_tag() -> None:
    assert find_architecture("deit_base_patch16_224.fb_in1k") == find_architecture(
        "deit_base_patch16_224"
    )
    assert find_architecture("resnet18") is None


def test_derived_numbers() -> None:
    spec = TINY.with_(registers=3)
    assert (spec.patches, spec.prefix_tokens, spec.tokens, spec.positions) == (16, 4, 20, 20)
    assert spec.with_(no_embed_class=True).positions == 16
    assert (spec.head_width, spec.hidden) == (8, 128)


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({}, True, False),
        ({"pool": "avg"}, False, True),
        ({"pool": "avg", "fc_norm": False}, True, False),
        ({"fc_norm": True}, False, True),
        ({"final_norm": False}, False, False),
    ],
)
def test_where_the_last_norm_is(changes: dict, before: bool, after: bool) -> None:
    spec = TINY.with_(**changes)
    assert (spec.norms_before_pool, spec.norms_after_pool) == (before, after)


def test_with_leaves_what_is_none() -> None:
    assert TINY.with_(layers=None, width=None) is not None
    assert TINY.with_(layers=None) == TINY
    assert TINY.with_(layers=3).layers == 3


def test_timm_gets_every_argument() -> None:
    assert set(list_arguments(TINY)) == set(TIMM_NAMES.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"layers": 10**9}, "between 1 and 512"),
        ({"width": 10**7, "heads": 1}, "width is 10000000"),
        ({"classes": -1}, "classes is -1"),
        ({"heads": 5}, "5 heads do not divide a width of 32; try 4"),
        (
            {"patch_size": 7},
            "patches of 7 pixels do not tile an image of 32; choose an image size of 28 or 35",
        ),
        ({"class_token": False}, "use pool 'avg'"),
        ({"mlp_ratio": 0.0}, "mlp_ratio is 0.0"),
        ({"mlp_ratio": float("nan")}, "mlp_ratio is nan"),
        ({"layer_scale": 0.0}, "layer_scale is 0.0"),
        ({"registers": 1000}, "registers is 1000"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(WrongCall, match=message.replace("(", r"\(")):
        TINY.with_(**changes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_another_size_of_images_must_be_tiled(dynamic: bool) -> None:
    spec = TINY.with_(dynamic_image_size=dynamic)
    with pytest.raises(WrongCall, match="patches of 8 pixels do not tile an image of 30"):
        spec.with_(image_size=30)
    assert spec.with_(image_size=40).patches == 25


def test_only_images_of_a_fixed_size_may_be_cropped_to_whole_patches() -> None:
    cropped = replace(TINY, image_size=30)  # as timm's modules do it
    assert cropped.patches == 9
    with pytest.raises(WrongCall, match="patches of 8 pixels do not tile an image of 30"):
        replace(cropped, dynamic_image_size=True)
