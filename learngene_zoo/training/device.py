"""Where to compute: a `Run`'s device, checked, and its number of threads, applied."""

from __future__ import annotations

import os

import torch

from learngene_zoo.errors import Unavailable, WrongCall, unknown
from learngene_zoo.processes import world
from learngene_zoo.run import Run

KINDS = ("cpu", "cuda", "mps")


def open_device(run: Run) -> torch.device:
    """The device of a run; `run.threads` holds from now on. Under torchrun each process gets a GPU of its own.

    Raises `WrongCall` for a device nobody has, `Unavailable` for one this machine lacks.
    """
    if run.threads is not None:
        if run.threads < 1:
            raise WrongCall(f"threads is {run.threads}; it must be at least 1")
        torch.set_num_threads(run.threads)
    device = _parse(run.device)
    if device.type == "cuda":
        return _gpu(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise Unavailable("there is no mps device here; use --device cpu")
    return device


def _parse(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind not in KINDS:
        raise unknown("device", name, KINDS)
    if number and not (kind == "cuda" and number.isascii() and number.isdigit()):
        raise WrongCall(f"no device named {name!r}; a device is cpu, cuda, cuda:<number> or mps")
    return torch.device(name)


def _gpu(device: torch.device) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise Unavailable("there is no cuda device here; use --device cpu")
    if world() > 1 and device.index is not None:
        raise WrongCall(f"under torchrun each process takes a GPU of its own; write cuda instead of {device}")
    number = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if number >= count:
        raise Unavailable(f"cuda:{number} is wanted and there are {count} GPUs here, counted from 0")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
