"""What opening a stream finds out: the images of each shard and the classes, found once and kept; and the task made of them.

Kept in the folder LGZOO_CACHE, else ~/.cache/learngene_zoo, under a name that changes with the data's sizes and times.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import BadData, WrongCall, ZooError
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.splits import classes_of_train, photo_task
from learngene_zoo.tasks.streams.order import completed, made_splits
from learngene_zoo.tasks.task import SPLITS, Split, Stream, Task

VARIABLE = "LGZOO_CACHE"
FACTS = "2"  # the version of what is kept
Facts = dict[str, Any]


def kept(kind: str, stamps: Sequence[str], find: Callable[[], Facts]) -> Facts:
    """What `find` returned, JSON, for the data that `stamps` describe: found once, then read from the user's cache."""
    file = cache_folder() / kind / f"{hashlib.sha256(chr(10).join(stamps).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        facts = parse_json(file.read_bytes())
        if isinstance(facts, dict):
            return facts
    facts = find()
    with (
        suppress(OSError, ZooError),
        new_file(file, force=True) as draft,
    ):  # a folder that cannot be written only costs time
        draft.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def cache_folder() -> Path:
    """Where what was found out about data is kept."""
    return Path(os.path.expanduser(os.environ.get(VARIABLE) or "~/.cache/learngene_zoo"))


def classes_of(name: str, labels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The labels of the training images, sorted by number if all are numbers, else by name.

    Raises `BadData` if another split has further ones.
    """
    train = classes_of_train(name, labels)
    return tuple(sorted(train, key=int if all(map(str.isdecimal, train)) else None))


def stream_task(
    name: str, found: Mapping[str, Stream], class_names: Sequence[str], notes: Sequence[str] = (), **fields: Any
) -> Task:
    """The task of the streams that were found, missing splits made of the training images. `fields` are fields of `Task`.

    Raises `BadData` for fewer than two classes, or too few images.
    """
    if len(class_names) < 2:
        raise BadData(f"{name} has one class ({', '.join(class_names) or 'none'}); a task needs at least two")
    splits = completed(name, found)
    streamed = {
        "sizes": {split: sum(splits[split].counts) for split in SPLITS},
        "notes": (*made_splits(found), *notes),
        "open_split": partial(_no_split, name),
        "open_stream": splits.__getitem__,
    }
    return photo_task(name, class_names, {}, {**streamed, **fields})


def _no_split(name: str, split: str) -> Split:
    raise WrongCall(
        f"{name} is streamed, so single images cannot be read; use its batches, or folder: or parquet: data"
    )
