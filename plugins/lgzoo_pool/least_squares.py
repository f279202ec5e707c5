"""Stitches from least squares, SN-Net's initialisation, in one pass over the images.

For a pair (j, k) let X be the tokens after block j of the front anchor, with a column of ones, and Y the input tokens
of block k of the end anchor (k = 0: the embedded ones), stacked over images and tokens. The pair's stitch is

    W = argmin |X W - Y|^2 = (X'X)^+ X'Y         the last row is the bias

and a layer that pairs share is the mean of theirs. Solutions of blocks that differ much have a mean that serves none of them; `joint`, which is
ours, solves all pairs of a layer at once instead:

    W = argmin of the sum over its pairs of |X W - Y|^2 = (sum X'X)^+ (sum X'Y)

Anchors are in eval mode (the released code leaves stochastic depth
on). Three things make this cheap: every anchor runs once per batch; X'X, the Gram matrix, is summed once per front
block, in float64; and since W is linear in Y, the pairs of one layer that leave the same front block are added before
they are multiplied. Memory does not grow with the number of images.

The pseudo-inverse is computed from eigenvalues: where X is rank-deficient it gives the smallest W, as `lstsq` on X
does.

Shapes: B images, N tokens, R = B N rows, D the front width, E the end width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from typing import NamedTuple

import torch
import torch.distributed as dist

from learngene_zoo.plugin import (
    InputFormat,
    Json,
    Loader,
    Run,
    StateDict,
    Task,
    derive_seed,
    join,
    open_device,
    world,
)
from lgzoo_pool.network import StitchedNetwork
from lgzoo_pool.paths import Layout, Stitch

AT_ONCE = 16  # images whose features are in memory together


class FrontBlock(NamedTuple):
    """The output of a block of a front anchor."""

    anchor: int
    block: int


class PairGroup(NamedTuple):
    """The pairs of one stitch that leave the same block; `ends` are the blocks that they lead to."""

    stitch: Stitch
    front: FrontBlock
    end: int  # the end anchor
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Moments:
    """The sums over all images that least squares needs, in float64: X'X, X' sum Y, and sum |Y|^2."""

    gram: dict[FrontBlock, torch.Tensor]  # (D + 1, D + 1)
    cross: dict[PairGroup, torch.Tensor]  # (D + 1, E)
    norm: dict[PairGroup, torch.Tensor]  # ()

    @classmethod
    def zero(cls, network: StitchedNetwork) -> Moments:
        """Those of no image, on the network's device; on the CPU where it has no float64."""
        every, device = groups(network.layout), network.anchor(0).pos_embed.device
        zeros = partial(torch.zeros, dtype=torch.float64, device="cpu" if device.type == "mps" else device)
        widths = [network.anchor(number).embed_dim for number in range(len(network.anchors))]
        return cls(
            gram={front: zeros([widths[front.anchor] + 1] * 2) for front in sorted({group.front for group in every})},
            cross={group: zeros((widths[group.front.anchor] + 1, widths[group.end])) for group in every},
            norm={group: zeros(()) for group in every},
        )

    def add(self, streams: Sequence[Sequence[torch.Tensor]]) -> None:
        """Add one batch, from every anchor's streams: front block by front block, all products of one at once."""
        targets = {(group.end, end): _wide(streams[group.end][end]) for group in self.cross for end in group.ends}
        norms = {place: target.square().sum() for place, target in targets.items()}
        for front in self.gram:
            tokens_RD = _wide(streams[front.anchor][front.block + 1])
            rows = torch.cat([tokens_RD, torch.ones_like(tokens_RD[:, :1])], dim=1)
            leaving = [group for group in self.cross if group.front == front]
            sums = [torch.stack([targets[group.end, end] for end in group.ends]).sum(dim=0) for group in leaving]
            widths = [part.shape[1] for part in (rows, *sums)]
            gram, *crosses = (rows.T @ torch.cat([rows, *sums], dim=1)).split(widths, dim=1)
            self.gram[front] += gram
            for group, cross in zip(leaving, crosses):
                self.cross[group] += cross
                self.norm[group] += torch.stack([norms[group.end, end] for end in group.ends]).sum()


def groups(layout: Layout) -> tuple[PairGroup, ...]:
    """All pairs of a layout, those of one stitch and one front block together."""
    found: dict[tuple[Stitch, int], list[int]] = {}
    for stitch, pairs in layout.stitches:
        for pair in pairs:
            found.setdefault((stitch, pair.j), []).append(pair.k)
    made = []
    for (stitch, block), ends in found.items():
        front, end = layout.joints[stitch.joint]
        made.append(PairGroup(stitch, FrontBlock(front, block), end, tuple(ends)))
    return tuple(made)


def some_images(task: Task, input_format: InputFormat, count: int, run: Run) -> Iterator[torch.Tensor]:
    """`count` training images, not augmented, sampled with the seed, in batches on the run's device; processes share them."""
    join(run.device_name)
    device = open_device(run)
    loader = Loader(
        task,
        "train",
        input_format,
        batch_size=AT_ONCE,
        seed=derive_seed(run.seed, "data"),
        images=count,
        workers=run.workers,
        drop_last=False,
    )
    return (batch.images.to(device) for batch in loader.epoch(0))


@torch.no_grad()
def moments(network: StitchedNetwork, batches: Iterable[torch.Tensor]) -> Moments:
    """The moments over batches of images (B, C, H, W), on the network's device; processes share the images."""
    network.eval()
    counted = Moments.zero(network)
    for images_BCHW in batches:
        if len(images_BCHW):
            counted.add([network.streams(images_BCHW, anchor) for anchor in range(len(network.anchors))])
    if world() > 1:
        for total in (*counted.gram.values(), *counted.cross.values(), *counted.norm.values()):
            dist.all_reduce(total)
    return counted


def solve(counted: Moments, *, joint: bool = False) -> StateDict:
    """The tensors of every stitch by name, fp32 on the CPU; with `joint` of all its pairs at once, else the mean of theirs.

    Raises `ValueError` if there was no image.
    """
    if not all(gram[-1, -1] for gram in counted.gram.values()):  # the number of rows
        raise ValueError("the moments are of no image")
    inverses = {front: inverse(gram) for front, gram in counted.gram.items()}
    solved: dict[str, torch.Tensor] = {}
    for stitch, sharing in groupby(counted.cross, key=lambda group: group.stitch):
        own = list(sharing)
        if joint:
            gram = reduce(torch.add, (len(group.ends) * counted.gram[group.front] for group in own))
            best = inverse(gram) @ reduce(torch.add, (counted.cross[group] for group in own))
        else:
            total = reduce(torch.add, (inverses[group.front] @ counted.cross[group] for group in own))
            best = total / sum(len(group.ends) for group in own)
        made = best.float().cpu()
        solved[f"{stitch.name}.weight"] = made[:-1].T.contiguous()
        solved[f"{stitch.name}.bias"] = made[-1].clone()
    return solved


def inverse(gram_DD: torch.Tensor) -> torch.Tensor:
    """The pseudo-inverse of a Gram matrix."""
    return torch.linalg.pinv(gram_DD, hermitian=True)


def fit_of(counted: Moments, stitches: StateDict) -> dict[str, Json]:
    """How well any stitches fit, over all pairs: `norm_ratio`, |X W| / |Y|, and `missed`, |X W - Y|^2 / |Y|^2.

    By the stitch's name, and as `mean` the mean over the stitches.
    """
    given, missed, squares = (defaultdict[str, float](float) for _ in range(3))
    for group, cross in counted.cross.items():
        name = group.stitch.name
        weight = torch.cat([stitches[f"{name}.weight"].T, stitches[f"{name}.bias"][None]]).to(cross)
        squared = len(group.ends) * float((weight * (counted.gram[group.front] @ weight)).sum())
        target = float(counted.norm[group])
        given[name] += squared
        squares[name] += target
        missed[name] = missed[name] + squared - 2 * float((weight * cross).sum()) + target
    return {
        "norm_ratio": _with_mean({name: max(given[name] / norm, 0.0) ** 0.5 for name, norm in squares.items()}),
        "missed": _with_mean({name: max(missed[name] / norm, 0.0) for name, norm in squares.items()}),
    }


def _wide(tokens_BND: torch.Tensor) -> torch.Tensor:
    """All tokens (R, D) in float64; on the CPU where the device has none."""
    tokens_RD = tokens_BND.flatten(0, 1)
    return tokens_RD.cpu().double() if tokens_RD.device.type == "mps" else tokens_RD.double()


def _with_mean(values: Mapping[str, float]) -> dict[str, float]:
    rounded = {name: round(value, 6) for name, value in values.items()}
    return {"mean": round(sum(values.values()) / len(values), 6), **rounded}
