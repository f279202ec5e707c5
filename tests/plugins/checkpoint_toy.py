"""Write every layout in which hypernetworks are released."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def write_pickle(path: Path, value: Any) -> None:
    """Write the bytes that `joblib.dump` writes of a dictionary of torch tensors."""
    path.write_bytes(pickle.dumps(value, protocol=4))


def build_joblib_writer(compress: int = 0, numpy: bool = False) -> Callable[[Path, Any], None]:
    def write(path: Path, value: Any) -> None:
        joblib = pytest.importorskip("joblib")
        joblib.dump(
            {k: v.numpy() for k, v in value.items()} if numpy else value, path, compress=compress
        )

    return write


def write_zip(path: Path, value: Any) -> None:
    torch.save(value, path)


def write_legacy(path: Path, value: Any) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


WRITERS = {
    "pickle": write_pickle,
    "joblib": build_joblib_writer(),
    "joblib of arrays": build_joblib_writer(numpy=True),
    "joblib, compressed": build_joblib_writer(compress=3),
    "joblib of arrays, compressed": build_joblib_writer(compress=3, numpy=True),
    "torch.save": write_zip,
    "torch.save before 1.6": write_legacy,
}
