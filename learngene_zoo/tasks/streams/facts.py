"""Cache facts about a stream (the number of images of each shard, and the classes), and build its
task.

The cache is in the folder LGZOO_CACHE (default ~/.cache/learngene_zoo), under a name that changes
with the data's sizes and times.
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
from learngene_zoo.tasks.splits.assembly import assemble_photo_task
from learngene_zoo.tasks.streams.order import (
    complete_streams,
    describe_made_splits,
    list_missing_splits,
)
from learngene_zoo.tasks.task import SPLITS, Split, Stream, Task

VARIABLE = "LGZOO_CACHE"
FACTS = "2"  # the version of the cached facts
Facts = dict[str, Any]


def load_facts(kind: str, stamps: Sequence[str], find: Callable[[], Facts]) -> Facts:
    """Return the JSON result of `find` for the data that `stamps` describe, from the cache.

    It is computed if it is not in the cache.
    """
    file = (
        cache_folder()
        / kind
        / f"{hashlib.sha256(chr(10).join(stamps).encode()).hexdigest()[:32]}.json"
    )
    with suppress(OSError, ValueError):
        facts = parse_json(file.read_bytes())
        if isinstance(facts, dict):
            return facts
    facts = find()
    # Failing to write only costs time in the next run.
    with suppress(OSError, ZooError), new_file(file, force=True) as draft:
        draft.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def cache_folder() -> Path:
    """Return the folder of cached facts about data."""
    return Path(os.path.expanduser(os.environ.get(VARIABLE) or "~/.cache/learngene_zoo"))


def make_stream_task(
    name: str,
    stored: Mapping[str, Stream],
    class_names: Sequence[str],
    notes: Sequence[str] = (),
    **fields: Any,
) -> Task:
    """Build the task of the stored streams; missing splits are taken from the training images.

    Args:
        name: the name of the task.
        stored: the stored streams by split.
        class_names: the classes in the order of their numbers.
        notes: further notes for users of the data.
        fields: fields of `Task`.

    Raises:
        BadData: for fewer than two classes, or too few images.
    """
    if len(class_names) < 2:
        raise BadData(
            f"{name} has one class ({', '.join(class_names) or 'none'}); a task needs at least two"
        )
    splits = complete_streams(name, stored)
    streamed = {
        "sizes": {split: sum(splits[split].counts) for split in SPLITS},
        "cut_splits": list_missing_splits(stored),
        "notes": (*describe_made_splits(stored), *notes),
        "open_split": partial(refuse_split, name),
        "open_stream": splits.__getitem__,
    }
    return assemble_photo_task(name, class_names, {}, {**streamed, **fields})


def refuse_split(name: str, split: str) -> Split:
    """Raise the error of a streamed task that is asked for single images."""
    raise WrongCall(
        f"{name} is streamed, so single images cannot be read; use its batches, or folder: or "
        "parquet: data"
    )
