"""Opening whatever folder it is: a learngene or a model. Cold at its top."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from learngene_zoo import shelf
from learngene_zoo.folder import CONFIG, read_json

if TYPE_CHECKING:
    from learngene_zoo.descendant import Descendant
    from learngene_zoo.learngene import Learngene


def kind_of(folder: Path) -> Literal["learngene", "model"]:
    """What a folder's config.json says that it is. Raises `BadFile` if it cannot be read."""
    return "model" if "architecture" in read_json(folder / CONFIG) else "learngene"


def load(reference: str | Path) -> Learngene | Descendant:
    """A learngene or a model, from a folder or by its name on the shelf.

    Raises `WrongCall` if there is none and `BadFile` if it cannot be trusted.
    """
    folder = shelf.find(reference)
    if kind_of(folder) == "learngene":
        from learngene_zoo.learngene import load as load_learngene

        return load_learngene(folder)
    from learngene_zoo.descendant import load_descendant

    return load_descendant(folder)
