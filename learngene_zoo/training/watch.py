"""Watch a training: validate after every epoch, keep the best weights, and stop early.

The model is evaluated before the first step, too: as epoch 0 it competes with the others for the
best one, so that a training never ends below its start on the validation images.

In the run's folder, `metrics.jsonl` has the validation of every epoch, and `best-<epoch>` the
weights to keep so far. The weights that the newest checkpoint needs stay there too, so that a
resumed run ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from learngene_zoo.errors import BadFile, TrainingFailed
from learngene_zoo.families.tensors import get_state_dict
from learngene_zoo.ownership import remove_marked
from learngene_zoo.runs.progress import METRICS, say
from learngene_zoo.runs.run import Run, is_first
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict, load_result, parse_json, save_result
from learngene_zoo.text import format_seconds
from learngene_zoo.training import checkpoint
from learngene_zoo.training.loop import Step

Keep = Literal["best", "last"]
BEST = "best-"
VALUE = "validation/value"  # key of the value in `metrics.jsonl`
OTHER = "validation/"  # prefix of the other values
ROUNDING = 1e-9  # of a difference of two accuracies


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of a model on validation images."""

    value: float  # of which the largest is the best
    text: str  # for the line of the epoch
    images: int = 0  # of which the value is an accuracy; 0: it is none
    others: Mapping[str, float] = field(default_factory=dict)  # further results by name


# Takes the model, and the moving average of the objective if the recipe has one.
Measure = Callable[[nn.Module, nn.Module | None], Validation]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The results of a finished epoch."""

    epoch: int  # from 1; 0 is before the first step
    step: int
    loss: float | None  # the mean over its steps; None: it has none
    value: float  # on validation images
    others: Mapping[str, float] = field(default_factory=dict)  # further results by name

    def json(self, metric: str) -> dict[str, Json]:
        """Return the record of the epoch in a model's provenance."""
        loss: dict[str, Json] = {} if self.loss is None else {"loss": self.loss}
        return {"epoch": self.epoch, **loss, f"validation_{metric}": self.value}


@dataclass(kw_only=True)
class Watch:
    """Validation after every epoch, with the results and the weights to keep."""

    run: Run
    keep: Keep
    patience: int | None
    history: list[Epoch] = field(default_factory=list)
    images: int = 0  # validation images; 0 where they give no accuracy
    state: StateDict | None = None  # of the epoch that is to be kept
    _losses: list[float] = field(default_factory=list)
    _began: float = 0.0  # when the epoch began
    _has_resumed: bool = False

    def follow(self, steps: Iterator[Step], model: nn.Module, measure: Measure, epochs: int) -> str:
        """Take the steps of a training, and leave the model with the weights to keep.

        Args:
            steps: the steps, from `loop.train`, which are not begun.
            model: the model that is trained.
            measure: validates a model.
            epochs: the number of epochs, for the lines.

        Returns:
            The error of a training that diverged, else "".
        """
        failure = ""
        self.begin(model, measure, epochs)
        try:
            # A generator, which ends here if it is stopped early
            with closing(steps):  # type: ignore[type-var]
                for step in steps:
                    if self.end_step(step, model, measure, epochs):
                        break
        except TrainingFailed as error:
            failure = str(error)
        self.finish(model)
        return failure

    def begin(self, model: nn.Module, measure: Measure, epochs: int) -> None:
        """Evaluate the model before the first step, as epoch 0."""
        result = measure(model, None)
        self.state = {name: tensor.cpu().clone() for name, tensor in get_state_dict(model).items()}
        self.history = [Epoch(epoch=0, step=0, loss=None, value=result.value, others=result.others)]
        self.images = result.images
        when = f"epoch 0 of {epochs}, before training" if epochs else "without training"
        say(self.run, f"{self._prefix}{when}: {result.text}")
        self._began = time.monotonic()

    def end_step(self, step: Step, model: nn.Module, measure: Measure, epochs: int) -> bool:
        """Validate the model if the step ends an epoch, and return whether to stop the training.

        Args:
            step: the finished step.
            model: the model that is trained.
            measure: validates a model.
            epochs: the number of epochs, for the lines.
        """
        if not self._has_resumed:
            self._resume(before=step.step)
        self._losses.append(step.loss)
        if not step.end_of_epoch:
            return False
        current = (
            model
            if step.average is None
            else getattr(step.average, "objective", step.average).get_submodule("model")
        )
        result = measure(current, step.average)
        loss = sum(self._losses) / len(self._losses)
        epoch = Epoch(
            epoch=step.epoch + 1,
            step=step.step,
            loss=loss,
            value=result.value,
            others=result.others,
        )
        self.history.append(epoch)
        if self._choose(self.history) is epoch:
            self.state = {
                name: tensor.cpu().clone() for name, tensor in get_state_dict(current).items()
            }
            self._save(epoch)
        others = {f"{OTHER}{name}": value for name, value in result.others.items()}
        step.report({VALUE: result.value, "epoch_loss": loss, **others})
        seconds = time.monotonic() - self._began
        line = f"{self._prefix}epoch {epoch.epoch} of {epochs}: loss {loss:.4f}, {result.text}"
        say(self.run, f"{line}, {format_seconds(seconds)}")
        self._losses, self._began = [], time.monotonic()
        return self._is_exhausted()

    def finish(self, model: nn.Module) -> None:
        """Give the model the weights to keep."""
        if not self._has_resumed:
            self._resume(before=None)
        if self.state is not None:
            model.load_state_dict(dict(self.state))
        model.eval()

    @property
    def _prefix(self) -> str:
        """The start of a line: the name of the part of a run, "" for the whole run."""
        return f"{self.run.name}: " if self.run.name else ""

    def keeps_start(self) -> bool:
        """Return whether the weights that are kept are those before training."""
        chosen = self._choose(self.history)
        return chosen is None or chosen.epoch == 0

    def _choose(self, history: Sequence[Epoch]) -> Epoch | None:
        """Return the epoch of these whose weights are kept; None without epochs."""
        if self.keep == "last":
            return history[-1] if history else None
        return choose_epoch(history, self.images)

    def describe_kept(self, history: Sequence[dict[str, Json]]) -> dict[str, Json]:
        """Return the record of the epoch whose weights are kept; {} if there is none."""
        chosen = self._choose(self.history)
        return {} if chosen is None else history[self.history.index(chosen)]

    def _is_exhausted(self) -> bool:
        best = _find_best(self.history)
        return (
            best is not None
            and self.patience is not None
            and self.history[-1].epoch - best.epoch >= self.patience
        )

    def _resume(self, before: int | None) -> None:
        """Restore the results and weights of the steps before this one from the run's folder."""
        self._has_resumed = True
        if self.run.folder is None or not self.run.resume:
            return
        path = self.run.folder / METRICS
        try:
            for line in _read_lines(path):
                if before is not None and line["step"] >= before:
                    break
                self._restore_line(line)
        except (KeyError, TypeError, ValueError) as error:
            raise BadFile(
                f"{path} does not say what was trained; start again without Run(resume=True), with "
                "force=True"
            ) from error
        chosen = self._choose(self.history)
        if chosen is not None and chosen.epoch:
            self.state, _ = load_result(self.run.folder / f"{BEST}{chosen.epoch}")

    def _restore_line(self, line: Mapping[str, Any]) -> None:
        """Restore a line of `metrics.jsonl`: of a step, or of the validation after an epoch."""
        if VALUE not in line:
            self._losses.append(float(line["loss"]))
            return
        self._losses = []
        number, step = int(line["epoch"]) + 1, int(line["step"])
        value, loss = float(line[VALUE]), float(line["epoch_loss"])
        others = {
            name.removeprefix(OTHER): float(other)
            for name, other in line.items()
            if name.startswith(OTHER) and name != VALUE
        }
        self.history.append(Epoch(epoch=number, step=step, loss=loss, value=value, others=others))

    def _save(self, epoch: Epoch) -> None:
        """Write the weights to keep, and remove those that no resumed run would need."""
        folder = self.run.folder
        if folder is None or self.state is None or not is_first():
            return
        save_result(folder / f"{BEST}{epoch.epoch}", self.state, {"step": epoch.step})
        reached = checkpoint.find_newest_step(folder)
        resumed = self._choose(
            [candidate for candidate in self.history if candidate.step <= reached]
        )
        needed = {
            f"{BEST}{candidate.epoch}"
            for candidate in (epoch, resumed)
            if candidate is not None and candidate.epoch
        }
        for path in folder.glob(f"{BEST}*"):
            if path.name not in needed:
                remove_marked(path)


def choose_epoch(history: Sequence[Epoch], images: int) -> Epoch | None:
    """Return the last epoch within a standard error of the best and not below the first.

    On few images the best of many epochs is mostly an early one that was best by chance: the
    standard error of an accuracy on 47 images is 7 points. Of epochs that the images cannot tell
    apart the last one was trained longest, at the lowest learning rates (the one-standard-error
    rule: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 7.10).
    The standard error is at least one image, also where the best epoch is always right.
    docs/results/finetuning.md has measurements.

    Args:
        history: the epochs, with their results on validation images; the first one is before any
            training.
        images: the number of validation images; 0 if the results are no accuracies: then the
            last epoch with the best result is returned.
    """
    best = _find_best(history)
    if best is None:
        return None
    error = 0.0
    if images:
        error = max(math.sqrt(best.value * (1 - best.value) / images), 1 / images) + ROUNDING
    least = max(best.value - error, history[0].value)
    return [epoch for epoch in history if epoch.value >= least][-1]


def _find_best(history: Sequence[Epoch]) -> Epoch | None:
    """Return the first epoch with the largest value; None without epochs."""
    return max(history, key=lambda epoch: epoch.value, default=None)


def _read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        yield parse_json(line)
