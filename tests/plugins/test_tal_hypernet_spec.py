"""The published hypernetworks: parameter counts, the shape encoder's grids, reachable targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tal_toy import VARIANTS

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.names import ARCHITECTURES
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.hypernet_spec import HypernetSpec, check_target, count_decoded_channels
from lgzoo_tal.modules.encoder import build_channel_grid, build_spatial_grid, find_indices
from lgzoo_tal.modules.hypernet import Hypernet

PUBLISHED = {
    "ghn3-t": 6_906_632,
    "ghn3-s": 35_810_368,
    "ghn3-l": 214_668_960,
    "ghn3-xl": 654_365_184,
    "logah-tiny": 2_540_380,
    "logah-small": 21_412_794,
    "logah-base": 78_231_892,
    "logah-large": 289_423_316,
}
CIFAR = {"ghn3-t": 4_531_500, "ghn3-s": 26_638_404, "ghn3-l": 178_632_292, "ghn3-xl": 573_769_092}
TAL = {"logah-tiny": 2_834_620, "logah-small": 22_388_924}
TINY = HypernetSpec(hidden=16, layers=2, heads=2, decoder="low_rank", rank=4, widest=64, chunk=512)


def read_published_params(spec: HypernetSpec) -> int:
    """The parameters as the papers count them: with those of the released code that nothing reads.

    Next to a low-rank decoder these are two linear layers from one number to one; in LoGAH, not in
    TAL, one more of (r, r).
    """
    params = sum(parameter.numel() for parameter in Hypernet(spec, seed=None).parameters())
    if spec.rank is None:
        return params
    return params + 4 + (0 if spec.task else spec.rank**2 + spec.rank)


def test_published_parameter_counts() -> None:
    assert {name: read_published_params(spec) for name, spec in VARIANTS.items()} == PUBLISHED
    assert {
        name: read_published_params(VARIANTS[name].with_(classes=10, spatial=11)) for name in CIFAR
    } == CIFAR
    assert {name: read_published_params(VARIANTS[name].with_(task=768)) for name in TAL} == TAL


def test_a_plain_task_layer_has_no_bias_and_stands_once() -> None:
    tiny = VARIANTS["logah-tiny"].with_(task=768)
    plain = tiny.with_(task_form="plain", task_place="graph")
    fewer = 3 * 2 * (768 + 1) * 64 - 2 * 768 * 64
    assert read_published_params(tiny) - read_published_params(plain) == fewer


def test_grids_have_the_released_tables_sizes() -> None:
    assert [len(build_channel_grid(classes)) + 1 for classes in (10, 1000, 64, 3)] == [
        392,
        392,
        391,
        391,
    ]
    assert [len(build_spatial_grid(spatial)) + 1 for spatial in (11, 16)] == [9, 11]


@pytest.mark.parametrize(
    ("size", "meant"),
    [
        (1, 1),
        (2, 1),
        (3, 3),
        (4, 8),
        (7, 8),
        (12, 8),
        (13, 16),
        (10, 8),
        (71, 64),
        (72, 64),
        (73, 80),
        (9000, 8192),
    ],
)
def test_channels_are_taken_for_the_nearest_on_the_grid(size: int, meant: int) -> None:
    grid = build_channel_grid(1000)
    assert [grid[row] for row in find_indices((size, size), 1000, 16)[:2]] == [meant, meant]


@pytest.mark.parametrize(
    ("size", "meant"),
    [(1, 1), (2, 3), (3, 3), (4, 3), (6, 5), (8, 7), (12, 11), (14, 14), (16, 16), (40, 16)],
)
def test_kernels_are_taken_for_the_nearest_on_the_grid(size: int, meant: int) -> None:
    grid = build_spatial_grid(16)
    assert [grid[row] for row in find_indices((8, 8, size, size), 10, 16)[2:]] == [meant, meant]


def test_classes_count_as_themselves_and_no_parameter_has_rows_of_its_own() -> None:
    assert build_channel_grid(5)[find_indices((5,), 5, 16)[0]] == 5
    assert find_indices(None, 10, 16) == (391, 391, 10, 10)


@pytest.mark.parametrize(
    ("size", "channels"),
    [
        (10, 10),
        (192, 256),
        (384, 512),
        (576, 768),
        (768, 2048),
        (1000, 1000),
        (1024, 2048),
        (3072, 2048),
    ],
)
def test_channels_that_are_decoded(size: int, channels: int) -> None:
    assert count_decoded_channels(size, 2048) == channels


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "hidden is 0; it must be at least 1"),
        ({"layers": 300}, "layers is 300; it must be at least 1 and at most 256"),
        ({"hidden": 18, "heads": 3}, "multiple of 4"),
        ({"heads": 3}, "its 3 heads"),
        ({"rank": None}, "only a low-rank decoder has a rank"),
        ({"decoder": "conv"}, "only a low-rank decoder has a rank"),
        ({"rank": 0}, "rank is 0"),
        ({"task": 0}, "task is 0"),
    ],
)
def test_numbers_that_describe_no_hypernetwork(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        TINY.with_(**changes)


def test_published_variants_reach_the_usual_models() -> None:
    for variant in VARIANTS.values():
        for name in ("vit_tiny_patch16_224", "vit_base_patch16_224", "vit_base_patch32_224"):
            check_target(variant, replace(ARCHITECTURES[name], classes=21_000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 64, "patch_size": 16}, "patches of 16 pixels at a width of 64"),
        ({"width": 64, "image_size": 64}, "16 x 16 patches at a width of 64"),
        (
            {"width": 8, "heads": 1, "channels": 64, "patch_size": 16},
            "64 channels in patches of 16 pixels",
        ),
    ],
)
def test_a_width_that_the_low_rank_decoder_cannot_reach(
    changes: dict[str, Any], message: str
) -> None:
    target = ViTSpec(
        **{"layers": 1, "width": 16, "heads": 2, "image_size": 32, "patch_size": 4, **changes}
    )
    with pytest.raises(WrongCall, match=f"{message} would need .* have 512"):
        check_target(TINY, target)
    check_target(TINY.with_(decoder="conv", rank=None), target)
