"""`forms`: the larger source task. Four families that only this task uses, and the held-out classes
of eight families of `source`.

`wings` and `petals` are left out, so that their target tasks measure transfer to families that were
not seen in pretraining. An image is a function of (split, index); none is stored. The class of an
index follows a fixed timetable. Shapes: N images.
"""

import numpy as np
import torch

from learngene_zoo.plugin import Entry, Task, build_task
from lgzoo_mini.source import Mixture
from lgzoo_mini.suite import SIZE, Drawn

# Number of images of each family among 32 consecutive ones; 20 are of `form_kinds`.
TURNS = {
    "gestures": 8, "silhouettes": 6, "fractals": 3, "composites": 3, "contours": 2, "objects": 1,
    "figures": 1,
    "textures": 2, "signs": 1, "glyphs": 3, "numbers": 1, "motion": 1,
}  # fmt: skip


FORMS = Mixture("forms", TURNS)


def labels_of(indices_N: np.ndarray) -> np.ndarray:
    """Return the class at every index, int64 (N,)."""
    return FORMS.labels_of(indices_N)


def draw(split: str, indices_N: np.ndarray) -> torch.Tensor:
    """Draw the images at these indices, uint8 (N, 3, SIZE, SIZE)."""
    images = torch.empty(len(indices_N), 3, SIZE, SIZE, dtype=torch.uint8)
    for places, made in FORMS.parts(split, indices_N):
        images[torch.from_numpy(places)] = made.images
    return images


def open_task(entry: Entry) -> Task:
    """Return the task of its catalogue entry. Images are drawn when they are read."""
    return build_task(
        entry, FORMS.class_names, lambda name: Drawn(name, entry.sizes[name], draw, labels_of)
    )
