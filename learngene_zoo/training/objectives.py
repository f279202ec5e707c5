"""Objectives: modules from a batch to named scalar losses, each a mean over the batch. The total is their sum."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.nn import functional


class Labelled(Protocol):
    """A batch of images (B, C, H, W) with labels: classes (B,), or shares of classes (B, classes) after mixup."""

    @property
    def images(self) -> torch.Tensor: ...

    @property
    def labels(self) -> torch.Tensor: ...


class Classification(nn.Module):
    """Cross-entropy of a model's logits (B, classes)."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Labelled) -> dict[str, torch.Tensor]:
        """`{"cross_entropy": scalar}`, in single precision whatever the logits are in."""
        logits_BK = self.model(batch.images).float()
        loss = functional.cross_entropy(logits_BK, batch.labels, label_smoothing=self.label_smoothing)
        return {"cross_entropy": loss}
