"""What changes while training: weights, AdamW's moments, the moving average; to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.errors import Refused, TrainingFailed
from learngene_zoo.folder import State
from learngene_zoo.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from timm.utils import ModelEmaV3

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TrainingState:
    """The objective, its optimizer, its moving average (or None), and fp16's scaler (or None)."""

    def __init__(self, objective: nn.Module, optimizer: torch.optim.AdamW, average: ModelEmaV3 | None) -> None:
        self.objective = objective
        self.optimizer = optimizer
        self.average = average
        self.scaler: Any = None

    def capture(self, step: int, training: Mapping[str, Any]) -> Checkpoint:
        """A checkpoint that shares memory with this. Raises `TrainingFailed` if a weight is not finite."""
        tensors: dict[str, State] = {"weights": self.objective.state_dict(), **self._moments()}
        if self.average is not None:
            tensors["ema"] = self.average.module.state_dict()
        for name, tensor in tensors["weights"].items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise TrainingFailed(
                    f"the weight {name} is not finite after step {step}; try a lower --lr, or --clip 1"
                )
        return Checkpoint(
            step=step, training=training, tensors=tensors, scaler=self.scaler.state_dict() if self.scaler else {}
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint. Raises `Refused` if its tensors are another objective's."""
        self._load(self.objective, checkpoint.tensors["weights"])
        if self.average is not None:
            self._load(self.average.module, checkpoint.tensors["ema"])
        trained = self._trained()
        for moment in MOMENTS:
            for name, tensor in checkpoint.tensors.get(moment, {}).items():
                parameter = trained[name]
                self.optimizer.state[parameter][moment] = tensor.to(parameter.device)

    def keep_average(self) -> None:
        """Put the moving average in the weights' place."""
        if self.average is not None:
            self.objective.load_state_dict(self.average.module.state_dict())

    def _load(self, module: nn.Module, state: State) -> None:
        try:
            module.load_state_dict(dict(state))
        except RuntimeError as error:
            raise Refused(f"the checkpoint holds another model than the one being trained: {error}") from error

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.objective.named_parameters() if p.requires_grad}

    def _moments(self) -> dict[str, State]:
        found: dict[str, dict[str, torch.Tensor]] = {moment: {} for moment in MOMENTS}
        for name, parameter in self._trained().items():
            for moment, tensor in self.optimizer.state.get(parameter, {}).items():
                found[moment][name] = tensor
        return dict(found)
