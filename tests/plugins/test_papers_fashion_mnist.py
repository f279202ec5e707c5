"""Fashion-MNIST from a folder of IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.catalogue import open_task
from lgzoo_papers.fashion_mnist import read_idx


def idx_folder(folder: Path, train: int = 5200, test: int = 30) -> Path:
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            with gzip.open(folder / f"{prefix}-{name}-ubyte.gz", "wb", compresslevel=1) as file:
                file.write(header + array.tobytes())
    return folder


def test_fashion_mnist_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGZOO_FASHION_MNIST", str(idx_folder(tmp_path)))
    task = open_task("fashion_mnist")
    train, validation, test = (task.split(name) for name in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (200, 5000, 30)
    images = test.__getitems__([3])
    assert images.shape == (1, 3, 32, 32)
    assert not images[..., :2].any()
    assert torch.equal(images[0, 0], images[0, 2])
    assert test.labels[3] == 3
    monkeypatch.setenv("LGZOO_FASHION_MNIST", str(tmp_path / "gone"))
    with pytest.raises(BadData, match=r"LGZOO_FASHION_MNIST is .*gone.* not a folder"):
        open_task("fashion_mnist")


def test_idx_files_are_read_strictly(tmp_path: Path) -> None:
    path = idx_folder(tmp_path, 20, 20) / "train-labels-idx1-ubyte.gz"
    data = gzip.decompress(path.read_bytes())
    assert read_idx(path, 1).tolist() == [number % 10 for number in range(20)]
    with pytest.raises(BadData, match="it is not the right IDX file"):
        read_idx(path, 3)
    for content in (data[:-1], data + b"x"):
        path.write_bytes(gzip.compress(content))
        with pytest.raises(BadData, match="bytes for shape"):
            read_idx(path, 1)
    for torn in (gzip.compress(data)[:-9], b"no archive", b""):
        path.write_bytes(torn)
        with pytest.raises(BadData, match="train-labels"):
            read_idx(path, 1)
    with pytest.raises(BadData, match="cannot be read"):
        read_idx(tmp_path / "none.gz", 1)
