"""Measure seconds and memory of extraction and expansion by closed_form.

The ancestry model is timm's deit_base_patch16_224 (12 x 768, 197 tokens) with random weights, the
images (`--images`) are of noise: they decide only how many leading blocks the best cut leaves as
they are, which need no solving at full width. With `--ancestry DINOV2`, a folder that `python
benchmarks/real_ancestries.py dinov2-small DINOV2` writes, it is a real DINOv2-S (12 x 384) with the
training images of `stamps` at 112 pixels.

The expansions start from the recorded streams of the extraction, with `--without-streams` also
without them. Every step is a process: `cpu_s` are seconds of the processor, which other programs on
the machine hardly change; `wall_s` is by the clock, with imports and files; `peak_mb` is the most
resident memory (2^20 bytes). Linux only. With DeiT-B some ten minutes on one core and 3 GB in a
temporary folder. docs/results/speed.md has the tables of an idle machine.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import timm
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.runs.run import Run
from pages import DOCS, replace_between
from timings.case import Case, Row, run_part

ARCHITECTURE, SIDE = "deit_base_patch16_224", 224
SIZES = ("6x768", "6x384")  # layers x width
REAL_TASK, REAL_SIDE, REAL_SIZES = "stamps", 112, ("6x384", "6x256", "6x192")
AGAIN = ", recorded again"  # the end of the names of expansions without recorded streams
MB = 2**20


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this case."""
    parser.add_argument("--ancestry", help="the folder of DINOv2-S (default: DeiT-B's size)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument(
        "--without-streams", action="store_true", help="also expansions without recorded streams"
    )


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure every step in a process."""
    sizes = REAL_SIZES if args.ancestry else SIZES
    steps = ["extract", *sizes, *(f"{size}{AGAIN}" for size in sizes if args.without_streams)]
    options = ["--threads", str(args.threads), "--precision", args.precision]
    if args.ancestry:
        options += ["--ancestry", str(Path(args.ancestry).resolve())]
    with tempfile.TemporaryDirectory() as folder:
        if not args.ancestry:
            make_model(Path(folder) / "ancestry")
            make_images(Path(folder) / "images", args.images)
        for name in steps:
            started = time.monotonic()
            part = run_part("closed_form_cost", [name, folder], options)
            row = {"step": name, "wall_s": round(time.monotonic() - started, 1), **part}
            yield row, "  ".join(f"{key} {value}" for key, value in row.items())


def measure_step(args: Namespace) -> Row:
    """Do one step in this process, whose children load no images, and return its cost."""
    name, folder = args.part
    os.chdir(folder)
    run = Run(threads=args.threads, device="cpu", precision=args.precision)
    started = read_processor_seconds()  # imports are not counted
    facts = extract(args.ancestry, run) if name == "extract" else expand(name, args.ancestry, run)
    return {
        "cpu_s": round(read_processor_seconds() - started, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **facts,
    }


def read_processor_seconds() -> float:
    """Return the seconds of the processor that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def extract(ancestry: str | None, run: Run) -> Row:
    """Extract a learngene with recorded streams, and copy it without them."""
    from lgzoo_closed_form.closed_form import ClosedFormExtractor

    lg.extract(
        "closed_form",
        ancestries=ancestry or "./ancestry",
        tasks=REAL_TASK if ancestry else "folder:images",
        image_size=REAL_SIDE if ancestry else None,
        extractor=ClosedFormExtractor(keep_streams=True),
        out="kept",
        run=run,
    )
    shutil.copytree("kept", "plain")
    return {
        "learngene_mb": measure_megabytes(Path("kept")),
        "streams_mb": measure_megabytes(Path("kept.run")),
    }


def expand(name: str, ancestry: str | None, run: Run) -> Row:
    """Expand to one of the sizes."""
    layers, width = map(int, name.removesuffix(AGAIN).split("x"))
    source = "./plain" if name.endswith(AGAIN) else "./kept"
    task = REAL_TASK if ancestry else "folder:images"
    lg.expand(source, layers=layers, width=width, task=task, out=name, run=run)
    return {"layers": layers, "width": width}


def make_model(folder: Path) -> None:
    """Write the ancestry model as a folder in timm's layout, with random weights."""
    model = timm.create_model(ARCHITECTURE, pretrained=False)
    timm.models.save_for_hf(model, folder, safe_serialization=True)


def make_images(folder: Path, images: int) -> None:
    """Write images of noise, in two classes, for all splits."""
    generator = np.random.default_rng(0)
    for split, count in (("train", images), ("val", 4), ("test", 4)):
        for number in range(count):
            class_folder = folder / split / str(number % 2)
            class_folder.mkdir(parents=True, exist_ok=True)
            coarse = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((SIDE, SIDE))
            image.save(class_folder / f"{number}.jpg", quality=90)


def measure_megabytes(folder: Path) -> int:
    """Return the size of the files in a folder."""
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / MB)


def summarise(rows: list[Row], args: Namespace) -> Row:
    """Return the content of the results file."""
    from lgzoo_closed_form.calibration import Calibration

    settings = Calibration()
    model = {"architecture": ARCHITECTURE, "images": args.images}
    if args.ancestry:
        model = {"ancestry": "DINOv2-S", "task": REAL_TASK, "image_size": REAL_SIDE}
    return {
        **model,
        "tokens": settings.tokens,
        "threads": args.threads,
        "precision": args.precision,
        "rows": rows,
    }


def name_suffix(args: Namespace) -> str:
    """Return the end of the name of the results file."""
    return ("_dinov2" if args.ancestry else "") + ("_bf16" if args.precision == "bf16" else "")


def write_page(numbers: Row) -> None:
    """Write the table of the rows of single precision to docs/results/speed.md."""
    if numbers["precision"] != "fp32":
        return
    lines = [
        "| step | seconds | of the processor | peak memory (MiB) |",
        "|---|---:|---:|---:|",
        *(
            f"| {describe_step(row['step'])} | {row['wall_s']:.0f} | {row['cpu_s']:.0f} | "
            f"{row['peak_mb']:,} |"
            for row in numbers["rows"]
        ),
    ]
    name = "dinov2" if "ancestry" in numbers else "deit-b"
    replace_between(DOCS / "results" / "speed.md", f"closed-form-{name}", "\n".join(lines))


def describe_step(name: str) -> str:
    """Return the words of a step in the table."""
    if name == "extract":
        return "extraction, streams kept"
    size = name.removesuffix(AGAIN).replace("x", " x ")
    streams = "streams recorded again" if name.endswith(AGAIN) else "from kept streams"
    return f"expansion to {size}, {streams}"


CASE = Case(
    measure=measure,
    summarise=summarise,
    add_options=add_options,
    measure_part=measure_step,
    name_suffix=name_suffix,
    write_page=write_page,
)
