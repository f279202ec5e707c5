"""Where the data of VTAB's tasks are found: in a folder of the user's, or on the Hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from learngene_zoo.plugin import BadData, Entry, HubSource

VARIABLE = "LGZOO_VTAB"
TRAIN, VALIDATION = 800, 200
PARQUET = "refs/convert/parquet"


class Row(NamedTuple):
    """A task of VTAB: its entry, its folder below `LGZOO_VTAB`, and its copy on the Hub."""

    entry: Entry
    folder: str
    hub: str


def find_folder(row: Row) -> Path | None:
    """Return the folder of a task below `LGZOO_VTAB`; None if the variable is not set.

    Raises `BadData` if it does not have that folder.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(os.path.expanduser(named)) / row.folder
    if not folder.is_dir():
        raise BadData(
            f"{VARIABLE} is {named!r}, which has no folder {row.folder}; correct it or unset it"
        )
    return folder


def find_source(row: Row) -> HubSource:
    """Return the source of a task on the Hub."""
    return HubSource(
        reference=row.hub,
        label="cls",
        alternative=f"set {VARIABLE} to a folder with {row.folder}/train800.txt",
    )
