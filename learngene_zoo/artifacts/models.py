"""Opening any model: a descendant of ours, or a classifier of timm's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo.artifacts.hub import SCHEME, fetch_from_hub, parse_repository
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.artifacts.timm_model import TimmModel, load_timm_model, open_timm_model
from learngene_zoo.storage import CONFIG, read_json

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant


def is_timm_source(reference: object) -> bool:
    """Whether a reference names a model of timm's or of the Hub, and no folder."""
    return isinstance(reference, str) and reference.startswith(("timm:", "hf-hub:"))


def open_model(model: Descendant | TimmModel | Path | str, *, offline: bool = False) -> Descendant | TimmModel:
    """A model as it is, a descendant from what `find` finds, or any classifier of timm's, by name (`timm:NAME`,
    `hf-hub:organisation/name`) or from a folder in timm's layout.
    """
    if not isinstance(model, (str, Path)):
        return model
    if is_timm_source(model) and not _is_ours(str(model), offline):
        return open_timm_model(str(model), offline=offline)
    return load_model(find(model, offline=offline))


def load_model(folder: Path) -> Descendant | TimmModel:
    """The model in a folder: a descendant, or a classifier of timm's, trained here or not. Raises as both do."""
    from learngene_zoo.artifacts.descendant import load_descendant

    if (folder / CONFIG).is_file():
        config = read_json(folder / CONFIG)
        ours = config.get("learngene", {"method": "timm"})
        if "architecture" in config and isinstance(ours, dict) and ours.get("method") == "timm":
            return load_timm_model(folder)
    return load_descendant(folder)


def _is_ours(source: str, offline: bool) -> bool:
    """Whether `hf-hub:organisation/name` was published by this package."""
    if not source.startswith(SCHEME):
        return False
    repository = parse_repository(source)
    if repository.inside:
        return True
    config = read_json(fetch_from_hub(repository, CONFIG, offline=offline).path)
    ours = config.get("learngene", config if "method" in config else None)
    return isinstance(ours, dict) and ("spec" in ours)
