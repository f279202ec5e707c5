"""`[MODEL]`: the model that a command means when none is named."""

from __future__ import annotations

from pathlib import Path

import click

from learngene_zoo.artifact import kind_of
from learngene_zoo.errors import WrongCall


def model_argument() -> click.Argument:
    """A folder; optional, because the commands before this one have default places."""
    return click.Argument(["model"], required=False, type=click.Path(path_type=Path))


def model_of(named: Path | None, *places: str) -> Path:
    """The folder of the model: the one named, else the first of `places` that exists.

    Raises `WrongCall` if there is none, or if it holds a learngene.
    """
    folder = named or next((Path(place) for place in places if Path(place).is_dir()), None)
    if folder is None:
        wanted = " or ".join(f"./{place}" for place in places)
        raise WrongCall(f"there is no model at {wanted}; build one with `lgzoo expand --layers 7`, or name a folder")
    if not folder.is_dir():
        raise WrongCall(f"there is no model at {folder}; build one with `lgzoo expand --layers 7 -o {folder}`")
    if kind_of(folder) == "learngene":
        raise WrongCall(f"{folder} holds a learngene, not a model; build one with `lgzoo expand {folder} --layers 7`")
    return folder
