"""Random numbers by counter: each is a function of (key, index, stream) alone, whatever was drawn before it.

splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) applied to a counter. No state,
so any subset of the indices, in any order, in any process, gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(counters: np.ndarray) -> np.ndarray:
    bits = counters ^ (counters >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def bits(key: int, indices: Sequence[int] | np.ndarray, streams: int) -> np.ndarray:
    """uint64 (N, streams): independent uniform bits for every index. `key` is 0 <= key < 2^63."""
    counters_N = (np.asarray(indices).astype(np.uint64) + np.uint64(1)) * _STEP + np.uint64(key)
    return _mix(_mix(counters_N)[:, None] + (np.arange(streams, dtype=np.uint64) + np.uint64(1)) * _STEP)


def uniform(key: int, indices: Sequence[int] | np.ndarray, streams: int) -> np.ndarray:
    """float32 (N, streams) in [0, 1)."""
    return (bits(key, indices, streams) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def noise(key: int, indices: Sequence[int] | np.ndarray, values: int) -> np.ndarray:
    """uint8 (N, values), uniform; `values` is a multiple of 8 (one word of bits makes eight)."""
    return bits(key, indices, values // 8).view(np.uint8)
