"""Sources of learngenes: folders first, then the shelf."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from watching import watched

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.cli.description.show import show
from learngene_zoo.cli.listing import print_listing
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import to_json
from learngene_zoo.storage import write_json


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a shelf with three cards and another folder; the working folder is empty."""
    folder = tmp_path / "cards"
    for name in ("lsamd-mini", "lsamd-base", "ancestry-mini", "tal-small"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    (folder / "empty").mkdir()
    monkeypatch.setattr(shelf, "find_cards_folder", lambda: folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_names_are_the_folders_with_a_config(cards: Path) -> None:
    assert shelf.list_names() == ["ancestry-mini", "lsamd-base", "lsamd-mini", "tal-small"]


@pytest.mark.parametrize(
    ("reference", "card"),
    [
        ("lsamd-base", "lsamd-base"),
        ("lsamd", "lsamd-mini"),
        ("tal", "tal-small"),
        ("ancestry", "ancestry-mini"),
    ],
)
def test_a_card_is_found_by_its_name_or_its_method(cards: Path, reference: str, card: str) -> None:
    assert shelf.find(reference) == cards / card


def test_a_record_names_a_card_and_not_where_the_shelf_lies(cards: Path) -> None:
    assert shelf.make_reference(shelf.find("tal")) == "tal-small"
    assert shelf.make_reference(Path("mine/learngene")) == str(Path("mine/learngene"))
    assert shelf.make_reference(cards / "empty") == str(cards / "empty")
    assert shelf.make_reference(Path("mine/tal-small")) == str(Path("mine/tal-small")), (
        "named like a card, but elsewhere"
    )


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
        ("org/repo", "on the Hub it would be hf-hub:org/repo"),
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
    folder = shelf.find_cards_folder()
    assert folder.name == "cards"
    assert folder.parent in (Path(shelf.__file__).resolve().parent, checkout)


SPEC = ViTSpec(layers=3, width=32, heads=2, classes=4, image_size=16, patch_size=8)


def learngene(**changes: object) -> dict[str, object]:
    """Return the config.json of a learngene of the method `toy`."""
    tasks = [{"name": name, "source": "somewhere"} for name in ("signs", "glyphs")]
    ancestries = [{"source": "local", "spec": to_json(SPEC), "licence": "mit"}]
    about = {
        "method": "toy",
        "format": 1,
        "spec": to_json(SPEC),
        "tasks": tasks,
        "ancestries": ancestries,
    }
    return {**about, **changes}


def put(place: Path, config: object) -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_an_entry_is_what_the_whole_config_says(tmp_path: Path) -> None:
    folder = put(tmp_path / "toy-mini", learngene())
    config = read_config(folder)
    assert shelf.read_entry(folder) == shelf.ShelfEntry(
        name="toy-mini",
        method=config.method,
        layers=config.spec.layers,
        width=config.spec.width,
        image_size=config.spec.image_size,
        tasks=("signs", "glyphs"),
        licence=config.licence,
    )


def test_the_measurements_of_a_card_are_not_read_for_a_list(tmp_path: Path) -> None:
    folder = put(tmp_path / "toy-mini", {})
    write_json(folder / "config.json", learngene(card={"rows": [12345, 2]}))
    data = (folder / "config.json").read_bytes()
    entry = shelf.read_entry(folder)
    (folder / "config.json").write_bytes(data.replace(b"12345", b"?????"))
    assert shelf.read_entry(folder) == entry


@pytest.mark.parametrize("cut", [3, 20, 60])
def test_a_card_that_ends_too_early_is_not_listed(tmp_path: Path, cut: int) -> None:
    folder = put(tmp_path / "toy-mini", {})
    write_json(folder / "config.json", learngene(card={"rows": [12345, 2]}))
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes()[:-cut])
    with pytest.raises(BadFile, match="not valid JSON"):
        shelf.read_entry(folder)


def test_an_entry_of_a_control_of_old_is_that_of_what_it_holds(tmp_path: Path) -> None:
    folder = put(
        tmp_path / "old", learngene(method="stem", details={"config": learngene(ancestries=[])})
    )
    entry = shelf.read_entry(folder)
    assert entry is not None
    assert (entry.method, entry.licence) == ("toy", "unknown")


def test_a_model_is_no_entry(tmp_path: Path) -> None:
    assert shelf.read_entry(put(tmp_path / "model", {"architecture": "vit"})) is None


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (learngene(format=7), "format is 7"),
        ({"format": 1, "method": "toy"}, "the key 'spec' is missing"),
        (learngene(spec=[]), "does not describe a learngene"),
        (learngene(spec={**to_json(SPEC), "layers": 10**30}), "layers is 1000.*between 1 and 512"),
        (learngene(spec={**to_json(SPEC), "width": 0}), "width is 0; it must be between 1 and"),
        (learngene(method=3), "expected a text, got 3"),
        (learngene(ancestries=[{"licence": {}}]), "does not describe a learngene"),
    ],
)
def test_a_card_that_cannot_be_listed_is_named(tmp_path: Path, config: object, says: str) -> None:
    with pytest.raises(BadFile, match=f"bad/config.json.*{says}"):
        shelf.read_entry(put(tmp_path / "bad", config))


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path) -> Path:
    """Create a shelf of 300 cards that `show` can read."""
    folder, config = (
        tmp_path / "many",
        (checkout / "cards" / "lsamd-mini" / "config.json").read_bytes(),
    )
    for number in range(300):
        (folder / f"method{number % 7}-size{number:03}").mkdir(parents=True)
        (folder / f"method{number % 7}-size{number:03}" / "config.json").write_bytes(config)
    monkeypatch.setattr(shelf, "find_cards_folder", lambda: folder)
    return folder


def test_a_list_reads_each_card_once(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watched() as activity:
        print_listing("learngenes", as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 300
    read = [path for path in activity.opened if path.startswith(f"{many}{os.sep}")]
    assert sorted(read) == sorted(str(many / name / "config.json") for name in shelf.list_names())


def complete() -> None:
    result = ShellComplete(main, {}, "lgzoo", "_LGZOO_COMPLETE").get_completions(
        ["expand", "method3-size010"], "--l"
    )
    assert "--layers" in {item.value for item in result}


@pytest.mark.parametrize(
    "call",
    [
        lambda: shelf.find("method3-size010"),
        lambda: shelf.make_reference(shelf.find("method3-size010")),
        lambda: show("method3-size010", None, "train", "exact", False, True, True),
        complete,
    ],
)
def test_what_is_about_one_card_neither_lists_nor_reads_the_others(
    many: Path, call: Callable[[], object]
) -> None:
    with watched() as activity:
        call()
    touched = {path for path in activity.read if path.startswith(str(many))}
    folder = many / "method3-size010"
    assert touched <= {str(folder), str(folder / "config.json")}


def test_the_card_of_a_method_is_found_without_reading_any(many: Path) -> None:
    with (
        watched() as activity,
        pytest.raises(WrongCall, match=r"method3-size003, method3-size010.* and 31 more"),
    ):
        shelf.find("method3")
    assert not [path for path in activity.opened if path.startswith(str(many))]
