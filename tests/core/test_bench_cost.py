"""Cost curves by hand: one-time cost, cost per descendant, and break-even points."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_toy import RECIPE, make_world, toy_row
from click.testing import CliRunner

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import set_epochs
from learngene_zoo.bench.report.cost_curve import (
    Bill,
    Effort,
    build_cost_tables,
    find_crossing,
    flatten_costs,
    list_bills,
    list_cost_cells,
    matches,
)
from learngene_zoo.bench.report.report import GRID, build_overview, write_report
from learngene_zoo.bench.results.rows import RESULTS, Row
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import to_json

METHODS = {"lsamd": "lsamd", "scratch fan_in": "scratch", "pretrain_finetune": "pretrain_finetune"}
VALUES = {
    "lsamd": {1: 0.5, 4: 0.7},
    "scratch fan_in": {1: 0.2, 4: 0.4},
    "pretrain_finetune": {1: 0.6, 4: 0.8},
}
BEFORE = {"lsamd": (100.0, 9000), "scratch fan_in": (3.0, 30), "pretrain_finetune": (50.0, 6000)}


def rows() -> list[Row]:
    """Return rows of three arms, two depths and two budgets. An epoch of 1,000 images takes a
    second.
    """
    return [
        toy_row(
            key=f"{arm} {layers} {epochs}",
            arm=arm,
            method=method,
            layers=layers,
            epochs=epochs,
            value=VALUES[arm][epochs],
            extraction_seconds=BEFORE[arm][0],
            extraction_images=BEFORE[arm][1],
            seconds=float(epochs),
            params=layers * 1000,
        )
        for arm, method in METHODS.items()
        for layers in (6, 12)
        for epochs in (1, 4)
    ]


def bill_of(arm: str) -> Bill:
    return next(bill for bill in list_bills(rows()) if bill.arm == arm)


@pytest.mark.parametrize(
    ("costs", "count"),
    [
        ((100, 1, 0, 11), 11),  # 100 + N < 11 N: equal at 10
        ((100, 1, 0, 11.5), 10),
        ((100, 5, 0, 5), None),  # never catches up
        ((100, 6, 0, 5), None),
        ((0, 5, 0, 5), None),  # equal is not cheaper
        ((1, 5, 2, 5), 1),  # always cheaper
        ((0, 1, 0, 5), 1),
        ((1, 9, 100, 5), None),  # cheaper at first only
    ],
)
def test_the_crossing_is_the_first_count_that_is_cheaper(
    costs: tuple[float, ...], count: int | None
) -> None:
    once, each, their_once, their_each = costs
    assert find_crossing(*costs) == count
    if count is not None:
        assert all(once + n * each < their_once + n * their_each for n in range(count, count + 50))
        assert count == 1 or once + (count - 1) * each >= their_once + (count - 1) * their_each


def test_an_extraction_is_paid_once_and_pretraining_for_every_size() -> None:
    lsamd, pretrained, scratch = (
        bill_of(arm) for arm in ("lsamd", "pretrain_finetune", "scratch fan_in")
    )
    assert (lsamd.once, lsamd.each(4)) == (Effort(100, 9000), Effort(4, 4000))
    assert (pretrained.once, pretrained.each(4)) == (Effort(0, 0), Effort(54, 10000))
    assert (scratch.once, scratch.each(1)) == (Effort(0, 0), Effort(1, 1000))
    assert lsamd.total(3, 4) == Effort(112, 21000)


def test_readings_with_equal_budgets_and_to_equal_quality() -> None:
    results = {(item.theirs.arm, item.kind): item for item in matches(list_bills(rows()))}
    equal = results[
        "scratch fan_in", "equal quality"
    ]  # scratch reaches 0.4 with 4 epochs, lsamd 0.5 with one
    assert (equal.epochs, equal.their_epochs) == (1, 4)
    assert (equal.pays_from("seconds"), equal.pays_from("images")) == (
        34,
        4,
    )  # 100 + N < 4 N; 9 + N < 4 N: equal at 3
    assert results["scratch fan_in", "equal budget"].pays_from("seconds") is None
    budget = results["pretrain_finetune", "equal budget"]
    assert (budget.pays_from("seconds"), budget.pays_from("images")) == (
        3,
        2,
    )  # 100 + 4 N < 54 N; 9 + 4 N < 10 N
    lower = results["pretrain_finetune", "equal quality"]  # both reach 0.7
    assert (lower.epochs, lower.their_epochs) == (4, 4)


def test_models_that_do_the_same_work_take_the_same_time() -> None:
    """One arm's trainings randomly took twice as long as another's; a third arm trains larger
    models.
    """
    slower = {"lsamd": 2.0, "scratch fan_in": 1.0, "pretrain_finetune": 5.0}
    flops = {"lsamd": 10, "scratch fan_in": 10, "pretrain_finetune": 20}
    changed_rows = [
        replace(row, seconds=row.seconds * slower[row.arm], flops=flops[row.arm]) for row in rows()
    ]
    assert {bill.arm: bill.tuning[4].seconds for bill in list_bills(changed_rows)} == {
        "lsamd": 6.0,
        "scratch fan_in": 6.0,
        "pretrain_finetune": 20.0,
    }


def test_only_places_that_every_arm_has_are_billed() -> None:
    changed_rows = [row for row in rows() if (row.arm, row.layers, row.epochs) != ("lsamd", 12, 4)]
    changed_rows = [
        replace(row, seconds=1000.0) if row.layers == 12 else row for row in changed_rows
    ]
    assert (
        next(bill for bill in list_bills(changed_rows) if bill.arm == "lsamd").tuning[4].seconds
        == 4.0
    )
    with pytest.raises(WrongCall, match="every arm was measured with every budget"):
        list_bills([row for row in rows() if (row.arm, row.epochs) != ("lsamd", 4)])


def test_sizes_of_two_widths_are_billed_apart() -> None:
    wide = [replace(row, key=f"wide {row.key}", width=192, seconds=9.0) for row in rows()]
    bill = next(bill for bill in list_bills([*rows(), *wide]) if bill.arm == "lsamd")
    assert bill.tuning[4].seconds == (4.0 + 9.0) / 2


def test_a_cost_grid_has_no_controls_and_trains_every_size_by_itself() -> None:
    arms = [
        Arm(name="lsamd", method="lsamd"),
        Arm(name="lsamd shuffled", method="lsamd", control="shuffled"),
        Arm(name="scratch fan_in", method="scratch", expand={"init": "fan_in"}),
    ]
    grid = [
        Cell(arm=arm, task="digits", layers=n, seed=0, recipe=RECIPE)
        for n in (6, 12)
        for arm in arms
    ]
    cells = list_cost_cells(grid)
    names = [(cell.layers, cell.arm.name) for cell in cells]
    expected = ["lsamd", "scratch fan_in", "pretrain_finetune", "distillation"]
    assert names == [(layers, name) for layers in (6, 12) for name in expected]
    assert {
        cell.layers: cell.arm.settings for cell in cells if cell.arm.name == "distillation"
    } == {
        6: {"depths": (6,)},
        12: {"depths": (12,)},
    }
    wide = list_cost_cells([replace(cell, width=64) for cell in grid])
    assert [cell.arm.settings for cell in wide if cell.arm.name == "pretrain_finetune"] == [
        {"depths": (6,), "widths": (64,)},
        {"depths": (12,), "widths": (64,)},
    ]
    with pytest.raises(WrongCall, match="at least two depths"):
        list_cost_cells(grid[:3])
    with pytest.raises(WrongCall, match="must have one metric"):
        list_cost_cells([*grid, replace(grid[0], task="scenes")])
    with pytest.raises(WrongCall, match="a method with an extraction"):
        list_cost_cells([cell for cell in grid if cell.arm.method == "scratch"])


def test_rivals_are_trained_as_a_method_is() -> None:
    """Scratch has no layer decay, and may have another learning rate."""
    lsamd, scratch = Arm(name="lsamd", method="lsamd"), Arm(name="scratch timm", method="scratch")
    recipes_of_arms = [(lsamd, replace(RECIPE, lr=1e-4, layer_decay=0.7)), (scratch, RECIPE)]
    grid = [
        Cell(arm=arm, task="digits", layers=n, seed=0, recipe=set_epochs(recipe, epochs))
        for n in (6, 12)
        for epochs in (2, 8)
        for arm, recipe in recipes_of_arms
    ]
    recipes = {
        (cell.arm.name, cell.layers, cell.recipe.epochs): cell.recipe
        for cell in list_cost_cells(grid)
    }
    for rival in ("pretrain_finetune", "distillation"):
        for n in (6, 12):
            for epochs in (2, 8):
                assert recipes[rival, n, epochs] == recipes["lsamd", n, epochs]
    assert recipes["scratch timm", 6, 2].layer_decay == 1.0


def test_what_is_told_of_a_rival_counts() -> None:
    named = Arm(name="pretrain_finetune", method="pretrain_finetune", settings={"epochs": 30})
    arms = [Arm(name="lsamd", method="lsamd"), named]
    grid = [
        Cell(arm=arm, task="digits", layers=n, seed=0, recipe=RECIPE)
        for n in (6, 12)
        for arm in arms
    ]
    assert {
        cell.arm.tasks for cell in list_cost_cells(grid, ["mine"]) if cell.arm.method != "lsamd"
    } == {("mine",)}
    assert {cell.arm.tasks for cell in list_cost_cells(grid, ["mine", "yours"])} == {()}
    cells = list_cost_cells(grid)
    settings = [(cell.arm.name, cell.arm.settings) for cell in cells if cell.layers == 6]
    assert settings == [
        ("lsamd", {}),
        ("pretrain_finetune", {"epochs": 30, "depths": (6,)}),
        ("distillation", {"depths": (6,)}),
    ]


def test_the_tables_say_what_the_json_says() -> None:
    costs = list_bills(rows())
    pays, *_ = build_cost_tables(costs)
    messages = [line for line in flatten_costs(costs) if line["kind"] == "reading"]
    assert len(messages) == len(pays.rows) == 4
    for line, cells in zip(messages, pays.rows):
        assert cells[-2:] == tuple(
            str(line[f"pays_from_{unit}"] or "never") for unit in ("seconds", "images")
        )


@pytest.mark.slow
def test_a_report_of_a_cost_curve_draws_it(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows()))
    grid = {
        "cost": True,
        "settings": {},
        "arms": [],
        "versions": {},
        "keys": [row.key for row in rows()],
    }
    (tmp_path / GRID).write_text(json.dumps(grid))
    names = {path.name for path in write_report(tmp_path)}
    assert {"cost.md", "cost.json", "cost.png"} <= names
    page = (tmp_path / "report.html").read_text()
    assert all(
        words in page
        for words in ("descendants", "thousand images in all", "as long as it takes to 40.0 %")
    )
    tables, lines = build_overview(tmp_path)
    assert "from how many descendants a learngene pays" in [table.title for table in tables]
    assert any(line.startswith("The ancestry model exists already") for line in lines)


@pytest.mark.slow
def test_a_cost_curve_is_measured_from_the_command_line(tmp_path: Path) -> None:
    """Ten cells in a toy world, whose ancestry model has to be fine-tuned before it can teach the
    source task.
    """
    ancestry, task = make_world(tmp_path)
    out = tmp_path / "out"
    words = [
        "bench",
        task,
        "--method",
        "lsamd",
        "--set",
        "lsamd.keep=1,3",
        "--ancestry",
        ancestry,
        "--preset",
        "smoke",
        "--layers",
        "2,3",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--images",
        "24",
        "--batch-size",
        "8",
        "--workers",
        "1",
        "-o",
        str(out),
        "--cost",
        "--extract-task",
        task,
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    costs = json.loads((out / "cost.json").read_text())
    sizes = {line["arm"]: line["size_images"] for line in costs if line["kind"] == "bill"}
    assert sizes == {
        "lsamd": 0,
        "scratch timm": 0,
        "scratch fan_in": 0,
        "pretrain_finetune": 32,
        "distillation": 64,
    }
    again = CliRunner().invoke(main, ["bench", "--report", "-o", str(out)])
    assert again.stdout == result.stdout
