"""Where to compute: a run's device and number of threads, and accelerate's `Accelerator` for one training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from learngene_zoo.errors import Unavailable, WrongCall, unknown
from learngene_zoo.runs.distributed import join, world
from learngene_zoo.runs.run import MOST_THREADS, Run, check_device
from learngene_zoo.training.trackers import check_tracker

if TYPE_CHECKING:
    from accelerate import Accelerator

NAMES = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}  # of the precisions, in accelerate


def open_device(run: Run) -> torch.device:
    """The device of a run; also sets torch's number of threads. Under torchrun each process gets its own GPU.

    Raises `WrongCall` for an unknown device, `Unavailable` for one that this machine does not have.
    """
    if run.threads is not None:
        if not 1 <= run.threads <= MOST_THREADS:
            raise WrongCall(f"threads is {run.threads}; it must be between 1 and {MOST_THREADS}")
        torch.set_num_threads(run.threads)
    check_device(run.device)
    device = torch.device(run.device)
    if device.type == "cuda":
        return _gpu(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise Unavailable("this machine has no mps device; use --device cpu")
    return device


def _gpu(device: torch.device) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise Unavailable("this machine has no cuda device; use --device cpu")
    if world() > 1 and device.index is not None:
        raise WrongCall(f"under torchrun each process takes its own GPU; use --device cuda instead of {device}")
    number = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if number >= count:
        raise Unavailable(f"cuda:{number} does not exist: this machine has {count} GPUs, counted from 0")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def open_accelerator(run: Run, device: torch.device, unused: bool = False) -> Accelerator:
    """A new accelerator with the run's precision; trainings in one process may differ in theirs.

    `unused` allows parameters without a gradient. Raises `WrongCall` or `Unavailable` for a precision that the device
    does not support, `Unavailable` if the processes did not find each other.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    _check_precision(run, device)
    check_tracker(run.tracker, run.folder)
    join(device.type)
    # Accelerate keeps one state per process. The process group outlives a training; the rest must not.
    AcceleratorState._reset_state(reset_partial_state=world() == 1)
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        device_placement=False,
        mixed_precision=NAMES[run.precision],
        log_with=run.tracker,
        project_dir=str(run.folder or Path()) if run.tracker else None,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=unused)],
    )
    if accelerator.num_processes != world():
        raise Unavailable(
            f"torchrun started {world()} processes, but only {accelerator.num_processes} train together; "
            "start all of them with one torchrun command, and unset ACCELERATE_* variables"
        )
    return accelerator


def _check_precision(run: Run, device: torch.device) -> None:
    if run.precision not in NAMES:
        raise unknown("precision", run.precision, NAMES)
    if run.precision == "fp16" and device.type == "cpu":
        raise WrongCall("fp16 needs a GPU; use --precision bf16 or fp32 on the cpu")
    if run.precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise Unavailable("this GPU does not support bf16; use --precision fp16 or fp32")


class Forward(nn.Module):
    """Wraps the objective for accelerate, so that the objective itself is never patched."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, batch: object) -> dict[str, torch.Tensor]:
        return self.objective(batch)
