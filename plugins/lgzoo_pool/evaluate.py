"""Evaluating every path of a network in one pass over the images of a split.

Paths are the leaves of a tree: what two paths have in common at their beginning is computed once (stitched paths share
the blocks of the front anchor), and every image is read once. The logits are bit-equal to those of each path by itself.

Shapes: B images, N tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from learngene_zoo.plugin import Evaluation, InputFormat, Json, Run, evaluate_each
from lgzoo_pool.network import StitchedNetwork
from lgzoo_pool.paths import Path, Span, Stitch

if TYPE_CHECKING:
    from learngene_zoo.plugin import Task


class Operation(NamedTuple):
    """One thing that a path does: an anchor's stem (block -1), one of its blocks, or a stitch (of no anchor)."""

    anchor: int
    block: int
    stitch: Stitch | None = None


Operations = tuple[Operation, ...]


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
    order = sorted(range(len(paths)), key=lambda number: _sortable(steps_of(paths[number])))
    answers = along_each(network, [paths[number] for number in order])
    found = evaluate_each(answers, network, task, split, input_format, run, batch_size=batch_size, images=images)
    return tuple(found[order.index(number)] for number in range(len(paths)))


def along_each(network: StitchedNetwork, paths: Sequence[Path]) -> Callable[[torch.Tensor], Iterator[torch.Tensor]]:
    """A function from images (B, C, H, W) to the logits (B, K) along each path, one after the other.

    What a path shares with the one before it is computed once: paths that begin with the same steps should be adjacent.
    """
    every = [steps_of(path) for path in paths]
    branches = {one[: _alike(before, one)] for before, one in pairwise(every)}

    def answers(images_BCHW: torch.Tensor) -> Iterator[torch.Tensor]:
        kept: dict[Operations, torch.Tensor] = {(): images_BCHW}
        for steps in every:
            kept = {begun: tokens for begun, tokens in kept.items() if steps[: len(begun)] == begun}
            begun = max(kept, key=len)
            tokens_BND = kept[begun]
            for place, step in enumerate(steps[len(begun) :], start=len(begun) + 1):
                tokens_BND = _after(network, step, tokens_BND)
                if steps[:place] in branches:
                    kept[steps[:place]] = tokens_BND
            last = steps[-1].anchor
            yield network.anchor(last).forward_head(network.normed(tokens_BND, last))

    return answers


def steps_of(path: Path) -> Operations:
    """All that a path does before the final norm, in order."""
    steps = [Operation(path.parts[0].anchor, -1)]
    for stitch, part in zip([None, *path.stitches], path.parts):
        if stitch is not None:
            steps.append(Operation(-1, -1, stitch))
        steps += [Operation(part.anchor, block) for block in range(part.start, part.stop)]
    return tuple(steps)


def _after(network: StitchedNetwork, step: Operation, tokens_BND: torch.Tensor) -> torch.Tensor:
    """The tokens after a step, from those before it, or from images if it is the first."""
    if step.stitch is not None:
        return network.joined(tokens_BND, step.stitch)
    if step.block < 0:
        return network.embed(tokens_BND, step.anchor)
    return network.through(tokens_BND, Span(step.anchor, step.block, step.block + 1))


def _sortable(steps: Operations) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(step.anchor, step.block, step.stitch or ()) for step in steps]


def _alike(one: Operations, other: Operations) -> int:
    """How many equal steps both begin with."""
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
