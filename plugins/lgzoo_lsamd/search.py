"""What the search on one data set needs beside its super net: a head, an objective, groups of parameters, and a measurement.

Shapes: B images, L layers, R numbers of a metric; 2 choices, the specific and the base block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from learngene_zoo.plugin import (
    Ancestry,
    Batches,
    InputFormat,
    Recipe,
    Run,
    Task,
    WrongCall,
    assemble,
    derive_seed,
    gathered,
    join,
    metric_for,
    open_device,
    open_loader,
    parameter_groups,
    without_head,
    world,
)
from lgzoo_lsamd.supernet import Router, prefers_base, routed_blocks

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def with_head(ancestry: Ancestry, task: Task, run: Run) -> VisionTransformer:
    """The ancestry model, in memory of its own, with a new head for the task's classes."""
    spec = ancestry.spec.with_(classes=task.classes, dense=task.dense)
    return assemble(spec, without_head(ancestry.state, spec), seed=derive_seed(run.seed, "head")).model()


class SearchObjective(nn.Module):
    """Any task's objective on a super net, and with `balance_weight` a loss that balances the use of the two sides.

    The balance is Switch's auxiliary loss (Fedus et al. 2021, eq. 4) for two experts, averaged over the layers: 1 if
    both sides have half of the images, 2 if one has all. The paper mentions none, so its weight is 0 by default.
    """

    def __init__(self, task_objective: nn.Module, balance_weight: float = 0.0) -> None:
        super().__init__()
        self.task_objective = task_objective
        self.balance_weight = balance_weight

    def forward(self, batch: object) -> dict[str, torch.Tensor]:
        """The task's losses by name, and `balance`."""
        losses = self.task_objective(batch)
        if self.balance_weight:
            by_layer = [balance(block.preferences_B2) for block in routed_blocks(self)]
            losses = {**losses, "balance": self.balance_weight * torch.stack(by_layer).mean()}
        return losses


def balance(p_B2: torch.Tensor) -> torch.Tensor:
    """2 sum_k f_k P_k: f the share of the images that prefer side k, P their mean probability of it."""
    base = prefers_base(p_B2).to(p_B2.dtype).mean()
    return 2 * (torch.stack([1 - base, base]) * p_B2.mean(dim=0)).sum()


def groups_with_routers(module: nn.Module, recipe: Recipe, *, router_lr: float) -> list[dict[str, Any]]:
    """AdamW's groups: the usual ones, and the routers apart, with their own learning rate and without weight decay."""
    routers = {id(p): p for part in module.modules() if isinstance(part, Router) for p in part.parameters()}
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) not in routers]}
        for group in parameter_groups(module, recipe)
    ]
    apart = {"params": list(routers.values()), "weight_decay": 0.0, "lr_scale": router_lr / recipe.lr}
    return [group for group in [*groups, apart] if group["params"]]


def check_pieces(loader: Batches, recipe: Recipe) -> None:
    """Raises `WrongCall` if processes would cut their shares of a batch into unequal numbers of pieces to vote on."""
    if loader.images < recipe.batch_size and recipe.accumulate > loader.images // world():
        raise WrongCall(
            f"{loader.images} images cannot be shared by {world()} processes in {recipe.accumulate} pieces each; "
            "use fewer processes, or a smaller --accumulate"
        )


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """Per layer the share of images that prefer the base block (a tie does), and how good the chosen path is."""

    shares: tuple[float, ...]
    metric: str
    value: float
    images: int


def preferences(
    model: nn.Module, task: Task, input_format: InputFormat, run: Run, *, batch_size: int | None = None
) -> Preferences:
    """What the routers of a trained super net prefer over the validation images (eq. 3), and the metric of the chosen path.

    The routers have no noise here. Under torchrun the processes share the images. The net is left in eval mode on the run's
    device. Raises `BadData` for an empty split.
    """
    device, metric = open_device(run), metric_for(task)
    join(run.device)
    size = batch_size or metric.batch_size(input_format.image_size)
    loader = open_loader(task, "validation", input_format, batch_size=size, workers=run.workers, drop_last=False)
    blocks = list(routed_blocks(model))
    counts: list[
        torch.Tensor
    ] = []  # of each batch: per layer the images that prefer the base, then the metric's numbers
    model.to(device).eval()
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    with torch.no_grad(), torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
        for batch in loader.epoch(0):
            # A process without images in this batch takes part all the same: the votes are counted over all processes.
            rows_BR = metric.rows(model(batch.images.to(device)), batch.labels.to(device))
            for_base_L = torch.stack([prefers_base(block.preferences_B2).sum() for block in blocks])
            counts.append(torch.cat([for_base_L, rows_BR.sum(dim=0)]).cpu())
    total = np.sum(gathered(torch.stack(counts).sum(dim=0).numpy()), axis=0)
    return Preferences(
        shares=tuple(int(count) / loader.images for count in total[: len(blocks)]),
        metric=metric.name,
        value=metric.value(total[len(blocks) :], loader.images),
        images=loader.images,
    )
