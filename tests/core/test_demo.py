"""The demo is a grid of the bench with a special table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_toy import toy_row

from learngene_zoo.bench.demo import (
    RECIPE,
    demo_grid,
    demo_rows,
    render_markdown,
    sentence,
    spread_evenly,
)
from learngene_zoo.bench.results.rows import Row, pack_flags, unpack_flags
from learngene_zoo.bench.results.summary import summarise
from learngene_zoo.cli import demo as command
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.terminal import format_table

OURS = ["closed_form", "closed_form shuffled", "closed_form stem", "closed_form stem_fan_in"]
ARMS = [*OURS, "scratch timm", "scratch fan_in"]


def test_the_grid_has_six_arms_three_depths_and_two_seeds() -> None:
    cells = demo_grid()
    assert [cell.arm.name for cell in cells[:6]] == ARMS
    assert [(cell.layers, cell.seed) for cell in cells[::6]] == [
        (n, seed) for seed in (0, 1) for n in (3, 7, 11)
    ]
    assert {cell.recipe for cell in cells} == {RECIPE}
    assert len(demo_grid(full=True)) == 6 * 5 * 3


def test_all_fine_tunings_share_one_extraction_and_each_seed_has_its_own_draws() -> None:
    cells = [cell for cell in demo_grid(7) if cell.arm.method == "closed_form"]
    assert {cell.extraction.seed for cell in cells} == {7}
    assert len({cell.extraction.key for cell in cells}) == 1
    assert {cell.draws for cell in cells} == {
        derive_seed(7, "tuning", 0),
        derive_seed(7, "tuning", 1),
    }


def test_depths_are_spread_evenly() -> None:
    assert spread_evenly(range(5, 13), 3) == [5, 9, 12]
    assert spread_evenly(range(5, 13), 5) == [5, 7, 9, 10, 12]
    assert spread_evenly([3, 4], 3) == [3, 4]


def rows() -> list[Row]:
    """Return rows of one depth, one seed and four images."""
    flags = {
        "closed_form": (True, True, True, True),
        "closed_form shuffled": (True, False, False, False),
    }
    flags |= {
        "closed_form stem": (False,) * 4,
        "closed_form stem_fan_in": (True, True, True, False),
    }
    flags |= {"scratch timm": (False,) * 4, "scratch fan_in": (True, True, False, False)}
    about: dict[str, Any] = {"layers": 6, "params": 700_000, "flops": 9_000_000, "evaluated": 4}
    controls = {arm: arm.removeprefix("closed_form ") for arm in OURS[1:]}
    return [
        toy_row(arm, arm=arm, control=controls.get(arm), correct=pack_flags(tuple(right)), **about)
        for arm, right in flags.items()
    ]


def test_the_table_has_accuracies_and_gains_over_the_stronger_controls() -> None:
    (line,) = demo_rows(rows())
    assert (line["layers"], line["params"], line["flops"]) == (6, 700_000, 9_000_000)
    names = ("descendant", "shuffled", "stem", "stem_fan_in", "scratch_timm", "scratch_fan_in")
    assert [line[name] for name in names] == [1.0, 0.25, 0.0, 0.75, 0.0, 0.5]
    assert (line["over_scratch"], line["over_stem"], line["over_shuffled"]) == (0.5, 0.25, 0.75)
    # The differences 0, 0, 1, 1 vary less than two images that differ either way: standard error
    # sqrt(2 / 4 / 4).
    assert line["over_scratch_low"] == pytest.approx(0.5 - 1.959964 * (2 / 16) ** 0.5)
    assert (
        render_markdown([line]).splitlines()[2]
        == "| 6 | 700.00K | 9.00M | 100.0 | 25.0 | 0.0 | 75.0 | 0.0 | 50.0 | +50.0 [-19.3, +100.0]"
        " | +25.0 [-44.3, +94.3] | +75.0 [+5.7, +100.0] |"
    )
    assert (
        sentence(line)
        == "6 layers: +50.0 points over the stronger scratch [-19.3, +100.0]; within its interval,"
        " +25.0 points over the stronger stem [-44.3, +94.3]; within its interval, +75.0 points"
        " over shuffled [+5.7, +100.0]"
    )


def test_the_printed_table_has_a_column_per_depth_and_fits_a_terminal() -> None:
    lines = [{**demo_rows(rows())[0], "layers": layers} for layers in (3, 5, 7, 9, 11)]
    columns, cells = command._build_table(lines)
    assert columns == ["", "3 layers", "5 layers", "7 layers", "9 layers", "11 layers"]
    assert cells[0] == ["params", *["700.00K"] * 5]
    assert [row[0] for row in cells[2:]] == [
        "descendant",
        "shuffled",
        "stem",
        "stem_fan_in",
        "scratch timm",
        "scratch fan_in",
    ]
    assert max(map(len, format_table(columns, cells).splitlines())) <= 80


def test_the_report_of_a_demo_has_the_same_intervals() -> None:
    (line,) = demo_rows(rows())
    shares = {row.arm: sum(unpack_flags(row.correct or "", 4)) / 4 for row in rows()}
    named = [
        replace(
            row,
            value=shares[row.arm],
            method="scratch" if row.arm.startswith("scratch") else row.method,
        )
        for row in rows()
    ]
    (average_of_arm,) = [
        average for average in summarise(named).averages if average.arm == "closed_form"
    ]
    assert average_of_arm.over_scratch
    assert average_of_arm.over_stem
    assert average_of_arm.inherited
    ours = {
        "scratch": average_of_arm.over_scratch,
        "stem": average_of_arm.over_stem,
        "shuffled": average_of_arm.inherited,
    }
    for name, gain in ours.items():
        assert (gain.interval, gain.value) == ("images", line[f"over_{name}"])
        assert (gain.low, gain.high) == (line[f"over_{name}_low"], line[f"over_{name}_high"])


@pytest.mark.parametrize(("workers", "count"), [(None, 3), (1, 1), (2, 2)])
def test_it_runs_in_as_many_processes_as_there_are_cores_unless_it_is_told(
    workers: int | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(Exception):
        pass

    executors: list[Any] = []

    def run_grid(cells: Any, out: Any, run: Any, executor: Any, say: Any, **_: Any) -> Any:
        executors.append(executor)
        raise Ended

    monkeypatch.setattr("learngene_zoo.bench.running.runner.run_grid", run_grid)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    job = SimpleNamespace(run=Run(threads=1), out=tmp_path / "demo", force=False)
    with pytest.raises(Ended):
        command._measure_rows(job, False, workers)  # type: ignore[arg-type]
    (executor,) = executors
    assert getattr(executor, "slots", 1) == count
