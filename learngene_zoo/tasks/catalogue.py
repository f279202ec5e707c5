"""The tasks that have a name, and `open_task`, which also opens the user's own data. Cold.

What is listed here is known without opening anything: `lgzoo list tasks` reads no image and no network.

Suites: tasks that are used together, by one name. Cold.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.tasks.task import Entry, split_sizes
from lgzoo_mini.entries import MINI
from lgzoo_papers.entries import PAPERS

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task


DEFAULT_TASKS = ("objects", "signs", "glyphs")  # what an extraction sees

DEFAULT_TARGET = "digits"  # what a descendant is tuned on; no extraction of ours has seen a digit

SOURCE_TASK = "source"  # what the bundled ancestry model was trained on

OWN = (
    "folder:PATH, parquet:PATH or hf:org/name[:config], or to read in order wds:PATTERN or hf-stream:org/name[:config]"
)


ENTRIES: tuple[Entry, ...] = (
    *MINI,
    Entry(
        name="digits",
        title="Handwritten digits",
        classes=10,
        sizes=split_sizes(1_000, 297, 500),
        licence="CC-BY-4.0",
        module="lgzoo_mini.digits",
        source="scikit-learn load_digits (UCI 80, Alpaydin and Kaynak 1998)",
        description="Real 8 x 8 scans that come with scikit-learn, enlarged to 32 x 32. No download.",
    ),
    Entry(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        sizes=split_sizes(55_000, 5_000, 10_000),
        licence="MIT",
        module="lgzoo_papers.fashion_mnist",
        flip=True,
        source="zalando-datasets/fashion_mnist",
        description="Photographs of clothes, 28 x 28 grey. From LGZOO_FASHION_MNIST, Debian's package or the Hub.",
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        sizes=split_sizes(45_000, 5_000, 10_000),
        licence="unknown",
        module="lgzoo_papers.cifar",
        flip=True,
        source="uoft-cs/cifar10",
        description="Photographs of ten kinds of thing, 32 x 32, from the Hub.",
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        sizes=split_sizes(45_000, 5_000, 10_000),
        licence="unknown",
        module="lgzoo_papers.cifar",
        flip=True,
        source="uoft-cs/cifar100",
        description="Photographs of a hundred kinds of thing (the fine labels), 32 x 32, from the Hub.",
    ),
    *PAPERS,
)


def names() -> list[Entry]:
    """Every task with a name."""
    return list(ENTRIES)


def open_task(reference: str, *, offline: bool = False) -> Task:
    """The task of that name, or the user's own data: `folder:PATH`, `parquet:PATH`, `hf:org/name[:config]`.

    Data that does not fit the disk or the memory is read in order: `wds:PATTERN` of tars, `hf-stream:org/name[:config]`.

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
        from learngene_zoo.tasks.tables import open_parquet

        return open_parquet(rest)
    if kind == "hf":
        from learngene_zoo.tasks.hub_data import open_hub

        return open_hub(rest, offline)
    if kind == "wds":
        from learngene_zoo.tasks.streams.tars import open_tars

        return open_tars(rest, offline)
    if kind == "hf-stream":
        from learngene_zoo.tasks.streams.hub import open_hub_stream

        return open_hub_stream(rest, offline)
    raise WrongCall(f"{reference!r} is no task; write a name (see `lgzoo list tasks`) or {OWN}")


def _named(name: str, offline: bool) -> Task:
    entry = next((entry for entry in ENTRIES if entry.name == name), None)
    if entry is None:
        hint = unknown("task", name, [entry.name for entry in ENTRIES])
        raise WrongCall(f"{hint}; or write {OWN}")
    task: Task = import_module(entry.module).open_named(entry, offline)
    return task


SUITES: dict[str, tuple[str, ...]] = {
    "mini": ("objects", "wings", "figures", "textures", "signs", "glyphs", "numbers", "motion", "petals"),
    "decathlon": (
        "decathlon-aircraft",
        "decathlon-cifar100",
        "decathlon-daimlerpedcls",
        "decathlon-dtd",
        "decathlon-gtsrb",
        "decathlon-imagenet12",
        "decathlon-omniglot",
        "decathlon-svhn",
        "decathlon-ucf101",
        "decathlon-vgg-flowers",
    ),
    "lsamd12": (
        "cifar100",
        "cifar10",
        "tiny-imagenet",
        "inat2019",
        "food101",
        "cars",
        "flowers102",
        "pets",
        "dtd",
        "caltech101",
        "ade20k",
        "voc2012",
    ),
    "tal_unseen": ("fashion_mnist", "fer2013", "ham10000"),
}


def suite(name: str) -> tuple[str, ...]:
    """The names of its tasks. Raises `WrongCall` for a suite that does not exist."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return SUITES[name]


def suites_of(task: str) -> list[str]:
    """The names of the suites that a task is in."""
    return [name for name, tasks in SUITES.items() if task in tasks]
