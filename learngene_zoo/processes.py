"""Which of several processes this is. Cold: torch is asked only if torchrun started us."""

from __future__ import annotations

import atexit
import os
import time

# Seconds. What gloo's threads need to let go of the last collective's tensors, many times over.
_SETTLED = 0.1


def rank() -> int:
    """This process's number under torchrun; 0 alone."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """How many processes torchrun started; 1 alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process writes what only one may write."""
    return rank() == 0


def join(device: str) -> None:
    """Meet the other processes, so that `wait_for_all` waits for them. Nothing happens alone."""
    if world() > 1:
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
