"""Time the least-squares stitches of a three-anchor family against solving pair by pair.

All arms find the same stitches (checked), in float64, from the same images. Pair by pair means: for
every two anchors that are joined both run over the images, and every pair (j, k) is then solved on
its stacked rows by itself. The ratio is to doing that by `torch.linalg.lstsq`, as one would write
it; beside it stands the same by the normal equations of every pair. Ours runs every anchor once,
and no further than necessary, sums one Gram matrix per front block, and adds what shares a layer
before it multiplies. The exit code is 1 if it takes more than 0.7 times the seconds. Most of the
rest is the anchors' passes, printed too.

Seconds are those of the process, not of the clock: with one thread they are the same on an idle
machine, and nearly so on a busy one. One thread, about a minute for widths 48, 96 and 192; with
`--deit` about ten minutes for DeiT-Ti, -S and -B at 224 pixels.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator

import torch

from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.storage import StateDict
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.modules.least_squares import compute_moments, solve_stitches
from lgzoo_pool.modules.network import StitchedNetwork, build_network, draw_stitches, merge_anchors
from timings.case import Case, Row, measure_medians

MAX_TIME = 0.7
AT_ONCE = 16  # images whose features are in memory together
SMALL = tuple(
    ViTSpec(layers=12, width=width, heads=width // 48, image_size=64, patch_size=8, classes=10)
    for width in (48, 96, 192)
)
Solver = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_anchors(specs: tuple[ViTSpec, ...]) -> StitchedNetwork:
    """Build the anchors with random weights, large enough that blocks change the stream."""
    layout = StitchedDetails.from_specs(specs).layout
    states = [initialise(spec, seed, "fan_in") for seed, spec in enumerate(specs)]
    return build_network(
        specs, layout, {**merge_anchors(states), **draw_stitches(specs, layout, 0)}
    )


@torch.no_grad()
def solve_pairs(stitched: StitchedNetwork, images_BCHW: torch.Tensor, solver: Solver) -> StateDict:
    """Return the stitches of two anchors after the other, and in them pair after pair."""
    solved: dict[str, torch.Tensor] = {}
    for joint, (front, end) in enumerate(stitched.layout.joints):
        outputs, inputs = (
            [_compute_streams(stitched, anchor, part) for part in images_BCHW.split(AT_ONCE)]
            for anchor in (front, end)
        )
        weights: dict[int, list[torch.Tensor]] = {}
        for pair in stitched.layout.pairs[joint]:
            tokens = torch.cat([streams[pair.j + 1].flatten(0, 1) for streams in outputs]).double()
            target = torch.cat([streams[pair.k].flatten(0, 1) for streams in inputs]).double()
            rows = torch.cat([tokens, torch.ones_like(tokens[:, :1])], dim=1)
            weights.setdefault(pair.window, []).append(solver(rows, target))
        for window, solutions in weights.items():
            mean = torch.stack(solutions).mean(dim=0).float()
            solved |= {
                f"stitches.{joint}.{window}.weight": mean[:-1].T,
                f"stitches.{joint}.{window}.bias": mean[-1],
            }
    return solved


def _compute_streams(
    stitched: StitchedNetwork, anchor: int, images_BCHW: torch.Tensor
) -> list[torch.Tensor]:
    """Return the stream of an anchor before its first block and after each block."""
    streams = [stitched.embed_images(images_BCHW, anchor)]
    for block in stitched.get_anchor(anchor).blocks:
        streams.append(block(streams[-1]))
    return streams


@torch.no_grad()
def run_anchors(stitched: StitchedNetwork, images_BCHW: torch.Tensor) -> None:
    """Run all anchors over all images once."""
    for anchor in range(len(stitched.anchors)):
        for part in images_BCHW.split(AT_ONCE):
            _compute_streams(stitched, anchor, part)


def solve_by_lstsq(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Solve by least squares on the rows."""
    return torch.linalg.lstsq(rows, target).solution


def solve_by_normal_equations(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Solve by X'X and X'Y, with the same pseudo-inverse as ours."""
    return torch.linalg.pinv(rows.T @ rows, hermitian=True) @ (rows.T @ target)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this case."""
    parser.add_argument("--deit", action="store_true", help="DeiT-Ti, -S and -B at 224 pixels")


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time all arms, and compare their stitches."""
    torch.set_num_threads(1)
    specs = SMALL
    if args.deit:
        named = (
            find_architecture(f"deit_{size}_patch16_224") for size in ("tiny", "small", "base")
        )
        specs = tuple(spec for spec in named if spec is not None)
    count, side = 32 if args.deit else 100, specs[0].image_size
    images = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    stitched = build_anchors(specs)
    arms: dict[str, Callable[[], StateDict]] = {
        "ours": lambda: solve_stitches(compute_moments(stitched, images.split(AT_ONCE))),
        "pair by pair, lstsq": lambda: solve_pairs(stitched, images, solve_by_lstsq),
        "pair by pair, normal equations": lambda: solve_pairs(
            stitched, images, solve_by_normal_equations
        ),
    }
    stitches = {name: arm() for name, arm in arms.items()}
    difference = max(find_difference(stitches["ours"], other) for other in stitches.values())
    seconds = measure_medians(
        {**arms, "passes": lambda: run_anchors(stitched, images)},
        repeats=1,
        rounds=1 if args.deit else 3,
        warm_ups=0,
        clock=time.process_time,
    )
    passes = seconds.pop("passes")
    ours, widths = seconds["ours"], [spec.width for spec in specs]
    row = {
        "widths": widths,
        "images": count,
        "seconds": seconds,
        "ratio": ours / seconds["pair by pair, lstsq"],
        "most": MAX_TIME,
        "difference": difference,
    }
    lines = [f"widths {widths}, {count} images, {count * specs[0].tokens} rows"]
    lines += [f"  {name:32} {value:8.3f} s  {ours / value:6.3f}" for name, value in seconds.items()]
    lines.append(f"  {'one pass of every anchor':32} {passes:8.3f} s")
    lines.append(
        f"  largest difference of a stitch, relative to its largest number: {difference:.1e}"
    )
    yield row, "\n".join(lines)


def find_difference(first: StateDict, second: StateDict) -> float:
    """Return the largest relative difference over all tensors."""
    return max(
        ((first[name] - second[name]).abs().max() / second[name].abs().max()).item()
        for name in first
    )


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if ours takes too long or has other stitches."""
    if numbers["ratio"] <= MAX_TIME and numbers["difference"] <= 1e-5:
        return ""
    return "least squares costs more than its limit, or is another solution"


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: rows[0],
    add_options=add_options,
    find_problem=find_problem,
    name_suffix=lambda args: "_deit" if args.deit else "",
)
