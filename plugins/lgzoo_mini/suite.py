"""The suite `mini`: nine generated target tasks, the source task made of their like, `scenes` for
segmentation, and `digits`.

A `Generator` draws one family of pictures: the classes of its target task and, after them, held-out
classes of the same family, which only the task `source` shows. Every picture is a function of
(task, split, index). Shapes: N pictures, K draws.
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
    built_in,
    derive_seed,
    noise,
    split_sizes,
    uniform,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

    from learngene_zoo.plugin import Samples


# Raise it, and every task has other test images; results of two versions are never mixed
VERSION = 3
SIZE = 32  # pixels of a picture's side
GRAIN = 3 * SIZE * SIZE  # values of noise per picture
TRIES = 20_000  # rows that are drawn at most for a table of classes


@dataclass(frozen=True)
class Drawn:
    """A split whose pictures are drawn whenever they are read.

    It holds none, so it is cheap to pickle.
    """

    name: str
    images: int
    # The split's name, indices int64 (N,) -> their pictures
    draw: Callable[[str, np.ndarray], torch.Tensor | Samples]
    label: Callable[[np.ndarray], np.ndarray]  # indices int64 (N,) -> their classes, int64 (N,)

    @property
    def labels(self) -> np.ndarray:
        """int64 (images,)."""
        import numpy as np

        return self.label(np.arange(self.images, dtype=np.int64))

    def __len__(self) -> int:
        return self.images

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor | Samples:
        """uint8 (N, 3, SIZE, SIZE)."""
        import numpy as np

        return self.draw(self.name, np.asarray(indices, dtype=np.int64))


class Picture(NamedTuple):
    """Pictures uint8 (N, 3, SIZE, SIZE), and attributes by name, float32 (N,) each.

    `source` uses them (`source.ATTRIBUTES`).
    """

    images: torch.Tensor
    attributes: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True, kw_only=True)
class Generator:
    """One family of pictures.

    Class c is `classes[c]`, and from `len(classes)` on one of `held_out`.
    """

    name: str
    classes: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    streams: int  # random draws per picture
    # class numbers int64 (N,), draws float32 (N, K) in [0, 1), grain uint8 (N, GRAIN) -> pictures.
    # It computes element by element (no matrix product over N), so that a picture does not depend
    # on the others it is made with.
    paint: Callable[[np.ndarray, np.ndarray, np.ndarray], Picture]

    def pictures(
        self, classes_N: np.ndarray, key: int, indices: Sequence[int] | np.ndarray
    ) -> Picture:
        """The pictures at `indices` of these classes; `key` distinguishes tasks and splits."""
        grain = noise(derive_seed(key, "grain"), indices, GRAIN)
        return self.paint(classes_N, uniform(key, indices, self.streams), grain)

    def target(self, split: str, indices_N: np.ndarray) -> torch.Tensor:
        """The target task's pictures: its classes in turn."""
        return self.pictures(self.labels(indices_N), split_seed(self.name, split), indices_N).images

    def labels(self, indices_N: np.ndarray) -> np.ndarray:
        """Their classes."""
        return indices_N % len(self.classes)

    def split(self, name: str, images: int) -> Drawn:
        """A split of the target task."""
        return Drawn(name, images, self.target, self.labels)


def split_seed(name: str, split: str, version: int | None = None) -> int:
    """The seed of a task's split.

    That of the test images changes with the version, so that a new one has unseen ones.
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
    """int64 (rows, features): in column f a number below `choices[f]`; any two rows differ in at
    least `differing` columns.

    A function of its arguments: rows are drawn in turn and kept if they are far enough from all
    before.
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


# Each is drawn by the generator in the module of its name.
GENERATED = (
    _row(
        "objects",
        60,
        (8_000, 1_000, 2_000),
        "Composite things",
        "Bodies with parts and surfaces on clutter, 32 x 32, drawn by formula; in CIFAR-100's"
        " place.",
        flip=True,
    ),
    _row(
        "wings",
        40,
        (1_600, 800, 1_200),
        "Aeroplanes",
        "Silhouettes of planes that differ in sweep, tail and engines, drawn by formula; in"
        " FGVC-Aircraft's place.",
        flip=True,
    ),
    _row(
        "figures",
        2,
        (4_000, 1_000, 2_000),
        "Walkers or clutter",
        "A walking figure, or other strokes; grey and dim, drawn by formula; in Daimler's place.",
        flip=True,
    ),
    _row(
        "textures",
        24,
        (1_200, 600, 1_200),
        "Textures",
        "Stripes, cells, weaves and noise, freely turned and coloured, drawn by formula; in DTD's"
        " place.",
        flip=True,
    ),
    _row(
        "signs",
        43,
        (6_000, 1_000, 2_000),
        "Traffic signs",
        "Boards with rims and symbols in bad light, blurred and tilted; in GTSRB's place.",
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "glyphs",
        300,
        (6_000, 900, 1_800),
        "Letters of many alphabets",
        "Dark strokes on light paper, twenty pictures of each letter; real font outlines; in"
        " Omniglot's place.",
        licence=FONT_LICENCE,
        source=FONTS,
    ),
    _row(
        "numbers",
        10,
        (8_000, 1_000, 2_000),
        "House numbers",
        "A digit among others on coloured clutter; real font outlines; in SVHN's place.",
        licence=FONT_LICENCE,
        source=FONTS,
    ),
    _row(
        "motion",
        30,
        (1_500, 600, 1_200),
        "Dynamic images",
        "Eight frames of a moving thing, rank-pooled into one picture; in UCF101's place.",
        flip=True,
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "petals",
        102,
        (1_020, 510, 1_020),
        "Flowers",
        "Ten flowers of each kind among leaves, drawn by formula; in Flowers-102's place.",
        flip=True,
    ),
)

# Tasks that come with the suite and are not run with it. Each has a module of its name with a
# function `open_task`.
OTHERS = (
    _row(
        "source",
        326,
        (1_000_000, 4_000, 4_000),
        "The source task",
        "Contours, and of the nine tasks of mini classes that are held out, with attributes; in"
        " ImageNet's place.",
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "forms",
        1_286,
        (3_500_000, 4_000, 4_000),
        "The larger source task",
        "Gestures, silhouettes, fractals and composites, and of `source` all but wings and petals;"
        " drawn by formula.",
        licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    Entry(
        name="scenes",
        title="Landscapes with things in them",
        kind="segmentation",
        classes=6,
        sizes=split_sizes(2_000, 300, 500),
        licence="Apache-2.0",
        flip=True,
        source="generated",
        description=(
            "Sky, ground, water, discs, boxes and trees of any colour, pixel by pixel. No download."
        ),
    ),
    Entry(
        name="digits",
        title="Handwritten digits",
        classes=10,
        sizes=split_sizes(1_000, 297, 500),
        licence="CC-BY-4.0",
        source="scikit-learn load_digits (UCI 80, Alpaydin and Kaynak 1998)",
        description="Real 8 x 8 scans, bundled, enlarged to 32 x 32. No download.",
    ),
)


def open_task(entry: Entry, offline: bool) -> Task:
    """The task of an entry of this suite. Nothing is drawn or read yet."""
    if entry.name not in {generated.name for generated in GENERATED}:
        task: Task = import_module(f"lgzoo_mini.{entry.name}").open_task(entry)
        return task
    drawn = generator(entry.name)
    return built_in(entry, drawn.classes, lambda name: drawn.split(name, entry.sizes[name]))


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
    left_out=("wings", "petals"),  # by `forms`; `source` shows their like
)
