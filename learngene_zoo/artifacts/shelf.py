"""The shelf of learngenes that come with the package; opening any artifact by name or path.

A card of the shelf is a folder, named METHOD-SIZE (`lsamd-mini`), of a learngene or of the ancestry
model. In a wheel the shelf is `learngene_zoo/cards`, in a checkout `cards` beside the package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.learngene import Learngene, load_learngene, read_config
from learngene_zoo.artifacts.records import (
    CONTROLS,
    LEARNGENES,
    LearngeneConfig,
    check_format,
    check_not_transformers,
    is_model_config,
    join_licences,
    parse_reference,
)
from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown, suggest_path
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.spec import LIMITS
from learngene_zoo.hub.client import SCHEME, find_cached_repository, parse_hub_reference
from learngene_zoo.registry import METHOD_GROUP, Plugins
from learngene_zoo.runs.folder import is_unfinished
from learngene_zoo.storage import (
    CONFIG,
    EXPORTED,
    read_json,
)

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant


Kind = Literal["learngene", "model"]
DEFAULT_SIZE = "mini"
BUNDLED = "bundled"  # the ancestry model on the shelf, see pretrained/sources.py
BUNDLED_CARD = "ancestry-mini"  # its name on the shelf
MAX_NAMED = 12  # in a message
_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")


@cache
def find_cards_folder() -> Path:
    """Return the folder of the cards, which need not exist."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "cards"
    return inside if inside.is_dir() else package.parent / "cards"


def list_names() -> list[str]:
    """Return the names of all cards, sorted, without reading them."""
    folder = find_cards_folder()
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, CONFIG))
        )


def list_learngenes() -> list[str]:
    """Return the names of all learngene cards (those that do not start with `ancestry-`)."""
    return [name for name in list_names() if not name.startswith("ancestry-")]


@dataclass(frozen=True, kw_only=True)
class ShelfEntry:
    """The facts about a learngene that a list of the shelf shows."""

    name: str
    method: str
    layers: int
    width: int
    image_size: int | None  # None for a text model
    tasks: tuple[str, ...]
    licence: str

    def __post_init__(
        self,
    ) -> None:  # by hand: `from_json` takes as long as reading and parsing the file
        for text in (self.name, self.method, self.licence, *self.tasks):
            if not isinstance(text, str):
                raise TypeError(f"expected a text, got {text!r:.40}")
        for size in ("layers", "width", "image_size"):
            value = getattr(self, size)
            if size == "image_size" and value is None:
                continue
            if type(value) is not int or not 1 <= value <= LIMITS[size]:
                raise TypeError(f"{size} is {value!r:.40}; it must be between 1 and {LIMITS[size]}")


def read_entry(folder: Path) -> ShelfEntry | None:
    """Return the list entry of a card, from one reading of its config.json; None for a model.

    The rest of the config is checked when the learngene is opened. Raises `BadFile` if these facts
    cannot be read.
    """
    path = folder / CONFIG
    data = read_json(path, before="card")  # the measurements, which are most of it
    if is_model_config(data):
        return None
    check_format(data, str(path))
    try:
        if data["method"] in CONTROLS and "config" in data["details"]:  # see `_upgrade_config`
            data = data["details"]["config"]
        spec = data["spec"]
        return ShelfEntry(
            name=folder.name,
            method=data["method"],
            layers=spec["layers"],
            width=spec["width"],
            image_size=None
            if "vocabulary" in spec
            else spec.get("image_size", PictureSpec.image_size),
            tasks=tuple(task["name"] for task in data.get("tasks", ())),
            licence=join_licences(
                record.get("licence", "unknown") for record in data.get("ancestries", ())
            ),
        )
    except KeyError as error:
        raise BadFile(f"{path}: the key {error} is missing; create or download it again") from error
    except (TypeError, AttributeError) as error:
        raise BadFile(
            f"{path} does not describe a learngene: {error}; create or download it again"
        ) from error


def may_be_on_hub(text: str) -> bool:
    """Return whether a reference that is not a folder may name a repository on the Hub."""
    return _HUB.fullmatch(text) is not None and not text.startswith(".")


def find(reference: str | Path, *, offline: bool = False) -> Path:
    """Return the folder of a path, a card (`lsamd-mini`), a method (`lsamd`) or a Hub repository.

    An existing folder comes first, unless it holds no `config.json` and a card has its name. The
    Hub is used only for `organisation/name@revision`, which is not a path into an existing folder,
    and for `hf-hub:organisation/name`. Raises `WrongCall` if there is nothing of that name, and as
    `fetch.fetch_repository` does.
    """
    parse_reference("the reference", reference, LEARNGENES)
    path, text = Path(reference), str(reference)
    if text and (path / CONFIG).is_file() and not text.startswith(SCHEME):
        return path
    card = find_card(text)
    if card is not None:
        return find_cards_folder() / card
    if text and path.is_dir():
        return path
    if path.is_file():
        use = (
            "; an exported file works with lgzoo evaluate (without --probe) and predict, if it has "
            "classes"
            if path.suffix in EXPORTED
            else ""
        )
        raise WrongCall(f"{path} is a file; give the folder that contains {CONFIG}{use}")
    repository = parse_hub_reference(text) if isinstance(reference, str) else None
    if repository is not None:
        from learngene_zoo.hub.fetch import fetch_repository

        return fetch_repository(repository, offline=offline).folder
    if text in Plugins[Any](METHOD_GROUP, "method", object).references():
        raise WrongCall(
            f"the shelf has no learngene of the method {text}; make one: lgzoo extract {text}"
        )
    if near := suggest_path(path, "", _is_artifact):
        raise WrongCall(f"no folder {path}; {near}")
    if text.startswith((".", "/", "~")) or (isinstance(reference, Path) and len(path.parts) > 1):
        raise WrongCall(
            f"no folder {path}; "
            "make a learngene with `lgzoo extract`, or see `lgzoo list learngenes`"
        )
    if may_be_on_hub(text):
        raise WrongCall(f"no folder {text}; on the Hub it would be {SCHEME}{text} or {text}@main")
    raise refuse_unknown("folder or learngene", text, list_learngenes())


def find_model(reference: str | Path, *, offline: bool = False) -> Path:
    """Return the folder of a model as `find` does; the error for none tells how to build one."""
    text = str(reference)
    is_named = find_card(text) is not None or (
        isinstance(reference, str) and parse_hub_reference(text) is not None
    )
    if not is_named and not Path(reference).exists():
        raise missing_model(reference)
    return find(reference, offline=offline)


def _is_artifact(path: Path) -> bool:
    """Return whether a path has the form of a learngene or a model."""
    return (path / CONFIG).is_file()


def missing_model(reference: str | Path) -> WrongCall:
    """Return the error for a reference to a model whose folder does not exist."""
    folder = Path(reference)
    run = folder.with_name(f"{folder.name}.run") if folder.name else folder
    near = suggest_path(folder, "", _is_artifact)
    hint = f"build one with `lgzoo expand --layers 7 -o {folder}`"
    if may_be_on_hub(str(reference)):
        hint = f"on the Hub it would be {SCHEME}{folder} or {folder}@main"
    elif is_unfinished(run):
        hint = f"the run in {run} has not finished: repeat its command with --resume"
    elif near:
        hint = near
    return WrongCall(f"there is no model at {folder}; {hint}")


def make_reference(folder: Path) -> str:
    """Return a reference that `find` resolves to a folder.

    It is the name of a card, a repository at its commit, else the path.
    """
    repository = find_cached_repository(folder) if "models--" in str(folder) else None
    if repository is not None:
        return str(repository)
    is_on_shelf = folder.parent == find_cards_folder() and is_card(folder.name)
    return folder.name if is_on_shelf else str(folder)


def is_card(name: str) -> bool:
    """Return whether the shelf has a card of that name."""
    return name == Path(name).name and (find_cards_folder() / name / CONFIG).is_file()


def is_ours(source: str) -> bool:
    """Return whether an ancestry model's source comes with the package: `bundled`, or a card."""
    return source == BUNDLED or (is_card(source) and not Path(source).exists())


def needs_task(task: str | None, provenance: Mapping[str, Any]) -> bool:
    """Return whether a user has to name a task for a model.

    Args:
        task: the task that the model records.
        provenance: of the model. The default task is used if its ancestry models all come with the
            package.
    """
    records = provenance.get("ancestries") or [{}]
    sources = [str(record.get("source", "")) for record in records]
    return task is None and not all(map(is_ours, sources))


def find_card(name: str) -> str | None:
    """Return the card of that name or method; the `mini` one if a method has several."""
    for card in (name, f"{name}-{DEFAULT_SIZE}"):
        if is_card(card):
            return card
    of_method = [card for card in list_names() if card.rpartition("-")[0] == name]
    if len(of_method) > 1:
        raise WrongCall(
            f"the shelf has several learngenes of {name}: {abbreviate_names(of_method)}; "
            "choose one of them"
        )
    return of_method[0] if of_method else None


def abbreviate_names(cards: Sequence[str]) -> str:
    """Return names of cards for a message: all, or the first few and the number of the rest."""
    more = len(cards) - MAX_NAMED
    return ", ".join(cards[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def read_kind(folder: Path) -> Kind:
    """Return whether a folder holds a learngene or a model, by its config.json.

    Raises `BadFile` if it cannot be read, or is neither.
    """
    config = read_json(folder / CONFIG)
    check_not_transformers(config, folder / CONFIG)
    if is_model_config(config):
        return "model"
    if not config.keys() & {"format", "method"}:
        raise BadFile(
            f"{folder} is neither a learngene nor a model: {CONFIG} has neither the keys of a "
            "learngene (format, method) nor that of a model (architecture)"
        )
    return "learngene"


@refuse_unknown_arguments
def load(reference: str | Path, *, offline: bool = False) -> Learngene | Descendant:
    """Load a learngene or a model, from a folder, by its name on the shelf or on the Hub.

    Raises `WrongCall` if there is none, `BadFile` if it cannot be trusted, and as `find` does.
    """
    folder = find(reference, offline=offline)
    if read_kind(folder) == "learngene":
        return load_learngene(folder)
    from learngene_zoo.artifacts.descendant import load_descendant

    return load_descendant(folder)


def find_with_config(
    learngene: str | Path | Learngene, offline: bool = False
) -> tuple[Path | Learngene, LearngeneConfig]:
    """Return a learngene or its folder, and its config, without opening its tensors."""
    if isinstance(learngene, Learngene):
        return learngene, learngene.config
    parse_reference("learngene", learngene, LEARNGENES)
    folder = find(learngene, offline=offline)
    return folder, read_config(folder)


def open_learngene(learngene: Learngene | Path | str, *, offline: bool = False) -> Learngene:
    """Return a learngene object as it is, or load it from a reference that `find` resolves.

    Raises `WrongCall` for an object of another type, and as `find` does.
    """
    if isinstance(learngene, Learngene):
        return learngene
    parse_reference("learngene", learngene, LEARNGENES)
    return load_learngene(find(learngene, offline=offline))


def open_descendant(model: Descendant | Path | str, *, offline: bool = False) -> Descendant:
    """Return a descendant object as it is, or load it from a reference that `find` resolves."""
    from learngene_zoo.artifacts.descendant import Descendant, load_descendant

    return model if isinstance(model, Descendant) else load_descendant(find(model, offline=offline))
