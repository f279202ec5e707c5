"""Fresh memory for all parameters of a model at once.

Most of the time of building a large model from tensors that are at hand goes into the kernel handing out memory in pages
of 4 KiB. One mapping with large pages takes a third of it. Where that cannot be had, ordinary tensors are allocated.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping

import torch

_ALIGNMENT = 64  # bytes; what torch's own allocator gives
_LARGE_PAGE = 2 * 2**20


def uninitialised(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """One tensor per name, of arbitrary contents. Each has a storage of its own size, as `torch.empty` would give."""
    step = _ALIGNMENT // dtype.itemsize
    places, end = {}, 0
    for name, shape in shapes.items():
        places[name] = end
        end += -(-math.prod(shape) // step) * step
    memory = _large_pages(end * dtype.itemsize)
    if memory is None:
        return {name: torch.empty(shape, dtype=dtype, device="cpu") for name, shape in shapes.items()}
    return {
        name: torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=places[name] * dtype.itemsize).view(
            shape
        )
        for name, shape in shapes.items()
    }


def _large_pages(size: int) -> mmap.mmap | None:
    """Private memory that the kernel may back with large pages; None where that is impossible or not worth it."""
    if size < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages
        return None
    return memory
