"""What closed_form takes at DeiT-B's size: seconds and memory of an extraction, and of two
expansions from its recorded streams.

    python benchmarks/closed_form_cost.py
            about fifteen minutes on one core, 7 GB in a temporary folder
    python benchmarks/closed_form_cost.py --threads 2
            the table of docs/methods/closed_form.md, on an idle machine

The ancestry model is timm's deit_base_patch16_224 (12 x 768, 197 tokens) with random weights, the
images (`--images`) are of noise: what they hold decides only how many leading blocks the best cut
leaves as they are, which need no solving at full width. Every step is a process of its own. `cpu_s`
are seconds of the processor, which other programs on the machine hardly change; `wall_s` is what
the clock said meanwhile, with imports and files; `peak_mb` is the most resident memory (2^20
bytes). Linux only. Results in benchmarks/results/closed_form_cost.json."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
from PIL import Image

import learngene_zoo as lg
import machine
from learngene_zoo.runs.run import Run

ARCHITECTURE, SIDE = "deit_base_patch16_224", 224
SIZES = {"full width": (6, 768), "half width": (6, 384)}  # layers, width
MB = 2**20


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--step", nargs=2, help="one step, in this process: its name, and the folder"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument(
        "--anew", action="store_true", help="also expansions without recorded streams"
    )
    options = parser.parse_args()
    if options.step:
        print(json.dumps(measured(*options.step, threads=options.threads)))
        return
    facts = {
        "architecture": ARCHITECTURE,
        "images": options.images,
        "tokens": 64,
        "threads": options.threads,
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        make_model(Path(place) / "ancestry")
        make_images(Path(place) / "images", options.images)
        for name in (
            "extract",
            *SIZES,
            *(f"{size}, recorded anew" for size in SIZES if options.anew),
        ):
            rows.append(step(name, place, options.threads))
            machine.write("closed_form_cost", {**facts, "rows": rows})


def step(name: str, place: str, threads: int) -> dict[str, Any]:
    """A row of the results, from a process of its own."""
    command = [sys.executable, __file__, "--step", name, place, "--threads", str(threads)]
    began = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row = {"step": name, "wall_s": round(time.monotonic() - began), **json.loads(done.stdout)}
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def measured(name: str, place: str, threads: int) -> dict[str, Any]:
    """Do one step; what it took. Children of this process load no images."""
    os.chdir(place)
    run = Run(threads=threads, device="cpu")
    facts = extract(run) if name == "extract" else expand(name, run)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": round(used.ru_utime + used.ru_stime),
        "peak_mb": round(used.ru_maxrss / 1024),
        **facts,
    }


def extract(run: Run) -> dict[str, Any]:
    """Statistics of the images; with the streams that are kept in the run's folder, and without
    them.
    """
    from lgzoo_closed_form.closed_form import ClosedFormExtractor

    extractor = ClosedFormExtractor(keep_streams=True)
    lg.extract(
        "closed_form",
        ancestries="./ancestry",
        tasks="folder:images",
        extractor=extractor,
        out="kept",
        run=run,
    )
    shutil.copytree("kept", "plain")
    return {"learngene_mb": _mb(Path("kept")), "streams_mb": _mb(Path("kept.run"))}


def expand(name: str, run: Run) -> dict[str, Any]:
    """One descendant."""
    layers, width = SIZES[name.partition(",")[0]]
    source = "./plain" if name.endswith("anew") else "./kept"
    lg.expand(source, layers=layers, width=width, task="folder:images", out=name, run=run)
    return {"layers": layers, "width": width}


def make_model(folder: Path) -> None:
    """The ancestry model as a folder in timm's layout, with random weights."""
    model = timm.create_model(ARCHITECTURE, pretrained=False)
    timm.models.save_for_hf(model, folder, safe_serialization=True)


def make_images(folder: Path, images: int) -> None:
    """Noise, in two classes, of which a part is left for validation and test."""
    generator = np.random.default_rng(0)
    for split, count in (("train", images), ("val", 4), ("test", 4)):
        for number in range(count):
            place = folder / split / str(number % 2)
            place.mkdir(parents=True, exist_ok=True)
            coarse = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((SIDE, SIDE)).save(place / f"{number}.jpg", quality=90)


def _mb(folder: Path) -> int:
    """What lies in a folder."""
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / MB)


if __name__ == "__main__":
    main()
