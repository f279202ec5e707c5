"""The one training loop: a generator of steps. Evaluation, annealing and early stopping stand in the `for`'s body."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.recipe import Recipe
from learngene_zoo.runs.run import Run
from learngene_zoo.training.device import open_device
from learngene_zoo.training.engine import Engine
from learngene_zoo.training.step import Groups, Step, parameter_groups, stochastic_depth
from learngene_zoo.training.trackers import metrics_file, progress_bar, tracking

if TYPE_CHECKING:
    from learngene_zoo.tasks.batches import Batches

__all__ = ["Step", "train"]
SAVING_SHARE = 20  # writing checkpoints takes at most about a twentieth of the time, however large they are


def train(
    objective: nn.Module,
    loader: Batches,
    recipe: Recipe,
    run: Run,
    *,
    groups: Groups = parameter_groups,
    unused: bool = False,
    seconds_between_checkpoints: float = 30.0,
    label: str = "training",
) -> Iterator[Step]:
    """Minimise `objective(batch)`, named scalar losses that are means over the batch, over `recipe.epochs` of `loader`.

    The objective moves to the run's device. After the last step it holds the trained weights (with `recipe.ema` their
    moving average, whose decay warms up as min(ema, 1 - step^(-2/3))) and is in eval mode. With `run.resume` training
    continues from the newest checkpoint in `run.folder`; a finished training is loaded and yields nothing. On one CPU
    process the result is bit-equal to that of a training that was never interrupted, provided that everything that the
    body of the `for` sets on the objective lies in its buffers. `unused` allows parameters that some steps do not use.
    With `seconds_between_checkpoints` 0 every step is saved; otherwise large checkpoints are written less often.

    Under torchrun the processes share each batch and have equal weights throughout; the first one writes.

    Raises `WrongCall`, `Unavailable` or `Refused` before the first step, and `TrainingFailed` for a loss that is not
    finite; the last good checkpoint stays.
    """
    device = open_device(run)
    if recipe.epochs == 0:
        objective.to(device).eval()
        return
    if loader.steps == 0:
        raise WrongCall(
            f"{loader.images} training images do not fill one batch of {recipe.batch_size}; set a smaller --batch-size"
        )
    engine = Engine(objective, loader, recipe, run, device, groups, unused, label)
    with stochastic_depth(objective, recipe.drop_path), ExitStack() as stack:
        done = engine.begin()
        outlets = [
            stack.enter_context(metrics_file(run.folder, done)),
            stack.enter_context(tracking(engine.accelerator, run, label)),
        ]
        draw = stack.enter_context(progress_bar(run, label, done, engine.steps))
        shown = min(recipe.batch_size, loader.images)  # images of a step, from which the cost of an extraction is read
        saved, pause = time.monotonic(), seconds_between_checkpoints
        for step in engine.remaining(done):
            for log in outlets:
                log(
                    {"epoch": step.epoch, "images": shown, "lr": step.lr, "loss": step.loss, **_prefixed(step)},
                    step.step,
                )
            draw(step)
            yield step
            if step.step == step.steps or time.monotonic() - saved >= pause:
                seconds = engine.save(step.step)
                saved = time.monotonic()
                if pause:
                    pause = max(seconds_between_checkpoints, SAVING_SHARE * seconds)
    engine.finish()


def _prefixed(step: Step) -> dict[str, float]:
    return {f"loss/{name}": value for name, value in step.losses.items()}
