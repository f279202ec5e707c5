"""Recordings of streams in files: temporary, or kept beside a learngene with their images.

A kept recording lies in the folder of the extraction's run, not in the learngene. Its last file
holds a checksum of the learngene's directions, so that it serves no other learngene.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from learngene_zoo.plugin import Spec, read_json, write_json
from lgzoo_closed_form.modules.streams import Pictures, Streams, open_streams

STREAMS, RECORD = "streams", "record.json"
_FILES = re.compile(r"(before|middle|heads)-\d+\.f32|(images|tokens|weights)\.npy|record\.json")
MAX_IN_MEMORY = 2**30  # bytes
Recording = tuple[Pictures, Streams]


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
def open_temporary_folder(size: int) -> Iterator[Path | None]:
    """Yield a temporary folder for a recording of `size` bytes; None if it fits into memory."""
    if size <= MAX_IN_MEMORY:
        yield None
        return
    with TemporaryDirectory(prefix="closed_form-") as folder:
        yield Path(folder)


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
