"""Task embeddings: the mean of the ancestry model's features over training images of a task.

The feature is the class token after the final norm (without one, the input of the head), not normalised any further. Images are
sampled evenly over the classes and never augmented: an embedding depends on the ancestry model, the task and the number of
images alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from learngene_zoo.plugin import BadFile, Loader, WrongCall, gathered, join, open_device, open_task, reopen_ancestry
from lgzoo_tal.learngene import TASKS, Details

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import Ancestry, InputFormat, Json, Learngene, LearngeneConfig, Run, StateDict, Task

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The settings of a task embedding."""

    images: int | None  # None: all training images


def embedded(settings: Embedding, ancestry: Ancestry, task: Task, run: Run) -> tuple[StateDict, Json]:
    """One task's embedding, as a part of a run."""
    return {"embedding": embed(ancestry.model(), task, ancestry.input_format, run, settings.images)}, {}


def embed(
    model: VisionTransformer, task: Task, input_format: InputFormat, run: Run, images: int | None
) -> torch.Tensor:
    """A task's embedding (E,), float32 on the CPU, from at most `images` training images (None: all).

    Under torchrun the processes share the images. Raises `BadData` for a task without training images and for images that
    cannot be read.
    """
    loader = Loader(
        task,
        "train",
        input_format,
        batch_size=BATCH,
        images=images,
        workers=run.workers,
        shuffle=False,
        drop_last=False,
    )
    device = open_device(run)
    join(run.device_name)
    model = model.to(device).eval()
    total, count = torch.zeros(model.num_features, dtype=torch.float64), 0
    with torch.no_grad():
        for batch in loader.epoch(0):
            features_BE = feature(model, model.forward_features(batch.images.to(device)))
            total += features_BE.double().sum(dim=0).cpu()
            count += len(batch.images)
    sums, counts = zip(*gathered((total.numpy(), count)))
    return torch.from_numpy(np.sum(sums, axis=0) / sum(counts)).float()


def feature(model: VisionTransformer, tokens_BNE: torch.Tensor) -> torch.Tensor:
    """(B, E) the input of an ancestry model's head, from the tokens after the last block; a dense head's averaged over patches."""
    read: torch.Tensor = model.forward_head(tokens_BNE, pre_logits=True)
    return read if read.dim() == 2 else read.mean(dim=1)


def embedding_for(
    learngene: Learngene, details: Details, task: str | None, images: int, run: Run
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """The embedding that a task's model is predicted with, and its origin; None for a hypernetwork without a task layer.

    That of a task of the extraction is stored. Any other task is embedded now, from at most `images` training images, by the
    ancestry model that the learngene records; no task at all gets the mean of the stored embeddings.
    """
    size = details.hypernetwork.task
    if size is None:
        return None, {"from": "no task layer"}
    if task is None:
        stored = [stored_embedding(learngene, name, size) for name in details.tasks or details.embedded]
        if not stored:
            raise WrongCall("this learngene stores no task embedding; choose a task with --task")
        return torch.stack(stored).mean(dim=0), {"from": "the mean of the learngene's tasks"}
    if task in details.embedded:
        return stored_embedding(learngene, task, size), {"from": "the learngene", "task": task}
    ancestry = recorded_ancestry(learngene.config, run)
    if ancestry.spec.width != size:
        raise BadFile(
            f"the learngene's ancestry model has {ancestry.spec.width} features, but its task layer takes {size}; extract it again"
        )
    opened = open_task(task, offline=run.offline)
    shown = min(images, opened.sizes["train"])
    if not shown:
        raise WrongCall(
            f"{task} has no training images to compute an embedding from; choose one of {', '.join(details.embedded)}"
        )
    embedding = embed(ancestry.model(), opened, ancestry.input_format, run, images)
    return embedding, {"from": "training images", "images": shown}


def stored_embedding(learngene: Learngene, task: str, size: int) -> torch.Tensor:
    """A task's embedding (size,) in a learngene, float32. Raises `BadFile` if it is missing or has another shape."""
    name = f"{TASKS}{task}"
    where = str(learngene.folder or "the learngene")
    if name not in learngene.state:
        raise BadFile(f"{where} lacks the embedding {name}, which its details list; extract or fetch it again")
    tensor = learngene.state[name].float()
    if tuple(tensor.shape) != (size,):
        raise BadFile(f"{where}: expected the embedding {name} to have shape ({size},), got {tuple(tensor.shape)}")
    return tensor


def recorded_ancestry(config: LearngeneConfig, run: Run) -> Ancestry:
    """The ancestry model that a learngene was made with, opened again and checked by its checksum.

    Raises `WrongCall` if the learngene records none, and as `reopen_ancestry` does.
    """
    if not config.ancestries:
        raise WrongCall("this learngene records no ancestry model to embed the task with; extract it again")
    return reopen_ancestry(config.ancestries[0], run.ancestry, offline=run.offline)
