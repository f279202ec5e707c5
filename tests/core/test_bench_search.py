"""The search for learning rates and augmentations: until the best is inside the grid, on tasks
where an arm is above chance, at equal budgets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_toy import toy_row

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import list_cells, list_standard_arms
from learngene_zoo.bench.grid.search import (
    Choice,
    Result,
    Space,
    Trial,
    choose,
    read_result,
    search,
)
from learngene_zoo.bench.grid.tuning import (
    MIN_IMAGES,
    TUNING_SEED,
    GridTuning,
    apply_choices,
    apply_default_rates,
    describe_choice,
    describe_tuning,
    explain_untuned,
    find_small,
)
from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.lifecycle.rates import choose_rate
from learngene_zoo.method.rates import INHERITED_DECAY, INHERITED_LR
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_ancestry

SPACE = Space(
    arms=("a", "b"),
    rates=(1e-3, 2e-3, 4e-3),
    augments=("light", "none"),
    tasks=("one",),
    further=("two", "three"),
)
Value = Callable[[Trial], float]


def peak(trial: Trial, at: float, height: float = 60.0) -> float:
    """Return a value that falls by 5 per cent for every factor of two away from the best rate."""
    return height - 5 * abs(math.log2(trial.lr / at))


def run_search(
    space: Space, value: Value, least: float = 10.0, variance: float = 0.0
) -> tuple[dict[str, Choice], list[Trial]]:
    """Return the choices, and every requested trial in order."""
    results: dict[Trial, Result] = {}
    while True:
        choices, wanted = search(space, results.get)
        if not wanted:
            return choices, list(results)
        assert not set(wanted) & set(results), "nothing is measured twice"
        results |= {
            trial: Result(value=value(trial), least=least, variance=variance) for trial in wanted
        }


def budgets(trials: list[Trial], *parts: str) -> list[set[tuple[Any, ...]]]:
    """Return the trials of each arm."""
    return [
        {tuple(getattr(t, part) for part in parts) for t in trials if t.arm == arm}
        for arm in SPACE.arms
    ]


@pytest.mark.parametrize("best", [2.5e-4, 2e-3, 1.6e-2])
def test_the_grid_widens_until_the_best_rate_lies_inside(best: float) -> None:
    choices, trials = run_search(SPACE, lambda trial: peak(trial, best))
    assert choices["a"].lr == pytest.approx(best)
    assert not choices["a"].edge
    tried = {trial.lr for trial in trials}
    assert min(tried) < best < max(tried)


def test_a_rate_that_one_arm_needs_is_tried_by_all() -> None:
    """Arm a has its best rate far above the first grid, arm b inside it: both try the same rates."""
    choices, trials = run_search(
        SPACE, lambda trial: peak(trial, 1.6e-2 if trial.arm == "a" else 2e-3)
    )
    assert (choices["a"].lr, choices["b"].lr) == (1.6e-2, 2e-3)
    ours, theirs = budgets([t for t in trials if t.augment == "light"], "lr", "task")
    assert ours == theirs
    assert max(lr for lr, _ in theirs) == 3.2e-2
    assert len([t for t in trials if t.arm == "a"]) == len([t for t in trials if t.arm == "b"])


def test_a_grid_does_not_widen_for_ever() -> None:
    choices, trials = run_search(SPACE, lambda trial: 50 + 100 * trial.lr)
    assert max(trial.lr for trial in trials) <= 0.1
    assert choices["a"].edge
    assert describe_choice(choices["a"]).endswith("its best rate is at the edge of the grid")


def test_an_arm_at_chance_is_tuned_on_the_next_task() -> None:
    """Arm b learns only the second task; its noise on the first one is ignored, and the third task
    is not needed.
    """

    def value(trial: Trial) -> float:
        if trial.arm == "b" and trial.task == "one":
            return 9.0 if trial.lr == 1e-3 else 8.0
        return peak(trial, 2e-3)

    choices, trials = run_search(SPACE, value)
    assert (choices["b"].tasks, choices["b"].at_chance, choices["b"].lr) == (
        ("two",),
        ("one",),
        2e-3,
    )
    assert choices["a"].tasks == ("one", "two")
    assert {trial.task for trial in trials} == {"one", "two"}
    ours, theirs = budgets(trials, "task", "augment")
    assert ours == theirs, "the task joins for every arm"


def test_at_the_ceiling_of_a_task_another_one_joins_for_every_arm() -> None:
    """On task one arm a is almost always right at any rate; on task two its rates differ, with
    another best one.
    """

    def value(trial: Trial) -> float:
        if trial.arm == "a":
            return 98.0 - (trial.lr > 1e-3) if trial.task == "one" else peak(trial, 2e-3)
        return peak(trial, 2e-3)

    choices, trials = run_search(SPACE, value)
    assert {trial.task for trial in trials} == {"one", "two"}, "and no third: the second tells"
    assert (choices["a"].lr, choices["a"].tasks, choices["a"].at_ceiling) == (
        2e-3,
        ("one", "two"),
        ("one",),
    )
    ours, theirs = budgets(trials, "task", "augment")
    assert ours == theirs, "the task joins for every arm"


def test_at_every_ceiling_the_best_of_all_tasks_is_taken() -> None:
    choices, trials = run_search(SPACE, lambda trial: 96.0 + peak(trial, 2e-3) / 100)
    assert {trial.task for trial in trials} == {"one", "two", "three"}
    assert choices["a"].lr == 2e-3


def test_an_arm_that_never_leaves_chance_keeps_the_middle_rate_and_says_so() -> None:
    choices, trials = run_search(
        SPACE, lambda trial: 5.0 if trial.arm == "b" else peak(trial, 2e-3)
    )
    assert (choices["b"].lr, choices["b"].tasks, choices["b"].at_chance) == (
        2e-3,
        (),
        ("one", "two", "three"),
    )
    assert choices["b"].augment == "light"
    message = describe_tuning([], choices)
    assert (
        message[1]
        == "b: no better than a constant answer on one, two, three at any rate, so the middle one"
        " (0.002) is kept"
    )
    assert len({trial.lr for trial in trials}) == 3, "it does not widen the grid"
    alone = replace(choices["b"], lr=1e-3, means={"0.001": 5.0})
    assert describe_tuning([], {"b": alone}) == [
        "b: no better than a constant answer on one, two, three at the only rate (0.001), which is"
        " kept"
    ]


def test_the_rate_of_an_arm_that_learnt_nothing_does_not_widen_a_grid_of_which_it_is_an_end() -> (
    None
):
    choices, trials = run_search(replace(SPACE, rates=(1e-3, 2e-3)), lambda trial: 5.0)
    assert {choice.lr for choice in choices.values()} == {1e-3}
    assert {trial.lr for trial in trials} == {1e-3, 2e-3}


def test_the_augmentation_is_the_arms_own() -> None:
    choices, trials = run_search(
        SPACE, lambda t: peak(t, 2e-3) + 8 * (t.arm == "a") * (t.augment == "none")
    )
    assert (choices["a"].augment, choices["b"].augment) == ("none", "light")
    assert choices["a"].augments == {"light": 60.0, "none": 68.0}
    last = [trial for trial in trials if trial.augment == "none"]
    assert [(trial.arm, trial.lr) for trial in last] == [
        ("a", 2e-3),
        ("b", 2e-3),
    ], "one more training each"


@pytest.mark.parametrize(("better", "chosen"), [(2.7, "light"), (2.9, "none")])
def test_an_augmentation_within_a_standard_error_of_the_first_is_not_taken(
    better: float, chosen: str
) -> None:
    """Both have a variance of 4 on one task: the standard error of their difference is 2.83."""
    choices, _ = run_search(
        SPACE, lambda trial: peak(trial, 2e-3) + better * (trial.augment == "none"), variance=4.0
    )
    assert choices["a"].augment == chosen
    assert choices["a"].augments == {"light": 60.0, "none": 60.0 + better}


def test_the_variance_of_a_row_is_that_of_its_share() -> None:
    row = replace(toy_row(), value=0.8, evaluated=400, chance=0.1)
    assert read_result(row).variance == pytest.approx(100**2 * 0.8 * 0.2 / 400)
    assert read_result(replace(row, evaluated=0, chance=None)).variance == 0.0


def test_the_variance_of_a_correlation_needs_no_positive_value() -> None:
    row = toy_row(metric="matthews", value=-0.2, evaluated=100, chance=0.0)
    result = read_result(row)
    assert (result.value, result.least) == (-20.0, pytest.approx(100 * 3 / 10))
    assert result.variance == pytest.approx(100**2 * (1 - 0.04) ** 2 / 100)


def test_a_rate_that_failed_is_out_and_bounds_the_grid() -> None:
    results: dict[Trial, Result] = {}
    while expected := search(SPACE, results.get)[1]:
        for trial in expected:
            broken = trial.lr > 2e-3
            results[trial] = (
                Result(error="loss is nan") if broken else Result(value=1e4 * trial.lr, least=1.0)
            )
    choice = search(SPACE, results.get)[0]["a"]
    assert (choice.lr, choice.failed, choice.edge) == (2e-3, ("0.004: loss is nan",), False)


def test_chance_is_a_constant_answer_and_three_standard_errors() -> None:
    known = read_result(toy_row(value=0.5, evaluated=100, chance=0.1))
    assert (known.value, known.least) == (50.0, pytest.approx(10 + 3 * 3.0))
    assert read_result(toy_row(value=0.5)).least == -math.inf, "an earlier version did not say"
    assert read_result(toy_row(error="no", value=None)).error == "no"


# ---- of a grid


DEIT = ("timm:deit_tiny_patch16_224",)
RECIPE = Recipe(images=100, lr=1e-3)


def grid(**changes: Any) -> list[Cell]:
    settings: dict[str, Any] = {
        "layers": [6, 9, 12],
        "epochs": [1, 4],
        "seeds": [0, 1],
        "recipe": RECIPE,
        **changes,
    }
    return list_cells(
        ["digits", "objects"], list_standard_arms(["lsamd"], ancestries=DEIT), **settings
    )


def test_a_grid_is_tuned_at_the_middle_size_with_the_longest_budget_on_validation_images() -> None:
    cells = grid()
    tuning = GridTuning(cells, (1e-3, 3e-3), ("light", "none"))
    assert (tuning.space.tasks, tuning.space.further) == (("digits",), ("objects",))
    expected = [tuning.cell_of(trial) for trial in search(tuning.space, lambda trial: None)[1]]
    assert len(expected) == 6 * 2
    assert {(cell.layers, cell.recipe.epochs, cell.seed, cell.split) for cell in expected} == {
        (9, 4, TUNING_SEED, "validation")
    }
    assert {cell.extraction.key for cell in expected} <= {cell.extraction.key for cell in cells}, (
        "no further extraction"
    )
    assert not {cell.key for cell in expected} & {cell.key for cell in cells}
    for arm in {cell.arm.name for cell in expected}:
        own = [replace(cell, arm=expected[0].arm) for cell in expected if cell.arm.name == arm]
        assert own == expected[:2], "the cells of two arms differ in the arm alone"
    with pytest.raises(WrongCall, match="choose other seeds"):
        GridTuning(grid(seeds=[TUNING_SEED]), (1e-3,), ("light",))
    with pytest.raises(WrongCall, match="above 0"):
        GridTuning(cells, (1e-3, 0.0), ("light",))


def test_the_choices_are_those_of_every_cell_of_the_arm() -> None:
    cells = grid()
    chosen = {"lsamd": Choice(arm="lsamd", lr=3e-3, augment="none", means={})}
    tuned = apply_choices(cells, chosen)
    for old, new in zip(cells, tuned):
        expected = (3e-3, "none") if old.arm.name == "lsamd" else (1e-3, "light")
        assert (new.recipe.lr, new.recipe.augment) == expected
        assert replace(new, recipe=old.recipe) == old
    assert (
        explain_untuned(cells)
        == "No arm was tuned: learning rate 0.001, augmentation light for all."
    )


def test_an_arm_of_which_every_rate_failed_ends_the_search() -> None:
    tuning = GridTuning(grid(), (1e-3, 2e-3), ("light",))

    def measure(wanted: list[Cell]) -> Any:
        return [
            toy_row(cell.key, arm=cell.arm.name, value=None, error="it failed") for cell in wanted
        ]

    with pytest.raises(TrainingFailed, match="every learning rate failed for lsamd: it failed"):
        choose(tuning.space, tuning.cell_of, measure)


def test_nothing_is_chosen_on_a_task_with_few_validation_images() -> None:
    cells = [toy_cell("a", task) for task in ("few", "many")]
    small = find_small(cells, {"few": MIN_IMAGES - 1, "many": MIN_IMAGES}.__getitem__)
    assert small == {"few": MIN_IMAGES - 1}
    assert GridTuning(cells, (1e-4, 1e-3, 1e-2), ("none",), small=small).space.tasks == ("many",)
    alone = GridTuning(cells[:1], (1e-4, 1e-3, 1e-2), ("none",), small=small)
    assert alone.space.arms == ()
    message = describe_tuning(cells[:1], {}, small)
    assert message == [
        "No arm was tuned: learning rate 0.001, augmentation none for all. few has 99 validation"
        " images; choosing pays from 100 on (--tune with several rates chooses all the same)."
    ]


def test_rates_that_the_images_do_not_distinguish_are_named() -> None:
    """Two values with a variance of 4: the standard error of their difference is 2.83."""
    values = {1e-3: 60.0, 2e-3: 62.7, 4e-3: 50.0}
    choices, _ = run_search(SPACE, lambda trial: values.get(trial.lr, 0.0), variance=4.0)
    assert (choices["a"].lr, choices["a"].alike) == (2e-3, ("0.001",))
    text = describe_choice(choices["a"])
    assert text.endswith("; within a standard error of the best rate: 0.001")
    certain, _ = run_search(SPACE, lambda trial: values.get(trial.lr, 0.0), variance=1.0)
    assert "standard error" not in describe_choice(certain["a"])


@pytest.mark.parametrize("head", ["ridge", "random"])
def test_untuned_arms_of_a_wide_ancestry_model_have_the_rates_of_fine_tuning(
    monkeypatch: pytest.MonkeyPatch, head: Any
) -> None:
    """Scratch has the rate of random weights of its width, and with a random head the controls."""
    widths = {"wide": 384, "small": 96}
    monkeypatch.setattr(
        "learngene_zoo.bench.grid.tuning.read_ancestry_spec",
        lambda name, offline: make_tiny_ancestry(width=widths[name]).spec,
    )

    def build(ancestry: str, width: int | None = None) -> list[Cell]:
        arms = list_standard_arms(["first_k"], ancestries=[ancestry])
        return [replace(toy_cell("a", "few"), arm=arm, head=head, width=width) for arm in arms]

    rates = {
        cell.arm.name: (cell.recipe.lr, cell.recipe.layer_decay)
        for cell in apply_default_rates(build("wide", width=192))
    }
    inherited, fresh = (INHERITED_LR, INHERITED_DECAY), (choose_rate(192), 1.0)
    scratch = {rates.pop(name) for name in list(rates) if name.startswith("scratch")}
    assert (rates.pop("first_k"), scratch) == (inherited, {fresh})
    assert set(rates.values()) == {inherited if head == "ridge" else fresh}
    named = apply_default_rates(build("wide"), named=["layer_decay"])
    assert {cell.recipe.layer_decay for cell in named} == {1.0}
    start = (
        "No arm was tuned: learning rate 0.0001, layer decay 0.75, augmentation none for first_k"
    )
    assert explain_untuned(apply_default_rates(build("wide"))).startswith(start)
    assert apply_default_rates(build("small")) == build("small")
    spec = BertSpec(
        layers=2, width=384, heads=6, classes=0, vocabulary=40, positions=12, pad_token=0
    )
    monkeypatch.setattr(
        "learngene_zoo.bench.grid.tuning.read_ancestry_spec", lambda name, offline: spec
    )
    [texts, *_] = apply_default_rates(build("wide"))
    assert (texts.arm.name, texts.recipe.lr, texts.recipe.layer_decay) == ("first_k", 2.5e-4, 1.0)


def test_the_threshold_is_the_measured_one(checkout: Path) -> None:
    kept = json.loads((checkout / "benchmarks" / "results" / "tuning_images.json").read_text())
    assert kept["pays_from"] == MIN_IMAGES


def toy_cell(arm: str, task: str) -> Cell:
    recipe = Recipe(lr=1e-3, augment="none")
    return Cell(arm=Arm(name=arm, method="lsamd"), task=task, layers=9, seed=0, recipe=recipe)
