"""How fast exported files answer, beside timm's module: seconds of one image, for five sizes and
every form of file.

    python benchmarks/export_latency.py               one thread, about three minutes, 1 GB of
                                                      memory

Weights are random: latency does not depend on them. All forms of one size take turns in one run;
medians. An int8 file is written without being measured on a task, as only its time is of interest.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.runtimes import open_runner, write_file
from machine import medians, write

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
MOST_TIMES_TIMM = 1.0  # of an ONNX file in fp32
REPEATS = 10


def main() -> None:
    """Measure, print and keep the medians; exit 1 if an ONNX file is slower than timm's module."""
    torch.set_num_threads(1)
    rows = [_row(name, spec) for name, spec in SIZES.items()]
    print(write("export_latency", {"threads": 1, "most_times_timm": MOST_TIMES_TIMM, "rows": rows}))
    if any(row["onnx fp32"] > MOST_TIMES_TIMM * row["timm"] for row in rows):
        sys.exit("an exported file is slower than timm's module")


def _row(name: str, spec: ViTSpec) -> dict[str, float]:
    descendant = assemble(spec, {}, seed=0)
    image_1CHW = torch.zeros(1, spec.channels, spec.image_size, spec.image_size)
    with tempfile.TemporaryDirectory() as folder:
        files = {
            f"{format} {dtype}": _file(descendant, Path(folder), format, dtype)
            for format, dtype in FORMS
        }
        calls = [descendant.model(), *(open_runner(file, threads=1) for file in files.values())]
        with torch.inference_mode():
            seconds = medians([lambda call=call: call(image_1CHW) for call in calls], REPEATS)
        sizes = {f"{form} bytes": file.stat().st_size for form, file in files.items()}
    row = dict(zip(("timm", *files), seconds))
    print(f"{name:26}", "  ".join(f"{form} {1e3 * took:6.2f} ms" for form, took in row.items()))
    return {"size": name, **row, **sizes}


def _file(descendant: Descendant, folder: Path, format: str, dtype: str) -> Path:
    path = folder / f"{dtype}.{format}"
    write_file(descendant, path, dtype)
    return path


if __name__ == "__main__":
    main()
