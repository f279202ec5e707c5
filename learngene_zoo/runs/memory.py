"""Memory that is freed and needed again: the settings of the C library for large tensors.

By default glibc returns the memory of a large tensor to the system when it is freed. The next
tensor of this size gets new pages, and each of 4 KiB costs an interrupt that clears it. A training
step frees and needs the same tensors again and again; see benchmarks/timings/freed_memory.py.
"""

from __future__ import annotations

import os
import sys
from functools import cache

# Blocks of up to this size come from memory that is kept; as much of it is kept when it is free.
MOST_KEPT = 256 * 2**20
MARGIN = 64 * 2**20  # by which the memory grows at once
# Parameters of mallopt(3), and the variables by which a user sets them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_OF_THE_USER = (
    *("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_"),
    "GLIBC_TUNABLES",
)


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory of freed tensors for new ones; return whether it does.

    Only glibc is told so, and only if none of its own settings is in the environment.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _OF_THE_USER):
        return False
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    for name, value in (
        (_MMAP_THRESHOLD, MOST_KEPT),
        (_TRIM_THRESHOLD, MOST_KEPT),
        (_TOP_PAD, MARGIN),
    ):
        library.mallopt(name, value)
    return True
