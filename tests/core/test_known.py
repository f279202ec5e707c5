"""The table of well-known ancestry models agrees with timm, and with the models that open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learngene_zoo.families.family import count_cost
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.pretrained.known import describe_tag, list_known, list_tags

ROWS = {row.name: row for row in list_known()}
TIMM = [row for row in ROWS.values() if row.name.startswith("timm:")]


def test_the_bundled_one_comes_first() -> None:
    first = list_known()[0]
    assert (first.name, first.family, first.image_size) == ("bundled", "vit", 32)
    assert first.params == count_cost(read_ancestry_spec("bundled")).params


def test_the_other_bundled_ones_follow_it_by_their_names() -> None:
    (narrow, words) = (ROWS[name] for name in ("ancestry-narrow", "ancestry-words"))
    assert list_known()[1:3] == [narrow, words]
    assert (words.image_size, words.licence, narrow.image_size) == (None, "apache-2.0", 32)
    for row in (narrow, words):
        assert row.params == count_cost(read_ancestry_spec(row.name)).params
        assert row.family == read_ancestry_spec(row.name).family


def test_the_table_has_every_tag_of_its_groups_once() -> None:
    assert [(row.group, row.name) for row in TIMM] == [
        (group, f"timm:{tag}") for group, tag in list_tags()
    ]
    assert len(ROWS) == len(list_known()) > 90


@pytest.mark.parametrize(
    "tag",
    [
        "deit_tiny_patch16_224.fb_in1k",
        "vit_small_patch14_dinov2.lvd142m",
        "vit_base_patch16_siglip_gap_224.webli",
        pytest.param(None, marks=pytest.mark.exhaustive, id="all"),
    ],
)
def test_a_row_says_what_timm_says(tag: str | None) -> None:
    for row in [ROWS[f"timm:{tag}"]] if tag else TIMM:
        now = describe_tag(row.group, row.name.removeprefix("timm:"))
        assert replace(row, family=now.family) == now
        assert row.family in (now.family, None), (
            "`python tools/ancestries.py` writes the table anew"
        )


def test_what_opens_costs_what_its_spec_says() -> None:
    for row in TIMM:
        if row.family and row.group == "DeiT-III":
            assert count_cost(read_ancestry_spec(row.name)).params == row.params, row.name
