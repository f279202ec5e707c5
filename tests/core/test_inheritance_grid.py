"""The cells of benchmarks/inheritance.py: every method has some, and each size has scratch models."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.bench.running.trial import find_size
from learngene_zoo.families.family import count_cost
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
inheritance = pytest.importorskip("inheritance")

ANCESTRY = read_ancestry_spec(BUNDLED)
BUDGET = replace(inheritance.BUDGETS["methods"], tasks=("wings",), seeds=1)


@pytest.fixture(scope="module")
def wanted() -> list[Any]:
    return [
        *inheritance.make_grid(BUDGET, ANCESTRY),
        *inheritance.make_other_cells(BUDGET, ANCESTRY),
    ]


@pytest.mark.slow
def test_every_method_has_cells_but_those_that_are_told(wanted: list[Any]) -> None:
    missing = set(METHODS.references()) - {cell.arm.method for cell in wanted}
    assert missing == {"snnet"}


@pytest.mark.slow
def test_every_cell_has_a_size_with_a_name(wanted: list[Any]) -> None:
    sizes = inheritance.derive_sizes(ANCESTRY).items()
    names = {size: name for name, size in sizes} | inheritance.name_other_sizes(ANCESTRY)
    words = [[inheritance.label(cell.size)] if cell.size else [] for cell in wanted]
    named = {names[cell.layers, cell.width, *more] for cell, more in zip(wanted, words)}
    assert named == {"half as deep", "narrower", "thinner blocks", "deeper"}


def test_scratch_at_another_size_is_as_large_as_its_rivals(wanted: list[Any]) -> None:
    (cell,) = (cell for cell in wanted if cell.arm.name == "scratch timm" and cell.size)
    learngene = lifecycle.extract("scratch", run=Run())
    target, _ = find_size(cell, learngene.config, open_task("wings").classes)
    assert (target.layers, target.heads, target.mlp_ratio) == (12, 3, 1.0)
    assert count_cost(target.apply(ANCESTRY)).params < 0.6 * count_cost(ANCESTRY).params


@pytest.mark.slow
def test_arms_are_tuned_on_a_real_task_and_a_drawn_one_with_the_most_images() -> None:
    budget = replace(
        inheritance.BUDGETS["standard"],
        tasks=("digits", "wings", "petals"),
        methods=("first_k",),
        seeds=1,
    )
    tuning = inheritance.make_tuning(budget, inheritance.make_grid(budget, ANCESTRY))
    assert (tuning.space.tasks, tuning.space.further) == (("digits", "petals"), ("wings",))
    assert {cell.recipe.images for cell in tuning.cells} == {1000}
    cheap = replace(budget, opening=("digits",))
    assert inheritance.make_tuning(cheap, inheritance.make_grid(cheap, ANCESTRY)).space.tasks == (
        "digits",
    )
    elsewhere = replace(budget, tasks=("wings",))
    assert inheritance.make_tuning(
        elsewhere, inheritance.make_grid(elsewhere, ANCESTRY)
    ).space.tasks == ("wings",)


def test_tasks_without_a_version_are_measured_in_a_new_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_first(cells: Any, out: Path, run: Run, *_: Any, **__: Any) -> Any:
        return run_grid(cells[:1], out, run)

    monkeypatch.setattr(inheritance, "run_grid", run_first)
    smoke = inheritance.BUDGETS["smoke"]
    budget = replace(smoke, sizes=1, distilled=0, methods=("first_k",), augments=("none",))
    cell, row = next(inheritance.measure_grid(budget, tmp_path, 1))
    assert (cell.task, cell.version, row.error) == ("digits", 1, None)
