"""References to learngenes and models: a folder, the shelf, the Hub; and which are never requested."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from standin import StandIn

import learngene_zoo as lg
from learngene_zoo import torch_hub
from learngene_zoo.artifacts import shelf
from learngene_zoo.errors import WrongCall
from learngene_zoo.hub.client import Repository, find_cached_repository, parse_repository

Lgzoo = Callable[..., SimpleNamespace]  # what the fixture `lgzoo` is
NAME = "me/learngene"
TAGGED = f"{NAME}@v1.0"


@pytest.fixture
def published(
    hub: StandIn,
    lgzoo: Lgzoo,
    made: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StandIn:
    """Publish a family with the tag v1.0, and change to an empty working folder."""
    assert (
        lgzoo("publish", made.learngene, NAME, "--tag", "v1.0", "--descendant", made.three).code
        == 0
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    hub.requests.clear()
    return hub


@pytest.mark.parametrize(
    "reference", [TAGGED, f"hf-hub:{NAME}", f"hf-hub:{TAGGED}", f"{NAME}@main"]
)
def test_the_hub_is_a_place_like_any_other(reference: str, published: StandIn) -> None:
    folder = shelf.find(reference)
    assert find_cached_repository(folder) == Repository(NAME, published.repos[NAME].head)
    assert shelf.make_reference(folder) == f"{NAME}@{published.repos[NAME].head}"


@pytest.mark.slow
def test_every_verb_takes_it(
    published: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    for words in (
        ["show", TAGGED],
        ["expand", TAGGED, "--layers", "2", "--task", "digits", "-o", tmp_path / "two"],
        ["plot", TAGGED, "-o", tmp_path / "plot.png"],
        ["show", f"{NAME}/three@v1.0"],
        [
            "finetune",
            f"{NAME}/three@v1.0",
            "--task",
            "digits",
            "--epochs",
            "1",
            "--images",
            "8",
            "-o",
            tmp_path / "tuned",
        ],
    ):
        result = lgzoo(*words)
        assert result.code == 0, (words, result.error)
    lgzoo("publish", tmp_path / "tuned", "me/tuned", "--tag", "v1.0")
    assert lgzoo("evaluate", "me/tuned@v1.0").code == 0
    assert (
        lgzoo("evaluate", "hf-hub:me/tuned", "--offline").code == 1
    )  # main is not cached, the tag is
    assert lgzoo("evaluate", "me/tuned@v1.0", "--offline").code == 0


def test_python_and_torch_hub_take_it(published: StandIn, made: SimpleNamespace) -> None:
    expected = lg.expand(made.learngene, layers=2).model().state_dict()
    for model in (
        lg.expand(TAGGED, layers=2).model(),
        torch_hub.build(TAGGED, layers=2),
        torch_hub.method_vit("lsamd", learngene=TAGGED, layers=2),
    ):
        assert all(
            torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items()
        )
    assert lg.load(f"{NAME}/three@v1.0").spec.layers == 3  # type: ignore[union-attr]


def test_python_publishes_and_fetches(hub: StandIn, made: SimpleNamespace, tmp_path: Path) -> None:
    result = lg.publish(made.learngene, NAME, tag="v1.0", descendants=[made.three])
    assert str(result.repository) == f"{NAME}@{hub.repos[NAME].head}"
    assert result.url == f"{hub.url}/{NAME}/tree/{hub.repos[NAME].head}"
    assert lg.fetch(TAGGED) == Path(lg.fetch(f"hf-hub:{NAME}"))
    assert lg.fetch(f"{NAME}/three@v1.0", tmp_path / "three") == tmp_path / "three"
    assert lg.load(tmp_path / "three").spec == lg.load(made.three).spec  # type: ignore[union-attr]


def test_a_folder_that_exists_wins(published: StandIn, made: SimpleNamespace) -> None:
    for reference in (TAGGED, NAME):
        shutil.copytree(made.other, reference)
        assert shelf.find(reference) == Path(reference)
    assert published.requests == []
    assert find_cached_repository(shelf.find(f"hf-hub:{TAGGED}")) is not None


@pytest.mark.parametrize(
    "reference",
    [
        "runs/learngen",
        "./me/learngene@v1.0",
        "runs/best@v1.0",
        "learngene@v1.0",
        "a/b/c/d@v1.0",
        "/me/learngene@v1.0",
        "~/learngene@v1.0",
        "me/learn gene@v1.0",
        "../learngene@v1.0",
        "me/..@v1.0",
    ],
)
def test_a_mistyped_path_never_contacts_the_hub(
    reference: str, published: StandIn, lgzoo: Lgzoo
) -> None:
    Path("runs").mkdir()
    for words in (
        ["expand", reference],
        ["show", reference],
        ["evaluate", reference],
        ["finetune", reference],
    ):
        assert lgzoo(*words).code in (1, 2)
    with pytest.raises(WrongCall):
        torch_hub.build(reference)
    assert published.requests == []


def test_a_path_that_may_have_meant_the_hub_says_how_to_say_so(published: StandIn) -> None:
    with pytest.raises(
        WrongCall,
        match=(
            "no folder me/learngene; on the Hub it would be hf-hub:me/learngene or"
            " me/learngene@main"
        ),
    ):
        shelf.find(NAME)


def test_a_path_object_is_a_path(published: StandIn) -> None:
    with pytest.raises(WrongCall):
        shelf.find(Path(TAGGED))
    assert published.requests == []


@pytest.mark.parametrize(
    "text",
    [
        "me",
        "me/",
        "/me",
        "me/x/y/z",
        "me/x@",
        "me/x@-v",
        "me/x@a..b",
        "a--b/c",
        "-me/x",
        "me/x@v 1",
        "me/x\n",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(WrongCall, match="is not the name of a Hub repository"):
        parse_repository(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("me/x", Repository("me/x")),
        ("hf-hub:me/x@v1.0", Repository("me/x", "v1.0")),
        ("me/x@refs/pr/1", Repository("me/x", "refs/pr/1")),
        ("me/x/three@v1.0", Repository("me/x", "v1.0", "three")),
    ],
)
def test_names_are_read_as_they_are_written(text: str, wanted: Repository) -> None:
    assert parse_repository(text) == wanted
    assert str(wanted) == text.removeprefix("hf-hub:")


def test_expand_with_offline_asks_nobody(published: StandIn, lgzoo: Lgzoo) -> None:
    result = lgzoo("expand", f"hf-hub:{NAME}", "--offline")
    assert result.code == 1
    assert published.requests == []
