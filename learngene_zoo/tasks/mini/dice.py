"""`Dice`: the draws of N pictures, read one stream after the other by what they are for."""

from __future__ import annotations

import numpy as np


class Dice:
    """Reads float32 (N, K) draws in [0, 1) stream by stream. Every method gives one value for each picture."""

    def __init__(self, draws_NK: np.ndarray) -> None:
        self._draws = np.ascontiguousarray(draws_NK.T)
        self.taken = 0

    def share(self) -> np.ndarray:
        """float32 (N,) in [0, 1)."""
        self.taken += 1
        return self._draws[self.taken - 1]

    def between(self, low: float, high: float) -> np.ndarray:
        """float32 (N,) in [low, high)."""
        return self.share() * np.float32(high - low) + np.float32(low)

    def around(self, reach: float) -> np.ndarray:
        """float32 (N,) in [-reach, reach)."""
        return self.between(-reach, reach)

    def turn(self) -> np.ndarray:
        """An angle in [0, 2 pi)."""
        return self.between(0, 2 * np.pi)

    def choice(self, count: int) -> np.ndarray:
        """int64 (N,), 0 to count - 1."""
        return np.minimum((self.share() * np.float32(count)).astype(np.int64), count - 1)

    def side(self) -> np.ndarray:
        """-1 or 1, float32 (N,)."""
        return np.where(self.share() < np.float32(0.5), np.float32(-1), np.float32(1))

    def happens(self, chance: float) -> np.ndarray:
        """1 with this chance, else 0; float32 (N,)."""
        return (self.share() < np.float32(chance)).astype(np.float32)
