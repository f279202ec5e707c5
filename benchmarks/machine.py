"""Results files, each with the machine that its numbers come from."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learngene_zoo.runs.run import Precision

RESULTS = Path(__file__).resolve().parent / "results"
# Where benchmarks of models compute, such as `cuda`; rows of another device say so.
DEVICE = os.environ.get("BENCHMARK_DEVICE", "cpu")


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the memory and the versions that the numbers depend on."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "timm", "safetensors")},
    }


def _field(path: str, name: str) -> str | None:
    """Return the value of the first line `name : value` of a file, None if there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def describe_device() -> dict[str, str]:
    """Return the field `device` of a row that was not computed by the processor; else nothing."""
    if DEVICE == "cpu":
        return {}
    import torch

    return {"device": torch.cuda.get_device_name() if DEVICE.startswith("cuda") else DEVICE}


def choose_precision() -> Precision:
    """Return bf16 if the device has instructions for it, which others emulate slowly, else fp32."""
    from learngene_zoo.runs.run import Run, has_bf16

    return "bf16" if has_bf16(Run(device=DEVICE)) else "fp32"


def write(name: str, numbers: dict[str, Any]) -> Path:
    """Write the numbers, with the machine that they come from, to benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(
        json.dumps({**numbers, "machine": machine()}, indent=2) + "\n", encoding="utf-8"
    )
    return path


def read(name: str) -> dict[str, Any]:
    """Return the content of benchmarks/results/NAME.json; empty if there is no such file."""
    path = RESULTS / f"{name}.json"
    numbers: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return numbers
