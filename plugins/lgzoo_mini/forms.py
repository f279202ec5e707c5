"""`forms`: the larger source task. Four kinds of forms made for it, and the held-out classes of
eight families of `source`.

`wings` and `petals` are left out entirely, so that their target tasks say what a model learnt of
pictures it never saw the like of. A picture is a function of (split, index); none is stored. The
class of an index follows a fixed timetable. Shapes: N pictures.
"""

import numpy as np
import torch

from learngene_zoo.plugin import Entry, Task, built_in
from lgzoo_mini.source import Mixture
from lgzoo_mini.suite import SIZE, Drawn

# Of 32 pictures in a row, how many each kind or family has; 20 are of the new kinds.
TURNS = {
    "gestures": 8, "silhouettes": 6, "fractals": 3, "composites": 3, "contours": 2, "objects": 1,
    "figures": 1,
    "textures": 2, "signs": 1, "glyphs": 3, "numbers": 1, "motion": 1,
}  # fmt: skip


FORMS = Mixture("forms", TURNS)


def labels_of(indices_N: np.ndarray) -> np.ndarray:
    """The class at every index, int64 (N,)."""
    return FORMS.labels_of(indices_N)


def draw(split: str, indices_N: np.ndarray) -> torch.Tensor:
    """uint8 (N, 3, SIZE, SIZE)."""
    images = torch.empty(len(indices_N), 3, SIZE, SIZE, dtype=torch.uint8)
    for places, made in FORMS.parts(split, indices_N):
        images[torch.from_numpy(places)] = made.images
    return images


def open_task(entry: Entry) -> Task:
    """The task of its catalogue entry. Nothing is drawn yet."""
    return built_in(
        entry, FORMS.class_names, lambda name: Drawn(name, entry.sizes[name], draw, labels_of)
    )
