"""Train all weights of a model on a task: fine-tuning, pretraining and training from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import nn

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.records import list_versions
from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.families.tensors import get_state_dict
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.progress import METRICS
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe, to_json
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.epochs import count_steps
from learngene_zoo.tasks.loader import Batches
from learngene_zoo.tasks.task import Task
from learngene_zoo.text import count_noun, name_option
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.loop import Step, train
from learngene_zoo.training.objectives import CLASS_LOSS, load_training_images, make_objective

if TYPE_CHECKING:
    from learngene_zoo.families.picture_format import InputFormat
    from learngene_zoo.families.text_format import TextFormat

M = TypeVar("M", bound=Descendant | TimmModel)
# In the provenance of a model, beside the task of its head.
TRAINING_RECORDS = frozenset({"metrics", "recipe", "training_seed", "head", "found", "teacher"})
MIN_STEPS = 50  # before this step even a good training may be at chance level
MIN_JUDGED = 10  # validation samples below which a model is not said to be at chance
MIN_IMPROVEMENT = 0.02  # of the loss, relative to that of a guess


def fit(
    start: M,
    task: Task,
    recipe: Recipe,
    run: Run,
    *,
    guard: bool = False,
    watch: Callable[[nn.Module], None] | None = None,
    judge: bool = True,
    distillation: Callable[[nn.Module, Any], nn.Module] | None = None,
) -> M:
    """Train all weights of `start` on a task; the validation result is added to its provenance.

    Args:
        start: the model.
        task: the task; the model's head must fit it.
        recipe: settings of the training.
        run: folder, seed, device and so on.
        guard: stop a training that does not improve on chance, see `check_progress`.
        watch: is called with the model after every epoch.
        judge: evaluate the trained model on validation images (accuracy or mIoU).
        distillation: returns another objective, a `Distilled`, for that of the task and the model.

    Raises:
        WrongCall: for a model whose head does not fit the task.
        TrainingFailed: if the loss is not finite, or with `guard` does not improve on chance.
    """
    model, objective, loader = prepare_training(start, task, recipe, run)
    if distillation is not None:
        objective = distillation(objective, model)
    steps = train(objective, loader, recipe, run, label=f"training on {task.name}")
    for step in check_progress(steps, task.classes, run.folder) if guard else steps:
        if watch is not None and step.end_of_epoch:
            watch(model)
    metrics = {
        "task": task.name,
        **(measure_validation(model, task, start.input_format, recipe, run) if judge else {}),
        "training_images": loader.images,
        "epochs": recipe.epochs,
    }
    return copy_trained_weights(start, model, task, recipe, run, metrics)


def prepare_training(
    start: M, task: Task, recipe: Recipe, run: Run
) -> tuple[nn.Module, nn.Module, Batches]:
    """Return the module to train, its objective and the batches of training images.

    Raises `WrongCall` for a model whose head does not fit the task.
    """
    if (start.classes, start.dense) != (task.classes, task.dense):
        each = {True: "pixel", False: "image"}
        raise WrongCall(
            f"{task.name} needs a head for {task.classes} classes per {each[task.dense]}, got one"
            f" for {start.classes} per {each[start.dense]}; `Descendant.for_task` builds it"
        )
    model: Any = start.model()
    objective = make_objective(task, model, recipe, derive_seed(run.seed, "attributes"))
    return model, objective, load_training_images(task, start.input_format, recipe, run)


def copy_trained_weights(
    start: M, model: nn.Module, task: Task, recipe: Recipe, run: Run, metrics: Mapping[str, Json]
) -> M:
    """Return `start` with the weights of `model` and the record of its training.

    Args:
        start: the model before the training.
        model: the trained module.
        task: the task.
        recipe: the recipe of the training.
        run: the run of the training.
        metrics: the results to record.
    """
    how = {
        **start.provenance,
        "recipe": to_json(recipe),
        "training_seed": run.seed,
        "device": run.device_name,
    }
    return replace(
        start,
        state=get_state_dict(model),
        task=task.name,
        class_names=task.class_names,
        provenance={
            **how,
            "metrics": metrics,
            "versions": list_versions(),
            "trained_on": to_json(task.record),
            **({"pairs": has_pairs(task)} if task.is_text else {}),
        },
    )


def drop_training_records(provenance: Mapping[str, Json]) -> dict[str, Json]:
    """Return the provenance of a model without the records of its last training.

    The names of the task and of its classes stay, since the head is still for them.
    """
    return {name: value for name, value in provenance.items() if name not in TRAINING_RECORDS}


def has_pairs(task: Task) -> bool:
    """Return whether the samples of a text task are pairs of texts."""
    split: Any = task.split("train")
    return any(isinstance(sample, tuple) for sample in split.__getitems__(range(len(split))[:1]))


def find_constant_share(task: Task, split: str = "validation") -> float | None:
    """Return the best accuracy of a constant prediction on a split: the share of its largest class.

    None if it is unknown: for streams, for tasks with a class per pixel, and without images. It is
    0 for a Matthews correlation, and None for F1.
    """
    if task.dense or task.classes < 2 or task.open_stream is not None or not task.sizes[split]:
        return None
    if task.metric != "accuracy":
        return 0.0 if task.metric == "matthews" else None
    counts = np.bincount(np.asarray(task.split(split).labels))
    return float(counts.max() / counts.sum())


def describe_chance(value: float, task: Task, recipe: Recipe, images: int | None = None) -> str:
    """Return a warning if a validation accuracy does not exceed a constant answer's, else "".

    It names the number of validation samples: `images`, at most and by default all of the task.
    """
    share = find_constant_share(task)
    if share is None or share == 1 or value > share:  # one class in all samples says nothing
        return ""
    count = min(images or task.sizes["validation"], task.sizes["validation"])
    if count < MIN_JUDGED:
        return ""
    num_training = min(recipe.images or task.sizes["train"], task.sizes["train"])
    steps = recipe.epochs * count_steps(num_training, recipe.batch_size)
    advice = f"again with a smaller lr ({recipe.lr:g} was used), or for longer"
    if steps < MIN_STEPS:
        advice = f"for more than {count_noun(steps, 'step')}, or on more {task.sample_noun}s"
    return (
        f"the model is no better than a constant answer on {count} validation"
        f" {task.sample_noun}s ({value:.4f}, and {share:.4f} by the most frequent class); train"
        f" {advice}"
    )


def measure_validation(
    model: nn.Module, task: Task, input_format: InputFormat | TextFormat, recipe: Recipe, run: Run
) -> dict[str, Json]:
    """Return the record of a trained model's result on validation samples.

    It has a `warning` if the result is no better than a constant answer's.

    Args:
        model: the trained module.
        task: the task.
        input_format: the images or texts that the model takes.
        recipe: the recipe of the training.
        run: the run.
    """
    validation = evaluate(model, task, "validation", input_format, run)
    return {
        f"validation_{validation.metric}": validation.value,
        "validation_images": validation.images,
        **mark_chance(validation.value, task, recipe),
    }


def mark_chance(
    value: float, task: Task, recipe: Recipe, *, images: int | None = None
) -> dict[str, Json]:
    """Return `at_chance` and a `warning` if a training's result is no better than a constant
    answer's, else nothing.

    Args:
        value: the metric of the task on validation samples; of several models, that of the best.
        task: the task.
        recipe: the recipe of the training; one without epochs has no warning.
        images: how many validation samples were used; by default all.
    """
    warning = describe_chance(value, task, recipe, images) if recipe.epochs else ""
    return {"at_chance": True, "warning": warning} if warning else {}


def check_progress(
    steps: Iterator[Step], classes: int, folder: Path | None = None
) -> Iterator[Step]:
    """Yield the steps, and check once that the loss is lower than that of a guess.

    The check is made after a tenth of all steps, and at least 50.

    It compares the mean cross-entropy of the classes over the second half of the steps until then,
    which must be at least 2 % below ln(classes), the loss of a guess; other losses do not count. A
    training that is resumed after that step is not checked again.

    Args:
        steps: the steps of a training.
        classes: the number of classes.
        folder: of the run, whose `metrics.jsonl` has the losses of the steps before a resumption.

    Raises:
        TrainingFailed: if the loss is too high.
    """
    chance = math.log(classes)
    losses: list[float] | None = None
    for step in steps:
        when = max(math.ceil(step.steps / 10), MIN_STEPS)
        if losses is None:
            losses = _read_losses(folder, when // 2 + 1, step.step - 1)
        if when // 2 < step.step <= when:
            losses.append(step.losses[CLASS_LOSS])
        if step.step == when:
            mean = sum(losses) / len(losses)
            if mean >= (1 - MIN_IMPROVEMENT) * chance:
                raise TrainingFailed(
                    f"after {step.step} of {step.steps} steps the loss is {mean:.3f}, no better"
                    f" than the {chance:.3f} of guessing among {classes} classes; try another "
                    f"{name_option('lr')} or a longer {name_option('warmup')}"
                )
        yield step


def _read_losses(folder: Path | None, first: int, last: int) -> list[float]:
    """Return the cross-entropies of the steps from `first` to `last` of a resumed training."""
    path = None if folder is None or last < first else folder / METRICS
    if path is None or not path.is_file():
        return []
    lines: list[Any] = [parse_json(line) for line in path.read_bytes().splitlines()]
    return [
        float(line[f"loss/{CLASS_LOSS}"])
        for line in lines
        if first <= line["step"] <= last and f"loss/{CLASS_LOSS}" in line
    ]
