"""Suites: tasks that are used together, by one name. Cold."""

from __future__ import annotations

from learngene_zoo.errors import unknown

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
