"""Solve stitches by least squares, SN-Net's initialisation, in one pass over the images.

For a pair (j, k) let X be the tokens after block j of the front anchor, with a column of ones, and
Y the input tokens of block k of the end anchor (k = 0: the embedded ones), stacked over images and
tokens. The pair's stitch is

    W = argmin |X W - Y|^2 = (X'X)^+ X'Y         the last row is the bias

and a layer that pairs share is the mean of theirs. Solutions of blocks that differ much have a mean
that serves none of them; `joint`, which is ours, solves all pairs of a layer at once instead:

    W = argmin of the sum over its pairs of |X W - Y|^2 = (sum X'X)^+ (sum X'Y)

Anchors are in eval mode (the released code leaves stochastic depth on). Three things make this
cheap: every anchor runs once per batch; X'X, the Gram matrix, is summed once per front block, in
float64; and since W is linear in Y, the pairs of one layer that leave the same front block are
added before they are multiplied. Memory does not grow with the number of images.

The pseudo-inverse is computed from eigenvalues: where X is rank-deficient it gives the smallest W,
as `lstsq` on X does.

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
    Run,
    StateDict,
    Task,
    get_world_size,
    open_device,
    sample_images,
)
from lgzoo_pool.modules.network import StitchedNetwork
from lgzoo_pool.paths import Stitch, StitchLayout

BATCH_SIZE = 16  # images whose features are in memory together


class FrontBlock(NamedTuple):
    """The output of a block of a front anchor."""

    anchor: int
    block: int


class PairGroup(NamedTuple):
    """The pairs of a stitch that leave the same block; `ends` are the blocks that they lead to."""

    stitch: Stitch
    front: FrontBlock
    end: int  # the end anchor
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Moments:
    """The sums over all images of least squares, in float64: X'X, X' sum Y, and sum |Y|^2."""

    gram: dict[FrontBlock, torch.Tensor]  # (D + 1, D + 1)
    cross: dict[PairGroup, torch.Tensor]  # (D + 1, E)
    norm: dict[PairGroup, torch.Tensor]  # ()

    @classmethod
    def zeros(cls, network: StitchedNetwork) -> Moments:
        """Return those of no image, on the network's device; on the CPU if it has no float64."""
        every, device = group_pairs(network.layout), network.get_anchor(0).pos_embed.device
        device = torch.device("cpu") if device.type == "mps" else device
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        widths = [network.get_anchor(number).embed_dim for number in range(len(network.anchors))]
        fronts = sorted({group.front for group in every})
        return cls(
            gram={front: zeros([widths[front.anchor] + 1] * 2) for front in fronts},
            cross={
                group: zeros((widths[group.front.anchor] + 1, widths[group.end])) for group in every
            },
            norm={group: zeros(()) for group in every},
        )

    def add(self, streams: Sequence[Sequence[torch.Tensor]]) -> None:
        """Add one batch, from every anchor's streams.

        It goes front block by front block, with all products of one at once.
        """
        targets = {
            (group.end, end): _flatten_tokens(streams[group.end][end])
            for group in self.cross
            for end in group.ends
        }
        norms = {key: target.square().sum() for key, target in targets.items()}
        for front in self.gram:
            tokens_RD = _flatten_tokens(streams[front.anchor][front.block + 1])
            rows = torch.cat([tokens_RD, torch.ones_like(tokens_RD[:, :1])], dim=1)
            leaving = [group for group in self.cross if group.front == front]
            sums = [
                torch.stack([targets[group.end, end] for end in group.ends]).sum(dim=0)
                for group in leaving
            ]
            widths = [part.shape[1] for part in (rows, *sums)]
            gram, *crosses = (rows.T @ torch.cat([rows, *sums], dim=1)).split(widths, dim=1)
            self.gram[front] += gram
            for group, cross in zip(leaving, crosses):
                self.cross[group] += cross
                self.norm[group] += torch.stack([norms[group.end, end] for end in group.ends]).sum()


def group_pairs(layout: StitchLayout) -> tuple[PairGroup, ...]:
    """Return all pairs of a layout, those of one stitch and one front block together."""
    ends_of: dict[tuple[Stitch, int], list[int]] = {}
    for stitch, pairs in layout.stitches:
        for pair in pairs:
            ends_of.setdefault((stitch, pair.j), []).append(pair.k)
    groups = []
    for (stitch, block), ends in ends_of.items():
        front, end = layout.joints[stitch.joint]
        groups.append(PairGroup(stitch, FrontBlock(front, block), end, tuple(ends)))
    return tuple(groups)


def iterate_images(
    task: Task, input_format: InputFormat, count: int, run: Run
) -> Iterator[torch.Tensor]:
    """Return batches of a sample of training images on the run's device, not augmented."""
    device = open_device(run)
    loader = sample_images(task, "train", input_format, run, images=count, batch_size=BATCH_SIZE)
    return (batch.inputs.to(device) for batch in loader.epoch(0))


@torch.no_grad()
def compute_moments(network: StitchedNetwork, batches: Iterable[torch.Tensor]) -> Moments:
    """Compute the moments over batches of images (B, C, H, W), on the network's device.

    Processes share the images.
    """
    network.eval()
    moments = Moments.zeros(network)
    for images_BCHW in batches:
        if len(images_BCHW):
            anchors = range(len(network.anchors))
            moments.add([network.compute_streams(images_BCHW, anchor) for anchor in anchors])
    if get_world_size() > 1:
        for total in (*moments.gram.values(), *moments.cross.values(), *moments.norm.values()):
            dist.all_reduce(total)
    return moments


def solve_stitches(moments: Moments, *, joint: bool = False) -> StateDict:
    """Return the tensors of every stitch by name, fp32 on the CPU.

    With `joint` all pairs of a stitch are solved at once, else it is the mean of their solutions.

    Raises `ValueError` if the moments are of no image.
    """
    if not all(gram[-1, -1] for gram in moments.gram.values()):  # the number of rows
        raise ValueError("the moments are of no image")
    inverses = {front: invert_gram(gram) for front, gram in moments.gram.items()}
    stitches: dict[str, torch.Tensor] = {}
    for stitch, sharing in groupby(moments.cross, key=lambda group: group.stitch):
        groups = list(sharing)
        if joint:
            gram = reduce(
                torch.add, (len(group.ends) * moments.gram[group.front] for group in groups)
            )
            cross = reduce(torch.add, (moments.cross[group] for group in groups))
            solution = invert_gram(gram) @ cross
        else:
            total = reduce(
                torch.add, (inverses[group.front] @ moments.cross[group] for group in groups)
            )
            solution = total / sum(len(group.ends) for group in groups)
        solution = solution.float().cpu()
        stitches[f"{stitch.name}.weight"] = solution[:-1].T.contiguous()
        stitches[f"{stitch.name}.bias"] = solution[-1].clone()
    return stitches


def invert_gram(gram_DD: torch.Tensor) -> torch.Tensor:
    """Return the pseudo-inverse of a Gram matrix."""
    return torch.linalg.pinv(gram_DD, hermitian=True)


def measure_fit(moments: Moments, stitches: StateDict) -> dict[str, Json]:
    """Measure how well any stitches fit, over all pairs.

    `norm_ratio` is |X W| / |Y|, and `missed` |X W - Y|^2 / |Y|^2; by the stitch's name, and as
    `mean` the mean over the stitches.
    """
    outputs, missed, targets = (defaultdict[str, float](float) for _ in range(3))
    for group, cross in moments.cross.items():
        name = group.stitch.name
        weight = torch.cat([stitches[f"{name}.weight"].T, stitches[f"{name}.bias"][None]]).to(cross)
        squared = len(group.ends) * float((weight * (moments.gram[group.front] @ weight)).sum())
        target = float(moments.norm[group])
        outputs[name] += squared
        targets[name] += target
        missed[name] = missed[name] + squared - 2 * float((weight * cross).sum()) + target
    ratios = {name: max(outputs[name] / norm, 0.0) ** 0.5 for name, norm in targets.items()}
    shares = {name: max(missed[name] / norm, 0.0) for name, norm in targets.items()}
    return {"norm_ratio": _add_mean(ratios), "missed": _add_mean(shares)}


def _flatten_tokens(tokens_BND: torch.Tensor) -> torch.Tensor:
    """Return all tokens (R, D) in float64; on the CPU where the device has none."""
    tokens_RD = tokens_BND.flatten(0, 1)
    return tokens_RD.cpu().double() if tokens_RD.device.type == "mps" else tokens_RD.double()


def _add_mean(values: Mapping[str, float]) -> dict[str, float]:
    rounded = {name: round(value, 6) for name, value in values.items()}
    return {"mean": round(sum(values.values()) / len(values), 6), **rounded}
