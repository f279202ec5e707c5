"""Task embeddings: what the ancestry model sees in a task, the mean of its features over training images.

The feature is the class token after the last norm (of a model without one what its head reads), not normalised any further.
The images are chosen by their classes, as many of each as there are, and never augmented: the embedding is a property of the
ancestry model, the task and the number of images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from learngene_zoo.plugin import BadFile, InputFormat, Run, Task, WrongCall, gathered, join, open_device, open_loader

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import Ancestry, LearngeneConfig

BATCH = 64


def embed(
    model: VisionTransformer, task: Task, input_format: InputFormat, run: Run, images: int | None
) -> torch.Tensor:
    """A task's embedding (E,), float32 on the CPU, from so many training images (None: all).

    Under torchrun the processes share the images. Raises `BadData` for a task without training images or with ones that cannot be read.
    """
    loader = open_loader(
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
    join(run.device)
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
    """(B, E) what an ancestry model's head reads of the tokens after the last block, of a dense one's its patches' mean."""
    read: torch.Tensor = model.forward_head(tokens_BNE, pre_logits=True)
    return read if read.dim() == 2 else read.mean(dim=1)


def recorded_ancestry(config: LearngeneConfig, *, offline: bool) -> Ancestry:
    """The ancestry model that a learngene was made with, opened again; its checksum must be the recorded one.

    Raises `WrongCall` if the learngene records none, `BadFile` if there are other weights in its place, and what
    `open_ancestry` raises.
    """
    from learngene_zoo.plugin import open_ancestry, split_source

    if not config.ancestries:
        raise WrongCall("this learngene records no ancestry model, so that no task can be embedded; extract it again")
    record = config.ancestries[0]
    scheme, name = split_source(record.source)
    pinned = scheme == "hf-hub" and record.revision and "@" not in name
    found = open_ancestry(f"{record.source}@{record.revision}" if pinned else record.source, offline=offline)
    if record.sha256 is not None and found.record.sha256 != record.sha256:
        raise BadFile(
            f"{record.source} has the checksum {str(found.record.sha256)[:12]}…, not {record.sha256[:12]}… as when the learngene was "
            "extracted; embeddings of two models cannot be compared: bring the old one back, or extract again"
        )
    return found
