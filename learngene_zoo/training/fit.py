"""Training all weights of a model on a task: fine-tuning, pretraining and training from scratch."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import nn

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.records import versions
from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.families.tensors import state_of
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe, to_json
from learngene_zoo.tasks.loader import Batches
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.loop import Step, train
from learngene_zoo.training.objectives import CLASS_LOSS, objective_for, training_images

M = TypeVar("M", bound=Descendant | TimmModel)
MIN_STEPS = 50  # before that even a good training may still be at chance
MIN_IMPROVEMENT = 0.02


def fit(
    start: M,
    task: Task,
    recipe: Recipe,
    run: Run,
    *,
    guard: bool = False,
    watch: Callable[[nn.Module], None] | None = None,
    judge: bool = True,
) -> M:
    """Train all weights of `start` on a task; the accuracy or mIoU on validation images goes into
    the provenance.

    `guard` stops a training that does not improve on chance; `watch` is called with the model after
    every epoch; without `judge` the model is not evaluated. Raises `WrongCall` for a model whose
    head does not fit the task.
    """
    model, objective, loader = prepare_training(start, task, recipe, run)
    steps = train(objective, loader, recipe, run, label=f"training on {task.name}")
    for step in check_progress(steps, task.classes) if guard else steps:
        if watch is not None and step.end_of_epoch:
            watch(model)
    metrics = {
        "task": task.name,
        **(_measure_validation(model, start, task, recipe, run) if judge else {}),
        "training_images": loader.images,
        "epochs": recipe.epochs,
    }
    return with_trained_weights(start, model, task, recipe, run, metrics)


def prepare_training(
    start: M, task: Task, recipe: Recipe, run: Run
) -> tuple[nn.Module, nn.Module, Batches]:
    """The module to train, its objective and its batches.

    Raises `WrongCall` for a model whose head does not fit the task.
    """
    if (start.classes, start.dense) != (task.classes, task.dense):
        each = {True: "pixel", False: "image"}
        raise WrongCall(
            f"{task.name} needs a head for {task.classes} classes per {each[task.dense]}, got one"
            f" for {start.classes} per {each[start.dense]}; `Descendant.for_task` makes it"
        )
    model: Any = start.model()
    objective = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    return model, objective, training_images(task, start.input_format, recipe, run)


def with_trained_weights(
    start: M, model: nn.Module, task: Task, recipe: Recipe, run: Run, metrics: Mapping[str, Json]
) -> M:
    """`start` with the weights of `model`, and the record of how it was trained."""
    how = {
        **start.provenance,
        "recipe": to_json(recipe),
        "training_seed": run.seed,
        "device": run.device_name,
    }
    return replace(
        start,
        state=state_of(model),
        task=task.name,
        class_names=task.class_names,
        provenance={
            **how,
            "metrics": metrics,
            "versions": versions(),
            "trained_on": to_json(task.record),
        },
    )


def find_constant_share(task: Task, split: str = "validation") -> float | None:
    """Return the accuracy of the best answer that is the same for all images of a split.

    None where it is not known: of streams, of tasks with a class per pixel, and without images.
    """
    if task.dense or task.classes < 2 or task.open_stream is not None or not task.sizes[split]:
        return None
    counts = np.bincount(np.asarray(task.split(split).labels))
    return float(counts.max() / counts.sum())


def describe_chance(value: float, task: Task, recipe: Recipe) -> str:
    """Return a warning if an accuracy on validation images is no better than a constant answer's,
    else "".
    """
    share = find_constant_share(task)
    if share is None or value > share:
        return ""
    return (
        f"the model is no better than a constant answer on {task.sizes['validation']} validation"
        f" images ({value:.4f}, and {share:.4f} by the most frequent class); train again with a"
        f" smaller --lr ({recipe.lr:g} was used), or for longer"
    )


def _measure_validation(
    model: nn.Module, start: Descendant | TimmModel, task: Task, recipe: Recipe, run: Run
) -> dict[str, Json]:
    validation = evaluate(model, task, "validation", start.input_format, run)
    metrics: dict[str, Json] = {f"validation_{validation.metric}": validation.value}
    warning = describe_chance(validation.value, task, recipe) if recipe.epochs else ""
    return {
        **metrics,
        "validation_images": validation.images,
        **({"at_chance": True, "warning": warning} if warning else {}),
    }


def check_progress(steps: Iterator[Step], classes: int) -> Iterator[Step]:
    """The same steps, checked once: after a tenth of the budget, and at least 50 steps.

    Raises `TrainingFailed` if the mean cross-entropy of the classes over the second half of the
    steps until then is not at least 2 % below ln(classes), that of a guess; other losses do not
    count. A training resumed after that point is not checked again.
    """
    chance, losses = math.log(classes), []
    for step in steps:
        when = max(math.ceil(step.steps / 10), MIN_STEPS)
        if when // 2 < step.step <= when:
            losses.append(step.losses[CLASS_LOSS])
        if step.step == when:
            mean = sum(losses) / len(losses)
            if mean >= (1 - MIN_IMPROVEMENT) * chance:
                raise TrainingFailed(
                    f"after {step.step} of {step.steps} steps the loss is {mean:.3f}, no better"
                    f" than the {chance:.3f} of guessing among {classes} classes; try another --lr"
                    " or a longer --warmup"
                )
        yield step
