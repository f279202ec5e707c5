"""`Step`: what the training loop tells whoever iterates over it. Cold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Step:
    """One finished step of training."""

    epoch: int  # from 0
    step: int  # from 1, over all epochs
    steps: int  # how many there will be
    losses: Mapping[str, float]  # by name, means over the batch of all processes
    lr: float
    end_of_epoch: bool

    @property
    def loss(self) -> float:
        """The sum of the losses: what was minimised."""
        return sum(self.losses.values())
