"""Measure the memory and speed of a pass over tars against a folder of the same images.

Each pass runs in a separate process, in which the data is opened, counted and read once in
shuffled order, decoded and normalised at 96 x 96. `grown_mb` is the peak of resident memory after
the opening, less the resident memory before it. Times are CPU times, so that other programs hardly
matter. For tars also the time of a resumed epoch to its first batch. Linux only. About two minutes
on one core, 0.7 GB in a temporary folder.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from timings.case import Case, Row, run_part

PASSES = (("wds", 2_000), ("folder", 2_000), ("wds", 20_000), ("folder", 20_000), ("wds", 60_000))
PER_TAR, CLASSES, SIDE, DIFFERENT = 1_000, 10, 96, 250
VIEW = InputFormat(image_size=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Write the images of each pass and measure it in a process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LGZOO_CACHE"] = f"{folder}/cache"
        for kind, images in PASSES:
            top = Path(folder) / f"{kind}-{images}"
            (write_tars if kind == "wds" else write_folder)(top, images)
            stored = sum(file.stat().st_size for file in top.rglob("*") if file.is_file()) / 2**20
            row = {
                "reader": kind,
                "images": images,
                "stored_mb": round(stored),
                **run_part("streaming", [f"{kind}:{top}"]),
            }
            yield row, "  ".join(f"{name} {value}" for name, value in row.items())


def measure_pass(args: Namespace) -> Row:
    """Read every training image of a task once in this process, and return the cost."""
    (reference,) = args.part
    torch.set_num_threads(1)
    # A first pass imports modules.
    list(Loader(open_task("digits"), "validation", VIEW, batch_size=64).epoch(0))
    before = read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    started = time.process_time()
    loader = Loader(open_task(reference), "train", VIEW, batch_size=64, shuffle=True)
    opened = time.process_time()
    num_read = sum(len(batch.inputs) for batch in loader.epoch(0))
    seconds = time.process_time() - opened
    facts = {
        "read": num_read,
        "open_cpu_s": round(opened - started, 2),
        "images_per_cpu_s": round(num_read / seconds),
        "peak_mb": round(read_memory("VmHWM")),
        "grown_mb": round(read_memory("VmHWM") - before, 1),
    }
    if reference.startswith("wds:"):
        started = time.process_time()
        next(loader.epoch(0, start=loader.steps * 9 // 10))
        facts["resumed_at_nine_tenths_cpu_s"] = round(time.process_time() - started, 2)
    return facts


def read_memory(name: str) -> float:
    """Return the resident memory of this process (VmRSS) or its peak (VmHWM) in MB (2^20 bytes)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def make_images() -> list[bytes]:
    """Return a few hundred different encoded images: smooth colours with noise, about as large as a
    photograph's thumbnail.
    """
    rng, encoded = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(
            (SIDE, SIDE)
        )
        noisy = np.clip(np.asarray(coarse) + rng.normal(0, 20, (SIDE, SIDE, 3)), 0, 255).astype(
            np.uint8
        )
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "jpeg", quality=90)
        encoded.append(stream.getvalue())
    return encoded


def write_tars(top: Path, images: int) -> None:
    """Write training tars of `PER_TAR` images, and a small one each for validation and test."""
    top.mkdir()
    encoded = make_images()
    for number in range(images // PER_TAR):
        write_tar(top / f"train-{number:04d}.tar", encoded, PER_TAR * number, PER_TAR)
    write_tar(top / "val-0000.tar", encoded, 0, CLASSES)
    write_tar(top / "test-0000.tar", encoded, 0, CLASSES)


def write_tar(path: Path, encoded: list[bytes], first: int, count: int) -> None:
    """Write a tar of images and their labels."""
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + count):
            for kind, data in (
                ("jpg", encoded[number % DIFFERENT]),
                ("cls", str(number % CLASSES).encode()),
            ):
                member = tarfile.TarInfo(f"{number:08d}.{kind}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_folder(top: Path, images: int) -> None:
    """Write the same images in class folders."""
    encoded = make_images()
    for split, count in (("train", images), ("val", CLASSES), ("test", CLASSES)):
        for label in range(CLASSES):
            (top / split / str(label)).mkdir(parents=True)
        for number in range(count):
            (top / split / str(number % CLASSES) / f"{number:08d}.jpg").write_bytes(
                encoded[number % DIFFERENT]
            )


def summarise(rows: list[Row], args: Namespace) -> Row:
    """Return the content of the results file."""
    return {"side": SIDE, "images_per_tar": PER_TAR, "rows": rows}


CASE = Case(measure=measure, summarise=summarise, measure_part=measure_pass)
