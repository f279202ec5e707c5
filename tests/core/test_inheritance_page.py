"""The page of benchmarks/inheritance.py: the references of its gains, and its four parts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
page = pytest.importorskip("inheritance_page")

NAMES = {(6, 96): "half as deep", (3, 96): "a quarter as deep"}
LEVELS = {
    "closed_form": 60.0,
    "closed_form shuffled": 30.0,
    "closed_form stem": 41.0,
    "closed_form stem_fan_in": 45.0,
    "first_k": 50.0,
    "scratch timm": 20.0,
    "scratch fan_in": 35.0,
}
DEPTH = {"closed_form": 3.0, "scratch fan_in": 1.0}  # points for each layer


def rows() -> list[tuple[Any, Any]]:
    """Return rows whose values are sums of terms of arm, size, task and seed, in per cent."""
    results = []
    for layers, width in NAMES:
        for arm, level in LEVELS.items():
            for task, easy in (("digits", 5.0), ("signs", 2.5), ("wings", 0.0)):
                for seed in range(3):
                    value = level + DEPTH.get(arm, 0.0) * (layers - 6) + easy + seed
                    value += (
                        0.01 * (seed - 1) * (arm == "closed_form")
                    )  # equal differences have no interval
                    counts = {
                        "params": 100,
                        "flops": 100,
                        "stored_params": 100,
                        "extraction_images": 100,
                    }
                    row = {
                        "arm": arm,
                        "task": task,
                        "seed": seed,
                        "width": width,
                        "value": value / 100,
                        "error": None,
                    }
                    cell = SimpleNamespace(
                        layers=layers,
                        width=width,
                        size={},
                        recipe=SimpleNamespace(images=200, lr=1e-3, augment="light"),
                    )
                    times = {"extraction_seconds": 1.0, "seconds": 2.0}
                    results.append((cell, SimpleNamespace(**row, **counts, **times)))
    return results


@pytest.fixture
def measured() -> Any:
    return page.GridValues(rows(), NAMES)


PLACE = (200, "half as deep")


def test_a_gain_is_over_the_strongest(measured: Any) -> None:
    assert measured.compute_gain_over("closed_form", page.SCRATCH, PLACE).value == pytest.approx(
        60 - 35
    )
    assert measured.compute_gain_over(
        "closed_form", page.name_controls("closed_form", page.STEMS), PLACE
    ).value == pytest.approx(60 - 45)
    assert (
        measured.compute_gain_over("first_k", page.name_controls("first_k", page.STEMS), PLACE)
        is None
    )
    assert measured.compute_level("closed_form", PLACE, ["digits"]) == pytest.approx(66)
    assert measured.methods == ["closed_form", "first_k"]


def test_what_is_inherited_has_four_parts(measured: Any) -> None:
    table = page.make_split(measured, 200, ["half as deep"], "a quarter as deep")
    ((arm, _, scale, stem, features, depth),) = table.rows
    assert arm == "closed_form"
    assert [text.split()[0] for text in (scale, stem, features, depth)] == [
        "-5.0",
        "+10.0",
        "+15.0",
        "+6.0",
    ]


def raise_rival(rival: str, by: float) -> Any:
    """Return the same measurements with a rival better by this much."""
    result = rows()
    for _, row in result:
        row.value += by * (row.arm == rival)
    return page.GridValues(result, NAMES)


def test_where_ours_does_not_lead_is_said(measured: Any) -> None:
    ahead = "In 1 comparison (a rival, a size, a number of images) `closed_form` is ahead in"
    assert (
        page.make_sentence(measured, [PLACE])
        == f"{ahead} 1; beyond its interval in 1. It is nowhere behind beyond the interval."
    )
    said = page.make_sentence(raise_rival("first_k", 0.2), [PLACE])
    assert said.startswith(
        f"{ahead} 0; beyond its interval in 0. It is behind, beyond the interval: first_k (half as"
        " deep, 200 images: -10.0"
    )
    assert "level, within the interval: first_k (half as deep" in page.make_sentence(
        raise_rival("first_k", 0.1001), [PLACE]
    )


def test_every_table_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    page.write_page(
        page.GridValues(rows(), NAMES), list(NAMES.values()), ("digits",), ("wings",), publish=False
    )
    printed = capsys.readouterr().out
    assert "### Half as deep, 200 images" in printed
    assert "| first_k | 53.5 | 56.0 | 51.0 |" in printed


def test_all_methods_have_a_table_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    thin = [
        (SimpleNamespace(**{**vars(cell), "layers": 12, "size": {"keep": 0.5}}), row)
        for cell, row in rows()
        if cell.layers == 6 and not row.arm.startswith("first_k")
    ]
    written: dict[str, Any] = {}
    monkeypatch.setattr(page, "save", lambda figure, path: written.update({path.name: figure}))
    monkeypatch.setattr(
        page, "replace_between", lambda place, name, text: written.update({name: text})
    )
    monkeypatch.setattr(
        page, "write", lambda name, numbers: written.update({f"{name}.json": numbers})
    )
    names = {**NAMES, (12, 96, "keep 0.5"): "thinner blocks"}
    page.write_methods(page.GridValues([*rows(), *thin], names), ("digits",), ("wings",))
    titles = [table["title"] for table in written["methods.json"]["tables"]]
    assert titles == [
        "Half as deep, 200 images",
        "A quarter as deep, 200 images",
        "Thinner blocks, 200 images",
    ]
    arms = [row[0] for row in written["methods.json"]["tables"][-1]["rows"]]
    assert arms == ["closed_form", "scratch fan_in", "scratch timm"]
    panels = written["methods.png"].axes
    assert [panel.get_xlabel() for panel in panels] == [
        "accuracy on digits, %",
        "accuracy on wings, %",
    ]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["first_k", "closed_form"]
    drawn = {line.get_label(): list(line.get_xdata()) for line in panels[0].lines}
    assert drawn["the method"] == [pytest.approx(56), pytest.approx(66)]
    assert drawn["stem alone"][1] == pytest.approx(51)
    assert drawn["scratch"][0] == pytest.approx(41)


def test_the_recipe_of_an_arm_is_told(measured: Any) -> None:
    table = page.make_comparison(measured, PLACE, ("digits",), ("wings",))
    column = table.columns.index("rate")
    assert {row[column] for row in table.rows} == {"0.001, light"}
    measured.recipes |= {at: "0.003" for at in measured.recipes if at[0] == "first_k"}
    assert (
        page.describe_augmentation(measured)
        == f"{len(LEVELS) - 1} of the {len(LEVELS)} arms (methods, controls, scratch) use an"
        " augmentation; each chose on the validation images."
    )
    measured.recipes |= dict.fromkeys(measured.recipes, "0.003")
    assert page.describe_augmentation(measured).startswith(f"None of the {len(LEVELS)} arms")


def test_costs_that_are_not_known_are_left_empty(measured: Any) -> None:
    (known, *_), (unknown, *_) = (measured.rows[arm, PLACE] for arm in ("closed_form", "first_k"))
    unknown.extraction_seconds = 0.0
    table = {
        row[0]: row[-3:]
        for row in page.make_comparison(measured, PLACE, ("digits",), ("wings",)).rows
    }
    assert known.extraction_seconds == 1.0
    assert table["closed_form"] == ("100", "100", "3.0s")
    assert table["first_k"] == ("", "", "")
    assert table["scratch timm"][2] == "3.0s"


def test_the_front_table_counts_an_extraction_once_and_each_of_a_size_by_itself(
    measured: Any,
) -> None:
    for row in measured.rows["first_k", (200, "a quarter as deep")]:
        row.stored_params, row.extraction_images, row.extraction_seconds = 50, 70, 3.0
    table = page.make_front(measured, 200, list(NAMES.values()), ("digits",), ("wings",))
    rows = {arm: rest for arm, *rest in table.rows}
    assert list(rows) == ["closed_form", "first_k", "scratch fan_in", "scratch timm"]
    assert rows["closed_form"] == ["66.0 / 61.0", "57.0 / 52.0", "100", "100", "1.0s"]
    assert rows["first_k"][2:] == ["150", "170", "4.0s"]
