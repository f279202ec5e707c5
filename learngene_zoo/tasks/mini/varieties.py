"""`varieties`: a table of classes, each a row of choices, any two of which differ in several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learngene_zoo.run import derive_seed

_TRIES = 20_000


def varieties(family: str, choices: Sequence[int], rows: int, differing: int) -> np.ndarray:
    """int64 (rows, features): in column f a number below `choices[f]`; any two rows differ in at least `differing` columns.

    A function of its arguments: rows are drawn in turn and kept if they are far enough from all before.
    """
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, family, "classes")))
    kept = np.empty((0, len(choices)), dtype=np.int64)
    for row in draws.integers(0, choices, size=(_TRIES, len(choices))):
        if ((kept != row).sum(axis=1) >= differing).all():
            kept = np.concatenate([kept, row[None]])
        if len(kept) == rows:
            return kept
    raise AssertionError(f"{family}: only {len(kept)} of {rows} classes differ in {differing} of {choices}")
