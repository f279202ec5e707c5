"""Count the labels of a stream in one pass: images and classes of each split, and the splits named
in the samples.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.labels import SPLIT_COLUMN
from learngene_zoo.tasks.splits.assembly import describe_untested
from learngene_zoo.tasks.splits.roles import find_roles
from learngene_zoo.tasks.streams.order import MIN_SHARDS, SHARES, StreamSelection, assign_splits
from learngene_zoo.tasks.task import SPLITS, Stream

Facts = dict[str, Any]
Shards = list[list[str]]  # one text for each image of each shard


@dataclass
class Tally:
    """The labels of every shard of each split, and the splits that the samples name ("": none)."""

    labels: dict[str, Shards] = field(default_factory=dict)
    words: dict[str, Shards] = field(default_factory=dict)

    def begin(self, split: str) -> None:
        """Begin the next shard of a split."""
        self.labels.setdefault(split, []).append([])
        self.words.setdefault(split, []).append([])

    def add(self, split: str, label: str = "", word: str = "") -> None:
        """Add an image to the current shard of a split."""
        self.labels[split][-1].append(sys.intern(label))
        self.words[split][-1].append(sys.intern(word))

    def facts(self, name: str) -> Facts:
        """Return the number of images of each shard, the classes of each split, and roles, as JSON.

        `trained` and `tested` are the classes of training and test images once missing splits are
        made. If the samples divide the stream, `roles` has a digit for every image of every shard:
        the index of its split in `SPLITS`.

        Raises `BadData` for a sample whose split is unclear.
        """
        roles = self._read_roles(name)
        parts = self.labels if roles is None else self._divide(roles)
        trained, tested = _split_train(parts)
        return {
            "name": name,
            "counts": {
                split: [len(shard) for shard in shards] for split, shards in self.labels.items()
            },
            "labels": {split: _list_distinct(shards) for split, shards in parts.items()},
            "trained": _list_distinct([trained]),
            "tested": _list_distinct([tested]),
            "roles": roles,
        }

    def _read_roles(self, name: str) -> list[str] | None:
        """Return the digits of every shard.

        None if the samples name no splits, or only those of their shards.
        """
        words_of = {split: set(chain.from_iterable(shards)) for split, shards in self.words.items()}
        roles_of = {word: find_roles(word) for words in words_of.values() for word in words}
        if not any(roles_of.values()):
            return None
        odd = next((word for word, roles in roles_of.items() if len(roles) != 1), None)
        if odd is not None:
            raise BadData(
                f"{name}: an image has the {SPLIT_COLUMN} {odd!r}; expected train, validation or "
                "test in each"
            )
        if len(words_of) == 1:
            if ["train"] not in roles_of.values():
                raise BadData(
                    f"{name}: no image has the {SPLIT_COLUMN} train; mark the training images"
                )
            digit = {word: str(SPLITS.index(roles[0])) for word, roles in roles_of.items()}
            return ["".join(digit[word] for word in shard) for shard in self.words["train"]]
        for split, words in words_of.items():
            other = next((word for word in sorted(words) if roles_of[word] != [split]), None)
            if other is not None:
                raise BadData(
                    f"{name}: an image of {split} has the {SPLIT_COLUMN} {other!r}; correct it or "
                    "the file's name"
                )
        return None

    def _divide(self, roles: Sequence[str]) -> dict[str, Shards]:
        """Return the labels of each split that the samples name."""
        return {
            split: [
                [label for label, digit in zip(labels, digits, strict=True) if digit == str(number)]
                for labels, digits in zip(self.labels["train"], roles, strict=True)
            ]
            for number, split in enumerate(SPLITS)
            if any(str(number) in digits for digits in roles)
        }


def _list_distinct(shards: Shards) -> list[str]:
    return sorted(set(chain.from_iterable(shards)) - {""})


def _split_train(parts: Mapping[str, Shards]) -> tuple[list[str], list[str]]:
    """Return the labels of training and of test images, once missing splits are made."""
    missing = [split for split in SHARES if not any(parts.get(split, ()))]
    shards = parts.get("train", [])
    labels = list(chain.from_iterable(shards))
    if len(shards) >= MIN_SHARDS:
        roles = np.repeat(
            assign_splits(np.arange(len(shards)), missing), [len(shard) for shard in shards]
        )
    else:
        roles = assign_splits(np.arange(len(labels)), missing)
    by_role: dict[int, list[str]] = {}
    for label, number in zip(labels, roles.tolist(), strict=True):
        by_role.setdefault(number, []).append(label)
    test = (
        by_role.get(SPLITS.index("test"), [])
        if "test" in missing
        else list(chain.from_iterable(parts["test"]))
    )
    return by_role.get(0, []), test


def divide_stream(stored: Mapping[str, Stream], facts: Facts) -> dict[str, Stream]:
    """Return the stream of each split; one whose samples name splits is divided by them."""
    roles = facts["roles"]
    if roles is None:
        return dict(stored)
    digits = [np.frombuffer(text.encode(), dtype=np.uint8) - ord("0") for text in roles]
    members = {
        split: tuple(shard == number for shard in digits) for number, split in enumerate(SPLITS)
    }
    return {
        split: StreamSelection(stored["train"], mine)
        for split, mine in members.items()
        if any(map(np.any, mine))
    }


def check_trained(name: str, facts: Facts) -> None:
    """Check that every class keeps a training image once missing splits are made.

    Raises `BadData` otherwise.
    """
    lost = sorted(set(facts["labels"].get("train", ())) - set(facts["trained"]))
    if lost:
        other_classes = (
            f" (also: {', '.join(lost[1:5])}{' and more' if len(lost) > 5 else ''})"
            if lost[1:]
            else ""
        )
        raise BadData(
            f"{name}: class {lost[0]!r} has no training image{other_classes} once a test and a "
            "validation split are made; "
            "give both, or more images"
        )


def list_untested(
    facts: Facts, class_names: Sequence[str], numbers: Mapping[str, int]
) -> Iterator[str]:
    """Yield a line that names the classes without test images, if there are any.

    Tasks with masks, which have no `numbers`, are skipped.
    """
    if not numbers:
        return
    tested = [numbers[label] for label in facts["tested"] if label in numbers]
    yield from describe_untested(np.array(tested, dtype=np.int64), class_names, "image")
