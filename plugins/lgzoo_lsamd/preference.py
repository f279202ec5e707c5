"""What the routers of a trained super net prefer: LSAMD eq. 3 over a data set's validation images.

Asked with noise off, along the path that the votes choose; how well that path classifies is measured on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from learngene_zoo.errors import BadData
from learngene_zoo.processes import join
from learngene_zoo.run import Run
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.device import open_device
from learngene_zoo.training.exchange import gathered
from learngene_zoo.view import View
from lgzoo_lsamd.router import prefers_base
from lgzoo_lsamd.supernet import routed_blocks


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """Per layer the share of images that prefer the base block (a tie does), and the accuracy of the chosen path."""

    shares: tuple[float, ...]
    accuracy: float
    images: int


def preferences(model: nn.Module, task: Task, view: View, run: Run, *, batch_size: int = 256) -> Preferences:
    """Ask a super net's routers, over the images of the validation split; under torchrun the processes share them.

    The net is left in eval mode on the run's device. Raises `BadData` for an empty split.
    """
    device = open_device(run)
    join(run.device)
    loader = Loader(task, "validation", view, batch_size=batch_size, workers=run.workers, drop_last=False)
    blocks = list(routed_blocks(model))
    counts = torch.zeros(len(blocks) + 2, dtype=torch.int64)  # per layer for the base; right; images
    model.to(device).eval()
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    with torch.no_grad(), torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
        for batch in loader.epoch(0):
            # Also with no image of its own in the batch: the votes are everybody's, so every process must come here.
            logits_BK = model(batch.images.to(device))
            right = (logits_BK.argmax(dim=1).cpu() == batch.labels).sum()
            for_base = [prefers_base(block.preferences_B2).sum().cpu() for block in blocks]
            counts += torch.stack([*for_base, right, torch.tensor(len(batch.labels))])
    *for_base, right, images = (sum(column) for column in zip(*gathered(counts.tolist())))
    if not images:
        raise BadData(f"the validation split of {task.name} has no images")
    return Preferences(shares=tuple(n / images for n in for_base), accuracy=right / images, images=images)
