"""Folders and files are written whole or not at all, and only what is ours is replaced or removed."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from learngene_zoo import atomic
from learngene_zoo.atomic import DRAFT, claim, digest_of, new_file, new_folder
from learngene_zoo.errors import Refused, Unavailable

CONFIG = {"method": "toy", "spec": {}, "format": 1}


def everything(place: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def fill(path: Path, text: str, force: bool = False) -> None:
    with new_folder(path, force) as draft:
        (draft / "config.json").write_text(json.dumps(CONFIG))
        (draft / "README.md").write_text(text)


@pytest.fixture(params=["exchange", "renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the system's atomic exchange, and without one."""
    if request.param == "renames":
        monkeypatch.setattr(atomic, "_renameat2", lambda: None)
    elif atomic._renameat2() is None:
        pytest.skip("this system has no renameat2")
    return request.param


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with new_folder(path) as draft:
        (draft / "file").write_text("x")
        assert (draft / DRAFT).exists()
        assert not path.exists()
    assert everything(tmp_path) == {"a/b/file": "x"}


def test_nothing_is_replaced_unless_asked(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    with pytest.raises(Refused, match="already exists"), new_folder(tmp_path / "out"):
        pass
    assert everything(tmp_path)["out/README.md"] == "old"


def test_an_artifact_is_refused_and_with_force_replaced(tmp_path: Path, way: str) -> None:
    path = tmp_path / "out"
    fill(path, "old")
    with pytest.raises(Refused, match="--force"):
        fill(path, "new")
    assert everything(tmp_path)["out/README.md"] == "old"
    fill(path, "new", force=True)
    assert everything(tmp_path) == {"out/README.md": "new", "out/config.json": json.dumps(CONFIG)}


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ({"thesis.txt": "mine"}, "thesis.txt"),
        ({"config.json": json.dumps(CONFIG), "notes.md": "mine"}, "notes.md"),
        ({"config.json": '{"architecture": "vit_tiny_patch16_224"}', "model.safetensors": "mine"}, "something else"),
        ({"config.json": "{"}, "something else"),
        ({"config.json": "[]"}, "something else"),
        ({"README.md": "mine"}, "README.md"),
        ({"config.json": json.dumps(CONFIG), "data/1.png": "mine"}, "data"),
        ({"config.json": json.dumps(CONFIG), "README.md/1.png": "mine"}, "README.md"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_force_replaces_only_what_is_ours(tmp_path: Path, names: dict[str, str], named: str) -> None:
    for name, text in names.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(text)
    with pytest.raises(Refused, match=rf"holds .*{named}.*lgzoo did not write"):
        fill(tmp_path / "out", "new", force=True)
    assert everything(tmp_path / "out") == names


def test_force_replaces_what_was_fetched_together_and_no_other_model(tmp_path: Path) -> None:
    def model(place: Path, *more: str) -> Path:
        place.mkdir()
        for name in ("config.json", "README.md", *more):
            (place / name).write_text(json.dumps(CONFIG))
        return place

    family = model(tmp_path / "family")
    (family / "manifest.json").write_text(json.dumps({"files": {"config.json": {}, "three/config.json": {}}}))
    model(family / "three")
    assert not atomic.foreign_in(family)
    finetuned = model(family / "finetuned")
    assert atomic.foreign_in(family) == "finetuned"  # the user's own, not of the manifest
    with pytest.raises(Refused, match="finetuned"):
        fill(family, "new", force=True)
    finetuned.rename(family / "three" / "finetuned")
    assert atomic.foreign_in(family) == "three"
    (family / "three" / "finetuned").rename(tmp_path / "finetuned")
    fill(family, "new", force=True)
    assert set(everything(family)) == {"config.json", "README.md"}


def test_force_fills_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(Refused, match="already exists"):
        fill(tmp_path / "out", "new")
    fill(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "README.md").read_text() == "new"


def test_links_are_resolved_before_anything_is_replaced(tmp_path: Path, way: str) -> None:
    fill(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "README.md").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(Refused, match="leads to itself"):
        fill(tmp_path / "circle", "new", force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad"), OSError(errno.ENOSPC, "No space left")])
def test_a_failure_in_the_middle_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    fill(tmp_path / "out", "old")
    before = everything(tmp_path)
    kind = Unavailable if isinstance(error, OSError) else type(error)

    def half() -> None:
        with new_folder(tmp_path / "out", force=True) as draft:
            (draft / "README.md").write_text("half")
            raise error

    with pytest.raises(kind) as raised:
        half()
    assert everything(tmp_path) == before
    if kind is Unavailable:
        assert "the disk is full; free some space" in str(raised.value)
        assert "nothing was changed" in str(raised.value)


KILLED = """
import os, shutil, sys
from pathlib import Path
from learngene_zoo import atomic
if sys.argv[2] == "renames":
    atomic._renameat2 = lambda: None
stop = int(sys.argv[3])
real, calls = os.replace, []
def replace(source, target):
    calls.append(source)
    if len(calls) == stop:
        os._exit(9)
    real(source, target)
os.replace = replace
if stop == 3:
    shutil.rmtree = lambda *arguments, **named: os._exit(9)
with atomic.new_folder(Path(sys.argv[1]), force=True) as draft:
    (draft / "config.json").write_text('{"method": "toy", "spec": {}, "format": 1}')
    (draft / "README.md").write_text("new")
    if stop == 0:
        os._exit(9)
"""


@pytest.mark.parametrize(
    ("way", "stop"), [("exchange", 0), ("renames", 0), ("renames", 1), ("renames", 2), ("renames", 3)]
)
def test_the_next_call_finishes_what_a_kill_interrupted(tmp_path: Path, way: str, stop: int) -> None:
    path = tmp_path / "out"
    fill(path, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), way, str(stop)], timeout=60)
    assert done.returncode == 9
    assert len(list(tmp_path.iterdir())) > 1
    atomic.recover(path)
    assert everything(tmp_path)["out/README.md"] == ("new" if stop >= 2 else "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("moved", ["thesis.txt", "README.md"])
def test_only_what_lgzoo_moved_away_takes_a_place_again(tmp_path: Path, moved: str) -> None:
    dead = f".out.{atomic._machine()}-999999999-5-abc.draft"
    (tmp_path / f"{dead}.old").mkdir()
    (tmp_path / f"{dead}.old" / moved).write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / f".out.{atomic._machine()}-999999998-5-abc.draft.old").symlink_to(tmp_path / "mine")
    (tmp_path / ".out.swap").write_text('{"new": "mine", "old": "mine"}')
    (tmp_path / f".out.{'9' * 30}.draft.old").mkdir()
    before = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    atomic.recover(tmp_path / "out")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == before


def test_a_draft_that_is_not_whole_takes_no_place(tmp_path: Path) -> None:
    dead = f".out.{atomic._machine()}-999999999-5-abc.draft"
    fill(tmp_path / f"{dead}.old", "old")
    fill(tmp_path / dead, "half")
    (tmp_path / dead / DRAFT).touch()
    atomic.recover(tmp_path / "out")
    assert everything(tmp_path) == {"out/README.md": "old", "out/config.json": json.dumps(CONFIG)}


def test_drafts_of_living_processes_and_of_strangers_stay(tmp_path: Path) -> None:
    mine = atomic._draft(tmp_path / "out")
    strange = tmp_path / ".out.00000000-1-1-abc.draft"  # of another machine
    dead = tmp_path / f".out.{atomic._machine()}-999999999-5-abc.draft"
    for place in (mine, strange, dead):
        place.mkdir()
    full = tmp_path / f".out.{atomic._machine()}-999999998-5-abc.draft"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    fill(tmp_path / "out", "new")
    assert {entry.name for entry in tmp_path.iterdir()} == {"out", mine.name, strange.name, full.name}


def test_a_draft_of_a_dead_process_goes_whatever_it_holds(tmp_path: Path) -> None:
    own = re.sub(r"-\d+-", "-999999999-", atomic._draft(tmp_path / "out").name, count=1)
    (tmp_path / own / "tests").mkdir(parents=True)
    (tmp_path / own / "pyproject.toml").write_text("of a plugin")
    (tmp_path / f"{own}.old").mkdir()
    (tmp_path / f"{own}.old" / "thesis.txt").write_text("mine")
    fill(tmp_path / "out", "new")
    assert {entry.name for entry in tmp_path.iterdir()} == {"out", f"{own}.old"}


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="is a file, not a folder"):
        claim(tmp_path / "file", force=True)
    with pytest.raises(Refused, match="is a file, so"):
        claim(tmp_path / "file" / "out", force=False)
    with pytest.raises(Unavailable, match="name is too long"):
        claim(tmp_path / ("x" * 300), force=False)
    with pytest.raises(Unavailable, match="name is too long"):
        fill(tmp_path / ("x" * 250), "new")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="contains the current folder"):
        claim(Path(), force=True)
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    with pytest.raises(Unavailable, match="no permission"):
        claim(tmp_path / "out", force=False)


def test_a_new_file_keeps_its_suffix_and_appears_whole(tmp_path: Path) -> None:
    with new_file(tmp_path / "plot.png") as draft:
        assert draft.suffix == ".png"
        draft.write_text("x")
    with pytest.raises(Refused, match="already exists"), new_file(tmp_path / "plot.png"):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="is a folder"), new_file(tmp_path / "folder", force=True):
        pass

    def half() -> None:
        with new_file(tmp_path / "plot.png", force=True) as draft:
            draft.write_text("half")
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        half()
    assert everything(tmp_path) == {"plot.png": "x"}
    (tmp_path / "link.png").symlink_to(tmp_path / "plot.png")
    with new_file(tmp_path / "link.png", force=True) as draft:
        draft.write_text("y")
    assert (tmp_path / "link.png").is_symlink()
    assert (tmp_path / "plot.png").read_text() == "y"


def test_a_digest_changes_with_every_file(tmp_path: Path) -> None:
    fill(tmp_path / "a", "x")
    fill(tmp_path / "b", "x")
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("y")
    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "b")


def in_a_full_file_system(function: Callable[[], None]) -> None:
    """Run it where a file may hold 64 KiB only: the kernel's own limit, not a patched function."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        function()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_tensors_that_do_not_fit_leave_what_was_there(tmp_path: Path) -> None:
    import torch

    from learngene_zoo.storage import write_tensors

    fill(tmp_path / "out", "old")
    before = everything(tmp_path)

    def large() -> None:
        with new_folder(tmp_path / "out", force=True) as draft:
            write_tensors(draft / "model.safetensors", {"x": torch.zeros(100_000)})

    with pytest.raises(Unavailable, match="larger than this process may write"):
        in_a_full_file_system(large)
    assert everything(tmp_path) == before
