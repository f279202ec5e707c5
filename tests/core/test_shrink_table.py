"""The table of a shrink and its report: sentences, columns and positions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learngene_zoo import plotting
from learngene_zoo.cli.shrink import DROPS, SHORT
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.latency import Latency
from learngene_zoo.lifecycle.shrinking.report import (
    DODGE,
    PICTURES,
    describe_columns,
    describe_picture,
    dodge_sizes,
    draw_sizes,
    list_cells,
    write_report,
)
from learngene_zoo.lifecycle.shrinking.table import (
    ShrinkRow,
    ShrinkTable,
    measure_latencies,
)
from learngene_zoo.lifecycle.shrinking.trainings import ShrinkTraining, summarise_training
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.terminal import choose_columns


@pytest.mark.parametrize(
    ("validation", "max_drop", "text"),
    [
        (0.90004, None, "is level with a linear"),
        (0.89996, 0.1, "is level with a linear probe of the original, within the accepted drop"),
        (0.89996, 0.0, "is 0.0 points below a linear probe of the original, more than the"),
        (0.91, None, "is 1.0 points above a linear"),
        (0.88, 2.0, "is 2.0 points below a linear probe of the original, within"),
    ],
)
def test_a_drop_that_rounds_to_zero_is_level(
    validation: float, max_drop: float | None, text: str
) -> None:
    table = toy_table(validation, max_drop)
    assert text in table.describe_drop()


def test_a_healing_that_lowers_r2_is_named() -> None:
    table = replace(toy_table(0.88), task=None)
    fall = "healing lowered the R² of the model from 0.900 to 0.880; give more images, "
    assert [text.startswith(fall) for text in table.describe() if "healing" in text] == [True]
    assert replace(toy_table(0.9), task=None).describe_healing() == ""
    assert toy_table(0.88).describe_healing() == ""


def test_few_validation_images_are_named_beside_the_drop() -> None:
    table = replace(toy_table(1.0), validation_images=10)
    assert table.describe_drop() == (
        "on only 10 validation images, where one is 10 points, the model is 10.0 points above a "
        "linear probe of the original: too few to compare them"
    )


def test_the_latency_of_equal_shapes_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = open_ancestry("bundled").spec
    shapes, measured = [spec, spec.with_(layers=4), spec, spec.with_(layers=4)], list[int]()

    def latency(shape: Spec, _: Run) -> Latency:
        measured.append(shape.layers)
        return Latency(float(shape.layers), is_disturbed=shape.layers == 4)

    monkeypatch.setattr("learngene_zoo.lifecycle.latency.measure_latency", latency)
    _, record = measure_latencies(None, shapes, "a machine", Run())
    long, short = (
        {"seconds": 12.0, "is_disturbed": False},
        {"seconds": 4.0, "is_disturbed": True},
    )
    assert record == [long, short, long, short]
    assert measured == [12, 4]


def toy_table(validation: float, max_drop: float | None = None) -> ShrinkTable:
    """Return a table of an original and a candidate of the same size."""
    facts: dict[str, Any] = {
        "layers": 12, "width": 96, "heads": 3, "params": 1_363_498, "flops": 10**7,
        "megabytes": 5.4, "latency": 0.004, "probe": 0.9, "low": 0.88, "high": 0.92,
    }  # fmt: skip
    original = ShrinkRow(method="original", **facts, validation=0.9)
    pruned = ShrinkRow(
        method="weight_subcloning", **{**facts, "params": 436_714}, validation=validation,
        test=0.9, test_low=0.88, test_high=0.92, kept=True,
    )  # fmt: skip
    return ShrinkTable(
        task="digits", images=100, validation_images=50, rows=(original, pruned), max_drop=max_drop
    )


def test_the_table_shows_parameters_in_80_columns() -> None:
    cells = [list_cells(toy_table(0.9), row) for row in toy_table(0.9).rows]
    columns = [SHORT.get(name, name) for name, _ in cells[0]]
    right = [index for index, name in enumerate(columns) if name not in ("", "method")]
    chosen = choose_columns(columns, [[text for _, text in row] for row in cells], right, 80, DROPS)
    assert {columns[index] for index in chosen} >= {"size", "params", "val", "test"}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (None, "layers x width, MB are of fp32 weights, ms are those of one image on this machine"),
        (["size", "ms"], "layers x width, ms are those of one image on this machine"),
        (["size"], "layers x width"),
    ],
)
def test_only_shown_columns_are_described(shown: list[str] | None, text: str) -> None:
    assert describe_columns(toy_table(0.9), shown).endswith(f" The size is {text}.")
    without_task = replace(toy_table(0.9), task=None)
    assert describe_columns(without_task, shown).endswith(f" The size is {text}.")


def test_candidates_without_training_are_described_as_such() -> None:
    assert " on 50 images without fine-tuning; of the original" in describe_columns(toy_table(0.9))
    assert "of candidates without fine-tuning, of" in describe_picture(toy_table(0.9))
    trained = replace(
        toy_table(0.9), trainings=(ShrinkTraining(candidate="a", kept_epoch=1, epochs=2),)
    )
    assert "of candidates after fine-tuning, of" in describe_picture(trained)


def test_disturbed_latencies_are_said_to_be() -> None:
    disturbed = replace(toy_table(0.9), is_disturbed=True)
    text = "ms are those of one image on this machine, which was busy with other programs."
    assert describe_columns(disturbed).endswith(text)
    assert not describe_columns(disturbed, ["size"]).endswith(text)


def test_similar_sizes_are_moved_apart_and_keep_their_order() -> None:
    params = [1_363_498, 464_140, 436_710, *[468_780] * 5]
    positions = np.log(dodge_sizes(params))
    step = DODGE * np.log(1_363_498 / 436_710)
    assert np.diff(np.sort(positions)).min() >= step * (1 - 1e-9)
    assert np.argsort(positions, kind="stable").tolist() == [2, 1, 3, 4, 5, 6, 7, 0]
    assert dodge_sizes([10, 1000]) == pytest.approx([10, 1000])
    assert len(set(dodge_sizes([7, 7, 7]))) == 3


def test_no_size_is_moved_beyond_the_budget() -> None:
    params = [1_363_498, *[499_000] * 6, 300_000]
    positions = np.log(dodge_sizes(params, 500_000))
    assert positions[1:].max() == pytest.approx(np.log(500_000))
    assert positions[0] == pytest.approx(np.log(1_363_498))
    step = DODGE * np.log(1_363_498 / 300_000)
    assert np.diff(np.sort(positions)).min() >= step * (1 - 1e-9)
    assert max(dodge_sizes(params)[1:]) > 500_000


def test_the_report_draws_the_budget(tmp_path: Path) -> None:
    plain, bounded = tmp_path / "plain.html", tmp_path / "bounded.html"
    write_report(toy_table(0.9), plain)
    write_report(replace(toy_table(0.9), max_params=500_000), bounded)
    text = "The dashed line is the budget, 500K parameters."
    assert text in bounded.read_text(encoding="utf-8")
    assert ">budget</text>" in bounded.read_text(encoding="utf-8")
    assert "budget" not in plain.read_text(encoding="utf-8")


@pytest.mark.parametrize(("largest", "ticks"), [(1.5, 3), (4, 4), (20, 7), (0.99, 3)])
def test_ticks_of_similar_sizes_do_not_crowd(largest: float, ticks: int) -> None:
    table = toy_table(0.9)
    original = replace(table.rows[0], params=round(largest * table.rows[1].params))
    picture = draw_sizes(replace(table, rows=(original, table.rows[1])), "id", PICTURES["narrow"])
    labels = [text for text in re.findall(r">([^<>]*)</text>", picture) if text[-1:] in ("K", "M")]
    assert 2 <= len(labels) <= ticks, labels


def test_the_report_writes_megabytes_in_full(tmp_path: Path) -> None:
    table = toy_table(0.9)
    winner = replace(table.rows[1], megabytes=340.0)
    write_report(replace(table, rows=(table.rows[0], winner)), tmp_path / "report.html")
    assert " 340.0 MB" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_cell_of_the_report_has_its_heading(tmp_path: Path) -> None:
    write_report(toy_table(0.9), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("params", "validation", "test"):
        assert page.count(f'<td data-name="{name}">') == 2
    assert ">accuracy</text>" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("images", "epoch", "text"),
    [
        (
            19,
            1,
            "front 2x32: epoch 1 of 2 is kept, chosen by only 19 validation images, "
            "where one is 5 points",
        ),
        (300, 2, "front 2x32: epoch 2 of 2 is kept"),
        (
            19,
            0,
            "front 2x32: every epoch has a worse result on only 19 validation images, where one is "
            "5 points, than the ridge head before training (epoch 0), which is kept",
        ),
        (300, 0, "every epoch has a worse validation result than the ridge head before training "),
    ],
)
def test_a_training_states_its_epoch_and_few_images(images: int, epoch: int, text: str) -> None:
    metrics = {"kept_epoch": epoch, "epochs": 2, "validation_images": images}
    provenance = {"metrics": metrics, "head": {"init": "ridge"}}
    training = summarise_training("front 2x32", provenance, "image")
    assert training is not None
    assert text in training.describe()
    assert summarise_training("a", {"metrics": {"epochs": 0}}, "image") is None


def test_a_training_states_why_it_keeps_a_later_epoch_than_the_best() -> None:
    history = [
        {"epoch": epoch, "validation_accuracy": 0.5 + 0.1 * (epoch == 2)} for epoch in range(6)
    ]
    metrics = {"kept_epoch": 5, "epochs": 5, "validation_images": 100, "history": history}
    training = summarise_training("front 2x32", {"metrics": metrics}, "image")
    assert training is not None
    assert training.describe() == (
        "front 2x32: epoch 5 of 5 is kept (the last one within a standard error of the best, "
        "epoch 2)"
    )


def test_the_report_states_that_no_epoch_was_better(tmp_path: Path) -> None:
    trainings = tuple(
        ShrinkTraining(candidate=name, kept_epoch=epoch, epochs=2)
        for name, epoch in (("front 2x32", 0), ("pruning 1x32", 2))
    )
    table = replace(toy_table(0.9), trainings=trainings)
    note = "fine-tuning (of front 2x32 at epoch 0: every later epoch was worse than the ridge head"
    assert note in describe_columns(table)
    assert "epoch 0" not in describe_columns(replace(table, trainings=trainings[1:]))
    write_report(table, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert note in page
    assert all(f"{training.describe()}." in page for training in trainings)


def test_stars_of_accuracies_have_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    bars: list[Any] = []
    draw = Axes.errorbar

    def record(axes: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("marker") == "*":
            bars.append((named["color"], named["yerr"]))
        return draw(axes, *arguments, **named)

    monkeypatch.setattr(Axes, "errorbar", record)
    table = toy_table(0.9)
    for changed in (table, replace(table, metric="f1"), replace(table, task=None)):
        draw_sizes(changed, "id", PICTURES["wide"])
    # Wilson's interval of 45 of 50; the original has a star, too
    colours, intervals = zip(*bars)
    for interval in intervals[:2]:
        assert np.ravel(interval) == pytest.approx([0.9 - 0.7864, 0.9565 - 0.9], abs=1e-4)
    assert intervals[2:] == (None,) * 4
    assert colours[0] == plotting.GREY != colours[1]
