"""What the routers of a trained super net prefer: LSAMD eq. 3 over a data set's validation images.

Asked with noise off, along the path that the votes choose; how good that path is is measured on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from learngene_zoo.plugin import InputFormat, Run, Task, gathered, join, metric_for, open_device, open_loader
from lgzoo_lsamd.router import prefers_base
from lgzoo_lsamd.supernet import routed_blocks


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
    """Ask a super net's routers, over the images of the validation split; under torchrun the processes share them.

    The net is left in eval mode on the run's device. Raises `BadData` for an empty split.
    """
    device, metric = open_device(run), metric_for(task)
    join(run.device)
    size = batch_size or metric.batch_size(input_format.image_size)
    loader = open_loader(task, "validation", input_format, batch_size=size, workers=run.workers, drop_last=False)
    blocks = list(routed_blocks(model))
    counts: list[torch.Tensor] = []  # of each batch: per layer the images for the base, then the metric's numbers
    model.to(device).eval()
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    with torch.no_grad(), torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
        for batch in loader.epoch(0):
            # Also with no image of its own in the batch: the votes are everybody's, so every process must come here.
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
