"""What is suggested for a name that does not exist: something near, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from learngene_zoo import errors
from learngene_zoo.errors import count_slips, find_nearest, refuse_unknown, suggest_path

TIMM = [
    "rdnet_tiny",
    "deit_tiny_distilled_patch16_224",
    "deit_tiny_patch16_224",
    "deit_small_patch16_224",
    "vit_huge",
]
TASKS = ["objects", "wings", "signs", "digits", "numbers", "tiny-imagenet"]
METHODS = ["lsamd", "peg", "tleg", "first_k", "fine", "weight_selection", "closed_form", "pool"]
OPTIONS = ["num-heads", "heads", "layers", "lr", "batch-size", "rounds", "seed", "image-size"]
VERBS = ["extract", "evaluate", "expand", "export", "list"]


@pytest.mark.parametrize(
    ("got", "known", "close"),
    [
        ("deit_tiny", TIMM, "deit_tiny_patch16_224"),
        ("DEIT-TINY", TIMM, "deit_tiny_patch16_224"),
        ("tiny_deit", TIMM, "deit_tiny_patch16_224"),
        ("deit_tyny", TIMM, "deit_tiny_patch16_224"),
        ("deit_tny_patch16_224", TIMM, "deit_tiny_patch16_224"),
        ("vit", TIMM, "vit_huge"),
        ("sings", TASKS, "signs"),
        ("digit", TASKS, "digits"),
        ("obects", TASKS, "objects"),
        ("tiny_imagenet", TASKS, "tiny-imagenet"),
        ("imagenet", TASKS, "tiny-imagenet"),
        ("DIGITS", TASKS, "digits"),
        ("lsmd", METHODS, "lsamd"),
        ("tlge", METHODS, "tleg"),
        ("selection", METHODS, "weight_selection"),
        ("rund", OPTIONS, "rounds"),
        ("laers", OPTIONS, "layers"),
        ("sed", OPTIONS, "seed"),
        ("batch", OPTIONS, "batch-size"),
        ("exract", VERBS, "extract"),
        ("val", VERBS, "evaluate"),
        ("in_chans", OPTIONS, None),
        ("nope", METHODS, None),
        ("modules", ["methods", "learngenes", "tasks", "ancestries"], None),
        ("resnet50", TIMM, None),
        ("x", METHODS, None),
        ("gpu", ["auto", "cpu", "cuda", "mps"], None),
        ("", METHODS, None),
        ("tal", [], None),
    ],
)
def test_a_suggestion_is_near_or_there_is_none(
    got: str, known: list[str], close: str | None
) -> None:
    assert find_nearest(got, known) == close


def test_what_is_not_near_is_answered_with_what_there_is() -> None:
    assert (
        str(refuse_unknown("method", "nope", ["b", "a"])) == "no method named 'nope'; known: a, b"
    )
    assert (
        str(refuse_unknown("method", "tlge", ["tleg"]))
        == "no method named 'tlge'; did you mean tleg?"
    )


def test_of_many_names_the_similar_ones_and_a_command_are_named() -> None:
    names = [f"{name}-{size}" for name in ("closed_form", "pool", "lsamd") for size in range(10)]
    message = str(refuse_unknown("folder or learngene", "loop-7", names))
    similar = message.partition("similar: ")[2].partition("; ")[0].split(", ")
    assert 1 <= len(similar) <= 5
    assert set(similar) < set(names)
    assert message.endswith("; `lgzoo list learngenes --all` lists all")
    far = str(refuse_unknown("folder or learngene", "zzzz", names))
    assert far == ("no folder or learngene named 'zzzz'; `lgzoo list learngenes --all` lists all")


def test_slips_are_counted() -> None:
    pairs = {
        ("sings", "signs"): 1,
        ("sings", "wings"): 1,
        ("abc", "abc"): 0,
        ("", "ab"): 2,
        ("ca", "abc"): 3,
    }
    assert {pair: count_slips(*pair) for pair in pairs} == pairs


@pytest.mark.parametrize(
    ("missing", "end"),
    [
        ("pohtos", "did you mean {}/photos?"),
        ("photo", "did you mean {}/photos?"),
        ("reviws.csv", "did you mean {}/reviews.csv?"),
        ("nope.csv", "give another"),
        ("photos2", "did you mean {}/photos?"),
        ("day-8.png", "give another"),
        ("hidden", "give another"),
        ("elsewhere/photos", "give another"),
        ("pho\0tos/a", "give another"),
    ],
)
def test_a_missing_path_has_a_similar_one_of_its_folder(
    tmp_path: Path, missing: str, end: str
) -> None:
    for name in ("photos", ".hidden"):
        (tmp_path / name).mkdir()
    for name in ("reviews.csv", "one.csv", "day-7.png"):
        (tmp_path / name).touch()
    assert suggest_path(tmp_path / missing, "give another") == end.format(tmp_path)


def test_only_accepted_paths_are_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").touch()
    assert suggest_path(tmp_path / "photo", "give another", Path.is_dir) == "give another"
    monkeypatch.setattr(errors, "MAX_SIBLINGS", 0)
    assert suggest_path(tmp_path / "photo", "give another") == "give another"


def test_the_empty_path_has_no_similar_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    assert suggest_path(Path(), "give another") == "give another"
    assert suggest_path(Path("phtos"), "give another") == "did you mean photos?"
