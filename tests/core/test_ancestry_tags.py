"""The documented list of timm's pretrained models that can be opened, and of those that cannot."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.timm_config import (
    UNSUPPORTED_MODULES,
    find_nearest_architecture,
    read_architecture,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def counter() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("ancestry_tags")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_the_page_says_what_was_counted(counter: ModuleType) -> None:
    from machine import read

    modules, page = (
        read("ancestry_tags")["modules"],
        (ROOT / "docs" / "ancestries.md").read_text(encoding="utf-8"),
    )
    for rows in (counter.make_module_rows(modules), counter.make_group_rows(modules)):
        assert all(f"| {' | '.join(row)} |" in page for row in rows)
    served = [modules[module] for module in counter.list_modules()]
    assert sum(len(found["open"]) for found in served) >= 405
    assert all(
        UNSUPPORTED_MODULES.get(module) in (None, *found["refused"])
        for module, found in modules.items()
    )


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("vit_base_patch16_clip_quickgelu_224.openai", None),
        ("vit_so400m_patch14_siglip_384.webli", None),
        ("deit_tiny_distilled_patch16_224.fb_in1k", None),
        ("vit_pwee_patch16_reg1_gap_256.sbb_in1k", "a ParallelScalingBlock for blocks.0"),
        ("vit_dwee_patch16_reg1_gap_256.sbb_in1k", "a DiffAttention for blocks.0.attn"),
    ],
)
def test_a_tag_is_counted_by_its_reason(counter: ModuleType, tag: str, reason: str | None) -> None:
    assert counter.find_obstacle(tag) == reason


@pytest.mark.parametrize(
    ("name", "why", "works"),
    [
        ("beit_base_patch16_224", "relative positions", "beit3_base_patch16_224"),
        ("samvit_base_patch16", "attention in windows", "vit_base_patch16_224"),
        ("naflexvit_base_patch16_siglip", "images of any shape", "vit_base_patch16_siglip_224"),
        ("vit_base_r50_s16_224", "a convolutional stem", "vit_base_patch16_224"),
        ("vit_base_patch16_18x2_224", "ParallelThingsBlock", "vit_base_patch16_224"),
    ],
)
def test_what_does_not_open_says_why_in_one_line_and_names_what_does(
    name: str, why: str, works: str
) -> None:
    with pytest.raises(WrongCall, match=why) as error:
        read_architecture(name)
    assert f"the nearest that works is timm:{works};" in f"{error.value};"
    assert "\n" not in str(error.value)
    read_architecture(works)


def test_nothing_is_near_a_model_that_is_no_transformer() -> None:
    assert find_nearest_architecture("resnet50") is find_nearest_architecture("levit_384") is None


@pytest.mark.exhaustive
def test_every_tag_opens_or_not_as_the_page_says(counter: ModuleType) -> None:
    from machine import read

    for module, found in read("ancestry_tags")["modules"].items():
        assert counter.count_tags(module) == found
