"""The residual streams of an ancestry model over unlabelled images.

Of every image some tokens are recorded: the prefix tokens (class token, registers), and patches drawn at random. A recording is
float32 and takes 4 bytes x images x tokens x width x (3 layers + 1): for DeiT-B with 600 images and 64 tokens each, 4.4 GB.

Shapes: B images, N tokens of an image, K recorded ones, R = B K rows, D width, A the width of all heads together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from learngene_zoo.plugin import InputFormat, Loader, Model, Run, Task, WrongCall, derive_seed, join, uniform

AT_ONCE = 16  # images that go through a model together


@dataclass(frozen=True)
class Pictures:
    """Unlabelled images, normalised, and which tokens of each are recorded."""

    images: torch.Tensor  # float32 (B, C, H, W)
    tokens: torch.Tensor  # int64 (B, K)
    weights: torch.Tensor  # (R,) of every recorded token in the sums of squares, float64

    def rows(self, tokens_BND: torch.Tensor, first: int = 0) -> torch.Tensor:
        """The recorded tokens (R, D) of consecutive images, of which the first has the number `first`."""
        chosen_BK = self.tokens[first : first + len(tokens_BND)]
        return tokens_BND.gather(1, chosen_BK[:, :, None].expand(-1, -1, tokens_BND.shape[2])).flatten(0, 1)


@dataclass(frozen=True)
class Streams:
    """What the blocks of an ancestry model read and write, at the recorded tokens; float32."""

    before: tuple[torch.Tensor, ...]  # the input of every block, and the output of the last: layers + 1 of (R, D)
    middle: tuple[torch.Tensor, ...]  # between attention and MLP: layers of (R, D)
    heads: tuple[torch.Tensor, ...]  # the outputs of all heads, which the projection reads: layers of (R, A)


def pictures(
    task: Task,
    prefix: int,
    patches: int,
    input_format: InputFormat,
    run: Run,
    *,
    images: int,
    tokens: int,
    weight: float,
) -> Pictures:
    """`images` training images of a task, sampled with the seed and never augmented; their labels are not read.

    Of each image the `prefix` tokens are recorded, the first with this `weight`, and patches up to `tokens` in all.
    Raises `WrongCall` for a task without training images.
    """
    if not task.sizes["train"]:
        raise WrongCall(f"{task.name} has no training images to calibrate with; choose another task")
    join(run.device_name)
    loader = Loader(
        task,
        "train",
        input_format,
        batch_size=AT_ONCE,
        seed=derive_seed(run.seed, "data"),
        images=images,
        workers=run.workers,
        shuffle=False,
        drop_last=False,
    )
    shown = torch.cat([batch.images for batch in loader.epoch(0)])
    draws_BN = torch.from_numpy(uniform(derive_seed(run.seed, "tokens"), range(len(shown)), patches))
    patches_BK = draws_BN.argsort(dim=1)[:, : max(tokens - prefix, 1)] + prefix
    chosen_BK = torch.cat([torch.arange(prefix).expand(len(shown), -1), patches_BK], dim=1)
    weights_BK = torch.ones(chosen_BK.shape, dtype=torch.float64)
    if prefix:
        weights_BK[:, 0] = weight
    return Pictures(shown, chosen_BK, weights_BK.flatten())


def some(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """A few rows at a time, with the number of the first."""
    for first in range(0, len(values), AT_ONCE):
        yield first, values[first : first + AT_ONCE]


@torch.no_grad()
def embedded(model: Model, images_BCHW: torch.Tensor) -> torch.Tensor:
    """The tokens (B, N, D) that the first block reads."""
    parts = [model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(one)))) for _, one in some(images_BCHW)]
    return torch.cat(parts)


@torch.no_grad()
def record(model: Model, shown: Pictures) -> Streams:
    """The streams of all blocks, in one pass over the images."""
    before, middle, heads = (_lists(len(model.blocks) + 1) for _ in range(3))
    for first, images_BCHW in some(shown.images):
        tokens_BND = embedded(model, images_BCHW)
        for number, block in enumerate(model.blocks):
            before[number].append(shown.rows(tokens_BND, first))
            with inputs_of(block.attn.proj) as read:
                tokens_BND = tokens_BND + block.ls1(block.attn(block.norm1(tokens_BND)))
            heads[number].append(shown.rows(read[0], first))
            middle[number].append(shown.rows(tokens_BND, first))
            tokens_BND = tokens_BND + block.ls2(block.mlp(block.norm2(tokens_BND)))
        before[-1].append(shown.rows(tokens_BND, first))
    joined = [tuple(torch.cat(parts) for parts in kind if parts) for kind in (before, middle, heads)]
    return Streams(*joined)


def _lists(count: int) -> list[list[torch.Tensor]]:
    return [[] for _ in range(count)]


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Within, what the layer is called with is noted."""
    read: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    try:
        yield read
    finally:
        handle.remove()
