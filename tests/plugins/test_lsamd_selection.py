"""The blocks that LSAMD selects for given G and threshold; searches that select nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import from_json, to_json
from lgzoo_lsamd.blocks import (
    LsamdDetails,
    SearchResult,
    count_usage,
    encode_details,
    find_nearest_threshold,
    list_unused,
    select_above,
    select_blocks,
    select_most_used,
)
from lgzoo_lsamd.lsamd import LsamdExtractor


def make_results(**paths: tuple[int, ...]) -> dict[str, SearchResult]:
    return {
        name: SearchResult(paths=path, shares=tuple(map(float, path)), validation_accuracy=0.5)
        for name, path in paths.items()
    }


def test_kept_blocks_that_no_data_set_prefers_are_told_apart() -> None:
    selection = select_blocks((1, 0, 0, 1), 1, top=3)
    assert list_unused(selection) == tuple({*selection.kept} - {1, 4})
    assert selection.tied == (2, 3)
    assert (
        list_unused(select_blocks((1, 0, 0, 1), 1, top=2))
        == list_unused(LsamdDetails(kept=(1, 2)))
        == ()
    )


def test_usage_counts_the_data_sets_that_prefer_the_base_block() -> None:
    assert count_usage(make_results(a=(1, 0, 1), b=(1, 1, 0), c=(1, 0, 0))) == (3, 1, 1)


def test_the_default_threshold_is_half_the_data_sets_and_strict() -> None:
    # Twelve data sets, tau 6: a block that six of them use is not kept.
    counts = [9, 6, 5, 8, 7, 6, 10, 7, 3, 0, 6, 2]
    chosen = select_blocks(counts, 12)
    assert chosen.kept == (1, 4, 5, 7, 8)
    assert (chosen.threshold_asked, chosen.threshold, chosen.note) == (6.0, 6.0, "")
    assert select_blocks([1, 2, 2], 3).kept == (2, 3)


def test_a_threshold_of_ones_own() -> None:
    assert select_blocks([1, 2, 3], 3, threshold=2).kept == (3,)
    assert (
        select_blocks([1, 2, 3], 3, threshold=0.9).threshold == 1.0
    )  # keeps all, so the nearest that does not


def test_top_keeps_the_most_used() -> None:
    assert select_most_used([2, 3, 0, 3, 1], 3, seed=0) == (1, 2, 4)
    chosen = select_blocks([2, 3, 2, 3, 1], 3, top=2)
    assert (chosen.kept, chosen.threshold_asked, chosen.threshold) == ((2, 4), None, None)
    assert (chosen.tied, chosen.note) == ((), ""), "nothing was drawn"
    for top in (0, 6):
        with pytest.raises(WrongCall, match="5 blocks"):
            select_most_used([2, 3, 2, 3, 1], top, seed=0)


def test_of_equally_used_blocks_the_seed_draws_and_says_so() -> None:
    chosen = [select_blocks([2, 3, 2, 3, 1, 2], 3, top=3, seed=seed) for seed in range(60)]
    assert chosen == [select_blocks([2, 3, 2, 3, 1, 2], 3, top=3, seed=seed) for seed in range(60)]
    drawn = [({*item.kept} - {2, 4}).pop() for item in chosen]
    assert {block: drawn.count(block) for block in sorted({*drawn})} == {1: 23, 3: 19, 6: 18}
    assert all({2, 4} < {*item.kept} and item.tied == (1, 3, 6) for item in chosen)
    note = (
        f"the blocks 1 3 6 are each used by 2 data sets (G = 2 3 2 3 1 2); the seed drew {drawn[0]}"
    )
    assert chosen[0].note == note


def test_a_search_that_finds_nothing_returns_any_blocks_and_not_the_first() -> None:
    kept = [select_most_used([3] * 12, 5, seed) for seed in range(200)]
    counts = [sum(block in item for item in kept) for block in range(1, 13)]
    assert min(counts) > 55  # 83 expected, standard deviation 7
    assert max(counts) < 111


def test_a_smaller_top_keeps_some_of_the_blocks_of_a_larger_one() -> None:
    for seed in range(9):
        kept = [{*select_most_used([1, 1, 2, 1, 1, 2], top, seed)} for top in range(1, 7)]
        assert all(small < large for small, large in itertools.pairwise(kept))


def test_no_block_above_the_threshold() -> None:
    chosen = select_blocks([1, 0, 1, 0], 3)
    assert chosen.kept == (1, 3)
    assert (chosen.threshold_asked, chosen.threshold) == (1.5, 0.5)
    assert "G = 1 0 1 0" in chosen.note
    assert "0.5" in chosen.note


def test_every_block_above_the_threshold() -> None:
    chosen = select_blocks([2, 3, 3, 2], 3)
    assert chosen.kept == (2, 3)
    assert (chosen.threshold_asked, chosen.threshold) == (1.5, 2.0)
    assert "every block" in chosen.note


@pytest.mark.parametrize("count", [0, 3])
def test_blocks_that_nothing_tells_apart_are_all_kept(count: int) -> None:
    chosen = select_blocks([count] * 4, 3)
    assert chosen.kept == (1, 2, 3, 4)
    assert chosen.threshold is None
    assert "set top to keep fewer" in chosen.note


def test_the_nearest_threshold_always_selects() -> None:
    for counts in ([0, 1], [3, 1, 2], [5, 0, 0, 5, 2], [2, 3]):
        for asked in (-1.0, 0.0, 0.5, 1.5, 2.0, 9.0):
            nearest = find_nearest_threshold(counts, asked)
            assert nearest is not None
            assert 0 < len(select_above(counts, nearest)) < len(counts)


def test_of_two_equally_near_thresholds_the_lower_counts() -> None:
    assert find_nearest_threshold([0, 2], 0.25) == 0.0
    assert find_nearest_threshold([0, 2], 0.75) == 0.5
    assert find_nearest_threshold([1, 3], 0.0) == 1.0
    assert find_nearest_threshold([1, 3], 9.0) == 2.5


def test_the_details_of_a_learngene() -> None:
    details = replace(select_blocks((2, 0), 2), datasets=make_results(a=(1, 0), b=(1, 0)))
    record = encode_details(details)
    assert list(record) == [
        "kept",
        "usage",
        "threshold",
        "threshold_asked",
        "degenerate",
        "note",
        "datasets",
    ]
    assert (record["kept"], record["usage"], record["threshold"], record["degenerate"]) == (
        [1],
        [2, 0],
        1.0,
        False,
    )
    assert record["datasets"]["a"] == to_json(details.datasets["a"])
    assert from_json(LsamdDetails, record, "details") == details
    selection = select_blocks((1, 1), 1, top=1)
    assert encode_details(replace(selection, datasets=make_results(a=(1, 1))))["tied"] == [1, 2]


def test_before_a_search_the_details_say_no_more_than_is_known() -> None:
    spec = ViTSpec(layers=6, width=32, heads=2)
    outlines = [
        LsamdExtractor(**settings).outline([spec])
        for settings in ({}, {"keep": (3, 1)}, {"top": 4})
    ]
    assert [outline.details for outline in outlines] == [{}, {"kept": [1, 3]}, {"top": 4}]
