"""A tiny training for the tests of the loop: an objective, and a loader whose batches are functions
of (epoch, number).

As a program it trains in a given folder, so that a test can kill it or start several processes:
training_toy.py FOLDER RESULT.safetensors [--resume] [--seconds S] [--delay S] [--epochs N] [--batch
N]. Further trainings in the same process follow after the word `then`.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.runs.run import Run, get_world_size, is_first, rank
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import write_tensors
from learngene_zoo.tasks.task import IGNORED
from learngene_zoo.training.loop import train

CLASSES = 4


class Batch(NamedTuple):
    inputs: torch.Tensor  # (B, 2, 3, 3)
    labels: torch.Tensor  # (B,)
    indices: torch.Tensor  # (B,)


class ToyLoader:
    """`steps` batches per epoch; each process gets every world-th image of a batch."""

    def __init__(self, steps: int = 5, batch_size: int = 8) -> None:
        self.steps, self.batch_size, self.images = steps, batch_size, steps * batch_size
        self.task = SimpleNamespace(classes=CLASSES)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        for number in range(start, self.steps):
            draw = torch.Generator().manual_seed(1000 * epoch + number)
            labels = torch.randint(CLASSES, (self.batch_size,), generator=draw)
            images = torch.randn(self.batch_size, 2, 3, 3, generator=draw)
            images[:, 0, 0] += 4 * functional.one_hot(labels, CLASSES)[:, :3]
            mine = slice(rank(), None, get_world_size())
            yield Batch(images[mine], labels[mine], torch.arange(self.batch_size)[mine])


class OneBatch:
    """One batch, a named tuple; each process gets every world-th row."""

    def __init__(self, batch: Any) -> None:
        self.batch, self.steps, self.images = batch, 1, len(batch[0])
        self.task = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        mine = slice(rank(), None, get_world_size())
        yield type(self.batch)(*(None if part is None else part[mine] for part in self.batch))


def compute_gradients(
    objective: nn.Module, batch: Any, accumulate: int = 1
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the losses of a batch and their gradient, as a step of training computes them."""
    objective = copy.deepcopy(objective)
    size = len(batch[0])
    recipe = Recipe(epochs=1, batch_size=size, accumulate=accumulate)
    loader: Any = OneBatch(batch)
    for step in train(objective, loader, recipe, Run(device="cpu")):
        losses = dict(step.losses)
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in objective.named_parameters()
            if parameter.grad is not None
        }
    return losses, gradients


def check_split(objective: nn.Module, batch: Any, *names: str) -> None:
    """Check that a batch has the same losses and gradient in parts as in one piece.

    Args:
        objective: without random draws.
        batch: of an even size, whose parts have different numbers of terms.
        names: the losses that are expected.
    """
    losses, gradients = compute_gradients(objective, batch)
    assert list(losses) == list(names)
    for accumulate in (2, len(batch[0])):
        parts, others = compute_gradients(objective, batch, accumulate)
        assert parts == pytest.approx(losses, rel=1e-4)
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-6)


class Pixels(nn.Conv2d):
    """A dense model: the logits of 4 classes of each pixel."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(2, CLASSES, 1)


def draw_masks() -> Batch:
    """Return images (6, 2, 3, 3) with masks; the first image has one pixel that counts, the second
    none.
    """
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (6, 3, 3), generator=draw)
    labels[0, 1:], labels[0, 0, 1:], labels[1], labels[4, 2] = IGNORED, IGNORED, IGNORED, IGNORED
    return Batch(torch.randn(6, 2, 3, 3, generator=draw), labels, torch.arange(6))


class ToyModel(nn.Module):
    """A model with 18 inputs, a hidden layer with dropout and a norm, and class logits."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(18, 16),
            nn.GELU(),
            nn.LayerNorm(16),
            nn.Dropout(dropout),
            nn.Linear(16, CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)


def toy_objective(dropout: float = 0.2) -> nn.Module:
    from learngene_zoo.training.objectives import Classification

    torch.manual_seed(0)
    return Classification(ToyModel(dropout))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--stop-after", type=int, default=0)
    torch.set_num_threads(1)
    for is_then, words in groupby(sys.argv[1:], "then".__eq__):
        if not is_then:
            run_training(parser.parse_args(list(words)))


def run_training(given: argparse.Namespace) -> None:
    objective = toy_objective(given.dropout)
    recipe = Recipe(
        epochs=given.epochs,
        batch_size=given.batch,
        lr=1e-2,
        warmup=1.0,
        ema=0.9,
        mixup=0.2,
        clip=1.0,
    )
    if given.dropout == 0:  # what draws differs from process to process
        recipe = Recipe(epochs=given.epochs, batch_size=given.batch, lr=1e-2, ema=0.9)
    run = Run(folder=given.folder, resume=given.resume)
    steps = train(
        objective,
        ToyLoader(batch_size=given.batch),
        recipe,
        run,
        seconds_between_checkpoints=given.seconds,
    )
    for step in steps:
        print(f"step {step.step}\n", end="", flush=True)  # one write: torchrun's ranks share a file
        time.sleep(given.delay)
        if step.step == given.stop_after:
            return
    if is_first():
        write_tensors(given.result, objective.state_dict())


if __name__ == "__main__":
    main()
