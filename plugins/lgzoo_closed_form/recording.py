"""Recordings of streams in files: for as long as they are used, or kept beside a learngene with the images they are of.

A kept recording lies in the folder of the extraction's run, not in the learngene. Its last file says of which directions it is:
the learngene's own tensor, so that no other learngene's is taken for it.
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
from lgzoo_closed_form.streams import Pictures, Streams, filed

STREAMS, RECORD = "streams", "record.json"
_FILES = re.compile(r"(before|middle|heads)-\d+\.f32|(images|tokens|weights)\.npy|record\.json")
MOST_IN_MEMORY = 2**30  # bytes


def size_of(spec: Spec, images: int, tokens: int) -> int:
    """Bytes of a recording, without its images."""
    return 4 * images * (max(tokens - spec.prefix_tokens, 1) + spec.prefix_tokens) * spec.width * (3 * spec.layers + 1)


@contextmanager
def place_for(size: int) -> Iterator[Path | None]:
    """A temporary folder for a recording of so many bytes; None if it fits into memory."""
    if size <= MOST_IN_MEMORY:
        yield None
        return
    with TemporaryDirectory(prefix="closed_form-") as folder:
        yield Path(folder)


def fresh(folder: Path, wanted: bool) -> Path | None:
    """Return the folder if it is wanted. What an earlier extraction has kept there is removed, by its names; the rest stays."""
    if folder.is_dir() and not folder.is_symlink():
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name != RECORD):  # it says that all is there
            if _FILES.fullmatch(entry.name):
                entry.unlink()
        with suppress(OSError):
            folder.rmdir()
    if not wanted:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(folder: Path, shown: Pictures, directions_DD: torch.Tensor) -> None:
    """Complete the recording in a folder, so that `kept` finds it."""
    for name, values in (("images", shown.images), ("tokens", shown.tokens), ("weights", shown.weights)):
        np.save(folder / f"{name}.npy", values.numpy())
    write_json(folder / RECORD, {"directions": _digest(directions_DD)})


def kept(folder: Path, directions_DD: torch.Tensor, spec: Spec) -> tuple[Pictures, Streams] | None:
    """The images and streams of the learngene with these directions, if they are in the folder."""
    if not (folder / RECORD).is_file() or read_json(folder / RECORD).get("directions") != _digest(directions_DD):
        return None
    images, tokens, weights = (
        torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))
        for name in ("images", "tokens", "weights")
    )
    heads_width = spec.heads * spec.head_width
    return Pictures(images, tokens, weights), filed(folder, spec.layers, len(weights), spec.width, heads_width)


def _digest(directions_DD: torch.Tensor) -> str:
    return hashlib.sha256(directions_DD.float().contiguous().numpy().tobytes()).hexdigest()
