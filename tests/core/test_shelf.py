"""Where learngenes come from: folders first, then the shelf."""

from __future__ import annotations

from pathlib import Path

import pytest

from learngene_zoo.artifacts import shelf
from learngene_zoo.errors import WrongCall


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf with three cards, and a folder that is none; the working folder is empty."""
    place = tmp_path / "cards"
    for name in ("lsamd-mini", "lsamd-base", "ancestry-mini", "tal-small"):
        (place / name).mkdir(parents=True)
        (place / name / "config.json").write_text("{}")
    (place / "empty").mkdir()
    monkeypatch.setattr(shelf, "cards_folder", lambda: place)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return place


def test_names_are_the_folders_with_a_config(cards: Path) -> None:
    assert shelf.names() == ["ancestry-mini", "lsamd-base", "lsamd-mini", "tal-small"]


@pytest.mark.parametrize(
    ("reference", "card"),
    [("lsamd-base", "lsamd-base"), ("lsamd", "lsamd-mini"), ("tal", "tal-small"), ("ancestry", "ancestry-mini")],
)
def test_a_card_is_found_by_its_name_or_its_method(cards: Path, reference: str, card: str) -> None:
    assert shelf.find(reference) == cards / card


def test_a_record_names_a_card_and_not_where_the_shelf_lies(cards: Path) -> None:
    assert shelf.reference(shelf.find("tal")) == "tal-small"
    assert shelf.reference(Path("mine/learngene")) == str(Path("mine/learngene"))
    assert shelf.reference(cards / "empty") == str(cards / "empty")


def test_a_folder_comes_before_a_card_only_if_it_holds_a_config(cards: Path) -> None:
    here = Path("lsamd")
    here.mkdir()
    assert shelf.find("lsamd") == cards / "lsamd-mini"
    (here / "config.json").write_text("{}")
    assert shelf.find("lsamd") == here
    assert shelf.find(here) == here


def test_a_folder_without_a_config_is_left_to_its_reader(cards: Path) -> None:
    Path("mine").mkdir()
    assert shelf.find("mine") == Path("mine")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("lsmad-mini", "did you mean lsamd-mini"),
        ("./nowhere", "no folder"),
        ("/nowhere/at/all", "no folder"),
        ("org/repo", "hf download"),
        ("file", "is a file"),
        ("", "named ''"),
    ],
)
def test_what_is_not_there_is_a_clear_error(cards: Path, reference: str, says: str) -> None:
    Path("file").write_text("")
    with pytest.raises(WrongCall, match=says):
        shelf.find(reference)


def test_several_cards_of_a_method_without_the_usual_one_must_be_named(cards: Path) -> None:
    (cards / "tal-large").mkdir()
    (cards / "tal-large" / "config.json").write_text("{}")
    with pytest.raises(WrongCall, match="tal-large, tal-small"):
        shelf.find("tal")


def test_the_shelf_lies_in_the_package_or_beside_it(checkout: Path) -> None:
    folder = shelf.cards_folder()
    assert folder.name == "cards"
    assert folder.parent in (Path(shelf.__file__).resolve().parent, checkout)
