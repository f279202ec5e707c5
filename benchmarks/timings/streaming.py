"""Does a pass over tars need more memory when there are more images? Compared with reading a folder
of the same images.

    python benchmarks/streaming.py             about two minutes on one core, 0.7 GB in a temporary
                                               folder

Each pass runs in its own process, in which the data is opened, counted and read once in shuffled
order, decoded and normalised at 96 x 96. `grown_mb` is the peak of resident memory after the
opening, less the resident memory before it. Times are CPU times, so that other programs hardly
matter. For tars also the time of a resumed epoch to its first batch. Linux only. Results in
benchmarks/results/streaming.json.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import machine
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader

PASSES = (("wds", 2_000), ("folder", 2_000), ("wds", 20_000), ("folder", 20_000), ("wds", 60_000))
PER_TAR, CLASSES, SIDE, DIFFERENT = 1_000, 10, 96, 250
VIEW = InputFormat(image_size=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)


def main() -> None:
    """Measure, print, and write."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        os.environ["LGZOO_CACHE"] = f"{place}/cache"
        for kind, images in PASSES:
            top = Path(place) / f"{kind}-{images}"
            (write_tars if kind == "wds" else write_folder)(top, images)
            stored = sum(file.stat().st_size for file in top.rglob("*") if file.is_file()) / 2**20
            command = [sys.executable, __file__, f"{kind}:{top}"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(
                {
                    "reader": kind,
                    "images": images,
                    "stored_mb": round(stored),
                    **json.loads(done.stdout),
                }
            )
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    machine.write("streaming", {"side": SIDE, "images_per_tar": PER_TAR, "rows": rows})


def one_pass(reference: str) -> dict[str, Any]:
    """Read every training image once; what it took."""
    torch.set_num_threads(1)
    list(
        Loader(open_task("digits"), "validation", VIEW, batch_size=64).epoch(0)
    )  # what any first pass imports
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.process_time()
    loader = Loader(open_task(reference), "train", VIEW, batch_size=64, shuffle=True)
    opened = time.process_time()
    seen = sum(len(batch.images) for batch in loader.epoch(0))
    seconds = time.process_time() - opened
    facts = {
        "read": seen,
        "open_cpu_s": round(opened - started, 2),
        "images_per_cpu_s": round(seen / seconds),
        "peak_mb": round(memory_mb("VmHWM")),
        "grown_mb": round(memory_mb("VmHWM") - before, 1),
    }
    if reference.startswith("wds:"):
        started = time.process_time()
        next(loader.epoch(0, start=loader.steps * 9 // 10))
        facts["resumed_at_nine_tenths_cpu_s"] = round(time.process_time() - started, 2)
    return facts


def memory_mb(what: str) -> float:
    """Resident memory of this process (VmRSS) or its peak (VmHWM), in MB (2^20 bytes)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


def pictures() -> list[bytes]:
    """Encoded images, some hundred different ones: smooth colours with noise, about as large as a
    photograph's thumbnail.
    """
    rng, made = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(
            (SIDE, SIDE)
        )
        noisy = np.clip(np.asarray(coarse) + rng.normal(0, 20, (SIDE, SIDE, 3)), 0, 255).astype(
            np.uint8
        )
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "jpeg", quality=90)
        made.append(stream.getvalue())
    return made


def write_tars(top: Path, images: int) -> None:
    """Training tars of `PER_TAR` images, and a small one each for validation and test."""
    top.mkdir()
    made = pictures()
    for number in range(images // PER_TAR):
        write_tar(top / f"train-{number:04d}.tar", made, PER_TAR * number, PER_TAR)
    write_tar(top / "val-0000.tar", made, 0, CLASSES)
    write_tar(top / "test-0000.tar", made, 0, CLASSES)


def write_tar(path: Path, made: list[bytes], first: int, count: int) -> None:
    """A tar of images and their labels."""
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + count):
            for kind, data in (
                ("jpg", made[number % DIFFERENT]),
                ("cls", str(number % CLASSES).encode()),
            ):
                member = tarfile.TarInfo(f"{number:08d}.{kind}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_folder(top: Path, images: int) -> None:
    """The same images in class folders."""
    made = pictures()
    for split, count in (("train", images), ("val", CLASSES), ("test", CLASSES)):
        for label in range(CLASSES):
            (top / split / str(label)).mkdir(parents=True)
        for number in range(count):
            (top / split / str(number % CLASSES) / f"{number:08d}.jpg").write_bytes(
                made[number % DIFFERENT]
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one_pass(sys.argv[1])))
    else:
        main()
