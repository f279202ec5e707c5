"""The zoo's shelf, the learngenes and the ancestry model that come with the package; and opening any artifact by name or path.

A card is a folder with a `config.json`, named METHOD-SIZE (`lsamd-mini`). In a wheel the shelf is `learngene_zoo/cards`,
in a checkout `cards` beside the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.learngene import load as load_learngene
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.storage import CONFIG, read_json

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant

DEFAULT_SIZE = "mini"
_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")


def cards_folder() -> Path:
    """Where the cards are; the folder need not exist."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "cards"
    return inside if inside.is_dir() else package.parent / "cards"


def names() -> list[str]:
    """The names of all cards, sorted."""
    folder = cards_folder()
    return sorted(card.parent.name for card in folder.glob(f"*/{CONFIG}")) if folder.is_dir() else []


def find(reference: str | Path) -> Path:
    """The folder that a path, the name of a card (`lsamd-mini`) or the name of a method (`lsamd`) stands for.

    A folder that exists comes first, unless it holds no `config.json` and a card has its name. Raises `WrongCall` if there
    is nothing of that name.
    """
    path, text = Path(reference), str(reference)
    if text and (path / CONFIG).is_file():
        return path
    card = _card(text)
    if card is not None:
        return cards_folder() / card
    if text and path.is_dir():
        return path
    if path.is_file():
        raise WrongCall(f"{path} is a file; give the folder that contains {CONFIG}")
    if text.startswith((".", "/", "~")) or (isinstance(reference, Path) and len(path.parts) > 1):
        raise WrongCall(f"no folder {path}; make a learngene with `lgzoo extract`, or see `lgzoo list learngenes`")
    if _HUB.fullmatch(text):
        raise WrongCall(f"no folder {text}; download it from the Hub with `hf download {text}` and give its path")
    raise unknown("folder or learngene", text, names())


def reference(folder: Path) -> str:
    """What `find` finds a folder by: the name of a card, wherever the shelf is, else the path."""
    return folder.name if folder.parent == cards_folder() and folder.name in names() else str(folder)


def _card(name: str) -> str | None:
    """The card of that name, or the one of that method: the `mini` one if there are several."""
    known = names()
    if name in known:
        return name
    of_method = [card for card in known if card.rpartition("-")[0] == name]
    preferred = f"{name}-{DEFAULT_SIZE}"
    if preferred in of_method or not of_method:
        return preferred if of_method else None
    if len(of_method) > 1:
        raise WrongCall(f"the shelf has several learngenes of {name}: {', '.join(of_method)}; choose one of them")
    return of_method[0]


def kind_of(folder: Path) -> Literal["learngene", "model"]:
    """Which of the two a folder is, by its config.json. Raises `BadFile` if it cannot be read."""
    return "model" if "architecture" in read_json(folder / CONFIG) else "learngene"


def load(reference: str | Path) -> Learngene | Descendant:
    """A learngene or a model, from a folder or by its name on the shelf.

    Raises `WrongCall` if there is none and `BadFile` if it cannot be trusted.
    """
    folder = find(reference)
    if kind_of(folder) == "learngene":
        return load_learngene(folder)
    from learngene_zoo.artifacts.descendant import load_descendant

    return load_descendant(folder)


def open_learngene(learngene: Learngene | Path | str) -> Learngene:
    """A learngene as it is, or from its folder, or by its name on the shelf."""
    return learngene if isinstance(learngene, Learngene) else load_learngene(find(learngene))


def open_descendant(model: Descendant | Path | str) -> Descendant:
    """A descendant as it is, or from its folder, or by its name on the shelf."""
    from learngene_zoo.artifacts.descendant import Descendant, load_descendant

    return model if isinstance(model, Descendant) else load_descendant(find(model))
