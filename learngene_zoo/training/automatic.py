"""What a fine-tuning can find by itself: the largest batch that a GPU holds, and the learning rate
that validates best.

Each is a part of the run: a resumed run loads what was found, and finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import TrainingFailed, Unavailable
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.cache import once
from learngene_zoo.runs.run import Run, gather_values, open_device, world
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.tasks.splits import ensure_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.fit import fit
from learngene_zoo.training.objectives import objective_for
from learngene_zoo.training.trackers import say

ON_CPU = 64  # images a step; there memory does not decide
LARGEST = 1024  # images a step; larger batches need other learning rates
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
# Tried in turn while the outermost rate is the best
BEYOND = {1e-5: (3e-6, 1e-6), 3e-3: (1e-2, 3e-2)}
# A rate is tried for a fifth of the epochs, on at most this many training images
SHARE, IMAGES = 5, 2000
ROOM = 0.9  # of a GPU's memory that may be used


def resolve_auto(
    start: Descendant | TimmModel, task: Task, recipe: Recipe, run: Run, names: Collection[str]
) -> tuple[Recipe, dict[str, Json]]:
    """Return the recipe with the batch size and the learning rate chosen where `names` has them,
    and the record of the trials.

    batch_size  on a GPU the largest power of two, times the processes, of which one step fits into
                its memory, at most 1,024 and no more than there are training images; 64 on a CPU
    lr          of 1e-5, 3e-5, 1e-4, 3e-4, 1e-3 and 3e-3 the one that does best on validation images
                after a fifth of the epochs, on at most 2,000 training images; the smallest of
                equals. If that is the first or the last, rates beyond it are tried
    """
    record: dict[str, Json] = {}
    quiet = replace(run, lines=False, progress=False, tracker=None)
    if "batch_size" in names:
        record_of_size = once(
            quiet.part("batch-size"), "finetune.batch_size", largest_batch, recipe, (start, task)
        ).record
        recipe = replace(recipe, batch_size=record_of_size["batch_size"])
        record["batch_size"] = "auto"
        say(run, f"batch size {recipe.batch_size}")
    if "lr" in names:
        task = ensure_validation(task)

        def measure(rate: float) -> float:
            part = once(
                quiet.part(f"lr/{rate:g}"),
                "finetune.lr",
                tried_rate,
                _short(recipe, task, rate),
                (start, task),
            )
            say(run, f"learning rate {rate:g}: {part.record['value']:.4f} on validation images")
            return float(part.record["value"])

        values = try_rates(measure)
        recipe = replace(recipe, lr=choose_rate(values))
        record["lr"] = [{"lr": rate, "validation": value} for rate, value in values.items()]
        say(run, f"learning rate {recipe.lr:g} is taken")
    return recipe, record


def try_rates(measure: Callable[[float], float]) -> dict[float, float]:
    """Return what `measure` gives for each of `RATES`, and for those beyond the first or last while
    that is the best.
    """
    values = {rate: measure(rate) for rate in RATES}
    for rate in BEYOND.get(choose_rate(values), ()):
        values[rate] = measure(rate)
        if choose_rate(values) != rate:
            break
    return dict(sorted(values.items()))


def choose_rate(values: Mapping[float, float]) -> float:
    """Return the rate with the largest value, the smallest of equals."""
    return max(values, key=lambda rate: (values[rate], -rate))


def _short(recipe: Recipe, task: Task, rate: float) -> Recipe:
    epochs = max(1, recipe.epochs // SHARE)
    images = min(recipe.images or task.sizes["train"], IMAGES)
    return replace(
        recipe, lr=rate, epochs=epochs, images=images, warmup=min(recipe.warmup, epochs / 2)
    )


def tried_rate(
    recipe: Recipe, start: Descendant | TimmModel, task: Task, run: Run
) -> tuple[StateDict, dict[str, Json]]:
    """What a short training reaches on validation images; 0 for one that diverges."""
    try:
        metrics: Any = fit(start, task, recipe, run).provenance["metrics"]
    except TrainingFailed:
        return {}, {"value": 0.0}
    return {}, {"value": metrics["validation_mIoU" if task.dense else "validation_accuracy"]}


def largest_batch(
    recipe: Recipe, start: Descendant | TimmModel, task: Task, run: Run
) -> tuple[StateDict, dict[str, Json]]:
    """The images of one step over all processes."""
    device = open_device(run)
    if device.type != "cuda":
        return {}, {"batch_size": ON_CPU - ON_CPU % recipe.accumulate or recipe.accumulate}
    most = max(1, min(LARGEST, recipe.images or task.sizes["train"]) // world())
    size = min(
        gather_values(largest(lambda images: _fits(images, start, task, recipe, run, device), most))
    )
    global_size = size * world()
    return {}, {"batch_size": max(global_size - global_size % recipe.accumulate, recipe.accumulate)}


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest power of two that fits and is at most `most`.

    Raises `Unavailable` if not even one image fits.
    """
    size = 0
    while 2 ** (size + 1) <= most and fits(2 ** (size + 1)):
        size += 1
    if size == 0 and not fits(1):
        raise Unavailable(
            "not even one image of a step fits into the GPU's memory; take a smaller model or"
            " --precision bf16"
        )
    return 2**size


def _fits(
    images: int,
    start: Descendant | TimmModel,
    task: Task,
    recipe: Recipe,
    run: Run,
    device: torch.device,
) -> bool:
    """Whether one step of so many images leaves a tenth of the memory free."""
    model: Any = start.model()
    objective = objective_for(task, model, recipe, 0).to(device).train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=0.0)
    size, kind = (
        start.input_format.image_size,
        torch.float16 if run.precision == "fp16" else torch.bfloat16,
    )
    pictures = torch.zeros(images, start.input_format.channels, size, size, device=device)
    labels = torch.zeros(
        (images, size, size) if task.dense else (images,), dtype=torch.int64, device=device
    )
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
        return torch.cuda.max_memory_reserved(device) <= ROOM * total
    except torch.OutOfMemoryError:
        return False
    finally:
        del model, objective, optimizer, pictures
        torch.cuda.empty_cache()
