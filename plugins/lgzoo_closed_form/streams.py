"""The residual streams of an ancestry model over unlabelled images.

Of every image some tokens are recorded: the prefix tokens (class token, registers), and patches drawn at random. A recording is
float32 and takes 4 bytes x images x tokens x width x (3 layers + 1): for DeiT-B with 600 images and 64 tokens each, 4.4 GB. One of
more than a gibibyte lies in files, of which a few rows at a time are read; an extraction may keep these, with its images,
beside its learngene, and then no expansion records again.

Shapes: B images, N tokens of an image, K recorded ones, R = B K rows, D width, A the width of all heads together.
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

from learngene_zoo.plugin import InputFormat, Loader, Model, Run, Task, WrongCall, derive_seed, join, progress, uniform
from lgzoo_closed_form.anatomy import branches, stem

AT_ONCE = 16  # images that go through a model together
ROWS_AT_ONCE = 2048  # recorded tokens that enter sums together


@dataclass(frozen=True)
class Pictures:
    """Unlabelled images, normalised, and which tokens of each are recorded."""

    images: torch.Tensor  # float32 (B, C, H, W)
    tokens: torch.Tensor  # int64 (B, K)
    weights: torch.Tensor  # (R,) of every recorded token in the sums of squares, float64
    bars: bool = False  # whether who passes over them says how far it is

    def rows(self, tokens_BND: torch.Tensor, first: int = 0) -> torch.Tensor:
        """The recorded tokens (R, D) of consecutive images, of which the first has the number `first`."""
        chosen_BK = self.tokens[first : first + len(tokens_BND)]
        return tokens_BND.gather(1, chosen_BK[:, :, None].expand(-1, -1, tokens_BND.shape[2])).flatten(0, 1)

    def parts(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """All recorded tokens, some at a time, and their weights."""
        for first in range(0, len(self.weights), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            yield rows, self.weights[rows]


class Filed(Sequence[torch.Tensor]):
    """Streams in files, one each, mapped into memory anew whenever one is asked for."""

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
            return [self[one] for one in range(len(self))[number]]
        return torch.from_numpy(np.memmap(self.paths[number], np.float32, mode="c", shape=self.shape))


@dataclass(frozen=True)
class Streams:
    """What the blocks of an ancestry model read and write, at the recorded tokens; float32."""

    before: Sequence[torch.Tensor]  # the input of every block, and the output of the last: layers + 1 of (R, D)
    middle: Sequence[torch.Tensor]  # between attention and MLP: layers of (R, D)
    heads: Sequence[torch.Tensor]  # what the attention's last layer reads: layers of (R, A)


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
    reading = progress(range(loader.steps), f"reading images of {task.name}", run.progress)
    shown = torch.cat([batch.images for _, batch in zip(reading, loader.epoch(0))])
    draws_BN = torch.from_numpy(uniform(derive_seed(run.seed, "tokens"), range(len(shown)), patches))
    patches_BK = draws_BN.argsort(dim=1)[:, : max(tokens - prefix, 1)] + prefix
    chosen_BK = torch.cat([torch.arange(prefix).expand(len(shown), -1), patches_BK], dim=1)
    weights_BK = torch.ones(chosen_BK.shape, dtype=torch.float64)
    if prefix:
        weights_BK[:, 0] = weight
    return Pictures(shown, chosen_BK, weights_BK.flatten(), run.progress)


def some(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """A few rows at a time, with the number of the first."""
    for first in range(0, len(values), AT_ONCE):
        yield first, values[first : first + AT_ONCE]


@torch.no_grad()
def embedded(model: Model, images_BCHW: torch.Tensor) -> torch.Tensor:
    """The tokens (B, N, D) that the first block reads."""
    return torch.cat([stem(model, one)[0] for _, one in some(images_BCHW)])


@torch.no_grad()
def record(model: Model, shown: Pictures, folder: Path | None = None) -> Streams:
    """The streams of all blocks, in one pass over the images; in files, if there is a folder for them."""
    parts: dict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)
    for first, images_BCHW in progress(some(shown.images), "recording what blocks read and write", shown.bars):
        for kind, number, tokens_BND in _passing(model, images_BCHW):
            rows = shown.rows(tokens_BND, first)
            if folder is None:
                parts[kind, number].append(rows)
            else:
                with open(folder / f"{kind}-{number}.f32", "ab") as file:
                    file.write(rows.numpy().tobytes())
    layers = len(model.blocks)
    if folder is not None:
        return filed(folder, layers, len(shown.weights), model.embed_dim, model.blocks[0].attn.proj.in_features)
    joined = {key: torch.cat(some_rows) for key, some_rows in parts.items()}
    counts = {"before": layers + 1, "middle": layers, "heads": layers}
    return Streams(*(tuple(joined[kind, number] for number in range(count)) for kind, count in counts.items()))


def filed(folder: Path, layers: int, rows: int, width: int, heads_width: int) -> Streams:
    """What `record` has put into a folder."""
    return Streams(
        before=Filed(folder, "before", layers + 1, (rows, width)),
        middle=Filed(folder, "middle", layers, (rows, width)),
        heads=Filed(folder, "heads", layers, (rows, heads_width)),
    )


def _passing(model: Model, images_BCHW: torch.Tensor) -> Iterator[tuple[str, int, torch.Tensor]]:
    """What passes through a model: the kind of stream, the number of the block, and all its tokens."""
    tokens_BND, turns = stem(model, images_BCHW)
    for number, (block, turn) in enumerate(zip(model.blocks, turns)):
        attention, mlp = branches(block, turn)
        yield "before", number, tokens_BND
        read_BNA = attention.read(tokens_BND)
        yield "heads", number, read_BNA
        tokens_BND = tokens_BND + attention.added(read_BNA)
        yield "middle", number, tokens_BND
        tokens_BND = mlp(tokens_BND)
    yield "before", len(turns), tokens_BND


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Within, what the layer is called with is noted."""
    read: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    try:
        yield read
    finally:
        handle.remove()
