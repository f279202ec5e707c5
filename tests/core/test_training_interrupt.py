"""Ctrl-C ends a training after the current step and saves it; the next call continues."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.checkpoint import defer_interrupts, find_newest_step
from learngene_zoo.training.fit import prepare_training
from learngene_zoo.training.loop import train

START = assemble(
    ViTSpec(layers=1, width=8, heads=2, classes=3, image_size=16, patch_size=8), {}, seed=0
)
RECIPE = Recipe(epochs=3, batch_size=8, augment="none")


@pytest.fixture(autouse=True)
def usual_handler() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run_training(
    run: Run, interrupt_at: int | None = None, again: bool = False
) -> dict[str, torch.Tensor]:
    model, objective, loader = prepare_training(START, make_tiny_task(classes=3), RECIPE, run)
    for step in train(objective, loader, RECIPE, run):
        if step.step == interrupt_at:
            signal.raise_signal(signal.SIGINT)
            assert find_newest_step(run.folder or Path()) < step.step, (
                "nothing is kept before the body of the loop is done"
            )
            if again:
                signal.raise_signal(signal.SIGINT)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_step_is_kept_and_the_next_call_goes_on(tmp_path: Path) -> None:
    full = run_training(Run(folder=tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_training(Run(folder=tmp_path / "run"), interrupt_at=5)
    assert find_newest_step(tmp_path / "run") == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = run_training(Run(folder=tmp_path / "run", resume=True))
    assert all(torch.equal(full[name], resumed[name]) for name in full)


def test_where_it_went_on_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_training(Run(folder=tmp_path / "run"), interrupt_at=5)
    run_training(Run(folder=tmp_path / "run", resume=True, lines=True))
    assert "training resumes after step 5 of " in capsys.readouterr().err


def test_the_first_one_is_announced_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_training(Run(folder=tmp_path / "quiet"), interrupt_at=5)
    assert "interrupted" not in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        run_training(Run(folder=tmp_path / "run", lines=True), interrupt_at=5)
    assert capfd.readouterr().err.count("interrupted: saving after this step; a second Ctrl-C") == 1


def test_a_second_one_ends_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_training(Run(folder=tmp_path / "run"), interrupt_at=5, again=True)
    assert find_newest_step(tmp_path / "run") < 5


def test_without_a_folder_the_first_one_ends_it() -> None:
    steps: list[int] = []
    _, objective, loader = prepare_training(START, make_tiny_task(classes=3), RECIPE, Run())

    def interrupt_each() -> None:
        for step in train(objective, loader, RECIPE, Run()):
            steps.append(step.step)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_each()
    assert steps == [1]


def test_one_that_comes_as_the_training_ends_early_is_not_lost() -> None:
    def end_early() -> None:
        with defer_interrupts(True) as is_interrupted:
            assert not is_interrupted()
            signal.raise_signal(signal.SIGINT)
            assert is_interrupted()

    with pytest.raises(KeyboardInterrupt):
        end_early()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_stay(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with defer_interrupts(True) as is_interrupted:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
        assert not is_interrupted()
