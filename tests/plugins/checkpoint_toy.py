"""Writers of every layout that hypernetworks are released in."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def pickled(path: Path, value: Any) -> None:
    """What `joblib.dump` writes of a dictionary of torch tensors, byte by byte."""
    path.write_bytes(pickle.dumps(value, protocol=4))


def joblib_with(compress: int = 0, numpy: bool = False) -> Callable[[Path, Any], None]:
    def write(path: Path, value: Any) -> None:
        joblib = pytest.importorskip("joblib")
        joblib.dump({k: v.numpy() for k, v in value.items()} if numpy else value, path, compress=compress)

    return write


def zipped(path: Path, value: Any) -> None:
    torch.save(value, path)


def legacy(path: Path, value: Any) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


WRITERS = {
    "pickle": pickled,
    "joblib": joblib_with(),
    "joblib of arrays": joblib_with(numpy=True),
    "joblib, compressed": joblib_with(compress=3),
    "joblib of arrays, compressed": joblib_with(compress=3, numpy=True),
    "torch.save": zipped,
    "torch.save before 1.6": legacy,
}
