"""What a descendant knows before it is trained: its metric as it is, and a probe of its features that needs no head.

Shapes: N images, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from learngene_zoo.bench.cell import Cell
from learngene_zoo.recipe import Recipe
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import fingerprint, from_json, to_json
from learngene_zoo.storage import new_file, read_json, write_json
from learngene_zoo.tasks.batches import Batches, open_loader
from learngene_zoo.training.device import open_device
from learngene_zoo.training.evaluate import evaluate

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.tasks.task import Task

Split = Literal["validation", "test"]
BATCH = 256  # images judged at once


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Measured on the cell's split before any training."""

    value: float
    probe: float | None = None  # None where an image has no one class


def untrained(cell: Cell, start: Descendant, task: Task, place: Path, run: Run) -> Untrained:
    """Measured once for all cells that differ in their training alone, and kept in the folder `place`."""
    bare = replace(cell, recipe=Recipe(epochs=0, images=cell.recipe.images))
    path = place / f"{fingerprint(to_json(bare))}.json"
    if path.is_file():
        return from_json(Untrained, read_json(path), str(path))
    if task.dense:
        found = Untrained(value=evaluate(start.model(), task, cell.split, start.input_format, run).value)
    else:
        found = probed(start, task, cell.split, cell.recipe.images, run)
    with new_file(path, force=True) as draft:
        write_json(draft, to_json(found))
    return found


def probed(start: Descendant, task: Task, split: Split, images: int | None, run: Run) -> Untrained:
    """The share of images that the head gets right, and the share whose features lie nearest to their own class's mean.

    The means are those of the images that the training will see. Every feature is first divided by its standard deviation
    over these, so that none counts for more by its scale.
    """
    model = start.model().to(open_device(run))
    head = model.get_classifier().cpu()
    # As `training_images` chooses them, but as they are and without an order.
    seen = open_loader(
        task,
        "train",
        start.input_format,
        batch_size=BATCH,
        seed=derive_seed(run.seed, "data"),
        images=images,
        workers=run.workers,
    )
    features_ND, labels_N = (torch.cat(part) for part in zip(*_features(model, seen)))
    spread_D = features_ND.std(dim=0).clamp(min=1e-6)
    known_K = labels_N.unique()  # a class without an image has no mean
    means_KD = torch.stack([features_ND[labels_N == label].mean(dim=0) for label in known_K]) / spread_D
    judged = open_loader(task, split, start.input_format, batch_size=BATCH, workers=run.workers)
    right = near = total = 0
    for features_BD, labels_B in _features(model, judged):
        with torch.no_grad():
            right += int((head(features_BD).argmax(dim=1) == labels_B).sum())
        nearest_B = known_K[torch.cdist(features_BD / spread_D, means_KD).argmin(dim=1)]
        near += int((nearest_B == labels_B).sum())
        total += len(labels_B)
    return Untrained(value=right / total, probe=near / total)


def _features(model: VisionTransformer, loader: Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What the head reads, float32 (B, D), and the classes (B,), of every batch, on the CPU."""
    device = model.pos_embed.device
    for batch in loader.epoch(0):
        with torch.no_grad():
            pooled_BD = model.forward_head(model.forward_features(batch.images.to(device)), pre_logits=True)
        yield pooled_BD.float().cpu(), batch.labels
