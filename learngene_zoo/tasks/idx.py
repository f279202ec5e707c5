"""The IDX format of MNIST's children, gzipped: magic 0x0801 for labels, 0x0803 for images, big-endian sizes, bytes.

Read strictly: another magic, a wrong length or a damaged archive is an error, not a warning.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from learngene_zoo.errors import BadData

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of `dimensions` axes in a `.gz` IDX file. Raises `BadData` that names the file."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{path} cannot be read ({error}); fetch it anew") from None
    wanted = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    start = 4 + 4 * dimensions
    if content[:4] != wanted or len(content) < start:
        raise BadData(
            f"{path} begins with {content[:4].hex()}, not {wanted.hex()}: it is not the IDX file it should be"
        )
    shape = tuple(np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).tolist())
    if len(content) - start != math.prod(shape):
        raise BadData(f"{path} holds {len(content) - start} bytes for shape {shape}; fetch it anew")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
