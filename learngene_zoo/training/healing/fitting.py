"""Fit the maps of a recovery, and measure its losses, over images in eval mode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from learngene_zoo.errors import TrainingFailed
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, gather_values, open_device
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.text import name_option
from learngene_zoo.training.evaluate import use_evaluation_mode
from learngene_zoo.training.healing.maps import TokenMoments, add_moments, add_processes, solve_map

if TYPE_CHECKING:
    from learngene_zoo.tasks.loader import Batch, Batches
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.healing.objective import Recovery

BATCH_SIZE = 64
JUDGED = 4  # of so many images one chooses the penalty and the others are fitted


def fit_maps(objective: Recovery, images: Task, count: int, seed: int, run: Run) -> None:
    """Set the maps to least squares over `count` training images, which are not augmented.

    Raises `TrainingFailed` if tokens are not finite.
    """
    if not objective.maps:
        return
    loader = sample_images(
        images,
        "train",
        objective.student_side.input_format,
        run,
        images=count,
        batch_size=BATCH_SIZE,
        seed=seed,
    )
    fitted: dict[str, TokenMoments] = {}
    judged: dict[str, TokenMoments] = {}
    with evaluate_batches(objective, loader, run, "fitting the maps, batch") as batches:
        for batch in batches:
            is_judged_B = torch.arange(len(batch.inputs)) % JUDGED == JUDGED - 1
            for is_judged, parts in read_moments(objective, batch, is_judged_B):
                sums = judged if is_judged else fitted
                for name, part in parts.items():
                    sums[name] = add_moments(sums.get(name), part)
    fitted, judged = add_processes(fitted), add_processes(judged)
    for name, moments in fitted.items():
        others = judged.get(name, moments)
        if not (moments.is_finite() and others.is_finite()):
            raise TrainingFailed(
                f"the tokens of {images.name} are not finite ({name}); create the model again"
            )
        weight_ED, bias_E, _ = solve_map(moments, others)
        layer: Any = objective.maps[name]
        with torch.no_grad():
            layer.weight.copy_(weight_ED)
            layer.bias.copy_(bias_E)


def read_moments(
    objective: Recovery, batch: Batch, is_judged_B: torch.Tensor
) -> Iterator[tuple[bool, dict[str, TokenMoments]]]:
    """Yield the sums of the fitted images of a batch and of the judged ones, by the maps' names."""
    # The tokens of all texts are in one row after the other, so that texts are read in two parts.
    is_text = isinstance(batch.inputs, Tokens)
    student, teacher = ({}, {}) if is_text else objective.read_tokens(batch)
    for is_judged, chosen_B in ((False, ~is_judged_B), (True, is_judged_B)):
        if not chosen_B.any():
            continue
        if is_text:
            chosen = batch._replace(inputs=batch.inputs[chosen_B.to(batch.inputs.ids.device)])
            mine, other = objective.read_tokens(chosen)
        else:
            mine, other = (
                {name: part[name][chosen_B] for name in part} for part in (student, teacher)
            )
        names = objective.maps
        yield is_judged, {name: TokenMoments.of(mine[name], other[name]) for name in names}


def measure_losses(objective: Recovery, loader: Batches, run: Run) -> dict[str, float]:
    """Return the mean over images of each loss.

    Raises `TrainingFailed` if one is not finite.
    """
    sums: dict[str, float] = {}
    with evaluate_batches(objective, loader, run, "held-out losses, batch") as batches:
        for batch in batches:
            for name, loss in objective(batch).items():
                sums[name] = sums.get(name, 0.0) + len(batch.inputs) * float(loss)
    parts = gather_values(sums)
    losses = {
        name: sum(part.get(name, 0.0) for part in parts) / loader.images
        for name in objective.weights
    }
    bad = next((name for name, loss in losses.items() if not math.isfinite(loss)), None)
    if bad is not None:
        raise TrainingFailed(
            f"the loss {bad} of held-out images is {losses[bad]}; try a lower {name_option('lr')}"
        )
    return losses


@contextmanager
def evaluate_batches(
    objective: Recovery, loader: Batches, run: Run, title: str
) -> Iterator[Iterator[Batch]]:
    """Yield the batches of a loader on the run's device, with the objective in eval mode."""
    device = open_device(run)
    objective.to(device)
    with (
        use_evaluation_mode(objective, device, run),
        report_activity(title, loader.steps) as activity,
    ):

        def move() -> Iterator[Batch]:
            for activity.num_done, batch in enumerate(loader.epoch(0), start=1):
                if len(batch.inputs):
                    yield batch._replace(inputs=batch.inputs.to(device))

        yield move()
