"""The tasks that have a name, and `open_task`, which also opens the user's own data. Cold.

What is listed here is known without opening anything: `lgzoo list tasks` reads no image and no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall, unknown

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task

DEFAULT_TASKS = ("letters", "scripts", "typefaces")  # what an extraction sees
DEFAULT_TARGET = "digits"  # what a descendant is tuned on; no extraction of ours has seen a digit
SOURCE_TASK = "characters"  # what the bundled ancestry model was trained on
OWN = "folder:PATH, parquet:PATH or hf:org/name[:config] for your own data"
BUILT_IN = "learngene_zoo.tasks"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the catalogue. `module` holds the data (`parts` or `open_hub`); `hub` is its id on the Hub."""

    name: str
    title: str
    classes: int
    sizes: Mapping[str, int]
    licence: str
    description: str
    module: str
    flip: bool = False
    source: str = "built in"
    image_size: int = 32


def _sizes(train: int, validation: int, test: int) -> dict[str, int]:
    return {"train": train, "validation": validation, "test": test}


FONT_LICENCE = "Bitstream-Vera"
ENTRIES = (
    Entry(
        name="digits",
        title="Handwritten digits",
        classes=10,
        sizes=_sizes(1_000, 297, 500),
        licence="CC-BY-4.0",
        module="digits",
        source="scikit-learn load_digits (UCI 80, Alpaydin and Kaynak 1998)",
        description="Real 8 x 8 scans that come with scikit-learn, enlarged to 32 x 32. No download.",
    ),
    Entry(
        name="letters",
        title="Latin letters in twelve faces",
        classes=26,
        sizes=_sizes(10_000, 1_000, 2_000),
        licence=FONT_LICENCE,
        module="letters",
        source="outlines of the DejaVu faces in matplotlib",
        description="Which letter, capital or small, drawn from real font outlines in any colours. No download.",
    ),
    Entry(
        name="scripts",
        title="Writing systems",
        classes=12,
        sizes=_sizes(10_000, 1_000, 2_000),
        licence=FONT_LICENCE,
        module="scripts",
        source="outlines of DejaVu Sans in matplotlib",
        description="Which script a letter belongs to; training, validation and test share no letter. No download.",
    ),
    Entry(
        name="typefaces",
        title="Typefaces",
        classes=8,
        sizes=_sizes(10_000, 1_000, 2_000),
        licence=FONT_LICENCE,
        module="typefaces",
        source="outlines of the DejaVu faces in matplotlib",
        description="Which face two or three letters are set in; the splits share no group of letters. No download.",
    ),
    Entry(
        name="characters",
        title="200 letters and signs of many scripts",
        classes=200,
        sizes=_sizes(100_000, 4_000, 4_000),
        licence=FONT_LICENCE,
        module="characters",
        source="outlines of the DejaVu faces in matplotlib",
        description="Which of 200 characters, none of them a digit. What the bundled ancestry learnt on. No download.",
    ),
    Entry(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        sizes=_sizes(55_000, 5_000, 10_000),
        licence="MIT",
        module="fashion_mnist",
        flip=True,
        source="zalando-datasets/fashion_mnist",
        description="Photographs of clothes, 28 x 28 grey. From LGZOO_FASHION_MNIST, Debian's package or the Hub.",
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        sizes=_sizes(45_000, 5_000, 10_000),
        licence="unknown",
        module="cifar",
        flip=True,
        source="uoft-cs/cifar10",
        description="Photographs of ten kinds of thing, 32 x 32, from the Hub.",
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        sizes=_sizes(45_000, 5_000, 10_000),
        licence="unknown",
        module="cifar",
        flip=True,
        source="uoft-cs/cifar100",
        description="Photographs of a hundred kinds of thing (the fine labels), 32 x 32, from the Hub.",
    ),
)


def names() -> list[Entry]:
    """Every task with a name."""
    return list(ENTRIES)


def open_task(reference: str, *, offline: bool = False) -> Task:
    """The task of that name, or the user's own data: `folder:PATH`, `parquet:PATH`, `hf:org/name[:config]`.

    Raises `WrongCall` for a name that does not exist, `BadData` for data that cannot be used, and `Unavailable` if it
    must be downloaded and `offline` is set.
    """
    kind, colon, rest = reference.partition(":")
    if not colon:
        return _named(reference, offline)
    if not rest:
        raise WrongCall(f"{reference!r} names nothing after the colon; write {OWN}")
    if kind == "folder":
        from learngene_zoo.tasks.folders import open_folder

        return open_folder(rest)
    if kind == "parquet":
        from learngene_zoo.tasks.parquet import open_parquet

        return open_parquet(rest)
    if kind == "hf":
        from learngene_zoo.tasks.hub_data import open_hub

        return open_hub(rest, offline)
    raise WrongCall(f"{reference!r} is no task; write a name (see `lgzoo list tasks`) or {OWN}")


def _named(name: str, offline: bool) -> Task:
    entry = next((entry for entry in ENTRIES if entry.name == name), None)
    if entry is None:
        hint = unknown("task", name, [entry.name for entry in ENTRIES])
        raise WrongCall(f"{hint}; or write {OWN}")
    task: Task = import_module(f"{BUILT_IN}.{entry.module}").open_named(entry, offline)
    return task
