"""Which of several processes this is. Cold: torch is asked only if torchrun started us.

Numbers that all processes of a training must agree on. Alone, everything returns at once.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import Unavailable, WrongCall

if TYPE_CHECKING:
    import torch


# Seconds. What gloo's threads need to let go of the last collective's tensors, many times over.
_SETTLED = 0.1


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
    """Meet the other processes, so that `wait_for_all` waits for them. Nothing happens alone.

    Raises `Unavailable` if torchrun did not say where they meet.
    """
    if world() > 1:
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise Unavailable(
                f"WORLD_SIZE is {world()}, but {', '.join(missing)} is not set; start all processes with torchrun, "
                "or unset WORLD_SIZE"
            )
        from accelerate import PartialState

        PartialState(cpu=device == "cpu")
        atexit.unregister(leave)
        atexit.register(leave)


def leave() -> None:
    """Part from the other processes, so that gloo's threads do not abort one that is done.

    They hold the last collective's tensors for a moment after it is over and need the interpreter to let go of them. What has
    trained in parallel keeps its group, and with it these threads, alive beyond its destruction, and no call waits for them.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(_SETTLED)


def wait_for_all() -> None:
    """Return when every process has come here."""
    if world() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()


def share_of_batch(images: int, device: torch.device) -> float:
    """By how much to weigh this process's mean loss, so that the average over processes is the mean over all images."""
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
        raise Unavailable(f"the processes see different {what}: {values}; the run's folder must be one they all share")
