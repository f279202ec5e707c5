"""Count texts that occur more than once in a task. Copies are texts, or pairs, that are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Split

# The effect of copies in a split, by its name.
EFFECTS = {"test": ", so that test results are too good; remove the copies", "validation": ""}


def describe_duplicates(splits: Mapping[str, Split]) -> list[str]:
    """Return notes on texts of other splits that are also training texts, and on copies in train.

    Args:
        splits: train, validation and test, in memory.
    """
    texts = {name: _list_texts(split) for name, split in splits.items()}
    trained = set(texts["train"])
    notes = []
    for name, effect in EFFECTS.items():
        count = sum(text in trained for text in texts[name])
        if count:
            be = "is" if count == 1 else "are"
            notes.append(f"{count} of {len(texts[name])} {name} texts {be} also in train{effect}")
    copies = len(texts["train"]) - len(trained)
    if copies:
        notes.append(
            f"{copies} of {len(texts['train'])} training texts "
            f"{'is a copy of another' if copies == 1 else 'are copies of others'}"
            f"{_describe_conflicts(texts['train'], splits['train'])}"
        )
    return notes


def _list_texts(split: Split) -> list[Any]:
    return list(split.__getitems__(range(len(split))))


def _describe_conflicts(texts: list[Any], split: Split) -> str:
    """Return how many texts have copies with another class; "" if none has."""
    first: dict[Any, int] = {}
    labels = split.labels.tolist()
    unlike = {text for text, label in zip(texts, labels) if first.setdefault(text, label) != label}
    return f", {len(unlike)} with several classes" if unlike else ""
