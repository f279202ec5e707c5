"""Random numbers as functions of a seed and names. No state of a generator is ever saved.

`derive_seed` returns the seed for a generator. `draw_bits`, `draw_uniform` and `draw_noise` are
counter-based: each number depends only on (key, index, stream), so that any subset of the
indices gets the same numbers in any order and in any process. They apply splitmix64 (Steele, Lea,
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) to a counter. `seed_step`
seeds the global generators for one training step. `draw_balanced` and `split_stratified` draw
images of a data set by class.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_STEP = 0x9E3779B97F4A7C15


def derive_seed(seed: int, *names: object) -> int:
    """Return a seed below 2^63 that is a function of `seed` and the names."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch (all devices), numpy and random for one training step.

    Args:
        seed: seed of the run.
        step: number of the step.
        rank: rank of the process; each process gets other numbers.
    """
    import numpy as np
    import torch

    value = derive_seed(seed, "step", step, rank)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)


def draw_bits(key: int, indices: Sequence[int] | np.ndarray, streams: int) -> np.ndarray:
    """Return independent uniform bits for every index.

    Args:
        key: an integer, 0 <= key < 2^63.
        indices: the N counters.
        streams: how many words to return for each index.

    Returns:
        Words of 64 bits, uint64 (N, streams).
    """
    import numpy as np

    step = np.uint64(_STEP)
    counters_N = (np.asarray(indices).astype(np.uint64) + np.uint64(1)) * step + np.uint64(key)
    return _mix(
        _mix(counters_N)[:, None] + (np.arange(streams, dtype=np.uint64) + np.uint64(1)) * step
    )


def draw_uniform(key: int, indices: Sequence[int] | np.ndarray, streams: int) -> np.ndarray:
    """Return uniform numbers in [0, 1) for every index, float32 (N, streams).

    The arguments are those of `draw_bits`.
    """
    import numpy as np

    words = draw_bits(key, indices, streams) >> np.uint64(40)
    return words.astype(np.float32) * np.float32(2.0**-24)


def draw_noise(key: int, indices: Sequence[int] | np.ndarray, values: int) -> np.ndarray:
    """Return uniform bytes for every index, uint8 (N, values).

    `values` is a multiple of 8, since each word of `draw_bits` gives eight bytes. The other
    arguments are those of `draw_bits`.
    """
    import numpy as np

    return draw_bits(key, indices, values // 8).view(np.uint8)


def _mix(counters: np.ndarray) -> np.ndarray:
    import numpy as np

    bits = counters ^ (counters >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


# Stratified samples of images.


def interleave_classes(labels_N: np.ndarray, seed: int) -> np.ndarray:
    """Return all indices in an order in which every prefix is stratified by class, int64 (N,).

    Image j of the n_c images of class c is at position (j + u) / n_c, where u in [0, 1) is drawn
    from the seed.
    """
    import numpy as np

    draws_N2 = draw_uniform(derive_seed(seed, "order"), np.arange(len(labels_N)), 2)
    return np.argsort(_place_in_classes(labels_N, draws_N2, proportional=True), kind="stable")


def _place_in_classes(
    labels_N: np.ndarray, draws_N2: np.ndarray, *, proportional: bool
) -> np.ndarray:
    """Return the position of each image in its class, float64 (N,), by two uniform draws.

    The first draws order the images of a class, the second are added to their ranks. If
    `proportional`, positions are divided by the number of images of the class.
    """
    import numpy as np

    # Sort by class, then within each class by the first draw.
    order = np.lexsort((draws_N2[:, 0], labels_N))
    _, firsts, counts = np.unique(labels_N[order], return_index=True, return_counts=True)
    ranks_N = np.arange(len(order)) - np.repeat(firsts, counts)
    shares_N = np.repeat(counts, counts) if proportional else 1
    places_N = np.empty(len(order), dtype=np.float64)
    places_N[order] = (ranks_N + draws_N2[order, 1]) / shares_N
    return places_N


def split_stratified(labels_N: np.ndarray, counts: Sequence[int], seed: int) -> list[np.ndarray]:
    """Return disjoint sorted sets of indices, each stratified by class.

    Args:
        labels_N: class of each image, (N,).
        counts: sizes of the sets.
        seed: determines the sets.

    Raises:
        ValueError: if the sets together are larger than N.
    """
    import numpy as np

    order = interleave_classes(labels_N, seed)
    ends = np.cumsum(counts)
    if ends[-1] > len(order):
        raise ValueError(f"expected at most {len(order)} images in all parts, got {ends[-1]}")
    return [np.sort(order[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def draw_balanced(labels_N: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return `count` sorted indices, equally many of each class where there are enough.

    The result for a larger count includes the result for every smaller one.
    """
    import numpy as np

    key = derive_seed(seed, "order")
    candidates = _find_candidates(labels_N, count, key)
    draws_C2 = draw_uniform(key, candidates, 2)
    places_C = _place_in_classes(labels_N[candidates], draws_C2, proportional=False)
    chosen = np.argpartition(places_C, min(count, len(places_C)) - 1)[:count]
    return np.sort(candidates[chosen])


def _find_candidates(labels_N: np.ndarray, count: int, key: int) -> np.ndarray:
    """Return ascending indices that contain the images which `draw_balanced` selects.

    They are the first ones of each class by the first draw, somewhat more than can be selected, so
    that a task of a million images is not sorted for a few hundred of them.
    """
    import numpy as np

    labels_N = labels_N - labels_N.min()  # classes of no image do no harm
    sizes_K = np.bincount(labels_N)
    ranks = _count_ranks(sizes_K[sizes_K > 0], count)
    limits_K = (ranks + 6 * ranks**0.5 + 10) / np.maximum(sizes_K, 1)
    draws_N = draw_uniform(key, np.arange(len(labels_N)), 1)[:, 0]
    candidates = np.flatnonzero(draws_N < limits_K[labels_N])
    found_K = np.bincount(labels_N[candidates], minlength=len(sizes_K))
    if (found_K < np.minimum(sizes_K, ranks)).any():  # hardly ever
        return np.arange(len(labels_N))
    return candidates


def _count_ranks(sizes_K: np.ndarray, count: int) -> int:
    """Return how many images of each class are enough for `count` in total."""
    import numpy as np

    sizes = np.sort(sizes_K)
    # With m of each class, the classes of up to m images are used up.
    for number, size in enumerate(sizes):
        used, left = int(sizes[:number].sum()), len(sizes) - number
        if used + left * int(size) >= count:
            return max(-(-(count - used) // left), 1)
    return int(sizes[-1])
