"""What a painter knows of its pictures, in the words of `attributes`. All are float32 (N,)."""

from __future__ import annotations

import numpy as np

from learngene_zoo.tasks.mini.colours import hue_of


def hues(ink: np.ndarray, paper: np.ndarray) -> dict[str, np.ndarray]:
    """The hues of what is drawn and of what it is drawn on, colours (N, 3)."""
    return dict(zip(("ink_hue_x", "ink_hue_y", "paper_hue_x", "paper_hue_y"), (*hue_of(ink), *hue_of(paper))))


def pose(x: np.ndarray, y: np.ndarray, size: np.ndarray, angle: np.ndarray) -> dict[str, np.ndarray]:
    """Where the main thing is: its centre, its diameter as a share of the picture, and its rotation."""
    return {"x": x, "y": y, "size": 2 * size - 1, "angle_x": np.cos(angle), "angle_y": np.sin(angle)}
