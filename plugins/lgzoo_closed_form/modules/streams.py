"""The residual streams of an ancestry model over unlabelled images.

Of every image some tokens are recorded: the prefix tokens (class token, registers), and patches
drawn at random. A recording is float32 and takes 4 bytes x images x tokens x width x
(3 layers + 1): for DeiT-B with 600 images and 64 tokens each, 4.4 GB. One of more than a gibibyte
lies in files, of which a few rows at a time are read; an extraction may keep these, with its
images, beside its learngene, and then no expansion records again.

A kept recording lies in the folder of the extraction's run, not in the learngene. Its last file
holds a checksum of the learngene's directions, so that it serves no other learngene.

Shapes: B images, N tokens of an image, K recorded ones, R = B K rows, D width, A the width of all
heads together.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, overload

import numpy as np
import torch

from learngene_zoo.plugin import (
    Model,
    Spec,
    StateDict,
    get_blocks,
    read_json,
    show_progress,
    write_json,
)
from lgzoo_closed_form.modules.anatomy import Branch, run_stem, split_block

AT_ONCE = 16  # images that go through a model together
ROWS_AT_ONCE = 2048  # recorded tokens that enter sums together
MAX_IN_MEMORY = 2**30  # bytes of a recording
STREAMS, RECORD = "streams", "record.json"
_FILES = re.compile(r"(before|middle|heads)-\d+\.f32|(images|tokens|weights)\.npy|record\.json")


@dataclass(frozen=True)
class Pictures:
    """Unlabelled images, normalised, and which tokens of each are recorded."""

    images: torch.Tensor  # float32 (B, C, H, W); or texts, int64 ids (B, N)
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


OpenFile = Callable[[str], BinaryIO]  # opens a new file of this name for writing and reading


class StreamFiles(Sequence[torch.Tensor]):
    """Streams in files, one each, which every access maps into memory."""

    def __init__(self, files: Sequence[Path] | Sequence[BinaryIO], shape: tuple[int, int]) -> None:
        self.files, self.shape = files, shape

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, number: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, number: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(number, slice):
            return [self[index] for index in range(len(self))[number]]
        return torch.from_numpy(
            np.memmap(self.files[number], np.float32, mode="c", shape=self.shape)
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


Recording = tuple[Pictures, Streams]


def iterate_batches(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield a few rows at a time, each with the number of its first row."""
    for first in range(0, len(values), AT_ONCE):
        yield first, values[first : first + AT_ONCE]


@torch.no_grad()
def embed_images(model: Model, images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the tokens (B, N, D) that the first block reads."""
    return torch.cat([run_stem(model, batch)[0] for _, batch in iterate_batches(images_BCHW)])


def find_turns(model: Model, images_BCHW: torch.Tensor) -> list[Any]:
    """Return the turn of each block (see `run_stem`).

    Those of images are those of any image; a mask is of all texts.
    """
    is_text = not images_BCHW.is_floating_point()
    return run_stem(model, images_BCHW if is_text else images_BCHW[:1])[1]


@torch.no_grad()
def record_streams(
    model: Model,
    pictures: Pictures,
    open_file: OpenFile | None = None,
    in_bfloat16: bool = False,
) -> Streams:
    """Record the streams of all blocks, in one pass over the images.

    Args:
        model: the ancestry model.
        pictures: its images, and which of their tokens are recorded.
        open_file: opens the file of a stream; None keeps the streams in memory.
        in_bfloat16: whether the model computes its products in bfloat16.
    """
    parts: dict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)
    files: dict[tuple[str, int], BinaryIO] = {}
    widths: dict[str, int] = {}
    batches = iterate_batches(pictures.images)
    label = "recording what blocks read and write"
    for first, images_BCHW in show_progress(batches, label, pictures.has_progress):
        for kind, number, tokens_BND in trace_streams(model, images_BCHW, in_bfloat16):
            rows = pictures.select_rows(tokens_BND, first)
            widths[kind] = rows.shape[1]
            if open_file is None:
                parts[kind, number].append(rows)
                continue
            if (kind, number) not in files:
                files[kind, number] = open_file(name_file(kind, number))
            files[kind, number].write(rows.numpy().tobytes())
    layers = len(get_blocks(model))
    counts = {"before": layers + 1, "middle": layers, "heads": layers}
    if open_file is not None:
        for file in files.values():
            file.flush()
        return Streams(
            *(
                StreamFiles(
                    [files[kind, number] for number in range(count)],
                    (len(pictures.weights), widths[kind]),
                )
                for kind, count in counts.items()
            )
        )
    joined = {key: torch.cat(rows) for key, rows in parts.items()}
    return Streams(
        *(tuple(joined[kind, number] for number in range(count)) for kind, count in counts.items())
    )


def name_file(kind: str, number: int) -> str:
    """Return the name of a stream's file."""
    return f"{kind}-{number}.f32"


def open_streams(folder: Path, layers: int, rows: int, width: int, heads_width: int) -> Streams:
    """Open the streams that `record_streams` has written into files of a folder.

    Args:
        folder: where they are.
        layers: the number of blocks.
        rows: the number of recorded tokens.
        width: of the stream.
        heads_width: of all heads together.
    """

    def open_kind(kind: str, count: int, width: int) -> StreamFiles:
        return StreamFiles(
            [folder / name_file(kind, number) for number in range(count)], (rows, width)
        )

    return Streams(
        before=open_kind("before", layers + 1, width),
        middle=open_kind("middle", layers, width),
        heads=open_kind("heads", layers, heads_width),
    )


def trace_streams(
    model: Model, images_BCHW: torch.Tensor, in_bfloat16: bool = False
) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yield the kind of stream, the number of the block, and all its tokens (float32), in a model's
    order.
    """

    def compute(function: Callable[..., Any], *inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            return function(*inputs)

    tokens_BND, turns = compute(run_stem, model, images_BCHW)
    for number, turn in enumerate(turns):
        attention, mlp = split_block(model, number, turn)
        yield "before", number, tokens_BND.float()
        inputs_BNA = compute(attention.compute_inputs, tokens_BND)
        yield "heads", number, inputs_BNA.float()
        tokens_BND = compute(attention.add, tokens_BND, inputs_BNA)
        yield "middle", number, tokens_BND.float()
        tokens_BND = compute(mlp, tokens_BND)
    yield "before", len(turns), tokens_BND.float()


def estimate_size(spec: Spec, images: int, tokens: int) -> int:
    """Return the bytes of a recording, without its images.

    Args:
        spec: the shape of the ancestry model.
        images: how many images are recorded.
        tokens: how many tokens of each; the prefix tokens and at least one patch are.
    """
    tokens = max(tokens - spec.prefix_tokens, 1) + spec.prefix_tokens
    return 4 * images * tokens * spec.width * (3 * spec.layers + 1)


@contextmanager
def open_files(size: int, folder: Path | None = None) -> Iterator[OpenFile | None]:
    """Yield a function that opens the files of a recording, which are closed at the end.

    Without a folder the files are temporary ones, which are gone even after the process is killed;
    and the function is None if the recording fits into memory.

    Args:
        size: bytes of the recording.
        folder: where its files are to be kept.
    """
    if folder is None and size <= MAX_IN_MEMORY:
        yield None
        return
    with ExitStack() as stack:

        def open_file(name: str) -> BinaryIO:
            if folder is None:
                return stack.enter_context(TemporaryFile())
            return stack.enter_context((folder / name).open("w+b"))

        yield open_file


def prepare_folder(folder: Path, is_kept: bool) -> Path | None:
    """Remove an earlier recording from a folder; return the folder if a new one is to be kept.

    Only files of the names of a recording are removed.
    """
    if folder.is_dir() and not folder.is_symlink():
        # The record goes first: it marks a recording as complete.
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name != RECORD):
            if _FILES.fullmatch(entry.name):
                entry.unlink()
        with suppress(OSError):
            folder.rmdir()
    if not is_kept:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def complete_recording(folder: Path, pictures: Pictures, directions_DD: torch.Tensor) -> None:
    """Write images and record beside the streams in a folder, so that `load_recording` takes them.

    Args:
        folder: where the streams are.
        pictures: the images that they are of.
        directions_DD: the learngene's tensor.
    """
    for name in ("images", "tokens", "weights"):
        np.save(folder / f"{name}.npy", getattr(pictures, name).numpy())
    write_json(folder / RECORD, {"directions": _hash_directions(directions_DD)})


def load_recording(folder: Path, directions_DD: torch.Tensor, spec: Spec) -> Recording | None:
    """Load images and streams; None without a recording of the learngene with these directions.

    Args:
        folder: where they are.
        directions_DD: the learngene's tensor.
        spec: the shape of the ancestry model.
    """
    record = folder / RECORD
    if not record.is_file():
        return None
    if read_json(record).get("directions") != _hash_directions(directions_DD):
        return None
    images, tokens, weights = (
        torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))
        for name in ("images", "tokens", "weights")
    )
    heads_width = spec.heads * spec.head_width
    streams = open_streams(folder, spec.layers, len(weights), spec.width, heads_width)
    return Pictures(images, tokens, weights), streams


def _hash_directions(directions_DD: torch.Tensor) -> str:
    return hashlib.sha256(directions_DD.float().contiguous().numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class StreamTeacher:
    """The ancestry model with its recorded streams."""

    spec: Spec
    state: StateDict
    model: Model
    pictures: Pictures
    streams: Streams

    def split_block(self, block: int) -> tuple[Branch, Branch]:
        """Return attention and MLP of a block.

        The attention does not turn queries and keys, so its `inner` must not be used.
        """
        return split_block(self.model, block)

    def sum_after_attention(self, block: int) -> Callable[[slice], torch.Tensor]:
        """Return a function of some rows to the sum (R, D) of a block's attention and its input.

        It is the stream after the attention, unless a norm comes after the sum.
        """
        attention, _ = self.split_block(block)
        if attention.norm_after is None:
            return lambda rows: self.streams.middle[block][rows]
        before, heads = self.streams.before[block], self.streams.heads[block]
        return lambda rows: before[rows] + attention.compute_update(heads[rows])

    def sum_after_block(self, block: int) -> Callable[[slice], torch.Tensor]:
        """Return a function of some rows to the sum (R, D) of a block's MLP and its input.

        It is the stream after the block, unless a norm comes after the sum.
        """
        _, mlp = self.split_block(block)
        if mlp.norm_after is None:
            return lambda rows: self.streams.before[block + 1][rows]
        middle = self.streams.middle[block]

        def compute(rows: slice) -> torch.Tensor:
            inputs = middle[rows]
            return inputs + mlp.compute_update(mlp.compute_inputs(inputs))

        return compute

    def weigh_channels(self, block: int) -> torch.Tensor | float:
        """Return the weight of an error in each channel of the sum after a block.

        It is 1 unless a norm comes after the sum, which multiplies the channels by its gains.
        """
        _, mlp = self.split_block(block)
        if mlp.norm_after is None:
            return 1.0
        gains_D: torch.Tensor = mlp.norm_after.get_parameter("weight").detach().double()
        return gains_D.square()
