"""A teacher's outputs kept on disk: where a run repeats its images exactly, the teacher is asked once about each.

They lie as rows of memory-mapped .npy files under the run's folder, one file for each kind of output, a row for every image
of the split by its index; what was never written takes no room on file systems that know holes. Both auxiliary models and
the fine-tuning share them, and a resumed run finds them again.

Every row has a checksum in a second file. A row that an interrupted or another machine's run left half written is thus
taken for one that is not there, and the teacher is asked anew.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from learngene_zoo.plugin import (
    BadFile,
    Json,
    TrainingFailed,
    Unavailable,
    is_first,
    nearest_parent,
    read_json,
    to_json,
    wait_for_all,
    write_json,
)
from lgzoo_pool.features import Ancestor, Features, features_of, parts_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Batch

Kept = Literal["fp32", "fp16"]
KINDS: dict[Kept, np.dtype] = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}
File = tuple[Path, np.dtype, tuple[int, ...]]
RECORD = "teacher.json"


class Store:
    """Rows by image index in a folder of their own, which is emptied if it holds those of another teacher or task.

    `identity` is what the outputs depend on; `rows` how many images the split has. Files that cannot be used are made anew.
    """

    def __init__(self, folder: Path, rows: int, kind: Kept, identity: Json) -> None:
        self.folder, self.rows, self.kind = folder, rows, KINDS[kind]
        self._files: dict[str, tuple[np.memmap, np.memmap]] = {}
        if is_first():
            self._open({"rows": rows, "kind": kind, **to_json(identity)})
        wait_for_all()

    def _open(self, record: dict[str, Json]) -> None:
        try:
            before = read_json(self.folder / RECORD)
        except BadFile:
            before = {}
        if before != record:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            write_json(self.folder / RECORD, record)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make room for outputs of these names and shapes (of one image). Every process calls it with the same ones."""
        wanted = {name: self._paths(name, shape) for name, shape in shapes.items()}
        if is_first():
            for two in wanted.values():
                for path, kind, size in two:
                    if not _fits(path, kind, size):
                        np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=size).flush()
        wait_for_all()
        for name, (rows, sums) in wanted.items():
            self._files[name] = np.load(rows[0], mmap_mode="r+"), np.load(sums[0], mmap_mode="r+")

    def _paths(self, name: str, shape: tuple[int, ...]) -> tuple[File, File]:
        """The files of rows and of checksums."""
        return (
            (self.folder / f"{name}.npy", self.kind, (self.rows, *shape)),
            (self.folder / f"{name}.sums.npy", np.dtype(np.uint32), (self.rows,)),
        )

    def take(self, indices_B: np.ndarray) -> dict[str, torch.Tensor] | None:
        """The outputs for these images, float32; None unless all of them are there."""
        found = {}
        for name, (rows, sums) in self._files.items():
            taken = np.asarray(rows[indices_B])
            if not np.array_equal(_sums(taken), sums[indices_B]):
                return None
            found[name] = torch.from_numpy(taken).float()
        return found

    def put(self, indices_B: np.ndarray, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Keep outputs for these images; they are returned as they will be taken.

        Raises `TrainingFailed` for numbers that are too large for the precision.
        """
        kept = {}
        for name, (rows, sums) in self._files.items():
            with np.errstate(over="ignore"):
                made = outputs[name].detach().float().cpu().numpy().astype(self.kind)
            if self.kind == KINDS["fp16"] and not np.isfinite(made).all():
                raise TrainingFailed("some of the ancestry's outputs are too large to be kept in fp16; use --kept fp32")
            rows[indices_B] = made
            sums[indices_B] = _sums(made)
            kept[name] = torch.from_numpy(made).float()
        return kept


def _fits(path: Path, kind: np.dtype, shape: tuple[int, ...]) -> bool:
    """Whether a file holds such an array."""
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, EOFError, ValueError):
        return False
    return (found.dtype, found.shape) == (kind, shape)


def _sums(rows: np.ndarray) -> np.ndarray:
    """A checksum of every row, never 0, which stands for none: its numbers' bits, added up."""
    words = np.ascontiguousarray(rows).reshape(len(rows), -1).view(f"u{rows.itemsize}")
    return (words.sum(axis=1, dtype=np.uint64) % np.uint64(2**32 - 1) + np.uint64(1)).astype(np.uint32)


class KeptTeacher:
    """A teacher that is asked about an image only if its outputs are not kept yet."""

    def __init__(self, teacher: Ancestor, store: Store) -> None:
        self.teacher, self.store = teacher, store
        store.prepare(shapes(teacher))

    def __call__(self, batch: Batch) -> Features:
        """The features of one batch, in the precision they are kept in, whether they were kept already or not."""
        indices_B = batch.indices.cpu().numpy()
        found = self.store.take(indices_B)
        if found is None:
            found = self.store.put(indices_B, parts_of(self.teacher(batch)))
        return features_of({name: tensor.to(batch.images.device) for name, tensor in found.items()})


def shapes(teacher: Ancestor) -> dict[str, tuple[int, ...]]:
    """The shape of each output of a teacher for one image, found by asking it about a black one."""
    model = teacher.model
    parameter = next(model.parameters())
    image_1CHW = parameter.new_zeros(1, model.patch_embed.proj.in_channels, *model.patch_embed.img_size)
    return {name: tuple(tensor.shape[1:]) for name, tensor in parts_of(teacher.asked(image_1CHW)).items()}


def check_room(folder: Path, images: int, bytes_per_image: int) -> None:
    """Raises `Unavailable` if outputs for so many images do not fit on the disk of `folder`."""
    wanted, free = images * bytes_per_image, shutil.disk_usage(nearest_parent(folder / RECORD)).free
    if wanted > free:
        raise Unavailable(
            f"the teacher's outputs for {images} images take {wanted / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free at "
            f"{folder}; use fewer images, --kept fp16, or leave out --keep-teacher"
        )


def bytes_of(shapes: Mapping[str, tuple[int, ...]], kind: Kept) -> int:
    """Bytes of the outputs for one image."""
    return sum(math.prod(shape) for shape in shapes.values()) * KINDS[kind].itemsize
