"""Time a forward pass without gradients in batches of several sizes, with random weights.

Sizes of one model take turns in one run; the least processor time of each counts, so that other
load matters little. One thread, about three minutes, 1 GB of memory. Exits with 1 if the batch size
of `lgzoo evaluate` on processors is not within 15 % of the fastest.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator

import torch

from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.training.objectives import CPU_BATCH_SIZE
from timings.case import Case, Row

SMALL = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=4, classes=10)
LARGE = ViTSpec(layers=12, width=256, heads=4, image_size=112, patch_size=14, classes=10)
SIZES = {
    "12 x 96, 32 px": (SMALL, "fp32"),
    "3 x 96, 32 px": (SMALL.with_(layers=3), "fp32"),
    "4 x 64, 16 px": (SMALL.with_(layers=4, width=64, heads=2, image_size=16), "fp32"),
    "12 x 256, 112 px": (LARGE, "fp32"),
    "12 x 256, 112 px, bf16": (LARGE, "bf16"),
}
BATCHES = (8, 16, 32, 64, 128, 256)
IMAGES, REPEATS = 256, 3
MAX_TIMES_BEST = 1.15


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time all batch sizes of each model."""
    torch.set_num_threads(1)
    for name, (spec, precision) in SIZES.items():
        model = build_model(spec, initialise(spec, 0)).eval()
        images_BCHW = torch.randn(IMAGES, 3, spec.image_size, spec.image_size)
        seconds = {size: float("inf") for size in BATCHES}
        with (
            torch.inference_mode(),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"),
        ):
            for _ in range(REPEATS):
                for size in BATCHES:
                    started = time.process_time()
                    for part_BCHW in images_BCHW.split(size):
                        model(part_BCHW)
                    seconds[size] = min(seconds[size], time.process_time() - started)
        rates = {size: IMAGES / spent for size, spent in seconds.items()}
        text = "  ".join(f"{size}: {rate:7.1f}" for size, rate in rates.items())
        yield {"model": name, "images_per_second": rates}, f"{name:22}  images/s  {text}"


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if another batch size is faster than that of `lgzoo evaluate`."""
    slow = [
        row["model"]
        for row in numbers["rows"]
        if max(row["images_per_second"].values())
        > MAX_TIMES_BEST * row["images_per_second"][CPU_BATCH_SIZE]
    ]
    return f"batches of {CPU_BATCH_SIZE} are slow for {', '.join(slow)}" if slow else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {
        "threads": 1,
        "batch_size": CPU_BATCH_SIZE,
        "most_times_best": MAX_TIMES_BEST,
        "rows": rows,
    },
    find_problem=find_problem,
)
