"""Evaluating every path of a network in one pass over the images of a split.

Every image is read once, and the blocks of a path's first anchor run once for all paths that begin in it. The logits are
bit-equal to those of each path by itself.

Shapes: B images, N tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from learngene_zoo.plugin import Evaluation, InputFormat, Json, Run, evaluate_each
from lgzoo_pool.network import StitchedNetwork
from lgzoo_pool.paths import Path

if TYPE_CHECKING:
    from learngene_zoo.plugin import Task


def path_metrics(
    network: StitchedNetwork,
    settings: Sequence[Mapping[str, Json]],
    task: Task,
    input_format: InputFormat,
    run: Run,
    *,
    images: int | None = None,
) -> dict[str, Json]:
    """`paths` of a learngene's metrics: for each its settings, its metric on validation images, and their number.

    `settings` are the expander's that lead to each path, in the order of the layout's paths. Empty if `images` is 0.
    """
    if images == 0:
        return {}
    found = evaluate_paths(network, network.layout.paths, task, "validation", input_format, run, images=images)
    rows = [{**own, one.metric: one.value, "images": one.images} for own, one in zip(settings, found, strict=True)]
    return {"paths": rows}


def evaluate_paths(
    network: StitchedNetwork,
    paths: Sequence[Path],
    task: Task,
    split: str,
    input_format: InputFormat,
    run: Run,
    *,
    batch_size: int | None = None,
    images: int | None = None,
) -> tuple[Evaluation, ...]:
    """Every path's result on a split, in the order of `paths`, equal to what `evaluate` gives for its own model."""
    order = sorted(range(len(paths)), key=lambda number: paths[number].first)
    answers = along_each(network, [paths[number] for number in order])
    found = evaluate_each(answers, network, task, split, input_format, run, batch_size=batch_size, images=images)
    return tuple(found[order.index(number)].evaluation for number in range(len(paths)))


def along_each(network: StitchedNetwork, paths: Sequence[Path]) -> Callable[[torch.Tensor], Iterator[torch.Tensor]]:
    """A function from images (B, C, H, W) to the logits (B, K) along each path, one after the other.

    Neighbouring paths that begin in the same anchor share its blocks.
    """

    def answers(images_BCHW: torch.Tensor) -> Iterator[torch.Tensor]:
        for anchor, beginning in groupby(paths, key=lambda path: path.first):
            streams = network.streams(images_BCHW, anchor)
            for path in beginning:
                tokens_BND = streams[path.parts[0].stop]
                for stitch, part in zip(path.stitches, path.parts[1:]):
                    tokens_BND = network.through(network.joined(tokens_BND, stitch), part)
                yield network.anchor(path.last).forward_head(network.normed(tokens_BND, path.last))

    return answers
