"""What a learngene or a descendant says of its origin. Cold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from learngene_zoo.learngene import AncestryRecord, TaskRecord
from learngene_zoo.version import __version__

if TYPE_CHECKING:
    from learngene_zoo.ancestry import Ancestry
    from learngene_zoo.tasks.task import Task

_PACKAGES = ("torch", "timm", "safetensors", "accelerate", "datasets")


def versions() -> dict[str, str]:
    """The versions of this package and of those whose numerics it depends on, as far as they are installed."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"learngene_zoo": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def ancestry_records(ancestries: Sequence[Ancestry]) -> tuple[AncestryRecord, ...]:
    """The records of ancestry models, in order."""
    return tuple(ancestry.record for ancestry in ancestries)


def task_records(tasks: Sequence[Task]) -> tuple[TaskRecord, ...]:
    """The records of tasks, in order."""
    return tuple(task.record for task in tasks)
