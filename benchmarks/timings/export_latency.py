"""Time exported files against timm's module: one image, for five sizes and every form of file.

Weights are random: latency does not depend on them. All forms of one size take turns in one run;
medians. An int8 file is written without being measured on a task, as only its time is of interest.
One thread, about three minutes, 1 GB of memory. Exits with 1 if an ONNX file in fp32 is slower than
timm's module.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.runtimes import open_runner, write_file
from timings.case import Case, Row, measure_medians

SMALL = ViTSpec(layers=5, width=96, heads=3, image_size=32, patch_size=4, classes=10)
LARGE = ViTSpec(layers=7, width=384, heads=6, image_size=224, patch_size=16, classes=1000)
SIZES = {
    "5 x 96, 32 px": SMALL,
    "12 x 192, 32 px": SMALL.with_(layers=12, width=192),
    "12 x 192, 224 px": LARGE.with_(layers=12, width=192, heads=3),
    "7 x 384, 224 px": LARGE,
    "3 x 192 + 4 x 384, 224 px": LARGE.with_(front=(Segment(layers=3, width=192, heads=3),)),
}
FORMS = (("onnx", "fp32"), ("onnx", "fp16"), ("onnx", "int8"), ("pt2", "fp32"))
MAX_TIMES_TIMM = 1.0  # of an ONNX file in fp32
REPEATS = 10


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time all forms of each size."""
    torch.set_num_threads(1)
    for name, spec in SIZES.items():
        seconds, sizes = measure_size(spec)
        times = "  ".join(f"{form} {1e3 * value:6.2f} ms" for form, value in seconds.items())
        yield {"size": name, **seconds, **sizes}, f"{name:26} {times}"


def measure_size(spec: ViTSpec) -> tuple[dict[str, float], dict[str, int]]:
    """Return the median seconds of every form, and the bytes of the files."""
    descendant = assemble(spec, {}, seed=0)
    image_1CHW = torch.zeros(1, spec.channels, spec.image_size, spec.image_size)
    with tempfile.TemporaryDirectory() as folder:
        files = {
            f"{format} {dtype}": export(descendant, Path(folder), format, dtype)
            for format, dtype in FORMS
        }
        runners = {name: open_runner(file, threads=1) for name, file in files.items()}
        models = {"timm": descendant.model(), **runners}
        calls = {name: lambda model=model: model(image_1CHW) for name, model in models.items()}
        with torch.inference_mode():
            seconds = measure_medians(calls, REPEATS)
        return seconds, {f"{form} bytes": file.stat().st_size for form, file in files.items()}


def export(descendant: Descendant, folder: Path, format: str, dtype: str) -> Path:
    """Write a descendant's file of a format."""
    path = folder / f"{dtype}.{format}"
    write_file(descendant, path, dtype)
    return path


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if an ONNX file is slower than timm's module."""
    is_late = any(row["onnx fp32"] > MAX_TIMES_TIMM * row["timm"] for row in numbers["rows"])
    return "an exported file is slower than timm's module" if is_late else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"threads": 1, "most_times_timm": MAX_TIMES_TIMM, "rows": rows},
    find_problem=find_problem,
)
