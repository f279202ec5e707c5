"""The version of `mini`: it changes only the test images, and separates results of different
versions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import get_origin, get_version
from lgzoo_mini import suite as mini


def test_the_version_changes_the_test_images_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    wings, few = mini.generator("wings"), np.arange(3)
    before = {split: wings.target(split, few) for split in ("train", "validation", "test")}
    monkeypatch.setattr(mini, "VERSION", mini.VERSION + 1)
    after = {split: wings.target(split, few) for split in before}
    assert [bool((before[split] == after[split]).all()) for split in before] == [True, True, False]
    assert list(wings.labels(few)) == [0, 1, 2]


def test_the_first_version_is_what_it_was() -> None:
    assert mini.split_seed("wings", "test", 1) == mini.derive_seed(0, "wings", "test")
    seeds = {mini.split_seed("wings", "test", version) for version in range(1, 6)}
    assert len(seeds) == 5


def test_cells_of_another_version_are_other_cells() -> None:
    cell = Cell(
        arm=Arm(name="lsamd", method="lsamd"), task="wings", layers=9, seed=0, recipe=Recipe()
    )
    assert replace(cell, version=1).key == cell.key
    assert replace(cell, version=2).key != cell.key


def test_cells_of_the_shelf_have_the_current_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools"))
    shelf_worth = pytest.importorskip("shelf_worth")
    arm = Arm(name="lsamd", method="lsamd")
    versions = {
        task: shelf_worth.make_cell(arm, task, 9, None, {}).version for task in shelf_worth.TASKS
    }
    assert versions == {task: get_version(task) for task in shelf_worth.TASKS}
    assert versions["textures"] == mini.VERSION


def test_what_is_drawn_what_is_real_and_what_pretraining_leaves_out() -> None:
    tasks = {
        "digits": "real",
        "fashion_mnist": "real",
        "folder:x": "real",
        "signs": "generated",
        "scenes": "generated",
    }
    tasks |= {"wings": "left out", "petals": "left out"}
    assert {task: get_origin(task) for task in tasks} == tasks
    assert [get_version(task) for task in ("wings", "digits", "folder:x")] == [mini.VERSION, 1, 1]


PAGES = (
    "docs/methods/index.md",
    "docs/inheritance.md",
    "docs/claims.md",
    "docs/results/closed_form.md",
    "docs/results/tal.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_pages_with_tables_of_an_earlier_version_say_so(page: str, checkout: Path) -> None:
    text = (checkout / page).read_text()
    assert "version 2" in text
    assert "bench.md#a-new-test-split" in text


def test_every_version_has_a_line_that_says_why(checkout: Path) -> None:
    text = (checkout / "docs" / "bench.md").read_text()
    table = text[text.index("## A new test split") :]
    assert all(f"\n| {version} | " in table for version in range(1, mini.VERSION + 1))
