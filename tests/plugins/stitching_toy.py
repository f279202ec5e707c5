"""Tiny stitched anchors, for the tests of the shared parts of SN-Net and the pool.

As a program it starts and trains a network, so that a test can start several processes:
stitching_toy.py FOLDER RESULT.safetensors
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run, is_first
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import write_tensors
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import load_training_images
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.modules.least_squares import compute_moments, iterate_images, solve_stitches
from lgzoo_pool.modules.network import StitchedNetwork, build_network, draw_stitches, merge_anchors
from lgzoo_pool.modules.objectives import SampledPaths
from lgzoo_pool.paths import Path as NetworkPath
from lgzoo_pool.settings import PathSettings

SIZES = [{"width": 16, "heads": 1}, {"width": 32, "heads": 2}, {"width": 48, "heads": 3}]


def anchors(depths: tuple[int, ...] = (3, 3), **sizes: Any) -> list[Ancestry]:
    """Return ancestry models from narrow to wide, with different weights."""
    return [
        make_tiny_ancestry(i, layers=layers, **SIZES[i], **sizes) for i, layers in enumerate(depths)
    ]


def stitched(
    depths: tuple[int, ...] = (3, 3), sizes: dict[str, Any] | None = None, **settings: Any
) -> tuple[StitchedNetwork, StitchedDetails]:
    """Return a network of tiny anchors with random stitches."""
    ancestries = anchors(depths, **(sizes or {}))
    specs = [ancestry.spec for ancestry in ancestries]
    stitching = {
        name: settings.pop(name) for name in ("nearest", "window", "stride") if name in settings
    }
    details = replace(StitchedDetails.from_specs(specs, **stitching), **settings)
    state = {
        **merge_anchors([a.state for a in ancestries]),
        **draw_stitches(specs, details.layout, 0),
    }
    return build_network(specs, details.layout, state), details


def learngene(network: StitchedNetwork, details: StitchedDetails, **sizes: Any) -> Learngene:
    """Return a network's tensors as SN-Net's learngene."""
    spec = anchors(tuple(anchor.layers for anchor in details.anchors), **sizes)[-1].spec
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    config = LearngeneConfig(method="snnet", spec=spec).with_details(details)
    return Learngene(config=config, state=state)


def train_stitches(
    network: StitchedNetwork,
    run: Run,
    recipe: Recipe,
    task: Task,
    *,
    paths: Sequence[NetworkPath] | None = None,
    teacher: Any = None,
    guidance: Any = "soft",
    until: int | None = None,
) -> None:
    """Train jointly as both methods do; `until` interrupts after this step, before it is saved."""
    settings = PathSettings(recipe=recipe, guidance=guidance, share=0.5)
    objective = SampledPaths(network, task, settings, run.seed, paths=paths, teacher=teacher)
    batches = load_training_images(task, anchors()[0].input_format, recipe, run)
    for step in train(
        objective, batches, recipe, run, unused=True, seconds_between_checkpoints=0 if until else 30
    ):
        objective.finished.fill_(step.step)
        if step.step == until:
            return


def images(count: int = 4, size: int = 16) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def main() -> None:
    folder, result = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(len(str(folder)))  # nothing may depend on it
    network, _ = stitched()
    task, run = make_tiny_task(classes=4), Run(folder=folder)
    input_format = anchors()[0].input_format
    network.set_stitches(
        solve_stitches(compute_moments(network, iterate_images(task, input_format, 18, run)))
    )
    recipe = Recipe(epochs=4, batch_size=8, lr=1e-3, augment="none", ema=0.9, clip=1.0)
    train_stitches(network, run, recipe, task)
    print("step done", flush=True)
    if is_first():
        write_tensors(result, network.state_dict())


if __name__ == "__main__":
    main()
