"""Numbers that all processes of a training must agree on. Alone, everything returns at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import Unavailable
from learngene_zoo.processes import world

if TYPE_CHECKING:
    import torch


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
