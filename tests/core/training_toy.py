"""A tiny training for the tests of the loop: an objective, and a loader whose batches are functions
of (epoch, number).

As a program it trains in a given folder, so that a test can kill it or start several processes:
training_toy.py FOLDER RESULT.safetensors [--resume] [--seconds S] [--delay S] [--epochs N] [--batch
N]. Further trainings in the same process follow after the word `then`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.runs.run import Run, is_first, rank, world
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import write_tensors
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
            mine = slice(rank(), None, world())
            yield Batch(images[mine], labels[mine], torch.arange(self.batch_size)[mine])


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
