"""Time the evaluation of every path of a pool in one pass against that of each by itself.

Both use the same images of the source task and a pool of 6 + 6 blocks of the bundled ancestry
model's shape, with equal results. By itself, every path reads the images again and runs the narrow
model's blocks again; in one pass only the wide model's blocks run for each path. `network` is the
network's part alone, on images in memory. One thread, about a minute.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import torch
from torch import nn

from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.evaluate import Evaluation, evaluate
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.modules.network import (
    StitchedNetwork,
    build_forward_each,
    build_network,
    draw_stitches,
    evaluate_paths,
    merge_anchors,
)
from lgzoo_pool.paths import Path
from timings.case import Case, Row, measure_medians

IMAGES, REPEATS = 128, 1
SIZES = ((32, 1), (96, 3))  # width, heads


class PathModel(nn.Module):
    """A path as a model."""

    def __init__(self, network: StitchedNetwork, path: Path) -> None:
        super().__init__()
        self.network, self.path = network, path

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of the path."""
        logits: torch.Tensor = self.network(images_BCHW, self.path)
        return logits


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time both ways, of the evaluation and of the network alone."""
    torch.set_num_threads(1)
    task, run = open_task(SOURCE_TASK), Run(threads=1)
    network = build_random_network(task.classes)
    paths = network.layout.paths
    pixels = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def evaluate_together() -> tuple[Evaluation, ...]:
        return evaluate_paths(
            network, paths, task, "validation", task.input_format, run, images=IMAGES
        )

    def evaluate_apart() -> tuple[Evaluation, ...]:
        models = [PathModel(network, path) for path in paths]
        return tuple(
            evaluate(model, task, "validation", task.input_format, run, images=IMAGES)
            for model in models
        )

    @torch.no_grad()
    def forward_together() -> list[torch.Tensor]:
        return list(build_forward_each(network, sorted(paths, key=lambda path: path.parts))(pixels))

    @torch.no_grad()
    def forward_apart() -> list[torch.Tensor]:
        return [network(pixels, path) for path in paths]

    assert evaluate_together() == evaluate_apart()
    functions = [evaluate_together, evaluate_apart, forward_together, forward_apart]
    seconds = measure_medians({function.__name__: function for function in functions}, REPEATS)
    for name, part in (("all", "evaluate"), ("network", "forward")):
        together, apart = seconds[f"{part}_together"], seconds[f"{part}_apart"]
        row = {
            "together_s": together,
            "apart_s": apart,
            "ratio": together / apart,
            "paths": len(paths),
        }
        yield (
            row,
            f"{name:8} {len(paths)} paths, {IMAGES} images   one pass {1e3 * together:8.1f} ms  "
            f" each by itself {1e3 * apart:8.1f} ms   ratio {row['ratio']:.3f}",
        )


def build_random_network(classes: int) -> StitchedNetwork:
    """Return a pool of two anchors with random weights."""
    specs = [
        ViTSpec(layers=6, classes=classes, image_size=32, patch_size=8, width=width, heads=heads)
        for width, heads in SIZES
    ]
    layout = StitchedDetails.from_specs(specs).layout
    states = merge_anchors([initialise(spec, seed) for seed, spec in enumerate(specs)])
    return build_network(specs, layout, {**states, **draw_stitches(specs, layout, 0)})


def summarise(rows: list[Row], args: Namespace) -> Row:
    """Return the numbers of the evaluation and, below `network`, of the network alone."""
    (paths, _) = [row.pop("paths") for row in rows]
    return {**rows[0], "network": rows[1], "paths": paths, "images": IMAGES, "threads": 1}


CASE = Case(measure=measure, summarise=summarise)
