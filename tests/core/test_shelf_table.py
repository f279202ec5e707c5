"""README's table of the shelf: the middle size of every card, and cards without figures."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import Measured
from learngene_zoo.storage import read_json, write_json

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
table = pytest.importorskip("shelf_table")

CARDS = Path(__file__).parents[2] / "cards"


def of(task: str, accuracy: float, stem: float) -> Measured:
    gains = {"stem": (stem, 0.0, 0.0), "scratch": (0.5, 0.0, 0.0)}
    return Measured(
        task=task,
        layers=5,
        width=64,
        params=264_200,
        flops=1,
        images=10,
        accuracy={"descendant": accuracy},
        gains=gains,
    )


def test_a_line_has_accuracies_and_mean_gains() -> None:
    tasks = ("digits", "fashion_mnist", "textures", "numbers")
    measured = {task: of(task, 0.5 + index / 10, index / 10) for index, task in enumerate(tasks)}
    cells = ["`one`", "5 x 64", "264.20K", "50.0", "60.0", "70.0", "80.0", "+15.0", "+50.0"]
    assert table.format_row("one", measured) == cells


def test_the_middle_size_is_shown_and_what_is_missing_is_named(tmp_path: Path) -> None:
    shutil.copytree(CARDS / "closed_form-mini", tmp_path / "closed_form-mini")
    assert {
        (row.layers, row.width)
        for row in table.find_middle(read_config(tmp_path / "closed_form-mini")).values()
    } == {(5, 64)}
    text = table.make_table([tmp_path / "closed_form-mini", tmp_path / "no such card"])
    assert text.count("\n") == 2
    assert "Not measured" not in text
    data = read_json(tmp_path / "closed_form-mini" / "config.json")
    write_json(
        tmp_path / "closed_form-mini" / "config.json",
        {**data, "card": {**data["card"], "worth": None}},
    )
    assert table.make_table([tmp_path / "closed_form-mini"]).endswith(
        "Not measured yet: `closed_form`."
    )
