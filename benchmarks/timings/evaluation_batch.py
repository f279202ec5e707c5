"""Time a forward pass without gradients in batches of several sizes, with random weights.

Then texts in batches of the size of `lgzoo evaluate`: in their own order, and by their number of
tokens. The time includes encoding them.

Variants of one model take turns in one run; the least processor time of each counts, so that other
load matters little. One thread, about three minutes, 1 GB of memory. Exits with 1 if the batch size
of `lgzoo evaluate` on processors is not within 15 % of the fastest, or if texts by their number of
tokens are slower.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
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
# Half of the blocks of all-MiniLM-L6-v2, with the vocabulary of the bundled tokenizer.
ENCODER = BertSpec(
    layers=3, width=384, heads=12, vocabulary=3_000, positions=512, pad_token=0, classes=2
)
TEXTS = 1_000
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
    rates = time_texts()
    text = "  ".join(f"{order}: {rate:.1f}" for order, rate in rates.items())
    yield {"model": "BERT, 3 x 384", "texts_per_second": rates}, f"BERT, 3 x 384  texts/s  {text}"


def time_texts() -> dict[str, float]:
    """Return how many texts are computed in a second of a processor, by their order.

    Their numbers of words are log-normal, with a median of 12 and a mean of 14.
    """
    files = open_ancestry("ancestry-words").files  # the tokenizer
    descendant = assemble(ENCODER, {}, seed=0, mean=(), std=(), files=files)
    model, generator = descendant.model().eval(), np.random.default_rng(0)
    lengths = np.exp(generator.normal(np.log(12), 0.6, TEXTS)).round().clip(1).astype(int)
    seconds = {"own order": float("inf"), "by length": float("inf")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.csv"
        rows = [f"{'the house ' * (n // 2 + 1)},{'ab'[i % 2]}" for i, n in enumerate(lengths)]
        path.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
        task = open_task(f"csv:{path}")
        with torch.inference_mode():
            for _ in range(REPEATS):
                for order in seconds:
                    started = time.process_time()
                    loader = Loader(
                        task,
                        "train",
                        descendant.input_format,
                        batch_size=CPU_BATCH_SIZE,
                        drop_last=False,
                        by_length=order == "by length",
                    )
                    for batch in loader.epoch(0):
                        compute_logits(model, batch.inputs)
                    seconds[order] = min(seconds[order], time.process_time() - started)
    return {order: loader.images / spent for order, spent in seconds.items()}


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if another batch size or order is faster than that of `lgzoo evaluate`."""
    if any(
        row["texts_per_second"]["by length"] < row["texts_per_second"]["own order"]
        for row in numbers["rows"]
        if "texts_per_second" in row
    ):
        return "texts by their number of tokens are slower than in their own order"
    slow = [
        row["model"]
        for row in numbers["rows"]
        if "images_per_second" in row
        and max(row["images_per_second"].values())
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
