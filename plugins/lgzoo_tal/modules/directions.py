"""The directions in which an ancestry model's residual stream varies most.

Shapes: D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from learngene_zoo.plugin import (
    Ancestry,
    Json,
    Run,
    StateDict,
    Task,
    gather_values,
    open_device,
    sample_images,
)
from lgzoo_tal.modules.embedding import BATCH_SIZE, EmbeddingSettings
from lgzoo_tal.modules.inheritance import DIRECTIONS


def measure_directions(
    settings: EmbeddingSettings, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Measure the principal directions on training images of a task, as a part of a run.

    Under torchrun the processes share the images.

    Args:
        settings: the number of images.
        ancestry: the model whose streams before every block are recorded.
        task: the task.
        run: how to compute.
    """
    device = open_device(run)
    model = ancestry.model().to(device).eval()
    moment_DD = torch.zeros(2 * (model.embed_dim,), dtype=torch.float64)

    def add_tokens(block: Any, inputs: tuple[Tensor, ...]) -> None:
        tokens = functional.layer_norm(inputs[0].double().flatten(0, 1), moment_DD.shape[1:])
        moment_DD.add_((tokens.mT @ tokens).cpu())

    hooks = [block.register_forward_pre_hook(add_tokens) for block in model.blocks]
    loader = sample_images(
        task,
        "train",
        ancestry.input_format,
        run,
        images=settings.images,
        batch_size=BATCH_SIZE,
        seed=0,
    )
    with torch.no_grad():
        for batch in loader.epoch(0):
            model.forward_features(batch.inputs.to(device))
    for hook in hooks:
        hook.remove()
    total_DD = torch.from_numpy(np.sum(gather_values(moment_DD.numpy()), axis=0))
    return {DIRECTIONS: sort_directions(total_DD)}, {}


def sort_directions(moment_DD: Tensor) -> Tensor:
    """Return (D, D) the eigenvectors of a moment as columns, by falling variance.

    The last one is the vector of ones, if all tokens have mean 0. The largest component of each is
    positive, since the sign of an eigenvector is arbitrary.
    """
    columns = torch.linalg.eigh(moment_DD).eigenvectors.flip(1)
    signs = columns.gather(0, columns.abs().argmax(dim=0)[None]).sign()
    return (columns * signs).float()
