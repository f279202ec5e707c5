"""`cifar10` and `cifar100`: small photographs (Krizhevsky 2009), from the Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learngene_zoo.plugin import Task, open_hub

if TYPE_CHECKING:
    from learngene_zoo.plugin import Entry


def open_named(entry: Entry, offline: bool) -> Task:
    """The task of this catalogue entry."""
    return open_hub(entry.source, offline, entry)
