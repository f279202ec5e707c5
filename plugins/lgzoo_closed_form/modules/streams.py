"""The residual streams of an ancestry model over unlabelled images.

Of every image some tokens are recorded: the prefix tokens (class token, registers), and patches
drawn at random. A recording is float32 and takes 4 bytes x images x tokens x width x
(3 layers + 1): for DeiT-B with 600 images and 64 tokens each, 4.4 GB. One of more than a gibibyte
lies in files, of which a few rows at a time are read; an extraction may keep these, with its
images, beside its learngene, and then no expansion records again.

Shapes: B images, N tokens of an image, K recorded ones, R = B K rows, D width, A the width of all
heads together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import nn

from learngene_zoo.plugin import (
    InputFormat,
    Model,
    Run,
    Spec,
    Task,
    WrongCall,
    derive_seed,
    progress,
    require_pictures,
    sample_images,
    uniform,
)
from lgzoo_closed_form.calibration import Calibration
from lgzoo_closed_form.modules.anatomy import run_stem, split_block

AT_ONCE = 16  # images that go through a model together
ROWS_AT_ONCE = 2048  # recorded tokens that enter sums together


@dataclass(frozen=True)
class Pictures:
    """Unlabelled images, normalised, and which tokens of each are recorded."""

    images: torch.Tensor  # float32 (B, C, H, W)
    tokens: torch.Tensor  # int64 (B, K)
    weights: torch.Tensor  # (R,) of every recorded token in the sums of squares, float64
    has_progress: bool = False  # whether passes over them show a progress bar

    def select_rows(self, tokens_BND: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the recorded tokens (R, D) of consecutive images, beginning with image `first`."""
        index_BK = self.tokens[first : first + len(tokens_BND)]
        index_BKD = index_BK[:, :, None].expand(-1, -1, tokens_BND.shape[2])
        return tokens_BND.gather(1, index_BKD).flatten(0, 1)

    def iterate_rows(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield slices of all recorded tokens, and their weights."""
        for first in range(0, len(self.weights), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            yield rows, self.weights[rows]


class StreamFiles(Sequence[torch.Tensor]):
    """Streams in files, one each, which every access maps into memory."""

    def __init__(self, folder: Path, kind: str, count: int, shape: tuple[int, int]) -> None:
        self.paths = [folder / f"{kind}-{number}.f32" for number in range(count)]
        self.shape = shape

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, number: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, number: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(number, slice):
            return [self[index] for index in range(len(self))[number]]
        return torch.from_numpy(
            np.memmap(self.paths[number], np.float32, mode="c", shape=self.shape)
        )


@dataclass(frozen=True)
class Streams:
    """The inputs and outputs of an ancestry model's blocks at the recorded tokens; float32."""

    # The input of every block, and the output of the last: layers + 1 of (R, D).
    before: Sequence[torch.Tensor]
    middle: Sequence[torch.Tensor]  # between attention and MLP: layers of (R, D)
    heads: Sequence[torch.Tensor]  # inputs of the attention's last layer: layers of (R, A)

    def truncate(self, depth: int) -> Streams:
        """Return the streams of the first `depth` blocks."""
        return Streams(self.before[: depth + 1], self.middle[:depth], self.heads[:depth])


def sample_pictures(
    spec: Spec, settings: Calibration, task: Task, input_format: InputFormat, run: Run
) -> Pictures:
    """Sample training images of a task with the seed; labels are not read, nothing is augmented.

    Args:
        spec: the shape of the model that sees them. Its prefix tokens are recorded of each image.
        settings: how many images, how many tokens of each are recorded (the prefix tokens and
            patches drawn at random), and the weight of the first prefix token.
        task: whose training images are sampled.
        input_format: size and normalisation of the images.
        run: seed, workers and progress.

    Raises:
        WrongCall: for a task without training images.
    """
    if not task.sizes["train"]:
        raise WrongCall(
            f"{task.name} has no training images to calibrate with; choose another task"
        )
    loader = sample_images(
        task, "train", input_format, run, images=settings.images, batch_size=AT_ONCE
    )
    steps = progress(range(loader.steps), f"reading images of {task.name}", run.progress)
    images = torch.cat([batch.images for _, batch in zip(steps, loader.epoch(0))])
    prefix, patches = spec.prefix_tokens, require_pictures(spec).patches
    draws = uniform(derive_seed(run.seed, "tokens"), range(len(images)), patches)
    order_BN = torch.from_numpy(draws).argsort(dim=1)
    patches_BK = order_BN[:, : max(settings.tokens - prefix, 1)] + prefix
    tokens_BK = torch.cat([torch.arange(prefix).expand(len(images), -1), patches_BK], dim=1)
    weights_BK = torch.ones(tokens_BK.shape, dtype=torch.float64)
    if prefix:
        weights_BK[:, 0] = settings.class_weight
    return Pictures(images, tokens_BK, weights_BK.flatten(), run.progress)


def iterate_batches(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield a few rows at a time, each with the number of its first row."""
    for first in range(0, len(values), AT_ONCE):
        yield first, values[first : first + AT_ONCE]


@torch.no_grad()
def embed_images(model: Model, images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the tokens (B, N, D) that the first block reads."""
    return torch.cat([run_stem(model, batch)[0] for _, batch in iterate_batches(images_BCHW)])


@torch.no_grad()
def record_streams(model: Model, pictures: Pictures, folder: Path | None = None) -> Streams:
    """Record the streams of all blocks, in one pass over the images.

    Args:
        model: the ancestry model.
        pictures: its images, and which of their tokens are recorded.
        folder: where the streams are written; None keeps them in memory.
    """
    parts: dict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)
    batches = iterate_batches(pictures.images)
    label = "recording what blocks read and write"
    for first, images_BCHW in progress(batches, label, pictures.has_progress):
        for kind, number, tokens_BND in _trace_streams(model, images_BCHW):
            rows = pictures.select_rows(tokens_BND, first)
            if folder is None:
                parts[kind, number].append(rows)
            else:
                with open(folder / f"{kind}-{number}.f32", "ab") as file:
                    file.write(rows.numpy().tobytes())
    layers = len(model.blocks)
    if folder is not None:
        heads_width = model.blocks[0].attn.proj.in_features
        return open_streams(folder, layers, len(pictures.weights), model.embed_dim, heads_width)
    joined = {key: torch.cat(rows) for key, rows in parts.items()}
    counts = {"before": layers + 1, "middle": layers, "heads": layers}
    return Streams(
        *(tuple(joined[kind, number] for number in range(count)) for kind, count in counts.items())
    )


def open_streams(folder: Path, layers: int, rows: int, width: int, heads_width: int) -> Streams:
    """Open the streams that `record_streams` has written into a folder.

    Args:
        folder: where they are.
        layers: the number of blocks.
        rows: the number of recorded tokens.
        width: of the stream.
        heads_width: of all heads together.
    """
    return Streams(
        before=StreamFiles(folder, "before", layers + 1, (rows, width)),
        middle=StreamFiles(folder, "middle", layers, (rows, width)),
        heads=StreamFiles(folder, "heads", layers, (rows, heads_width)),
    )


def _trace_streams(
    model: Model, images_BCHW: torch.Tensor
) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yield the kind of stream, the number of the block, and all its tokens, in a model's order."""
    tokens_BND, turns = run_stem(model, images_BCHW)
    for number, (block, turn) in enumerate(zip(model.blocks, turns)):
        attention, mlp = split_block(block, turn)
        yield "before", number, tokens_BND
        inputs_BNA = attention.compute_inputs(tokens_BND)
        yield "heads", number, inputs_BNA
        tokens_BND = tokens_BND + attention.compute_update(inputs_BNA)
        yield "middle", number, tokens_BND
        tokens_BND = mlp(tokens_BND)
    yield "before", len(turns), tokens_BND


@contextmanager
def record_inputs(layer: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Record the inputs of a layer while the context is open."""
    inputs: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        handle.remove()
