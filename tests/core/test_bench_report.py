"""Reports of rows whose gains, means and crossings are known by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_toy import toy_row

from learngene_zoo.bench.grid.tuning import TUNING_SEED
from learngene_zoo.bench.report import captions, gain_tables, tables, text_table
from learngene_zoo.bench.report.page import NO_GRID, render_report
from learngene_zoo.bench.report.pictures import draw_pictures, find_pareto_front
from learngene_zoo.bench.report.report import (
    GRID,
    build_overview,
    format_csv,
    format_json,
    read_summary,
    write_report,
)
from learngene_zoo.bench.results.averages import average, drop_incomplete
from learngene_zoo.bench.results.rows import RESULTS, Row
from learngene_zoo.bench.results.summary import Line, Summary, flatten_line, summarise
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.settings import to_json

ARMS = {  # by arm: method, control
    "lsamd": ("lsamd", None),
    "lsamd shuffled": ("lsamd", "shuffled"),
    "lsamd stem": ("lsamd", "stem"),
    "lsamd stem_fan_in": ("lsamd", "stem_fan_in"),
    "scratch timm": ("scratch", None),
    "scratch fan_in": ("scratch", None),
}
VALUES = {  # by arm and task, a list over seeds
    "lsamd": {"digits": [0.9, 0.8], "signs": [0.6, 0.6]},
    "lsamd shuffled": {"digits": [0.5, 0.4], "signs": [0.3, 0.5]},
    "lsamd stem": {"digits": [0.6, 0.5], "signs": [0.3, 0.2]},
    "lsamd stem_fan_in": {"digits": [0.7, 0.7], "signs": [0.2, 0.2]},
    "scratch timm": {"digits": [0.7, 0.5], "signs": [0.1, 0.1]},
    "scratch fan_in": {"digits": [0.5, 0.6], "signs": [0.2, 0.3]},
}


def rows(epochs: Sequence[int] = (4,), **changes: Any) -> list[Row]:
    """Return rows of two tasks, two seeds and four arms.

    They have the values above at the first budget, and 0.01 more at each next one.
    """
    results = []
    for number, budget in enumerate(epochs):
        for arm, tasks in VALUES.items():
            method, control = ARMS[arm]
            for task, values in tasks.items():
                for seed, value in enumerate(values):
                    about = {
                        "key": f"{arm} {task} {seed} {budget}",
                        "arm": arm,
                        "method": method,
                        "control": control,
                        "task": task,
                        "seed": seed,
                        "epochs": budget,
                        "value": value + number / 100,
                        "untrained": 0.1,
                        "probe": 0.25,
                        "params": 1_000_000,
                        "stored_params": 600_000,
                        "seconds": 2.0,
                        "machine": "a machine",
                        "extraction_images": 3000,
                        "extraction_seconds": 30.0,
                    }
                    results.append(toy_row(**{**about, **changes}))
    return results


def line_of(summary: Summary, arm: str, task: str | None = None) -> Line:
    (line,) = [line for line in summary.lines if (line.arm, line.task) == (arm, task)]
    return line


def broken(
    found: list[Row], arm: str, task: str, seed: int, error: str = "RuntimeError: out of <memory>"
) -> list[Row]:
    """Return the same rows, one of them failed."""
    hit = next(row for row in found if (row.arm, row.task, row.seed) == (arm, task, seed))
    return [replace(row, error=error, value=None, width=0) if row is hit else row for row in found]


# The numbers


def test_the_gain_is_over_the_scratch_arm_that_is_stronger_on_each_task() -> None:
    """digits: timm has 0.6 and fan_in 0.55; signs: 0.1 and 0.25."""
    summary = summarise(rows())
    digits, signs = line_of(summary, "lsamd", "digits"), line_of(summary, "lsamd", "signs")
    assert (digits.scratch, signs.scratch) == ("scratch timm", "scratch fan_in")
    assert digits.over_scratch
    assert digits.over_scratch.value == pytest.approx((0.9 - 0.7 + 0.8 - 0.5) / 2)
    assert signs.over_scratch
    assert signs.over_scratch.value == pytest.approx((0.6 - 0.2 + 0.6 - 0.3) / 2)
    average = line_of(summary, "lsamd")
    assert average.over_scratch
    assert average.over_scratch.value == pytest.approx(0.3)
    assert average.value.value == pytest.approx(0.725)
    assert line_of(summary, "scratch timm").over_scratch is None


def test_inherited_knowledge_is_the_gain_over_the_arms_own_control() -> None:
    summary = summarise(rows())
    result = line_of(summary, "lsamd").inherited
    assert result
    assert result.value == pytest.approx((0.4 + 0.4 + 0.3 + 0.1) / 4)
    assert result.low is not None
    assert result.low < result.value < (result.high or 0)
    assert line_of(summary, "lsamd shuffled").inherited is None


def test_the_gain_over_the_stem_is_over_the_initialisation_that_is_stronger_on_each_task() -> None:
    """digits: timm's has 0.55 and fan_in 0.7; signs: 0.25 and 0.2."""
    summary = summarise(rows())
    digits, signs = line_of(summary, "lsamd", "digits"), line_of(summary, "lsamd", "signs")
    assert (digits.stem, signs.stem) == ("lsamd stem_fan_in", "lsamd stem")
    assert digits.over_stem
    assert digits.over_stem.value == pytest.approx((0.9 - 0.7 + 0.8 - 0.7) / 2)
    assert signs.over_stem
    assert signs.over_stem.value == pytest.approx((0.6 - 0.3 + 0.6 - 0.2) / 2)
    assert line_of(summary, "lsamd stem").over_stem is None
    (table,) = tables.build_compact_tables(summary)
    column = table.columns.index("over stem")
    assert {row[0]: row[column].split()[0] for row in table.rows}["lsamd"] == "+25.0"


def test_real_and_left_out_tasks_have_columns_of_their_own() -> None:
    """digits is real; wings is generated and left out of `forms`; signs is neither."""
    more = [
        replace(row, task="wings", value=(row.value or 0) / 2, key=f"w{row.key}")
        for row in rows()
        if row.task == "digits"
    ]
    summary = summarise([*rows(), *more])
    line = line_of(summary, "lsamd")
    assert line.real
    assert line.left_out
    assert (line.real.value, line.left_out.value) == (pytest.approx(0.85), pytest.approx(0.425))
    assert line_of(summary, "lsamd", "digits").real is None
    (table,) = tables.build_compact_tables(summary)
    result = dict(zip(table.columns, table.rows[0]))
    assert (result["real"], result["left out"]) == ("85.0", "42.5")
    assert flatten_line(line)["left_out"] == pytest.approx(0.425)


def test_rows_of_two_versions_of_a_suite_are_not_mixed() -> None:
    old = [
        replace(row, task="wings", version=1, key=f"o{row.key}", value=0.1)
        for row in rows()
        if row.task == "signs"
    ]
    new = [replace(row, version=2, key=f"n{row.key}", value=0.9, seed=row.seed + 5) for row in old]
    (value,) = {line.value.value for line in summarise([*old, *new]).lines}
    assert value == pytest.approx(0.9)
    assert len(summarise([*old, *new]).rows) == len(new)


def test_a_bench_with_one_of_the_two_stems_has_no_gain_over_the_stem() -> None:
    """Benches before the second initialisation had only the weaker one."""
    summary = summarise(row for row in rows() if row.control != "stem_fan_in")
    assert line_of(summary, "lsamd").over_stem is None
    assert line_of(summary, "lsamd").over_scratch is not None
    assert all("over stem" not in table.columns for table in tables.build_compact_tables(summary))


def test_one_task_left_out_gives_the_least_and_the_most() -> None:
    result = line_of(summarise(rows()), "lsamd").over_scratch
    assert result
    assert result.without == pytest.approx({"digits": 0.35, "signs": 0.25})
    assert (result.least, result.most) == pytest.approx((0.25, 0.35))
    table = gain_tables.leave_one_out(summarise(rows()))
    assert table
    assert table.rows[0][5:] == ("+25.0", "signs", "+35.0", "digits")


def test_without_both_scratch_arms_there_is_no_gain_over_scratch() -> None:
    changed_rows = [row for row in rows() if row.arm != "scratch fan_in"]
    half = summarise(
        [
            *changed_rows,
            *(replace(row, task="other") for row in rows() if row.arm == "scratch fan_in"),
        ]
    )
    assert line_of(half, "lsamd").over_scratch is None
    assert line_of(half, "lsamd").inherited is not None


def test_one_seed_has_a_mean_and_no_interval() -> None:
    summary = summarise(row for row in rows() if row.seed == 0)
    digits = line_of(summary, "lsamd", "digits")
    assert (digits.value.value, digits.value.low, digits.value.high) == (0.9, None, None)
    assert text_table.format_fraction(digits.value) == "90.0"


def test_an_interval_of_a_metric_does_not_leave_0_to_1() -> None:
    result = line_of(summarise(rows()), "lsamd", "digits").value
    assert (result.low, result.high, result.interval) == (
        0.8,
        0.9,
        "range",
    ), "two seeds have no interval"
    three = [replace(row, seed=2, key=f"3{row.key}", value=1.0) for row in rows() if row.seed == 0]
    result = line_of(summarise([*rows(), *three]), "lsamd", "digits").value
    assert (result.high, result.interval) == (1.0, "seeds")
    assert result.low is not None
    assert 0 <= result.low < 0.8


def test_correlations_below_0_have_lines() -> None:
    values = {"lsamd": -0.3, "scratch fan_in": 0.6, "scratch timm": 0.5}
    found = [
        replace(
            toy_row(f"{arm} {seed}", arm=arm, method=arm.split()[0], seed=seed, metric="matthews"),
            value=value + seed / 100,
            untrained=-0.1 - seed / 100,
        )
        for arm, value in values.items()
        for seed in range(3)
    ]
    line = line_of(summarise(found), "lsamd", "digits")
    assert line.value.value == pytest.approx(-0.29)
    assert line.value.low is not None
    assert line.value.low < -0.29
    assert line.untrained is not None
    assert line.untrained.value == pytest.approx(-0.11)
    assert line.over_scratch is not None
    assert line.over_scratch.value == pytest.approx(-0.9)
    with pytest.raises(WrongCall, match="value"):
        replace(found[0], value=-1.5)


def test_budgets_and_sizes_are_kept_apart() -> None:
    summary = summarise([*rows((1, 4)), *rows((4,), layers=12, params=2_000_000)])
    assert {line.condition.epochs for line in summary.lines} == {1, 4}
    averages = {
        (line.condition.layers, line.condition.epochs): line.value.value
        for line in summary.averages
        if line.arm == "lsamd"
    }
    assert averages == pytest.approx({(9, 1): 0.725, (9, 4): 0.735, (12, 4): 0.725})


def test_the_newer_of_two_rows_of_one_cell_counts() -> None:
    old = [replace(row, finished="2026-01-01", value=0.0) for row in rows()]
    new = [replace(row, finished="2026-01-02", lr=1e-4) for row in rows()]
    assert line_of(summarise([*new, *old]), "lsamd").value.value == pytest.approx(0.725)


def test_failed_cells_of_two_widths_are_two() -> None:
    failed = [
        replace(row, key=f"{row.key} {width}", width=width, error="out of memory", value=None)
        for width in (48, 64)
        for row in rows()
    ]
    assert len(summarise([*rows(), *failed]).failures) == 2 * len(rows())


def test_accuracy_and_miou_are_not_averaged_together() -> None:
    changed_rows = [replace(row, metric="mIoU") if row.task == "signs" else row for row in rows()]
    values = {
        line.condition.metric: line.value.value
        for line in summarise(changed_rows).averages
        if line.arm == "lsamd"
    }
    assert values == pytest.approx({"accuracy": 0.85, "mIoU": 0.6})
    assert len(tables.build_compact_tables(summarise(changed_rows))) == 2


# What is missing


def test_a_failed_cell_is_named_and_its_arms_average_is_marked() -> None:
    summary = summarise(broken(rows(), "lsamd", "signs", 1), missing=3)
    line = line_of(summary, "lsamd")
    assert (line.lacks, line.value.tasks, line.value.value) == (
        ("signs",),
        ("digits",),
        pytest.approx(0.85),
    )
    assert line_of(summary, "scratch timm").lacks == ()
    assert tables.build_compact_tables(summary)[0].rows[0][0] == "lsamd *"
    assert captions.describe_missing(summary) == [
        "* averages of lsamd lack signs; its gains are over equal cells"
    ]
    table = tables.build_failure_table(summary)
    assert table
    assert table.rows == (("lsamd", "signs", "9", "4", "1", "RuntimeError: out of <memory>"),)
    assert captions.describe_state(summary) == "23 cells measured, 1 failed, 3 not measured yet"


def test_a_task_that_few_arms_have_yet_is_in_no_average() -> None:
    """As in an interrupted bench: only `lsamd` has a third task."""
    more = [
        replace(row, task="third", value=0.0)
        for row in rows()
        if (row.arm, row.task) == ("lsamd", "digits")
    ]
    line = line_of(summarise([*rows(), *more]), "lsamd")
    assert (line.value.tasks, line.value.value, line.lacks) == (
        ("digits", "signs"),
        pytest.approx(0.725),
        (),
    )
    assert line_of(summarise([*rows(), *more]), "lsamd", "third").value.value == 0.0


def test_averaged_gains_are_over_the_tasks_of_the_average() -> None:
    others = [
        replace(row, arm=f"other {number}", method="pool")
        for row in rows()
        if row.arm == "lsamd"
        for number in range(4)
    ]
    third = [
        replace(row, task="third")
        for row in rows()
        if row.task == "digits" and (row.arm == "lsamd" or row.arm.startswith("scratch"))
    ]
    before, after = summarise([*rows(), *others]), summarise([*rows(), *others, *third])
    assert line_of(after, "lsamd").value.tasks == ("digits", "signs")
    for gain in ("over_scratch", "over_stem", "inherited"):
        gains = [getattr(line_of(summary, "lsamd"), gain) for summary in (before, after)]
        assert gains[0] is not None
        assert gains[0] == gains[1]


def test_a_table_is_completed_by_leaving_out_the_emptiest_task_or_seed() -> None:
    full = {(task, seed): 1.0 for task in "abc" for seed in range(2)}
    assert drop_incomplete(full) == {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0]}
    one_seed = {key: value for key, value in full.items() if key not in {("a", 1), ("b", 1)}}
    assert drop_incomplete(one_seed) == {"a": [1.0], "b": [1.0], "c": [1.0]}
    one_task = {key: value for key, value in full.items() if key != ("b", 0)}
    assert drop_incomplete(one_task) == {"a": [1.0, 1.0], "c": [1.0, 1.0]}
    assert average({}) is None


def test_rows_that_all_failed_have_no_lines() -> None:
    summary = summarise([replace(row, error="no", value=None) for row in rows()])
    assert (summary.lines, len(summary.failures)) == ((), 24)


# The forms


def test_csv_gives_back_every_number() -> None:
    summary = summarise(rows((1, 4)))
    read = list(
        csv.DictReader(io.StringIO(format_csv([flatten_line(line) for line in summary.lines])))
    )
    assert len(read) == len(summary.lines)
    for line, cells in zip(summary.lines, read):
        assert float(cells["value"]) == line.value.value
        assert (cells["task"] or None) == line.task
        expected = line.over_scratch.value if line.over_scratch else None
        assert (float(cells["over_scratch"]) if cells["over_scratch"] else None) == expected


def test_json_is_a_bare_list_of_flat_objects() -> None:
    data = json.loads(format_json([flatten_line(line) for line in summarise(rows()).lines]))
    assert data[0]["arm"] == "lsamd"
    for line in data:
        for value in line.values():
            assert not isinstance(value, dict)
            assert not any(
                isinstance(item, (list, dict))
                for item in (value if isinstance(value, list) else [])
            )


def test_markdown_has_as_many_cells_in_every_line() -> None:
    table = text_table.TextTable(
        "a title", ("arm", "error"), (("lsamd", "a | b\nc"), ("scratch", "-"))
    )
    text = text_table.render_markdown([table])
    counts = {
        len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")
    }
    assert counts == {3}
    assert "| lsamd | a \\| b c |" in text


def test_the_compact_table_says_what_was_measured() -> None:
    (table,) = tables.build_compact_tables(summarise(rows((1, 4))))
    assert (
        table.title
        == "accuracy on test images, %: mean of 2 tasks and 2 seeds; gains in points after 4 epochs"
    )
    assert table.columns[3:7] == ("untrained", "probe", "1 ep", "4 ep")
    cells = dict(zip(table.columns, table.rows[0]))
    assert (cells["untrained"], cells["1 ep"], cells["4 ep"]) == ("10.0", "72.5", "73.5")
    assert cells["over scratch"].startswith("+30.0 (")


def test_the_pareto_front_keeps_what_nothing_beats() -> None:
    assert find_pareto_front([(2, 0.5), (1, 0.4), (3, 0.45), (2, 0.6), (4, 0.9)]) == [
        (1, 0.4),
        (2, 0.6),
        (4, 0.9),
    ]


def test_no_line_joins_means_of_different_tasks() -> None:
    """As in an interrupted bench: `signs`, the harder task, is not yet measured at 12 layers."""
    later = [
        replace(row, key=f"later {row.key}", layers=12) for row in rows() if row.task == "digits"
    ]
    drawn = draw_pictures(summarise([*rows(), *later]))
    points = {
        line.get_label(): len(line.get_xdata()) for line in drawn["pareto"].axes[0].get_lines()
    }
    assert points["lsamd"] == points["Pareto front of the means"] == 1
    assert sorted(drawn) == ["curves-12", "curves-9", "pareto"]
    assert [panel.get_title() for panel in drawn["curves-12"].axes] == ["digits"]


def test_scratch_has_no_costs_of_an_extraction() -> None:
    results = {row[0]: row[4:] for row in tables.build_cost_table(summarise(rows())).rows}
    assert results == {
        "lsamd": ("600.00K", "3.00K", "30.0s", "2.0s"),
        **{f"scratch {name}": ("-", "-", "-", "2.0s") for name in ("timm", "fan_in")},
    }


# The folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a reported bench with a failed cell."""
    out = tmp_path_factory.mktemp("bench")
    changed_rows = [
        *broken(rows((1, 4)), "lsamd shuffled", "signs", 0),
        *rows((4,), layers=12, params=2_000_000, key=""),
    ]
    write(out, [replace(row, key=str(index)) for index, row in enumerate(changed_rows)])
    write_report(out)
    return out


def write(out: Path, found: Sequence[Row]) -> None:
    (out / RESULTS).write_text("".join(json.dumps(to_json(row)) + "\n" for row in found))


class Page(HTMLParser):
    """Parses a page: its open tags, and everything that it would fetch."""

    void = frozenset({"meta", "link", "img", "br", "path", "use", "rect", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open += [tag] if tag not in self.void else []
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "data") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_is_whole_and_needs_nothing_else(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert (page.open, page.fetched) == ([], [])
    assert not re.search(r"https?://|@import|url\((?!#)|<script src", text)
    assert len(page.ids) == len(set(page.ids))
    for reference in set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)):
        assert (reference[0] or reference[1]) in page.ids


@pytest.mark.slow
def test_a_narrow_window_keeps_letters_readable_and_arms_in_sight(folder: Path) -> None:
    """Pictures keep their width and scroll; columns of one value give way to the results."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    narrow = text[text.index("@media (max-width: 40rem)") :]
    assert "position: sticky" in narrow
    widths = [float(width) for width in re.findall(r'style="--width: ([0-9.]+)pt"><svg', text)]
    assert len(widths) == text.count("<svg")
    assert all(width > 300 for width in widths)
    assert 'number shared"' not in text  # it has two sizes
    assert 'td class="number shared">9</td>' in render_report(summarise(rows()), NO_GRID, {})


def test_a_single_point_is_no_curve() -> None:
    only = [
        replace(row, epochs=4, untrained=None, key=f"{row.key} only")
        for row in rows()
        if row.epochs == 4
    ]
    assert sorted(draw_pictures(summarise(only))) == ["pareto"]
    known = [replace(row, untrained=0.1) for row in only]
    assert sorted(draw_pictures(summarise(known))) == ["curves-9", "pareto"]


def test_the_page_escapes_what_others_wrote(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert "out of &lt;memory&gt;" in text
    assert "<memory>" not in text


@pytest.mark.slow
def test_a_report_has_all_its_forms_and_forgets_old_pictures(folder: Path) -> None:
    shown = folder / "pictures"
    (shown / "curves-99.png").write_bytes(b"")
    written = write_report(folder)
    assert written[0].name == "report.html"
    assert {path.name for path in written} == {
        "report.html",
        "summary.md",
        "summary.csv",
        "summary.json",
        "pareto.png",
        "curves-9.png",
        "curves-12.png",
    }
    assert {path.name for path in shown.iterdir()} == {
        "pareto.png",
        "curves-9.png",
        "curves-12.png",
    }
    assert all(path.stat().st_size > 500 for path in written)


def test_a_report_covers_the_newest_grid_only(tmp_path: Path) -> None:
    write(tmp_path, rows())
    keys = [row.key for row in rows() if row.task == "digits"]
    grid = {
        "cost": False,
        "settings": {},
        "arms": [],
        "versions": {},
        "keys": [*keys, "not measured"],
    }
    (tmp_path / GRID).write_text(json.dumps(grid))
    summary = read_summary(tmp_path)
    assert (summary.tasks, len(summary.rows), summary.missing) == (["digits"], 12, 1)
    assert "mean of 1 task and 2 seeds" in build_overview(tmp_path)[0][0].title
    assert summary.others == len(rows()) - len(keys) > 0
    says = f"{summary.others} cells of other grids in this folder are in results.jsonl, and not in"
    assert any(line.startswith(says) for line in build_overview(tmp_path)[1])


def test_while_rates_are_chosen_there_is_no_report(tmp_path: Path) -> None:
    write(tmp_path, [toy_row(seed=TUNING_SEED, split="validation")])
    with pytest.raises(WrongCall, match="it is still choosing rates"):
        read_summary(tmp_path)


def test_a_folder_without_results_or_with_a_foreign_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"there is no results\.jsonl in"):
        write_report(tmp_path)
    write(tmp_path, rows())
    (tmp_path / GRID).write_text('{"cost": false, "settings": {}, "arms": [], "versions": {}}')
    with pytest.raises(BadFile, match="the key 'keys' is missing; run the bench again"):
        write_report(tmp_path)


# The pictures


@pytest.mark.parametrize(
    "methods", [["lsamd"], ["weight_selection", "closed_form", "first_k"], ["x" * 400]]
)
def test_no_legend_leaves_its_figure(methods: list[str]) -> None:
    """Three columns of long names once did. Names of any length are drawn in little time."""
    changed_rows = [
        replace(row, key=f"{method} {row.key}", arm=row.arm.replace("lsamd", method), method=method)
        for method in methods
        for row in rows((1, 4))
    ]
    for figure in draw_pictures(summarise(changed_rows)).values():
        (legend,) = figure.legends
        box, page = legend.get_window_extent(), figure.bbox
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert all(box.y1 <= panel.get_tightbbox().y0 for panel in figure.axes), (
            "it covers no label"
        )
        assert all(len(text.get_text()) <= 36 for text in legend.get_texts())


def test_controls_are_drawn_beside_one_method_only() -> None:
    def names(found: list[Row]) -> set[str]:
        return {
            text.get_text()
            for text in draw_pictures(summarise(found))["pareto"].legends[0].get_texts()
        }

    assert "lsamd stem" in names(rows())
    more = [replace(row, key=f"n{row.key}", arm=row.arm.replace("lsamd", "tal")) for row in rows()]
    assert names([*rows(), *more]) == {
        "lsamd",
        "tal",
        "scratch timm",
        "scratch fan_in",
        "Pareto front of the means",
    }


def test_arms_are_the_rows_of_the_table_by_task() -> None:
    (table,) = tables.build_task_tables(summarise(rows()))
    assert table.columns == ("arm", "digits", "signs", "average")
    assert [row[0] for row in table.rows] == [*ARMS, "lsamd over scratch"]


def test_gains_before_training_are_those_of_the_probes_or_else_of_the_untrained_models() -> None:
    untrained = {"lsamd": 0.5, "lsamd shuffled": 0.3, "scratch timm": 0.4, "scratch fan_in": 0.2}
    measured = [replace(row, untrained=untrained.get(row.arm, 0.1), probe=None) for row in rows()]
    table, *_ = gain_tables.build_tables_before_training(summarise(measured))
    assert "before any training" in table.title
    points = {row[:2]: row[-2] for row in table.rows if row[2] == text_table.AVERAGE}
    assert points["lsamd", "over scratch"] == "+10.0"
    assert points["lsamd", "inherited"] == "+20.0"
    # A head is fitted to augmented images too where an arm is trained on them; a probe never is.
    probed = [replace(row, probe=0.6 if row.arm == "lsamd" else 0.2) for row in measured]
    table, *_ = gain_tables.build_tables_before_training(summarise(probed))
    points = {row[:2]: row[-2] for row in table.rows if row[2] == text_table.AVERAGE}
    assert points["lsamd", "over scratch"] == "+40.0"
    bare = [replace(row, untrained=None, probe=None) for row in rows()]
    assert gain_tables.build_tables_before_training(summarise(bare)) == []


def test_arms_that_end_below_their_start_are_named() -> None:
    assert captions.describe_losses(summarise(rows())) == ""
    worse = [
        replace(row, untrained=0.95 if row.arm == "lsamd shuffled" else row.untrained)
        for row in rows(epochs=(1, 4))
    ]
    text = captions.describe_losses(summarise(worse))
    assert text.startswith("1 of 6 averages")
    harmful = captions.describe_losses(summarise([replace(row, untrained=1.0) for row in worse]))
    assert harmful.startswith("this training harms all arms: 6 of 6 averages")
    assert "lsamd shuffled: 95.0 to 43.5" in text
    # the warning is below the table of the arms, above the comparisons
    assert tables.build_compact_tables(summarise(worse))[-1].note == text
    assert tables.build_brief_tables(summarise(worse))[0].note == text
    assert text in text_table.render_markdown(tables.build_compact_tables(summarise(worse)))


def test_results_at_chance_are_named() -> None:
    measured = [replace(row, chance=0.05) for row in rows(epochs=(1, 4))]
    assert captions.describe_arms_at_chance(summarise(measured)) == ""
    weak = [
        replace(row, chance=row.value if row.arm == "lsamd shuffled" else 0.05) for row in measured
    ]
    text = captions.describe_arms_at_chance(summarise(weak))
    assert text.startswith(
        "4 of 24 results after training are no better than a constant answer (lsamd shuffled): "
    )
    assert tables.build_compact_tables(summarise(weak))[-1].note == text
    unknown = [replace(row, chance=None) for row in weak]
    assert captions.describe_arms_at_chance(summarise(unknown)) == ""


def test_an_unfinished_bench_says_so() -> None:
    assert not any("unfinished" in line for line in captions.list_remarks(summarise(rows())))
    assert captions.list_remarks(summarise(rows(), missing=3))[0] == (
        "unfinished: 24 cells measured, 3 not measured yet"
    )
