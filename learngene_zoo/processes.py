"""Which of several processes this is. Cold: torch is asked only if torchrun started us."""

from __future__ import annotations

import atexit
import os


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
    """Part from the other processes. Left to the interpreter's end, gloo's threads may abort a process that is done."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Return when every process has come here."""
    if world() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()
