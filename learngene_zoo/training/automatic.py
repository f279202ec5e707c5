"""Find the batch size and the learning rate of a fine-tuning automatically.

The batch size is the largest that a GPU holds, the learning rate the one with the best validation
result. Each trial is a part of the run, so that a resumed run loads what was measured and continues
from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import TrainingFailed, Unavailable
from learngene_zoo.families.tensors import make_example_inputs
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import (
    Run,
    describe_machine,
    gather_values,
    get_world_size,
    open_device,
)
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.text import name_option
from learngene_zoo.training.distillation import Distillation
from learngene_zoo.training.fit import fit
from learngene_zoo.training.objectives import choose_metric, make_objective

CPU_BATCH_SIZE = 64  # memory is not the limit on a CPU
MAX_BATCH_SIZE = 1024  # larger batches need other learning rates
LEARNING_RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
# Tried in this order while the smallest or the largest rate is the best.
FURTHER_RATES = {1e-5: (3e-6, 1e-6), 3e-3: (1e-2, 3e-2)}
# A rate is tried for a fifth of the epochs, on at most this many training images.
EPOCHS_PER_TRIAL_EPOCH, MAX_TRIAL_IMAGES = 5, 2000
MAX_MEMORY_FRACTION = 0.9  # of a GPU's memory that may be used


def resolve_auto(
    start: Descendant | TimmModel,
    task: Task,
    recipe: Recipe,
    run: Run,
    names: Collection[str],
    adapt: Callable[[Descendant | TimmModel, float], Descendant | TimmModel] | None = None,
    distillation: Distillation | None = None,
) -> tuple[Recipe, dict[str, Json]]:
    """Choose the settings in `names` and return the recipe with them, and the record of the trials.

    - `batch_size`: on a GPU the largest power of two, times the number of processes, of which one
      step fits into memory; at most 1,024 and at most the number of training images. On a CPU 64.
    - `lr`: of 1e-5, 3e-5, 1e-4, 3e-4, 1e-3 and 3e-3 the one with the best result on validation
      images after a fifth of the epochs, on at most 2,000 training images; the smallest of equals.
      If it is the first or the last of them, rates beyond it are tried. A rate whose trial diverges
      is chosen only if all of them diverge (then the smallest).

    Args:
        start: the model to fine-tune.
        task: the task to train on.
        recipe: the recipe of the fine-tuning.
        run: the run, whose parts the trials are.
        names: the settings to choose, `batch_size` or `lr`.
        adapt: returns the model to train with a learning rate, such as `heads.rescale_head`.
        distillation: the loss of a teacher, which the trials have as the training has.
    """
    record: dict[str, Json] = {}
    quiet = replace(run, lines=False, progress=False, tracker=None)
    if "batch_size" in names:
        record_of_size = compute_once(
            quiet.part("batch-size"),
            "finetune.batch_size",
            find_batch_size,
            recipe,
            (start, task, distillation, describe_machine(run)),
        ).record
        recipe = replace(recipe, batch_size=record_of_size["batch_size"])
        record["batch_size"] = "auto"
        say(run, f"batch size {recipe.batch_size} chosen")
    if "lr" in names:
        task = ensure_validation(task)

        def measure(rate: float) -> float | None:
            part = compute_once(
                quiet.part(f"lr/{rate:g}"),
                "finetune.lr",
                measure_rate,
                _shorten(recipe, task, rate),
                (
                    adapt(start, rate) if adapt else start,
                    task,
                    distillation,
                    task.sizes["validation"],
                ),
            )
            value: float | None = part.record["value"]
            result = "diverged" if value is None else f"{value:.4f} on validation images"
            say(run, f"learning rate {rate:g}: {result}")
            return value

        values = try_rates(measure)
        recipe = replace(recipe, lr=choose_rate(values))
        record["lr"] = [{"lr": rate, "validation": value} for rate, value in values.items()]
        say(run, f"learning rate {recipe.lr:g} chosen")
    return recipe, record


def try_rates(measure: Callable[[float], float | None]) -> dict[float, float | None]:
    """Return the result of `measure` for each of `LEARNING_RATES`, None for one that diverges.

    While the first or the last rate is the best, the rates beyond it are tried too.
    """
    values = {rate: measure(rate) for rate in LEARNING_RATES}
    for rate in FURTHER_RATES.get(choose_rate(values), ()):
        values[rate] = measure(rate)
        if choose_rate(values) != rate:
            break
    return dict(sorted(values.items()))


def choose_rate(values: Mapping[float, float | None]) -> float:
    """Return the rate with the largest value, or the smallest rate of equal values.

    A value may be negative, as a Matthews correlation. None, of a trial that diverged, is below all
    numbers.
    """

    def rank_of(rate: float) -> tuple[float, float]:
        value = values[rate]
        return (-math.inf if value is None else value, -rate)

    return max(values, key=rank_of)


def _shorten(recipe: Recipe, task: Task, rate: float) -> Recipe:
    epochs = max(1, recipe.epochs // EPOCHS_PER_TRIAL_EPOCH)
    images = min(recipe.images or task.sizes["train"], MAX_TRIAL_IMAGES)
    return replace(
        recipe, lr=rate, epochs=epochs, images=images, warmup=min(recipe.warmup, epochs / 2)
    )


def measure_rate(
    recipe: Recipe,
    start: Descendant | TimmModel,
    task: Task,
    distillation: Distillation | None,
    _validation_images: int,
    run: Run,
) -> tuple[StateDict, dict[str, Json]]:
    """Train briefly and return the result on validation images, or None if training diverges.

    The identity of a task does not have the number of its validation images, so it is an argument.
    """
    try:
        metrics: Any = fit(start, task, recipe, run, distillation=distillation).provenance[
            "metrics"
        ]
    except TrainingFailed:
        return {}, {"value": None}
    return {}, {"value": metrics[f"validation_{choose_metric(task).name}"]}


def find_batch_size(
    recipe: Recipe,
    start: Descendant | TimmModel,
    task: Task,
    distillation: Distillation | None,
    _machine: str,
    run: Run,
) -> tuple[StateDict, dict[str, Json]]:
    """Return the largest batch size of a step over all processes; on a CPU a fixed one."""
    device, factor = open_device(run), math.lcm(recipe.accumulate, get_world_size())
    if device.type != "cuda":
        return {}, {"batch_size": max(CPU_BATCH_SIZE - CPU_BATCH_SIZE % factor, factor)}
    most = max(1, min(MAX_BATCH_SIZE, recipe.images or task.sizes["train"]) // get_world_size())
    size = min(
        gather_values(
            find_largest(
                lambda images: _fits(images, start, task, recipe, distillation, run, device), most
            )
        )
    )
    global_size = size * get_world_size()
    return {}, {"batch_size": max(global_size - global_size % factor, factor)}


def find_largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest power of two up to `most` for which `fits` is true.

    Raises `Unavailable` if not even 1 fits.
    """
    size = 0
    while 2 ** (size + 1) <= most and fits(2 ** (size + 1)):
        size += 1
    if size == 0 and not fits(1):
        raise Unavailable(
            "a training step with a single image does not fit into the GPU's memory; use a smaller"
            f" model or {name_option('precision', 'bf16', of_run=True)}"
        )
    return 2**size


def _fits(
    images: int,
    start: Descendant | TimmModel,
    task: Task,
    recipe: Recipe,
    distillation: Distillation | None,
    run: Run,
    device: torch.device,
) -> bool:
    """Return whether a training step with this many images leaves a tenth of the memory free."""
    model: Any = start.model()
    objective = make_objective(task, model, recipe, 0)
    if distillation is not None:
        objective = distillation(objective, model)
    objective.to(device).train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=0.0)
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    pictures = make_example_inputs(start.input_format, images, device)
    shape = (images, *pictures.shape[-2:]) if task.dense else (images,)
    labels = torch.zeros(shape, dtype=torch.int64, device=device)
    attributes = (
        torch.zeros(images, len(task.attributes), device=device) if task.attributes else None
    )
    try:
        torch.cuda.reset_peak_memory_stats(device)
        with torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
            losses = objective(Batch(pictures, labels, labels, attributes))
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        total = torch.cuda.get_device_properties(device).total_memory
        return torch.cuda.max_memory_reserved(device) <= MAX_MEMORY_FRACTION * total
    except torch.OutOfMemoryError:
        return False
    finally:
        del model, objective, optimizer, pictures
        torch.cuda.empty_cache()
