"""Time work on a processor whose freed memory is kept for new tensors, and with glibc's defaults.

The package keeps it (`learngene_zoo.runs.memory`). Each kind of work is measured in new processes
of both kinds, which take turns: training steps of two models, evaluation in the batches of `lgzoo
evaluate`, and a small meta-training of GHN-3. The least processor time of each counts, so that
other load matters little. One thread, about six minutes, 1.5 GB of memory. Exits with 1 if kept
memory makes any of them more than 5 % slower, or needs 10 % more memory at its peak.
"""

from __future__ import annotations

import resource
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.functional import cross_entropy

import learngene_zoo as lg
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs import run as run_module
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.training.objectives import CPU_BATCH_SIZE
from timings.case import Case, Row, run_part

BUNDLED = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8, classes=10)
HALF_DINOV2 = ViTSpec(layers=6, width=384, heads=6, image_size=112, patch_size=14, classes=12)
KINDS = ("kept", "default")
ROUNDS = 3
MOST_TIME, MOST_MEMORY = 1.05, 1.10  # of that with the defaults


def train(spec: ViTSpec, batch_size: int, steps: int) -> None:
    """Train a model on random images for some steps."""
    model = build_model(spec, initialise(spec, 0)).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randn(batch_size, 3, spec.image_size, spec.image_size)
    labels = torch.arange(batch_size) % spec.classes
    for _ in range(steps):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.inference_mode()
def evaluate(spec: ViTSpec, batches: int) -> None:
    """Compute the outputs of random images."""
    model = build_model(spec, initialise(spec, 0))
    images = torch.randn(CPU_BATCH_SIZE, 3, spec.image_size, spec.image_size)
    for _ in range(batches):
        model(images)


def meta_train(images: int) -> None:
    """Extract a GHN-3 from two tasks, trained for two epochs."""
    lg.extract(
        "ghn3",
        tasks=["figures", "signs"],
        source=None,
        tuning_images=images,
        tuning_epochs=2,
        judged=0,
        run=Run(threads=1, device="cpu"),
    )


WORK: dict[str, Callable[[], None]] = {
    "training, 12 x 96, 32 px": partial(train, BUNDLED, 64, 20),
    "training, 6 x 384, 112 px": partial(train, HALF_DINOV2, 32, 4),
    "evaluation, 6 x 384, 112 px": partial(evaluate, HALF_DINOV2, 6),
    "meta-training of GHN-3": partial(meta_train, 600),
}


def measure_work(args: Namespace) -> Row:
    """Return the processor seconds of one kind of work in this process, and its peak of memory."""
    name, kind = args.part
    if kind == "default":
        run_module.keep_freed_memory = lambda: False
    open_device(Run(threads=1, device="cpu"))
    usage, started = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    WORK[name]()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": time.process_time() - started,
        "page_faults": after.ru_minflt - usage.ru_minflt,
        "peak_mb": after.ru_maxrss / 1024,
    }


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure each kind of work with kept memory and with the defaults."""
    for name in WORK:
        parts: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        for _ in range(ROUNDS):
            for kind in KINDS:
                parts[kind].append(run_part("freed_memory", [name, kind]))
        row: Row = {"work": name}
        for kind in KINDS:
            best = min(parts[kind], key=lambda part: float(part["seconds"]))
            row |= {f"{kind}_{key}": value for key, value in best.items()}
        row["ratio"] = row["kept_seconds"] / row["default_seconds"]
        row["memory_ratio"] = row["kept_peak_mb"] / row["default_peak_mb"]
        texts = [
            f"{kind} {row[f'{kind}_seconds']:6.2f} s, {row[f'{kind}_page_faults']:9,} faults, "
            f"{row[f'{kind}_peak_mb']:5.0f} MB"
            for kind in KINDS
        ]
        yield row, f"{name:28} {'   '.join(texts)}   ratio {row['ratio']:.3f}"


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if kept memory is slower, or needs more memory."""
    slow = [row["work"] for row in numbers["rows"] if row["ratio"] > MOST_TIME]
    large = [row["work"] for row in numbers["rows"] if row["memory_ratio"] > MOST_MEMORY]
    if slow:
        return f"with kept memory slower: {'; '.join(slow)}"
    return f"with kept memory larger: {'; '.join(large)}" if large else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"rows": rows, "threads": 1},
    measure_part=measure_work,
    find_problem=find_problem,
)
