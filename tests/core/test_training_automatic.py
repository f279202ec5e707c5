"""Automatic settings of a fine-tuning: learning rate and batch size are searched once and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.cli.main import main
from learngene_zoo.errors import TrainingFailed, Unavailable
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.folder import clear
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.splits.cutting import limit_validation
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import automatic
from learngene_zoo.training.automatic import (
    LEARNING_RATES,
    find_batch_size,
    find_largest,
    resolve_auto,
)

TASK = make_tiny_task()
START = assemble(
    ViTSpec(layers=1, width=8, heads=2, classes=3, image_size=16, patch_size=8), {}, seed=0
)
RUN = Run(threads=1, device="cpu")
RECIPE = Recipe(epochs=10, batch_size=16, lr=5e-4, warmup=3.0)


@pytest.mark.parametrize(
    ("room", "most", "found"), [(1, 99, 1), (7, 99, 4), (8, 99, 8), (10**6, 100, 64), (3, 1, 1)]
)
def test_the_largest_power_of_two_that_fits(room: int, most: int, found: int) -> None:
    calls = []
    assert find_largest(lambda size: calls.append(size) or size <= room, most) == found
    assert max(calls) <= most


def test_a_model_too_large_for_a_single_image_is_an_error() -> None:
    with pytest.raises(Unavailable, match="with a single image does not fit"):
        find_largest(lambda size: False, 64)


@pytest.mark.parametrize(("accumulate", "batch_size"), [(1, 64), (3, 63), (100, 100)])
def test_a_processor_has_a_stated_batch_that_can_be_accumulated(
    accumulate: int, batch_size: int
) -> None:
    recipe, record = resolve_auto(
        START,
        TASK,
        replace(RECIPE, batch_size=accumulate, accumulate=accumulate),
        RUN,
        ["batch_size"],
    )
    assert (recipe.batch_size, record) == (batch_size, {"batch_size": "auto"})


def test_the_batch_of_a_processor_can_be_shared_by_the_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automatic, "get_world_size", lambda: 3)
    recipe = replace(RECIPE, batch_size=4, accumulate=4)
    assert find_batch_size(recipe, START, TASK, None, "", RUN)[1] == {"batch_size": 60}


def script_values(monkeypatch: pytest.MonkeyPatch, *values: float | Exception) -> list[Recipe]:
    """Replace training by one that reaches these values in turn; return the recipes it was given."""
    calls: list[Recipe] = []

    def fit(start: Any, task: Any, recipe: Recipe, run: Run, distillation: None) -> Any:
        calls.append(recipe)
        value = values[len(calls) - 1]
        if isinstance(value, Exception):
            raise value
        return replace(start, provenance={"metrics": {"validation_accuracy": value}})

    monkeypatch.setattr(automatic, "fit", fit)
    return calls


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        ((0.0, 0.0, 0.1, 0.4, 0.3, 0.2), 3e-4),
        ((0.0, 0.0, 0.1, 0.4, 0.4, 0.4), 3e-4),
        ((0.0, 0.0, 0.1, 0.2, 0.3, TrainingFailed("nan")), 1e-3),
        ((-0.3, -0.2, -0.1, -0.2, -0.3, TrainingFailed("nan")), 1e-4),
    ],
)
def test_the_rate_that_validates_best_is_taken(
    monkeypatch: pytest.MonkeyPatch, values: tuple[float | Exception, ...], rate: float
) -> None:
    asked = script_values(monkeypatch, *values)
    recipe, record = resolve_auto(START, TASK, RECIPE, RUN, ["lr"])
    assert recipe == replace(RECIPE, lr=rate)
    assert (
        [item["lr"] for item in record["lr"]] == [item.lr for item in asked] == list(LEARNING_RATES)
    )
    assert {(item.epochs, item.images, item.warmup) for item in asked} == {(2, 48, 1.0)}


def test_a_rate_that_diverges_is_recorded_without_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = TrainingFailed("nan")
    script_values(monkeypatch, -0.2, -0.1, -0.1, -0.2, failure, failure)
    recipe, record = resolve_auto(START, TASK, RECIPE, replace(RUN, lines=True), ["lr"])
    assert recipe.lr == 3e-5
    assert [item["validation"] for item in record["lr"]] == [-0.2, -0.1, -0.1, -0.2, None, None]
    assert "learning rate 0.003: diverged" in capsys.readouterr().err
    script_values(monkeypatch, *8 * [failure])
    assert resolve_auto(START, TASK, RECIPE, RUN, ["lr"])[0].lr == 1e-6


def test_an_interrupted_search_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = replace(RUN, folder=tmp_path, resume=True)
    script_values(monkeypatch, 0.0, 0.0, 0.1, 0.4, MemoryError())
    with pytest.raises(MemoryError):
        resolve_auto(START, TASK, RECIPE, run, ["lr"])
    asked = script_values(monkeypatch, 0.3, 0.2)
    recipe, record = resolve_auto(START, TASK, RECIPE, run, ["lr"])
    assert [item.lr for item in asked] == [1e-3, 3e-3]
    assert recipe.lr == 3e-4
    assert [item["validation"] for item in record["lr"]] == [0.0, 0.0, 0.1, 0.4, 0.3, 0.2]


def test_trials_on_fewer_validation_images_are_not_those_on_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = replace(RUN, folder=tmp_path)
    few = limit_validation(TASK, 3)
    assert few.sizes["validation"] < TASK.sizes["validation"]
    script_values(monkeypatch, 0.0, 0.0, 0.1, 0.4, 0.3, 0.2)
    assert resolve_auto(START, few, RECIPE, run, ["lr"])[0].lr == 3e-4
    clear(tmp_path, but_kept=True)
    asked = script_values(monkeypatch, 0.0, 0.5, 0.1, 0.4, 0.3, 0.2)
    assert resolve_auto(START, TASK, RECIPE, run, ["lr"])[0].lr == 3e-5
    assert len(asked) == len(LEARNING_RATES)
    clear(tmp_path, but_kept=True)
    assert resolve_auto(START, TASK, RECIPE, run, ["lr"])[0].lr == 3e-5
    assert len(asked) == len(LEARNING_RATES), "trials with the same images are taken over"


def test_what_was_found_is_what_is_trained_with_and_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    call: dict[str, Any] = {
        "task": "tiny",
        "epochs": 2,
        "lr": "auto",
        "batch_size": "auto",
        "run": RUN,
    }
    model = lifecycle.finetune(START, **call, out=tmp_path / "tuned")
    results = {item["lr"]: item["validation"] for item in model.provenance["found"]["lr"]}
    recipe = model.provenance["recipe"]
    assert recipe["batch_size"] == 64
    assert recipe["lr"] == max(results, key=lambda rate: results[rate])
    by_hand = lifecycle.finetune(
        START, task="tiny", epochs=2, lr=recipe["lr"], batch_size=64, run=RUN
    )
    assert by_hand.identity == model.identity


def test_the_word_is_an_option_s_value_where_it_can_be_found() -> None:
    def error(*words: str) -> str:
        got = CliRunner().invoke(main, ["finetune", "nowhere", *words])
        return got.stderr

    assert "no model at nowhere" in error("--lr", "auto", "--batch-size", "auto")
    assert "'auto' is not an integer" in error("--epochs", "auto")
    assert "'all' is not an integer; see" in error("--epochs", "all")
    assert "'all' is not an integer; give 'none' for all" in error("--images", "all")
    assert "'quick' is not a number" in error("--lr", "quick")
    assert "must be above 0" in error("--lr", "0")
