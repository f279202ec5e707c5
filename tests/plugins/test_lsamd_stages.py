"""Stages and orders of LSAMD: every order the paper prints, and what must hold for all others."""

from __future__ import annotations

from itertools import permutations
from typing import get_args

import pytest

from learngene_zoo.errors import WrongCall
from lgzoo_lsamd.stages import Expansion, Priority, grown, order, stages, turns

KEPT = (1, 4, 5, 7, 8)

ORDERS = {
    5: "1 4 5 7 8",
    6: "1 4 5 7 8 8",
    7: "1 4 5 5 7 8 8",
    8: "1 1 4 5 5 7 8 8",
    9: "1 1 4 5 5 7 8 8 8",
    10: "1 1 4 5 5 5 7 8 8 8",
    11: "1 1 1 4 5 5 5 7 8 8 8",
    12: "1 1 1 4 5 5 5 7 8 8 8 8",
    13: "1 1 1 4 5 5 5 5 7 8 8 8 8",
    14: "1 1 1 1 4 5 5 5 5 7 8 8 8 8",
    15: "1 1 1 1 4 5 5 5 5 7 8 8 8 8 8",
}


@pytest.mark.parametrize("layers", ORDERS)
def test_the_orders_of_last_middle_first(layers: int) -> None:
    assert order(KEPT, layers) == tuple(map(int, ORDERS[layers].split()))


@pytest.mark.parametrize(
    ("priority", "wanted"),
    [
        # Six layers: the one addition goes to the stage named first.
        ("first-middle-last", "1 1 4 5 7 8"),
        ("first-last-middle", "1 1 4 5 7 8"),
        ("middle-first-last", "1 4 5 5 7 8"),
        ("middle-last-first", "1 4 5 5 7 8"),
        ("last-middle-first", "1 4 5 7 8 8"),
        ("last-first-middle", "1 4 5 7 8 8"),
        # Seven layers: the ablation's pairs middle-first, last-first, last-middle, and the three others.
        ("middle-first-last", "1 1 4 5 5 7 8"),
        ("last-first-middle", "1 1 4 5 7 8 8"),
        ("last-middle-first", "1 4 5 5 7 8 8"),
        ("first-middle-last", "1 1 4 5 5 7 8"),
        ("first-last-middle", "1 1 4 5 7 8 8"),
        ("middle-last-first", "1 4 5 5 7 8 8"),
    ],
)
def test_the_ablation_orders(priority: Priority, wanted: str) -> None:
    sources = tuple(map(int, wanted.split()))
    assert order(KEPT, len(sources), priority=priority) == sources


def test_every_permutation_is_a_priority() -> None:
    assert set(get_args(Priority)) == {"-".join(words) for words in permutations(("first", "middle", "last"))}


def test_cyclic_repeats_the_stage_from_its_first_block() -> None:
    assert grown((7, 8), 2, "cyclic") == (7, 8, 7, 8)
    assert grown((7, 8), 3, "cyclic") == (7, 8, 7, 8, 7)
    assert grown((7, 8), 2, "neighbor") == (7, 8, 8, 8)
    assert order(KEPT, 11, expansion="cyclic") == (1, 1, 1, 4, 5, 4, 5, 7, 8, 7, 8)


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        ((1, 4, 5, 7, 8), [(1,), (4, 5), (7, 8)]),
        ((3,), [(3,)]),
        ((1, 2, 3, 4), [(1, 2, 3, 4)]),
        ((1, 3, 5), [(1,), (3,), (5,)]),
    ],
)
def test_stages_are_the_maximal_runs(kept: tuple[int, ...], wanted: list[tuple[int, ...]]) -> None:
    assert stages(kept) == wanted


def test_turns_with_other_numbers_of_stages() -> None:
    assert turns(1) == [0]
    assert turns(2) == [1, 0]
    assert turns(2, "first-middle-last") == [0, 1]
    # The middle is every inner stage, the last of them first.
    assert turns(5) == [4, 3, 2, 1, 0]
    assert turns(5, "middle-first-last") == [3, 2, 1, 0, 4]


def test_a_single_stage_takes_every_addition() -> None:
    for priority in get_args(Priority):
        assert order((3, 4), 5, priority=priority) == (3, 4, 4, 4, 4)


@pytest.mark.parametrize("priority", get_args(Priority))
@pytest.mark.parametrize("expansion", get_args(Expansion))
@pytest.mark.parametrize("kept", [(2,), (1, 2), (1, 3), KEPT, (1, 3, 5, 7, 9), tuple(range(1, 13))])
def test_an_order_has_the_length_asked_for_and_stages_that_differ_by_one(kept, expansion, priority) -> None:
    for layers in range(len(kept), 31):
        sources = order(kept, layers, expansion=expansion, priority=priority)
        assert len(sources) == layers
        assert set(sources) == set(kept)
        additions = [sum(s in stage for s in sources) - len(stage) for stage in stages(kept)]
        assert max(additions) - min(additions) <= 1
        # Round robin: of the stages in their turns, the later never has more than the earlier.
        in_turns = [additions[position] for position in turns(len(additions), priority)]
        assert in_turns == sorted(in_turns, reverse=True)


def test_fewer_layers_than_kept_blocks_is_refused() -> None:
    with pytest.raises(WrongCall, match=r"4 layers are fewer than the 5 blocks.*--top 4"):
        order(KEPT, 4)
