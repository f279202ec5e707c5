"""Low, middle and high level of a model of any depth."""

from __future__ import annotations

import pytest

from learngene_zoo.errors import WrongCall
from lgzoo_pool.settings import PoolSettings, pair_levels, select_levels


def test_the_papers_levels() -> None:
    """4, 8 and 12 of the ancestry's blocks, counted from 1; of the auxiliary models 2, 4, 6 and 3,
    6, 9.
    """
    assert pair_levels(6, 12, 3) == ((1, 3), (3, 7), (5, 11))
    assert pair_levels(9, 12, 3) == ((2, 3), (5, 7), (8, 11))
    assert pair_levels(6, 12, 1) == ((5, 11),)
    assert pair_levels(6, 12, 2) == ((3, 7), (5, 11))
    assert pair_levels(6, 12, 0) == ()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_levels_of_any_depth_are_distinct_and_end_with_the_last_block(count: int) -> None:
    for blocks in range(count, 40):
        levels = select_levels(blocks, count)
        assert len(set(levels)) == count
        assert list(levels) == sorted(levels)
        assert levels[0] >= 0
        assert levels[-1] == blocks - 1
        assert all(
            abs((block + 1) - level * blocks / 3) <= 0.5
            for block, level in zip(levels, range(4 - count, 4))
        )


@pytest.mark.parametrize(
    ("blocks", "low", "high", "says"), [(2, 3, 1, "low_levels is 3"), (1, 1, 2, "high_levels is 2")]
)
def test_fewer_blocks_than_levels_are_refused(blocks: int, low: int, high: int, says: str) -> None:
    with pytest.raises(WrongCall, match=f"{says}, but an auxiliary model has only {blocks} blocks"):
        PoolSettings(blocks=blocks, low_levels=low, high_levels=high)
    assert PoolSettings(blocks=3, low_levels=low, high_levels=high).blocks == 3
    assert (
        PoolSettings(blocks=blocks, low_levels=low, high_levels=high, alpha=1, stitch="ls").blocks
        == blocks
    )
