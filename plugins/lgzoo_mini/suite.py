"""The suite `mini`: nine generated target tasks, the source task made of their like, `scenes` for segmentation, and `digits`."""

from importlib import import_module
from typing import Any

from learngene_zoo.plugin import Entry, Suite, Task, split_sizes

OWN_LICENCE, FONT_LICENCE = "Apache-2.0", "Bitstream-Vera"
FONTS = "outlines of the DejaVu faces in matplotlib"


def _row(name: str, classes: int, sizes: tuple[int, int, int], title: str, description: str, **changes: Any) -> Entry:
    settings = {"licence": OWN_LICENCE, "source": "generated", **changes}
    return Entry(
        name=name, classes=classes, sizes=split_sizes(*sizes), title=title, description=description, **settings
    )


# Each is drawn by the generator in the module of its name.
GENERATED = (
    _row(
        "objects", 60, (8_000, 1_000, 2_000), "Composite things",
        "Bodies with parts and surfaces on clutter, 32 x 32, drawn by formula; in CIFAR-100's place.", flip=True,
    ),
    _row(
        "wings", 40, (1_600, 800, 1_200), "Aeroplanes",
        "Silhouettes of planes that differ in sweep, tail and engines, drawn by formula; in FGVC-Aircraft's place.",
        flip=True,
    ),
    _row(
        "figures", 2, (4_000, 1_000, 2_000), "Walkers or clutter",
        "A walking figure, or other strokes; grey and dim, drawn by formula; in Daimler's place.", flip=True,
    ),
    _row(
        "textures", 24, (1_200, 600, 1_200), "Textures",
        "Stripes, cells, weaves and noise, freely turned and coloured, drawn by formula; in DTD's place.", flip=True,
    ),
    _row(
        "signs", 43, (6_000, 1_000, 2_000), "Traffic signs",
        "Boards with rims and symbols in bad light, blurred and tilted; in GTSRB's place.", licence=FONT_LICENCE,
        source=f"generated, in part from {FONTS}",
    ),
    _row(
        "glyphs", 300, (6_000, 900, 1_800), "Letters of many alphabets",
        "Dark strokes on light paper, twenty pictures of each letter; real font outlines; in Omniglot's place.",
        licence=FONT_LICENCE, source=FONTS,
    ),
    _row(
        "numbers", 10, (8_000, 1_000, 2_000), "House numbers",
        "A digit among others on coloured clutter; real font outlines; in SVHN's place.", licence=FONT_LICENCE,
        source=FONTS,
    ),
    _row(
        "motion", 30, (1_500, 600, 1_200), "Dynamic images",
        "Eight frames of a moving thing, rank-pooled into one picture; in UCF101's place.", flip=True,
        licence=FONT_LICENCE, source=f"generated, in part from {FONTS}",
    ),
    _row(
        "petals", 102, (1_020, 510, 1_020), "Flowers",
        "Ten flowers of each kind among leaves, drawn by formula; in Flowers-102's place.", flip=True,
    ),
)  # fmt: skip

# Tasks that come with the suite and are not run with it. Each has a module of its name with a function `open_task`.
OTHERS = (
    _row(
        "source", 326, (1_000_000, 4_000, 4_000), "The source task",
        "Contours, and of the nine tasks of mini classes that are held out, with attributes; in ImageNet's place.",
        licence=FONT_LICENCE, source=f"generated, in part from {FONTS}",
    ),
    Entry(
        name="scenes", title="Landscapes with things in them", kind="segmentation", classes=6,
        sizes=split_sizes(2_000, 300, 500), licence="Apache-2.0", flip=True, source="generated",
        description="Sky, ground, water, discs, boxes and trees of any colour, pixel by pixel. No download.",
    ),
    Entry(
        name="digits", title="Handwritten digits", classes=10, sizes=split_sizes(1_000, 297, 500), licence="CC-BY-4.0",
        source="scikit-learn load_digits (UCI 80, Alpaydin and Kaynak 1998)",
        description="Real 8 x 8 scans that come with scikit-learn, enlarged to 32 x 32. No download.",
    ),
)  # fmt: skip


def open_task(entry: Entry, offline: bool) -> Task:
    """The task of an entry of this suite. Nothing is drawn or read yet."""
    if entry.name in {generated.name for generated in GENERATED}:
        from lgzoo_mini.generator import open_generated

        return open_generated(entry)
    task: Task = import_module(f"lgzoo_mini.{entry.name}").open_task(entry)
    return task


MINI = Suite(
    name="mini",
    title="nine small generated tasks that mirror the Visual Decathlon",
    entries=(*GENERATED, *OTHERS),
    tasks=("objects", "wings", "figures", "textures", "signs", "glyphs", "numbers", "motion", "petals"),
    open=open_task,
)
