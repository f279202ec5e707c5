"""The tools that make and judge the bundled language model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learngene_zoo.tasks.catalogue import open_task

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
pytest.importorskip("transformers")
gate: Any = pytest.importorskip("text_gate")
ancestry: Any = pytest.importorskip("text_ancestry")

WORDNET = """  1 This software and database is being provided to you, the LICENSEE
00001837 02 r 01 just 6 000 | only a short time before; "they had just left"; "just so"
00002283 02 r 01 hardly 2 000 | almost not; "he hardly ever goes"; "they had just left"
00003380 02 r 01 annoyingly 0 000 | in an annoying manner
"""


def test_the_sentences_of_wordnet_are_its_examples_each_once(tmp_path: Path) -> None:
    for part in ancestry.PARTS:
        (tmp_path / f"data.{part}").write_text(WORDNET if part == "adv" else "", encoding="utf-8")
    assert list(ancestry.read_sentences(tmp_path)) == ["they had just left", "he hardly ever goes"]


@pytest.mark.slow
def test_a_bag_of_words_is_at_chance_where_order_decides() -> None:
    assert list(gate.list_features(("The cat.", "a cat"), with_pairs=True)) == [
        *("0 the", "0 cat", "0 .", "0 the cat", "0 cat .", "1 a", "1 cat", "1 a cat")
    ]
    right = {name: np.mean(gate.measure_bag(open_task(name), True)) for name in gate.LEFT_OUT}
    assert all(abs(share - 0.5) < 0.07 for share in right.values())  # three standard errors of 500
    assert np.mean(gate.measure_bag(open_task("sentiment"), True)) > 0.8


@pytest.mark.parametrize(("low", "expected"), [(0.01, True), (-0.01, False)])
def test_the_gate_needs_both_gains_on_every_task_left_out(low: float, expected: bool) -> None:
    sure = {"over random weights": [0.1, 0.01, 0.2], "over bag": [0.1, 0.01, 0.2]}
    unsure = {**sure, "over bag": [0.1, low, 0.2]}
    rows = [{"task": "acceptability", **sure}, {"task": "entailment", **unsure}]
    assert gate.is_passed(rows) is expected
    assert not gate.is_passed(rows[:1])


def test_the_table_shows_gains_and_verdict() -> None:
    gains = {"over random weights": [0.1, 0.05, 0.15], "over bag": [0.2, -0.01, 0.4]}
    row = {"task": "entailment", "language model": 0.71, "random weights": 0.61, "bag": 0.5}
    results = {"lr": dict.fromkeys(gate.ARMS, 1e-3), "rows": [{**row, **gains}], "passed": False}
    page = gate.make_page_text(results)
    assert (
        "| `entailment` | 71.0 | 61.0 | 50.0 | +10.0 (+5.0 to +15.0) | +20.0 (-1.0 to +40.0) |"
        in page
    )
    assert "not passed" in page
