"""Diverging training: which weights are kept, that none are NaN, and the message."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.cli.main import main
from learngene_zoo.errors import TrainingFailed
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.training_warnings import warn_of_training
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import fit as fitting
from learngene_zoo.training import loop, tuning
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import check_progress, describe_chance, find_constant_share, fit
from learngene_zoo.training.objectives import CLASS_LOSS
from learngene_zoo.training.tuning import tune

TASK = make_tiny_task()
START = assemble(
    ViTSpec(layers=2, width=8, heads=2, classes=3, image_size=16, patch_size=8), {}, seed=0
)
RECIPE = Recipe(epochs=4, batch_size=16, lr=3e-3)
RUN = Run(threads=1, device="cpu")


def diverge_in(epoch: int) -> Any:
    """Return a `train` whose weights become NaN with the last step before this epoch.

    The loop detects it in the epoch's first step.
    """

    def train(objective: torch.nn.Module, *args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        for step in loop.train(objective, *args, **kwargs):
            yield step
            if step.end_of_epoch and step.epoch + 1 == epoch - 1:
                poison(objective)

    return train


def poison(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float("nan"))


def script_values(monkeypatch: pytest.MonkeyPatch, *values: float) -> list[dict[str, torch.Tensor]]:
    """Replace validation by these values, from epoch 0 on; return the weights it was given."""
    seen: list[dict[str, torch.Tensor]] = []

    def measure(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        measured = evaluate(model, *args, **kwargs)
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return replace(measured, value=values[len(seen) - 1])

    monkeypatch.setattr(tuning, "evaluate", measure)
    return seen


def is_same(model: Descendant, weights: Any) -> bool:
    return all(torch.equal(model.state[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("values", "settings", "epoch", "kept"),
    [
        ((0.1, 0.4, 0.6, 0.3), {}, 4, 2),
        ((0.1, 0.6, 0.4, 0.3), {}, 4, 1),
        ((0.1, 0.6, 0.4, 0.5), {"keep": "last"}, 4, 3),
        ((0.1, 0.6), {}, 2, 1),
    ],
)
def test_the_best_epoch_before_it_diverged_is_kept_and_named(
    monkeypatch: pytest.MonkeyPatch, values: tuple[float, ...], settings: Any, epoch: int, kept: int
) -> None:
    seen = script_values(monkeypatch, *values)
    monkeypatch.setattr(tuning, "train", diverge_in(epoch))
    model = tune(START, TASK, RECIPE, RUN, **settings)
    metrics: Any = model.provenance["metrics"]
    assert is_same(model, seen[kept])
    assert (metrics["kept_epoch"], metrics["diverged"], len(metrics["history"])) == (
        kept,
        True,
        epoch,
    )
    steps = TASK.sizes["train"] // 16
    assert metrics["warning"].startswith(
        f"the training diverged: the loss cross_entropy is nan at step {(epoch - 1) * steps + 1} of"
        f" {4 * steps}, which was not applied; the weights of epoch {kept} are kept (validation"
        f" accuracy {values[kept]:.4f}); "
    )
    assert metrics["warning"].endswith(
        "train again with a smaller lr (0.003 was used), or with clip 1"
    )
    assert "at_chance" not in metrics
    assert "the training diverged" in model.files["report.html"]


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_resumed_training_that_diverges_keeps_the_same_epoch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: Any
) -> None:
    def fail_with(error: BaseException) -> Any:
        def train(*args: Any, **kwargs: Any) -> Iterator[loop.Step]:
            for step in loop.train(*args, **kwargs, seconds_between_checkpoints=0):
                if step.epoch == 2:
                    raise error
                yield step

        return train

    diverge = fail_with(TrainingFailed("the loss cross_entropy is nan; try a lower --lr"))
    monkeypatch.setattr(tuning, "train", diverge)
    full = tune(START, TASK, RECIPE, RUN, keep=keep)
    monkeypatch.setattr(tuning, "train", fail_with(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tune(START, TASK, RECIPE, replace(RUN, folder=tmp_path), keep=keep)
    monkeypatch.setattr(tuning, "train", diverge)
    resumed = tune(START, TASK, RECIPE, replace(RUN, folder=tmp_path, resume=True), keep=keep)
    assert is_same(resumed, full.state)
    assert resumed.provenance["metrics"] == full.provenance["metrics"]


def test_the_weights_before_training_are_kept_if_no_epoch_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(objective: torch.nn.Module, *args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        for step in loop.train(objective, *args, **kwargs):
            poison(objective)
            yield step

    monkeypatch.setattr(tuning, "train", train)
    for settings in ({}, {"keep": "last"}):
        model = tune(START, TASK, RECIPE, RUN, **settings)  # type: ignore[arg-type]
        metrics: Any = model.provenance["metrics"]
        assert is_same(model, START.model().state_dict())
        assert metrics["kept_epoch"] == 0
        assert [epoch["epoch"] for epoch in metrics["history"]] == [0]
        assert "; the weights before training are kept" in metrics["warning"]


def test_outputs_that_are_not_finite_end_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = script_values(monkeypatch, 0.4, 0.5, 0.6)

    def train(objective: torch.nn.Module, *args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        for step in loop.train(objective, *args, **kwargs):
            if step.epoch == 2 and step.end_of_epoch:
                poison(objective)
            yield step

    monkeypatch.setattr(tuning, "train", train)
    model = tune(START, TASK, RECIPE, RUN)
    assert is_same(model, seen[2])
    assert "the model's outputs are not finite" in str(model.provenance["metrics"]["warning"])  # type: ignore[index]


def test_the_last_step_leaves_no_weights_that_are_not_finite() -> None:
    """A gradient may overflow although the loss is finite, and no later loss would show it."""

    def run_fit() -> None:
        fit(START, TASK, replace(RECIPE, epochs=1), RUN, judge=False)

    run_fit()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.optim.AdamW, "step", lambda self, *_: poison_groups(self))
        with pytest.raises(
            TrainingFailed, match=r"^the (weights|loss) .* try a lower lr, or clip=1$"
        ):
            fit(
                START,
                TASK,
                replace(RECIPE, epochs=1, batch_size=TASK.sizes["train"]),
                RUN,
                judge=False,
            )


def poison_groups(optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.fill_(float("inf"))


def test_what_a_constant_answer_reaches() -> None:
    labels = np.asarray(TASK.split("validation").labels)
    share = max((labels == label).mean() for label in range(3))
    assert find_constant_share(TASK) == share
    assert describe_chance(share + 0.01, TASK, RECIPE) == ""
    message = describe_chance(share, TASK, RECIPE)
    assert message.startswith(
        f"the model is no better than a constant answer on {len(labels)} validation images "
    )
    assert message.endswith("; train for more than 12 steps, or on more images")
    longer = describe_chance(share, TASK, replace(RECIPE, epochs=50))
    assert "; train again with a smaller lr (0.003 was used), or for longer" in longer


def call(tmp_path: Path, *words: str) -> tuple[int, list[str]]:
    START.save(tmp_path / "start", force=True)
    call = [
        "finetune",
        str(tmp_path / "start"),
        "--task",
        "tiny",
        "--epochs",
        "2",
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    got = CliRunner().invoke(main, [*call, "-o", str(tmp_path / "tuned"), "--force", *words])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    return got.exit_code, [
        line for line in got.stderr.splitlines() if line.startswith(("warning", "error"))
    ]


@pytest.mark.parametrize(
    ("values", "code"),
    [((0.9, 0.9, 0.9), 0), ((0.0, 0.0, 0.0), 1)],
    ids=["has learnt something", "has learnt nothing"],
)
def test_the_exit_code_says_whether_the_model_knows_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: tuple[float, ...], code: int
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.check_name", lambda name: None)
    script_values(monkeypatch, *values)
    monkeypatch.setattr(tuning, "train", diverge_in(2))
    got, lines = call(tmp_path, "--quiet")
    assert got == code
    assert [line.split(":")[:2] for line in lines] == [["warning", " the training diverged"]]
    state = load_descendant(tmp_path / "tuned").state
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


def test_a_model_at_chance_is_written_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.check_name", lambda name: None)
    script_values(monkeypatch, 0.0, 0.0, 0.0)
    code, lines = call(tmp_path)
    assert code == 0
    (line,) = lines
    assert line.startswith("warning: the model is no better than a constant answer on ")


def test_a_loss_above_that_of_guessing_stops_a_training_from_scratch() -> None:
    steps = [
        loop.Step(
            epoch=0, step=number, steps=100, losses={CLASS_LOSS: 40.0}, lr=10.0, end_of_epoch=False
        )
        for number in range(1, 101)
    ]
    with pytest.raises(
        TrainingFailed,
        match=r"^after 50 of 100 steps the loss is 40\.000, no better than the 1\.099",
    ):
        list(check_progress(iter(steps), 3))


def test_distillation_that_diverges_ends_in_one_line() -> None:
    from learngene_zoo.training.distillation import Distilled, guide, make_logits_loss

    nan = replace(
        START, state={name: tensor * float("nan") for name, tensor in START.state.items()}
    )

    def distillation(objective: torch.nn.Module, model: Any) -> torch.nn.Module:
        return Distilled(
            objective, model, guide(nan, START.input_format, RUN), make_logits_loss(), (0.5, 0.5)
        )

    tuned = tune(START, TASK, RECIPE, RUN, distillation=distillation)
    warning = str(tuned.provenance["metrics"]["warning"])  # type: ignore[index]
    assert warning.startswith("the training diverged: the loss distillation is nan at step 1 of ")


def test_python_warns_once_and_the_command_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.check_name", lambda name: None)
    script_values(monkeypatch, *[0.0] * 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lg.finetune(START, task="tiny", epochs=2, run=RUN)
    told = [warning for warning in caught if warning.category is lg.TrainingWarning]
    (text,) = [str(warning.message) for warning in told]
    assert text.startswith("the model is no better than a constant answer on ")
    assert text.endswith("; train for more than 2 steps, or on more images")
    assert told[0].filename == __file__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(call(tmp_path)[1]) == 1
    assert not any(warning.category is lg.TrainingWarning for warning in caught)


def test_few_validation_images_are_named() -> None:
    metrics = {"kept_epoch": 2, "epochs": 5, "validation_images": 6}
    words = "epoch 2 of 5 is kept, chosen by only 6 validation images, where one is 17 points"
    with pytest.warns(lg.TrainingWarning, match=words):
        warn_of_training(replace(START, provenance={"metrics": metrics}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_training(
            replace(START, provenance={"metrics": {**metrics, "validation_images": 30}})
        )


def test_an_extraction_names_its_trainings_that_learnt_nothing() -> None:
    metrics = {
        "warning": "first",
        "teacher": {"validation_accuracy": 0.5},
        "sizes": [{"layers-1": {"at_chance": True, "warning": "second; train longer"}}],
    }
    config = LearngeneConfig(spec=START.spec, method="toy", metrics=metrics)
    texts = Learngene(config=config, state={}).list_warnings()
    assert texts == ["toy: first", "toy, sizes, 1, layers-1: second"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("lsamd", {}, ["lsamd, searches, digits"]),
        ("nested", {}, ["nested, largest"]),
        ("ghn3", {"judged": 16}, ["ghn3, stage_2, tasks_at_chance, digits"]),
    ],
)
def test_methods_with_a_training_of_their_own_warn_too(
    method: str, settings: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "find_constant_share", lambda task: 0.99)
    with pytest.warns(UserWarning, match="no better than a constant answer"):
        learngene = lg.extract(method, preset="smoke", task="digits", run=RUN, **settings)
    named = [text.partition(":")[0] for text in learngene.list_warnings()]
    assert [name for name in named if "teach" not in name] == expected


def test_the_extract_command_prints_them(tmp_path: Path) -> None:
    words = ["--preset", "smoke", "--depths", "1", "--task", "digits", "--teaching-epochs", "0"]
    out = ["-o", str(tmp_path / "out"), "--threads", "1"]
    result = CliRunner().invoke(main, ["extract", "distillation", *words, "--lr", "1", *out])
    assert result.exit_code == 0, result.stderr
    start = "warning: distillation, layers-1: the model is no better than a constant answer"
    assert sum(line.startswith(start) for line in result.stderr.splitlines()) == 1
