"""Which of several processes this is, and numbers that all processes of a training must agree on.

A single process needs no torch for any of this.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import Unavailable, WrongCall

if TYPE_CHECKING:
    import torch


# Seconds; many times what gloo's threads need to release the tensors of the last collective.
_SETTLED = 0.1
_LOOK = 0.5  # seconds between two looks at the parent
_UNWIND = 3.0  # seconds that a process has to end by itself once its parent is gone
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def rank() -> int:
    """This process's number under torchrun; 0 alone, whatever RANK is. Raises `WrongCall` for an impossible one."""
    processes = world()
    number = _number("RANK", 0) if processes > 1 else 0
    if number >= processes:
        raise WrongCall(
            f"RANK is {number} of {processes} processes; start all of them with torchrun, or unset WORLD_SIZE"
        )
    return number


def world() -> int:
    """How many processes torchrun started; 1 alone."""
    return max(1, _number("WORLD_SIZE", 1))


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise WrongCall(f"{variable} is {text!r}; torchrun sets it to a number: start with torchrun, or unset it")
    return int(text) if text else default


def is_first() -> bool:
    """Whether this process writes what only one may write."""
    return rank() == 0


def join(device: str) -> None:
    """Join the process group, so that `wait_for_all` waits for the others. A single process does nothing.

    Raises `Unavailable` if torchrun did not set where the processes meet.
    """
    if world() > 1:
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise Unavailable(
                f"WORLD_SIZE is {world()}, but {', '.join(missing)} is not set; start all processes with torchrun, "
                "or unset WORLD_SIZE"
            )
        if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun started it; what a shell started may outlive the shell
            end_with_parent()
        from accelerate import PartialState

        PartialState(cpu=device == "cpu")
        atexit.unregister(leave)
        atexit.register(leave)


@cache
def end_with_parent() -> None:
    """From now on this process ends within seconds of its parent, however that ends.

    It is terminated as by SIGTERM (on Linux by the system, at once), so that it can unwind, and after a moment whatever it
    does. Processes that load data end with theirs: torch sees to that.
    """
    threading.Thread(target=_outlive, args=(os.getppid(),), daemon=True).start()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _outlive(parent: int) -> None:
    """Wait for the end of the parent, then end this process."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    if sys.platform != "linux":
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_UNWIND)
    os._exit(1)


def leave() -> None:
    """Leave the process group, so that gloo's threads do not abort a process that is done.

    They hold the tensors of the last collective for a moment after it is over, and need the interpreter to release
    them. A module that was trained in parallel keeps its group and these threads alive after the group is destroyed,
    and no call waits for them.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(_SETTLED)


def wait_for_all() -> None:
    """Return when every process has called this."""
    if world() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()


def share_of_batch(images: int, device: torch.device) -> float:
    """The weight of this process's mean loss with which the average over processes is the mean over all images."""
    if world() == 1:
        return 1.0
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(images)], device=device)
    dist.all_reduce(total)
    return images * world() / float(total)


def mean_losses(losses: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, float]:
    """The average over processes of each loss (already weighted by `share_of_batch`)."""
    import torch
    import torch.distributed as dist

    values = torch.stack([loss.detach().float() for loss in losses.values()]).to(device)
    if world() > 1:
        dist.all_reduce(values)
        values /= world()
    return dict(zip(losses, values.tolist()))


def gathered(value: Any) -> list[Any]:
    """The value of every process, in the order of their ranks."""
    if world() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def check_agreed(value: Any, what: str) -> None:
    """Raises `Unavailable` in every process unless all have the same value."""
    values = gathered(value)
    if any(other != values[0] for other in values):
        raise Unavailable(
            f"the processes see different {what}: {values}; the run's folder must be one that all of them share"
        )
