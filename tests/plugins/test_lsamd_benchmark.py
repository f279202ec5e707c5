"""The benchmark of LSAMD's search: common prefixes of sets of blocks are computed once, and its
figures are right.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from lgzoo_lsamd.blocks import order_blocks

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def search() -> Iterator[ModuleType]:
    sys.path.insert(0, BENCHMARKS)
    yield importlib.import_module("lsamd_search")
    sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module")
def summary(search: ModuleType) -> ModuleType:
    return sys.modules["lsamd_search_summary"]


def test_sets_that_share_a_beginning_share_its_computation(search: ModuleType) -> None:
    runs: list[int] = []

    class Counted(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            runs.append(self.number)
            return 2 * x + self.number

    blocks, start = [Counted(number) for number in range(1, 6)], torch.arange(3.0)
    orders = sorted(order_blocks(kept, 4) for kept in combinations(range(1, 6), 3))
    result = dict(search.compute_tokens(blocks, start, orders))
    assert list(result) == orders
    assert (
        len(runs)
        == len({sources[:length] for sources in orders for length in range(1, 5)})
        < 4 * len(orders)
    )
    for sources, tokens in result.items():
        by_hand = start
        for number in sources:
            by_hand = 2 * by_hand + number
        assert torch.equal(tokens, by_hand)


def test_percentiles_and_agreement_by_number(summary: ModuleType) -> None:
    assert [summary.compute_percentile(value, [1, 2, 2, 4]) for value in (1, 2, 4, 9)] == [
        12.5,
        50,
        87.5,
        100,
    ]
    assert summary.compute_similarities([(1, 2, 3), (1, 2, 4), (5, 6, 7)]) == [0.5, 0, 0]
    every = list(combinations(range(1, 7), 2))
    pairs = [len({*a} & {*b}) / len({*a} | {*b}) for a in every for b in every]
    assert summary.compute_chance_similarity(6, 2) == pytest.approx(sum(pairs) / len(pairs))
    assert summary.compute_chance_similarity(12, 5) == pytest.approx(0.2794, abs=5e-5)
    judges = {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 5.0, "b": 9.0, "c": 7.0}
    assert summary.compute_rank_correlation(["a", "b", "c"], *judges) == pytest.approx(0.5)


def test_gains_over_placebos_have_welchs_interval(summary: ModuleType) -> None:
    # Variances 100 and 400 over 3 runs each: error 12.91, 2.94 degrees of freedom, rounded down to
    # 2, quantile 4.303.
    assert summary.compute_gain([80, 90, 100], [30, 50, 70]) == (40.0, -15.5, 95.5)
    assert summary.compute_gain([90], [10, 20]) == (75.0, -100.0, 100.0)
    assert summary.compute_chance([90.0]) == pytest.approx(0.1, abs=0.01)
    assert summary.compute_chance([50.0] * 5) == pytest.approx(0.5, abs=0.02)


def rows(placebo: list[tuple[int, ...]]) -> list[dict]:
    """Return six sets that a probe ranks by their first block; the search keeps the two best ones."""
    kept = [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    probes = [
        {"kind": "probe", "kept": item, "accuracy": {"t": 0.9 - 0.1 * index}}
        for index, item in enumerate(kept)
    ]
    searches = [("search", item) for item in kept[:2] * 2] + [
        ("0 epochs", item) for item in placebo
    ]
    results = [
        {"kind": "search", "variant": name, "seed": seed, "kept": item}
        for seed, (name, item) in enumerate(searches)
    ]
    return [{"ancestry": "a", **row} for row in probes + results]


@pytest.mark.parametrize(
    ("placebo", "verdict"),
    [
        ([(2, 4), (3, 4), (2, 4), (3, 4)], "The search beats its placebos"),
        ([(1, 2), (3, 4), (2, 4), (1, 3)], "The search is not shown to beat its placebos"),
        ([(3, 4)], "The search is not shown to beat its placebos"),
    ],
)
def test_the_sentence_says_beats_only_where_every_interval_is_above_0(
    summary: ModuleType, placebo: list[tuple[int, ...]], verdict: str
) -> None:
    result = summary.Summary(rows(placebo), ["t"]).to_json()
    assert (result["sets"], result["best"], result["worst"]) == (6, [(1, 2), 90.0], [(3, 4), 40.0])
    line = result["variants"][0]
    assert (line["percentile"], line["percentiles"]) == (83.3, [91.7, 75.0, 91.7, 75.0])
    assert line["within"] == 66.7, (
        "of the three sets with block 1 they are the best (83.3) and the second (50)"
    )
    assert result["with_block_1"] == [80.0, 50.0]
    assert summary.make_sentence(result).startswith(verdict)
    assert summary.make_sentence(result) in summary.make_table(result).replace("\n", " ")


def test_rows_of_another_ancestry_model_are_dropped(search: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    search.Rows(path, "old").add("probe", kept=[1], accuracy={})
    kept = search.Rows(path, "new")
    assert kept.rows == []
    assert path.read_text() == ""
    kept.add("probe", kept=[2], accuracy={})
    assert search.Rows(path, "new").select("probe") == [
        {"ancestry": "new", "kind": "probe", "kept": [2], "accuracy": {}}
    ]
