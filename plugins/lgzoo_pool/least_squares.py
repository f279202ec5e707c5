"""Stitches from least squares, SN-Net's initialisation, in one pass over the images.

For a pair (j, k) let X be the tokens after block j of the front anchor, with a column of ones, and Y the input tokens
of block k of the end anchor (k = 0: the embedded ones), stacked over images and tokens. The pair's stitch is

    W = argmin |X W - Y|^2 = (X'X)^+ X'Y         the last row is the bias

and a layer that pairs share is the mean of theirs. Anchors are in eval mode (the released code leaves stochastic depth
on). Three things make this cheap: every anchor runs once per batch, no further than the last block that is needed; X'X,
the Gram matrix, is summed once per front block, in float64; and since W is linear in Y, the pairs of one layer that
leave the same front block are added before they are multiplied. Memory does not grow with the number of images.

The pseudo-inverse is computed from eigenvalues: where X is rank-deficient it gives the smallest W, as `lstsq` on X
does.

Shapes: B images, N tokens, R = B N rows, D the front width, E the end width.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from learngene_zoo.plugin import (
    InputFormat,
    Json,
    Run,
    StateDict,
    Task,
    derive_seed,
    join,
    open_device,
    open_loader,
    world,
)
from lgzoo_pool.network import StitchedNetwork
from lgzoo_pool.paths import Layout, Stitch

K = TypeVar("K")
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

    gram: dict[FrontBlock, torch.Tensor] = field(default_factory=dict)  # (D + 1, D + 1)
    cross: dict[PairGroup, torch.Tensor] = field(default_factory=dict)  # (D + 1, E)
    norm: dict[PairGroup, torch.Tensor] = field(default_factory=dict)  # ()


def groups(layout: Layout) -> tuple[PairGroup, ...]:
    """All pairs of a layout, those of one stitch and one front block together."""
    found: dict[tuple[Stitch, int], list[int]] = {}
    for stitch, pairs in layout.stitches:
        for pair in pairs:
            found.setdefault((stitch, pair.j), []).append(pair.k)
    return tuple(
        PairGroup(
            stitch, FrontBlock(layout.joints[stitch.joint][0], block), layout.joints[stitch.joint][1], tuple(ends)
        )
        for (stitch, block), ends in found.items()
    )


def some_images(task: Task, input_format: InputFormat, count: int, run: Run) -> Iterator[torch.Tensor]:
    """`count` training images, not augmented, sampled with the seed, in batches on the run's device; processes share them."""
    join(run.device)
    device = open_device(run)
    loader = open_loader(
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
    every = groups(network.layout)
    last = _last_streams(every)
    counted = Moments()
    for images_BCHW in batches:
        if len(images_BCHW):
            streams = {anchor: streams_of(network, anchor, images_BCHW, stop) for anchor, stop in last.items()}
            _count(counted, every, streams)
    _add_up(counted, network, every)
    return counted


def streams_of(network: StitchedNetwork, anchor: int, images_BCHW: torch.Tensor, stop: int) -> list[torch.Tensor]:
    """The input tokens (B, N, D) of blocks 0 to `stop` of an anchor; block k's are those after block k - 1."""
    streams = [network.embed(images_BCHW, anchor)]
    for block in network.anchor(anchor).blocks[:stop]:
        streams.append(block(streams[-1]))
    return streams


def solve(counted: Moments) -> StateDict:
    """The tensors of every stitch by name, fp32 on the CPU. Raises `ValueError` if there was no image."""
    if not counted.gram:
        raise ValueError("the moments are of no image")
    inverses = {front: torch.linalg.pinv(gram, hermitian=True) for front, gram in counted.gram.items()}
    sums: dict[Stitch, torch.Tensor] = {}
    shares: dict[Stitch, int] = {}
    for group, cross in counted.cross.items():
        added = inverses[group.front] @ cross
        sums[group.stitch] = sums[group.stitch] + added if group.stitch in sums else added
        shares[group.stitch] = shares.get(group.stitch, 0) + len(group.ends)
    solved: dict[str, torch.Tensor] = {}
    for stitch, weight in sums.items():
        mean = (weight / shares[stitch]).float().cpu()
        solved[f"{stitch.name}.weight"] = mean[:-1].T.contiguous()
        solved[f"{stitch.name}.bias"] = mean[-1].clone()
    return solved


def fit_of(counted: Moments, stitches: StateDict) -> dict[str, Json]:
    """How well any stitches fit, over all pairs: `norm_ratio`, |X W| / |Y|, and `missed`, |X W - Y|^2 / |Y|^2.

    By the stitch's name, and as `mean` the mean over the stitches.
    """
    given: dict[str, float] = {}
    missed: dict[str, float] = {}
    squares: dict[str, float] = {}
    for group, cross in counted.cross.items():
        name = group.stitch.name
        weight = torch.cat([stitches[f"{name}.weight"].T, stitches[f"{name}.bias"][None]]).to(cross)
        squared = len(group.ends) * float((weight * (counted.gram[group.front] @ weight)).sum())
        target = float(counted.norm[group])
        given[name] = given.get(name, 0.0) + squared
        squares[name] = squares.get(name, 0.0) + target
        missed[name] = missed.get(name, 0.0) + squared - 2 * float((weight * cross).sum()) + target
    rows = {
        name: (max(given[name] / norm, 0.0) ** 0.5, max(missed[name] / norm, 0.0)) for name, norm in squares.items()
    }
    return {
        "norm_ratio": _with_mean({name: row[0] for name, row in rows.items()}),
        "missed": _with_mean({name: row[1] for name, row in rows.items()}),
    }


def _count(counted: Moments, every: Sequence[PairGroup], streams: Mapping[int, Sequence[torch.Tensor]]) -> None:
    """Add one batch, front block by front block, all products of one at once."""
    targets = {(group.end, end): _wide(streams[group.end][end]) for group in every for end in group.ends}
    norms = {place: target.square().sum() for place, target in targets.items()}
    for front in sorted({group.front for group in every}):
        tokens_RD = _wide(streams[front.anchor][front.block + 1])
        rows = torch.cat([tokens_RD, torch.ones_like(tokens_RD[:, :1])], dim=1)
        leaving = [group for group in every if group.front == front]
        sums = [torch.stack([targets[group.end, end] for end in group.ends]).sum(dim=0) for group in leaving]
        gram, *crosses = (rows.T @ torch.cat([rows, *sums], dim=1)).split(
            [part.shape[1] for part in (rows, *sums)], dim=1
        )
        _add(counted.gram, front, gram)
        for group, cross in zip(leaving, crosses):
            _add(counted.cross, group, cross)
            _add(counted.norm, group, torch.stack([norms[group.end, end] for end in group.ends]).sum())


def _add(place: dict[K, torch.Tensor], key: K, value: torch.Tensor) -> None:
    place[key] = place[key] + value if key in place else value.contiguous()


def _wide(tokens_BND: torch.Tensor) -> torch.Tensor:
    """All tokens (R, D) in float64; on the CPU where the device has none."""
    tokens_RD = tokens_BND.flatten(0, 1)
    return tokens_RD.cpu().double() if tokens_RD.device.type == "mps" else tokens_RD.double()


def _last_streams(every: Sequence[PairGroup]) -> dict[int, int]:
    """The last of each anchor's streams that is needed."""
    last: dict[int, int] = {}
    for group in every:
        last[group.front.anchor] = max(last.get(group.front.anchor, 0), group.front.block + 1)
        last[group.end] = max(last.get(group.end, 0), *group.ends)
    return last


def _add_up(counted: Moments, network: StitchedNetwork, every: Sequence[PairGroup]) -> None:
    """The sums over all processes, in each of them. A process may have had no image."""
    if world() == 1:
        return
    device = network.anchor(0).pos_embed.device
    zeros = partial(torch.zeros, dtype=torch.float64, device="cpu" if device.type == "mps" else device)
    for group in every:
        inputs, outputs = (network.anchor(anchor).embed_dim for anchor in (group.front.anchor, group.end))
        counted.gram.setdefault(group.front, zeros((inputs + 1, inputs + 1)))
        counted.cross.setdefault(group, zeros((inputs + 1, outputs)))
        counted.norm.setdefault(group, zeros(()))
    fronts = sorted({group.front for group in every})
    for total in (counted.gram[front] for front in fronts):
        dist.all_reduce(total)
    for group in every:
        dist.all_reduce(counted.cross[group])
        dist.all_reduce(counted.norm[group])


def _with_mean(values: Mapping[str, float]) -> dict[str, float]:
    rounded = {name: round(value, 6) for name, value in values.items()}
    return {"mean": round(sum(values.values()) / len(values), 6), **rounded}
