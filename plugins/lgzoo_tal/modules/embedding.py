"""Task embeddings: the mean of the ancestry model's features over training images of a task.

The feature is the class token after the final norm (without one, and of texts, the input of the
head), not normalised any further. Images are sampled evenly over the classes and never augmented:
an embedding depends on the ancestry model, the task and the number of images alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from learngene_zoo.plugin import (
    WrongCall,
    compute_pooled,
    gather_values,
    open_device,
    reopen_ancestry,
    sample_images,
)

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import (
        Ancestry,
        InputFormat,
        Json,
        LearngeneConfig,
        Run,
        StateDict,
        Task,
    )

BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """The settings of a task embedding."""

    images: int | None  # None: all training images


def embed_task(
    settings: EmbeddingSettings, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Compute one task's embedding, as a part of a run.

    Args:
        settings: the number of images.
        ancestry: the model whose features are averaged.
        task: the task.
        run: how to compute.
    """
    return {
        "embedding": compute_embedding(
            ancestry.model(), task, ancestry.input_format, run, settings.images
        )
    }, {}


def compute_embedding(
    model: Any, task: Task, input_format: InputFormat, run: Run, images: int | None
) -> torch.Tensor:
    """Compute a task's embedding (E,), float32 on the CPU.

    Under torchrun the processes share the images.

    Args:
        model: the ancestry model.
        task: the task whose training images are used.
        input_format: the format of the images.
        run: how to compute.
        images: the largest number of images; None: all.

    Raises:
        BadData: for a task without training images and for images that cannot be read.
    """
    device = open_device(run)
    loader = sample_images(
        task, "train", input_format, run, images=images, batch_size=BATCH_SIZE, seed=0
    )
    model = model.to(device).eval()
    total, count = torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad():
        for batch in loader.epoch(0):
            if len(batch.inputs):  # the processes share the images of a batch
                features_BE = average_patches(compute_pooled(model, batch.inputs.to(device)))
                total = total + features_BE.double().sum(dim=0).cpu()
                count += len(batch.inputs)
    sums, counts = zip(*gather_values((total.numpy(), count)))
    return torch.from_numpy(sum(sums) / sum(counts)).float()


def extract_feature(model: VisionTransformer, tokens_BNE: torch.Tensor) -> torch.Tensor:
    """Return (B, E) the input of an ancestry model's head, from the tokens after the last block.

    A dense head's input is averaged over the patches.
    """
    return average_patches(model.forward_head(tokens_BNE, pre_logits=True))


def average_patches(features: torch.Tensor) -> torch.Tensor:
    """Return features (B, E), those of a dense head (B, N, E) averaged over the patches."""
    return features if features.dim() == 2 else features.mean(dim=1)


def open_recorded_ancestry(
    config: LearngeneConfig, run: Run, purpose: str = "embed the task with"
) -> Ancestry:
    """Open the ancestry model that a learngene was extracted with, and check its checksum.

    Args:
        config: the learngene's.
        run: may locate the ancestry model.
        purpose: the words after "to" in the message of the error.

    Raises:
        WrongCall: if the learngene records none, and as `reopen_ancestry` does.
    """
    if not config.ancestries:
        raise WrongCall(f"this learngene records no ancestry model to {purpose}; extract it again")
    return reopen_ancestry(config.ancestries[0], run.ancestry, offline=run.offline)
