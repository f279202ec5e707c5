"""Stitches of a three-anchor family by least squares, against doing it pair by pair.

    python benchmarks/ls_initialisation.py
            one thread, about a minute: widths 48, 96 and 192
    python benchmarks/ls_initialisation.py --deit
            DeiT-Ti, -S and -B at 224 pixels, about ten minutes

All arms find the same stitches (checked), in float64, from the same images. Pair by pair means: for
every two anchors that are joined both run over the images, and every pair (j, k) is then solved on
its stacked rows by itself. The ratio is to doing that by `torch.linalg.lstsq`, as one would write
it; beside it stands the same by the normal equations of every pair. Ours runs every anchor once,
and no further than necessary, sums one Gram matrix per front block, and adds what shares a layer
before it multiplies. It must take at most 0.7 times the seconds. Most of what is left is the
anchors' own passes, printed too.

Seconds are those of the process, not of the clock: with one thread they are the same on an idle
machine, and nearly so on a busy one."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from learngene_zoo.families.tensors import initial
from learngene_zoo.families.timm_config import architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.storage import StateDict
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.modules.least_squares import compute_moments, solve_stitches
from lgzoo_pool.modules.network import StitchedNetwork, build_network, draw_stitches, merge_anchors
from machine import write

MOST_TIME = 0.7
AT_ONCE = 16  # images whose features are in memory together
SMALL = tuple(
    ViTSpec(layers=12, width=width, heads=width // 48, image_size=64, patch_size=8, classes=10)
    for width in (48, 96, 192)
)
Solver = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def network(specs: tuple[ViTSpec, ...]) -> StitchedNetwork:
    """The anchors with random weights, large enough that blocks do something."""
    layout = StitchedDetails.from_specs(specs).layout
    states = [initial(spec, seed, "fan_in") for seed, spec in enumerate(specs)]
    return build_network(
        specs, layout, {**merge_anchors(states), **draw_stitches(specs, layout, 0)}
    )


@torch.no_grad()
def pair_by_pair(stitched: StitchedNetwork, images_BCHW: torch.Tensor, solver: Solver) -> StateDict:
    """Two anchors after the other, and in them pair after pair."""
    solved: dict[str, torch.Tensor] = {}
    for joint, (front, end) in enumerate(stitched.layout.joints):
        outputs, inputs = (
            [_streams(stitched, anchor, part) for part in images_BCHW.split(AT_ONCE)]
            for anchor in (front, end)
        )
        weights: dict[int, list[torch.Tensor]] = {}
        for pair in stitched.layout.pairs[joint]:
            tokens = torch.cat([streams[pair.j + 1].flatten(0, 1) for streams in outputs]).double()
            target = torch.cat([streams[pair.k].flatten(0, 1) for streams in inputs]).double()
            rows = torch.cat([tokens, torch.ones_like(tokens[:, :1])], dim=1)
            weights.setdefault(pair.window, []).append(solver(rows, target))
        for window, found in weights.items():
            mean = torch.stack(found).mean(dim=0).float()
            solved |= {
                f"stitches.{joint}.{window}.weight": mean[:-1].T,
                f"stitches.{joint}.{window}.bias": mean[-1],
            }
    return solved


def _streams(
    stitched: StitchedNetwork, anchor: int, images_BCHW: torch.Tensor
) -> list[torch.Tensor]:
    streams = [stitched.embed(images_BCHW, anchor)]
    for block in stitched.get_anchor(anchor).blocks:
        streams.append(block(streams[-1]))
    return streams


@torch.no_grad()
def every_pass(stitched: StitchedNetwork, images_BCHW: torch.Tensor) -> None:
    """All anchors over all images, once."""
    for anchor in range(len(stitched.anchors)):
        for part in images_BCHW.split(AT_ONCE):
            _streams(stitched, anchor, part)


def by_lstsq(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Least squares on the rows."""
    return torch.linalg.lstsq(rows, target).solution


def by_normal_equations(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same by X'X and X'Y, by the same pseudo-inverse as ours."""
    return torch.linalg.pinv(rows.T @ rows, hermitian=True) @ (rows.T @ target)


def main() -> None:
    """Measure, print, keep the numbers; exit 1 if the limit is exceeded or the stitches differ."""
    torch.set_num_threads(1)
    deit = "--deit" in sys.argv[1:]
    specs = SMALL
    if deit:
        named = (architecture(f"deit_{size}_patch16_224") for size in ("tiny", "small", "base"))
        specs = tuple(spec for spec in named if spec is not None)
    count = 32 if deit else 100
    images = torch.randn(
        count,
        3,
        specs[0].image_size,
        specs[0].image_size,
        generator=torch.Generator().manual_seed(0),
    )
    stitched = network(specs)
    arms: dict[str, Callable[[], StateDict]] = {
        "ours": lambda: solve_stitches(compute_moments(stitched, images.split(AT_ONCE))),
        "pair by pair, lstsq": lambda: pair_by_pair(stitched, images, by_lstsq),
        "pair by pair, normal equations": lambda: pair_by_pair(
            stitched, images, by_normal_equations
        ),
    }
    passes = partial(every_pass, stitched, images)
    found = {name: arm() for name, arm in arms.items()}
    far = max(_difference(found["ours"], other) for other in found.values())
    *measured, alone = medians([*arms.values(), passes], rounds=1 if deit else 3)
    seconds = dict(zip(arms, measured))
    ratio = seconds["ours"] / seconds["pair by pair, lstsq"]
    widths = [spec.width for spec in specs]
    print(f"widths {widths}, {count} images, {count * specs[0].tokens} rows")
    for name, value in seconds.items():
        print(f"  {name:32} {value:8.3f} s  {seconds['ours'] / value:6.3f}")
    print(f"  {'one pass of every anchor':32} {alone:8.3f} s")
    print(f"  largest difference of a stitch, relative to its largest number: {far:.1e}")
    numbers = {
        "widths": widths,
        "images": count,
        "seconds": seconds,
        "ratio": ratio,
        "most": MOST_TIME,
        "difference": far,
    }
    print(write("ls_initialisation_deit" if deit else "ls_initialisation", numbers))
    if ratio > MOST_TIME or far > 1e-5:
        sys.exit("least squares costs more than it may, or is another solution")


def medians(arms: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of this process for each arm; they take turns."""
    taken: list[list[float]] = [[] for _ in arms]
    for _ in range(rounds):
        for arm, kept in zip(arms, taken):
            started = time.process_time()
            arm()
            kept.append(time.process_time() - started)
    return [statistics.median(kept) for kept in taken]


def _difference(one: StateDict, other: StateDict) -> float:
    """The largest over all tensors."""
    return max(
        ((one[name] - other[name]).abs().max() / other[name].abs().max()).item() for name in one
    )


if __name__ == "__main__":
    main()
