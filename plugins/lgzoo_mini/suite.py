"""The suite `mini`: nine generated target tasks, two generated source tasks, `scenes` for
segmentation, and `digits`.

A `Generator` draws one family of images: the classes of its target task and, after them, held-out
classes of the same family, which only the source tasks use. Every image is a function of (task,
split, index). Shapes: N images, K draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from learngene_zoo.plugin import (
    Entry,
    Suite,
    Task,
    build_task,
    derive_seed,
    draw_noise,
    draw_uniform,
    split_sizes,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

    from learngene_zoo.plugin import Samples


# A higher number gives every task other test images; results of two versions are never mixed
VERSION = 3
SIZE = 32  # side of an image in pixels
GRAIN = 3 * SIZE * SIZE  # values of noise per image
TRIES = 20_000  # maximal number of rows that are drawn for a table of classes


@dataclass(frozen=True)
class Drawn:
    """A split whose images are drawn whenever they are read.

    It stores no images, so it is cheap to pickle.
    """

    name: str
    images: int
    # The split's name, indices int64 (N,) -> their images
    draw: Callable[[str, np.ndarray], torch.Tensor | Samples]
    label: Callable[[np.ndarray], np.ndarray]  # indices int64 (N,) -> their classes, int64 (N,)

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (images,)."""
        import numpy as np

        return self.label(np.arange(self.images, dtype=np.int64))

    def __len__(self) -> int:
        return self.images

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor | Samples:
        """Draw the images at these indices, uint8 (N, 3, SIZE, SIZE)."""
        import numpy as np

        return self.draw(self.name, np.asarray(indices, dtype=np.int64))


class Picture(NamedTuple):
    """Images uint8 (N, 3, SIZE, SIZE), and attributes by name, float32 (N,) each.

    `source` uses the attributes (`source.ATTRIBUTES`).
    """

    images: torch.Tensor
    attributes: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A family of images.

    Class c is `classes[c]`, and from `len(classes)` on one of `held_out`.
    """

    name: str
    classes: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    streams: int  # random draws per image
    # Class numbers int64 (N,), draws float32 (N, K) in [0, 1), grain uint8 (N, GRAIN) -> images.
    # Computes element by element (no matrix product over N), so that an image does not depend on
    # the batch.
    paint: Callable[[np.ndarray, np.ndarray, np.ndarray], Picture]

    def pictures(
        self, classes_N: np.ndarray, key: int, indices: Sequence[int] | np.ndarray
    ) -> Picture:
        """Draw the images of these classes at `indices`; `key` is the seed of task and split."""
        grain = draw_noise(derive_seed(key, "grain"), indices, GRAIN)
        return self.paint(classes_N, draw_uniform(key, indices, self.streams), grain)

    def target(self, split: str, indices_N: np.ndarray) -> torch.Tensor:
        """Draw the images of the target task at these indices."""
        return self.pictures(self.labels(indices_N), split_seed(self.name, split), indices_N).images

    def labels(self, indices_N: np.ndarray) -> np.ndarray:
        """Return the classes at these indices: the target classes in turn."""
        return indices_N % len(self.classes)

    def split(self, name: str, images: int) -> Drawn:
        """Return a split of the target task."""
        return Drawn(name, images, self.target, self.labels)


def split_seed(name: str, split: str, version: int | None = None) -> int:
    """Return the seed of a task's split.

    Only the seed of the test split depends on the version, so that a new version has unseen test
    images.
    """
    version = VERSION if version is None else version
    return derive_seed(0, name, split, *([version] if split == "test" and version > 1 else []))


FORM_KINDS = frozenset({"composites", "fractals", "gestures", "silhouettes"})


def generator(name: str) -> Generator:
    """Return the generator of a family: the constant in the module of that name, in capitals."""
    package = "lgzoo_mini.form_kinds" if name in FORM_KINDS else "lgzoo_mini"
    constant: Generator = getattr(import_module(f"{package}.{name}"), name.upper())
    return constant


def varieties(family: str, choices: Sequence[int], rows: int, differing: int) -> np.ndarray:
    """Draw rows of numbers, int64 (rows, features), that differ in at least `differing` columns.

    The result depends only on the arguments: rows are drawn in turn, and a row is used if it
    differs enough from all rows before.

    Args:
        family: name of the family, which seeds the draws.
        choices: numbers in column f are below `choices[f]`.
        rows: number of rows.
        differing: number of columns in which any two rows differ at least.
    """
    import numpy as np

    draws = np.random.Generator(np.random.PCG64(derive_seed(0, family, "classes")))
    kept = np.empty((0, len(choices)), dtype=np.int64)
    for row in draws.integers(0, choices, size=(TRIES, len(choices))):
        if ((kept != row).sum(axis=1) >= differing).all():
            kept = np.concatenate([kept, row[None]])
        if len(kept) == rows:
            return kept
    raise AssertionError(
        f"{family}: only {len(kept)} of {rows} classes differ in {differing} of {choices}"
    )


OWN_LICENCE, FONT_LICENCE = "Apache-2.0", "Bitstream-Vera"
FONTS = "outlines of the DejaVu faces in matplotlib"


def _row(
    name: str,
    classes: int,
    sizes: tuple[int, int, int],
    title: str,
    description: str,
    **changes: Any,
) -> Entry:
    settings = {"licence": OWN_LICENCE, "source": "generated", **changes}
    return Entry(
        name=name,
        classes=classes,
        sizes=split_sizes(*sizes),
        title=title,
        description=description,
        **settings,
    )


# Each is drawn by the generator in the module of the same name.
GENERATED = (
    _row(
        "objects",
        60,
        (8_000, 1_000, 2_000),
        "Composite objects",
        "Generated bodies with parts and surface patterns on clutter, 32 x 32. Counterpart of"
        " CIFAR-100.",
        flip=True,
    ),
    _row(
        "wings",
        40,
        (1_600, 800, 1_200),
        "Aeroplanes",
        "Generated silhouettes of aeroplanes that differ in sweep, tail and engines. Counterpart of"
        " FGVC-Aircraft.",
        flip=True,
    ),
    _row(
        "figures",
        2,
        (4_000, 1_000, 2_000),
        "Walkers and clutter",
        "Generated grey images of a walking person, or of its strokes in another arrangement."
        " Counterpart of Daimler pedestrians.",
        flip=True,
    ),
    _row(
        "textures",
        24,
        (1_200, 600, 1_200),
        "Textures",
        "Generated stripes, cells, weaves and noise in varying colours, scales and light."
        " Counterpart of DTD.",
        flip=True,
    ),
    _row(
        "signs",
        43,
        (6_000, 1_000, 2_000),
        "Traffic signs",
        "Generated boards with rims and symbols in bad light, blurred and tilted. Counterpart of"
        " GTSRB.",
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "glyphs",
        300,
        (6_000, 900, 1_800),
        "Letters of many alphabets",
        "Dark letters on light paper, from real font outlines, with 20 training images of each."
        " Counterpart of Omniglot.",
        licence=FONT_LICENCE,
        source=FONTS,
    ),
    _row(
        "numbers",
        10,
        (8_000, 1_000, 2_000),
        "House numbers",
        "A digit between others on coloured clutter, from real font outlines. Counterpart of SVHN.",
        licence=FONT_LICENCE,
        source=FONTS,
    ),
    _row(
        "motion",
        30,
        (1_500, 600, 1_200),
        "Dynamic images",
        "Eight frames of a moving thing, combined into one image by rank pooling. Counterpart of"
        " UCF101.",
        flip=True,
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "petals",
        102,
        (1_020, 510, 1_020),
        "Flowers",
        "Generated flowers among leaves, ten training images of each kind. Counterpart of"
        " Flowers-102.",
        flip=True,
    ),
)

# Tasks that belong to the suite but are not run with it. Each has a module of the same name with
# a function `open_task`.
OTHERS = (
    _row(
        "source",
        326,
        (1_000_000, 4_000, 4_000),
        "Source task with attributes",
        "Generated images for pretraining: contours, and classes that are held out from the nine"
        " tasks of mini. Counterpart of ImageNet.",
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "forms",
        1_286,
        (3_500_000, 4_000, 4_000),
        "Larger source task",
        "Generated images for pretraining: gestures, silhouettes, fractals and composites, and the"
        " classes of `source` except those of wings and petals.",
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    Entry(
        name="scenes",
        title="Landscapes with objects",
        kind="segmentation",
        classes=6,
        sizes=split_sizes(2_000, 300, 500),
        licence="Apache-2.0",
        flip=True,
        source="generated",
        description=(
            "Generated landscapes with sky, ground, water, discs, boxes and trees of any colour,"
            " labelled pixel by pixel."
        ),
    ),
    Entry(
        name="digits",
        title="Handwritten digits",
        classes=10,
        sizes=split_sizes(1_000, 297, 500),
        licence="CC-BY-4.0",
        source="scikit-learn load_digits (UCI 80, Alpaydin and Kaynak 1998)",
        description="Real 8 x 8 scans, enlarged to 32 x 32. Included in the package.",
    ),
)


def open_task(entry: Entry, offline: bool) -> Task:
    """Return the task of an entry of this suite. Images are drawn or read when they are needed."""
    if entry.name not in {generated.name for generated in GENERATED}:
        task: Task = import_module(f"lgzoo_mini.{entry.name}").open_task(entry)
        return task
    drawn = generator(entry.name)
    return build_task(entry, drawn.classes, lambda name: drawn.split(name, entry.sizes[name]))


MINI = Suite(
    name="mini",
    title="nine small generated tasks that mirror the Visual Decathlon",
    entries=(*GENERATED, *OTHERS),
    tasks=(
        "objects",
        "wings",
        "figures",
        "textures",
        "signs",
        "glyphs",
        "numbers",
        "motion",
        "petals",
    ),
    open=open_task,
    generated=tuple(entry.name for entry in (*GENERATED, *OTHERS) if entry.name != "digits"),
    version=VERSION,
    left_out=("wings", "petals"),  # by `forms`; `source` has held-out classes of them
)
