"""The work of one training: set up, restore, step, save, finish. `loop.train` drives it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.recipe import Recipe
from learngene_zoo.runs.distributed import (
    check_agreed,
    is_first,
    mean_losses,
    rank,
    share_of_batch,
    wait_for_all,
    world,
)
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import seed_step
from learngene_zoo.training import checkpoint as checkpoints
from learngene_zoo.training.checkpoint import TrainingState
from learngene_zoo.training.device import Forward, open_accelerator
from learngene_zoo.training.step import Groups, Step, learning_rate, mixing

if TYPE_CHECKING:
    from accelerate import Accelerator
    from timm.utils import ModelEmaV3

    from learngene_zoo.tasks.batches import Batches


class Engine:
    """One training in progress."""

    def __init__(
        self,
        objective: nn.Module,
        loader: Batches,
        recipe: Recipe,
        run: Run,
        device: torch.device,
        groups: Groups,
        unused: bool,
        label: str,
    ) -> None:
        self.objective = objective.to(device)
        self.loader, self.recipe, self.run, self.device = loader, recipe, run, device
        self.groups = groups
        self.steps = recipe.epochs * loader.steps
        self.identity = {"label": label, "steps": self.steps, "seed": run.seed, "ema": recipe.ema, "plan": run.plan}
        self.mix = mixing(recipe, loader.task.classes)
        self.accelerator: Accelerator = open_accelerator(run, device, unused)

    def begin(self) -> int:
        """Build the optimizer, restore the newest checkpoint, and return how many steps are done already."""
        # The groups come before the copy for the average, which must not count as part of the objective.
        parameters = self.groups(self.objective, self.recipe)
        optimizer = torch.optim.AdamW(parameters, lr=self.recipe.lr, fused=self.device.type in ("cpu", "cuda"))
        self.state = TrainingState(self.objective, optimizer, self._average())
        checkpoint = self._find_checkpoint()
        if checkpoint is not None:
            self.state.restore(checkpoint)
        self.prepared, self.optimizer = self.accelerator.prepare(Forward(self.objective), optimizer)
        self.state.scaler = self.accelerator.scaler
        if checkpoint is not None and self.state.scaler and checkpoint.scaler:
            self.state.scaler.load_state_dict(dict(checkpoint.scaler))
        self.forward = torch.compile(self.prepared) if self.recipe.compile else self.prepared
        return checkpoint.step if checkpoint is not None else 0

    def _average(self) -> ModelEmaV3 | None:
        if self.recipe.ema is None:
            return None
        from timm.utils import ModelEmaV3

        return ModelEmaV3(self.objective, decay=self.recipe.ema, use_warmup=True)

    def _find_checkpoint(self) -> checkpoints.Checkpoint | None:
        folder = self.run.folder
        if folder is None:
            return None
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            checkpoints.forget_drafts(folder) if self.run.resume else checkpoints.forget(folder)
        wait_for_all()
        found = checkpoints.newest(folder, self.identity) if self.run.resume else None
        check_agreed(found.step if found else 0, "checkpoints")
        return found

    def remaining(self, done: int) -> Iterator[Step]:
        """Take the remaining steps, one at a time."""
        for epoch in range(done // self.loader.steps, self.recipe.epochs):
            start = max(done - epoch * self.loader.steps, 0)
            for number, batch in enumerate(self.loader.epoch(epoch, start=start), start=start + 1):
                step = epoch * self.loader.steps + number
                lr = learning_rate(self.recipe, step, self.loader.steps)
                yield Step(
                    epoch=epoch,
                    step=step,
                    steps=self.steps,
                    losses=self._step(batch, step, lr),
                    lr=lr,
                    end_of_epoch=number == self.loader.steps,
                )

    def _step(self, batch: Any, step: int, lr: float) -> dict[str, float]:
        seed_step(self.run.seed, step, rank())
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.objective.train()
        self.optimizer.zero_grad()
        losses = self._gradients(batch)
        self._check_finite(losses, step)
        if self.recipe.clip is not None:
            self.accelerator.clip_grad_norm_(self.objective.parameters(), self.recipe.clip)
        self.optimizer.step()
        if self.state.average is not None:
            self.state.average.update(self.objective, step=step)
        return losses

    def _gradients(self, batch: Any) -> dict[str, float]:
        """Forward and backward over the batch, in `recipe.accumulate` pieces; the losses of the whole."""
        images = len(batch[0])
        if images == 0:
            raise WrongCall(
                f"a batch of {self.recipe.batch_size} images leaves none for one of {world()} processes; "
                "set a larger --batch-size"
            )
        parts = (None if part is None else part.to(self.device, non_blocking=True) for part in batch)
        batch = type(batch)(*parts)
        if self.mix is not None:
            batch = self.mix(batch)
        share = share_of_batch(images, self.device)
        total: dict[str, torch.Tensor] = {}
        pieces = _pieces(batch, self.recipe.accumulate)
        for i, piece in enumerate(pieces, start=1):
            weight = share * len(piece[0]) / images
            last = i == len(pieces)
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                losses = {name: weight * loss for name, loss in self.forward(piece).items()}
                self.accelerator.backward(torch.stack(list(losses.values())).sum())
            for name, loss in losses.items():
                total[name] = total[name] + loss.detach() if name in total else loss.detach()
        return mean_losses(total, self.device)

    def _check_finite(self, losses: dict[str, float], step: int) -> None:
        for name, value in losses.items():
            if not math.isfinite(value):
                raise TrainingFailed(
                    f"the loss {name} is {value} at step {step} of {self.steps}, which was not taken; "
                    "try a lower --lr, or --clip 1"
                )

    def save(self, step: int) -> float:
        """Write a checkpoint and return how many seconds that took."""
        started = time.monotonic()
        if self.run.folder is not None and is_first():
            checkpoints.save(self.run.folder, self.state.capture(step, self.identity))
        return time.monotonic() - started

    def finish(self) -> None:
        """Leave the objective with the weights to keep."""
        self.optimizer.zero_grad()
        self.state.keep_average()
        self.objective.eval()
        wait_for_all()


def _pieces(batch: Any, count: int) -> list[Any]:
    """A batch in `count` pieces of nearly equal size, fewer if it has fewer images; a field that is None stays None."""
    count = min(count, len(batch[0]))
    cut = [[None] * count if part is None else part.tensor_split(count) for part in batch]
    return [type(batch)(*parts) for parts in zip(*cut)]
