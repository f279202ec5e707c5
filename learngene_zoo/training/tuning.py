"""Fine-tuning that is watched: validation after every epoch, the best weights kept, early stopping,
the figure on test images.

`tune` is what the verb `finetune` does; everything else that trains uses `fit`, which looks at
validation images once, at the end. The model is evaluated before the first step, too: as epoch 0 it
competes with the others for the best one, so that a fine-tuning never ends below its start on the
validation images.

In the run's folder, `metrics.jsonl` has the validation of every epoch, and `best-<epoch>` the
weights of the one to keep so far. Whatever a resumed run continues from, the chosen epoch until
then is still there, so that it ends as if it had never been interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import BadFile, TrainingFailed
from learngene_zoo.families.tensors import state_of
from learngene_zoo.ownership import remove_marked
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.progress import METRICS, say
from learngene_zoo.runs.run import Run, is_first
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.storage import StateDict, load_result, parse_json, save_result
from learngene_zoo.tasks.splits import ensure_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.text import human_seconds
from learngene_zoo.training import checkpoint
from learngene_zoo.training.evaluate import evaluate, judge
from learngene_zoo.training.fit import M, describe_chance, prepare_training, with_trained_weights
from learngene_zoo.training.loop import Step, train
from learngene_zoo.training.report import report

Keep = Literal["best", "last"]
BEST = "best-"


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What is known of a finished epoch."""

    epoch: int  # from 1; 0 is before the first step
    step: int
    loss: float | None  # the mean over its steps; None: it has none
    value: float  # on validation images

    def json(self, metric: str) -> dict[str, Json]:
        """As a model's provenance records it."""
        loss: dict[str, Json] = {} if self.loss is None else {"loss": self.loss}
        return {"epoch": self.epoch, **loss, f"validation_{metric}": self.value}


def tune(
    start: M,
    task: Task,
    recipe: Recipe,
    run: Run,
    *,
    keep: Keep = "best",
    patience: int | None = None,
    lesson: Callable[[nn.Module, Any], nn.Module] | None = None,
) -> M:
    """Train all weights of `start` on a task, validated after every epoch, and evaluate what is
    kept on the test images.

    `keep`: the weights of the epoch that `choose_epoch` names from the validation images, epoch 0
    included, or those of the last. `patience`: stop after so many epochs without a better one.
    Where the task has no validation images, a tenth of its training images are; its test images
    decide nothing. A training that diverges ends there: the weights of the epoch chosen until then
    are kept, or those before training, and a `warning` in the metrics says so. `lesson` makes
    another objective, a `Distilled`, of the task's and the model. The result has a report of it
    all, `report.html`, among its files. Raises as `fit` does.
    """
    sizes, task = task.sizes, ensure_validation(task)
    model, objective, loader = prepare_training(start, task, recipe, run)
    if lesson is not None:
        objective = lesson(objective, model)
    watch = Watch(run=run, keep=keep, patience=patience)
    failure = ""
    if recipe.epochs:
        watch.begin(model, start, task, recipe)
        steps = train(objective, loader, recipe, run, label=f"training on {task.name}", lines=False)
        try:
            # A generator, which ends here if it is stopped early
            with closing(steps):  # type: ignore[type-var]
                for step in steps:
                    if watch.after(step, model, start, task, recipe):
                        break
        except TrainingFailed as error:
            failure = str(error)
        watch.finish(model, start, failed=bool(failure))
    judged = judge(model, task, "test", start.input_format, run)
    test = judged.evaluation
    history = [epoch.json(test.metric) for epoch in watch.history]
    best = watch.describe_kept(history)
    warnings = _describe_failure(failure, best, test.metric, task, recipe) if best else {}
    low, high = test.interval
    metrics: dict[str, Json] = {
        "task": task.name,
        **{key: value for key, value in best.items() if key.startswith("validation")},
        "validation_images": task.sizes["validation"],
        **({} if sizes == task.sizes else {"validation_taken_from": "train"}),
        f"test_{test.metric}": test.value,
        "test_interval": [low, high],
        "test_images": test.images,
        "training_images": loader.images,
        "epochs": recipe.epochs,
        **({"kept_epoch": best["epoch"], "history": history} if best else {}),
        **warnings,
    }
    tuned = with_trained_weights(start, model, task, recipe, run, metrics)
    return replace(tuned, files={"report.html": report(tuned, task, judged)})


def _describe_failure(
    failure: str, kept: Mapping[str, Json], metric: str, task: Task, recipe: Recipe
) -> dict[str, Json]:
    """Return what the metrics record of a training that diverged or learnt nothing.

    Nothing of any other.
    """
    value: Any = kept[f"validation_{metric}"]
    chance = describe_chance(value, task, recipe)
    at_chance: dict[str, Json] = {"at_chance": True} if chance else {}
    if not failure:
        return {**at_chance, "warning": chance} if chance else {}
    epoch = (
        f"the weights of epoch {kept['epoch']}" if kept["epoch"] else "the weights before training"
    )
    reason = failure.partition(";")[0]
    sentence = (
        f"the training diverged: {reason}; {epoch} are kept (validation {metric} {value:.4f})"
    )
    advice = chance or f"train again with a smaller --lr ({recipe.lr:g} was used), or with --clip 1"
    return {"diverged": True, **at_chance, "warning": f"{sentence}; {advice}"}


@dataclass(kw_only=True)
class Watch:
    """What happens after every epoch, and what is remembered of it."""

    run: Run
    keep: Keep
    patience: int | None
    history: list[Epoch] = field(default_factory=list)
    images: int = 0  # validation images; 0 where they give no accuracy
    state: StateDict | None = None  # of the epoch that is to be kept
    _first: StateDict | None = None  # before the first step
    _last: StateDict | None = None  # of the last epoch, where that is to be kept
    _losses: list[float] = field(default_factory=list)
    _began: float | None = None

    def begin(self, model: nn.Module, start: M, task: Task, recipe: Recipe) -> None:
        """Evaluate the model before the first step, as epoch 0."""
        value = evaluate(model, task, "validation", start.input_format, self.run)
        self._first = {name: tensor.cpu().clone() for name, tensor in state_of(model).items()}
        self.history = [Epoch(epoch=0, step=0, loss=None, value=value.value)]
        self.images = value.images if value.metric == "accuracy" else 0
        self.state = self._first if self.keep == "best" else None
        say(
            self.run,
            f"epoch 0 of {recipe.epochs}, before training: validation {value.metric}"
            f" {value.value:.4f}",
        )

    def after(self, step: Step, model: nn.Module, start: M, task: Task, recipe: Recipe) -> bool:
        """Whether to stop after this step."""
        if self._began is None:
            self._resume(before=step.step)
            self._began = time.monotonic()
        self._losses.append(step.loss)
        if not step.end_of_epoch:
            return False
        current = (
            model
            if step.average is None
            else getattr(step.average, "objective", step.average).get_submodule("model")
        )
        evaluation = evaluate(current, task, "validation", start.input_format, self.run)
        loss = sum(self._losses) / len(self._losses)
        epoch = Epoch(epoch=step.epoch + 1, step=step.step, loss=loss, value=evaluation.value)
        self.history.append(epoch)
        if choose_epoch(self.history, self.images) is epoch and self.keep == "best":
            self.state = {name: tensor.cpu().clone() for name, tensor in state_of(current).items()}
            self._save(epoch)
        elif self.keep == "last":
            self._last = {name: tensor.cpu().clone() for name, tensor in state_of(current).items()}
        step.report({"validation/value": evaluation.value, "epoch_loss": loss})
        seconds = time.monotonic() - self._began
        line = (
            f"epoch {epoch.epoch} of {recipe.epochs}: loss {loss:.4f}, validation"
            f" {evaluation.metric} {evaluation.value:.4f}"
        )
        say(self.run, f"{line}, {human_seconds(seconds)}")
        self._losses, self._began = [], time.monotonic()
        stop = self._is_exhausted()
        # Without its last step the loop does not put the average in place
        if stop and self.keep == "last":
            self.state = state_of(current)
        return stop

    def finish(self, model: nn.Module, start: Descendant | TimmModel, failed: bool) -> None:
        """Leave the model with the weights to keep.

        After a failure those of an earlier epoch, or of the start.
        """
        if self._began is None:
            self._resume(before=None)
        if failed and self.state is None and self._last is None:
            self.history = self.history[:1]  # the weights of the others are gone
        if failed and self.state is None:
            self.state = self._last or self._first
        if self.state is not None:
            model.load_state_dict(dict(self.state))
        model.eval()

    def describe_kept(self, history: Sequence[dict[str, Json]]) -> dict[str, Json]:
        """The record of the epoch whose weights are kept; empty where there was none."""
        chosen = choose_epoch(self.history, self.images)
        if chosen is None:
            return {}
        return history[-1 if self.keep == "last" else self.history.index(chosen)]

    def _is_exhausted(self) -> bool:
        best = _best_of(self.history)
        return (
            best is not None
            and self.patience is not None
            and self.history[-1].epoch - best.epoch >= self.patience
        )

    def _resume(self, before: int | None) -> None:
        """Take up what `metrics.jsonl` and the folder of the chosen epoch say of the steps before
        this one.
        """
        if self.run.folder is None or not self.run.resume:
            return
        path = self.run.folder / METRICS
        try:
            for line in _lines(path):
                if before is not None and line["step"] >= before:
                    break
                self._take_up(line)
        except (KeyError, TypeError, ValueError) as error:
            raise BadFile(
                f"{path} does not say what was trained; start again without --resume, with --force"
            ) from error
        chosen = choose_epoch(self.history, self.images)
        if chosen is not None and chosen.epoch and self.keep == "best":
            self.state, _ = load_result(self.run.folder / f"{BEST}{chosen.epoch}")

    def _take_up(self, line: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`: of a step, or of the validation after an epoch."""
        if "validation/value" not in line:
            self._losses.append(float(line["loss"]))
            return
        self._losses = []
        number, step = int(line["epoch"]) + 1, int(line["step"])
        value, loss = float(line["validation/value"]), float(line["epoch_loss"])
        self.history.append(Epoch(epoch=number, step=step, loss=loss, value=value))

    def _save(self, epoch: Epoch) -> None:
        """Write the weights to keep.

        Those stay that the newest checkpoint would be continued with, and no others.
        """
        folder = self.run.folder
        if folder is None or self.state is None or not is_first():
            return
        save_result(folder / f"{BEST}{epoch.epoch}", self.state, {"step": epoch.step})
        reached = checkpoint.newest_step(folder)
        resumed = choose_epoch(
            [candidate for candidate in self.history if candidate.step <= reached], self.images
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
    """Return the epoch whose weights are kept: the last one within a standard error of the best,
    and not below the first.

    The best of many epochs on few images is mostly one that was lucky, and early: the standard
    error of an accuracy on 47 images is 7 points. Of epochs that the images cannot tell apart the
    last one has been trained longest, at the lowest learning rates (the one-standard-error rule:
    Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 7.10).
    docs/training.md has what was measured.

    Args:
        history: the epochs, with their accuracies on validation images; the first one is before any
        training. images: how many validation images there are. 0: the values are no accuracies, and
        only equals compete.
    """
    best = _best_of(history)
    if best is None:
        return None
    error = math.sqrt(best.value * (1 - best.value) / images) if images else 0.0
    least = max(best.value - error, history[0].value)
    return [epoch for epoch in history if epoch.value >= least][-1]


def _best_of(history: Sequence[Epoch]) -> Epoch | None:
    """The first of those with the best value; None if there is none."""
    return max(history, key=lambda epoch: epoch.value, default=None)


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        yield parse_json(line)
