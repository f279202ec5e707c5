"""Folders and files are written completely or not at all, and only our files are replaced or
removed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo import atomic, ownership
from learngene_zoo.atomic import DRAFT, claim, digest_of, new_file, new_folder
from learngene_zoo.errors import Exists, Refused, Unavailable
from learngene_zoo.ownership import MARKER, remove_marked, write_draft_mark

CONFIG = {"method": "toy", "spec": {}, "format": 1}


def read_all(place: Path) -> dict[str, str]:
    """Return every file below a folder, including hidden ones, except valid markers of lgzoo."""
    files = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
    return {
        name: path.read_text()
        for name, path in files.items()
        if path.name != MARKER or not is_valid(path)
    }


def is_valid(marker: Path) -> bool:
    return ownership._read_marker(marker.parent) is not None


def fill(path: Path, text: str, force: bool = False) -> None:
    with new_folder(path, force) as draft:
        (draft / "config.json").write_text(json.dumps(CONFIG))
        (draft / "README.md").write_text(text)


@pytest.fixture(params=["exchange", "renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with and without the system's atomic exchange."""
    if request.param == "renames":
        monkeypatch.setattr(atomic, "_load_renameat2", lambda: None)
    elif atomic._load_renameat2() is None:
        pytest.skip("this system has no renameat2")
    return request.param


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with new_folder(path) as draft:
        (draft / "file").write_text("x")
        assert (draft / DRAFT).exists()
        assert not path.exists()
    assert read_all(tmp_path) == {"a/b/file": "x"}


def test_nothing_is_replaced_unless_asked(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    with pytest.raises(Refused, match="already exists"), new_folder(tmp_path / "out"):
        pass
    assert read_all(tmp_path)["out/README.md"] == "old"


@pytest.mark.parametrize("content", ["a file", "an empty folder", "a full folder"])
@pytest.mark.parametrize("writer", [new_folder, new_file])
def test_what_appears_while_the_draft_is_written_is_not_replaced(
    tmp_path: Path, way: str, writer: Callable[..., Any], content: str
) -> None:
    path = tmp_path / "out"

    def create(draft: Path) -> None:
        (draft / "file" if writer is new_folder else draft).write_text("ours")
        if content == "a file":
            path.write_text("theirs")
        else:
            path.mkdir()
        if content == "a full folder":
            (path / "file").write_text("theirs")

    with pytest.raises(Exists, match="out already exists"), writer(path) as draft:
        create(draft)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert set(read_all(tmp_path).values()) <= {"theirs"}


def test_a_new_file_has_one_name(tmp_path: Path, way: str) -> None:
    with new_file(tmp_path / "plot.png") as draft:
        draft.write_text("x")
    assert (tmp_path / "plot.png").stat().st_nlink == 1
    assert read_all(tmp_path) == {"plot.png": "x"}


def test_an_artifact_is_refused_and_with_force_replaced(tmp_path: Path, way: str) -> None:
    path = tmp_path / "out"
    fill(path, "old")
    with pytest.raises(Refused, match="force=True"):
        fill(path, "new")
    assert read_all(tmp_path)["out/README.md"] == "old"
    fill(path, "new", force=True)
    assert read_all(tmp_path) == {"out/README.md": "new", "out/config.json": json.dumps(CONFIG)}


ARTIFACT = {
    "config.json": json.dumps(CONFIG),
    "README.md": "a card",
    "model.safetensors": "numbers",
}


@pytest.mark.parametrize(
    "names",
    [
        {"thesis.txt": "mine"},
        {"record.json": '{"artist": "me"}', "README.md": "mine", "report.html": "mine"},
        {"checkpoint.json": "{}", "state.safetensors": "mine"},
        ARTIFACT,
        {**ARTIFACT, "manifest.json": '{"files": {"config.json": {}, "three/config.json": {}}}'},
        {**ARTIFACT, "learngene": "{}", "data/1.png": "mine"},
        {**ARTIFACT, MARKER: ""},
        {
            **ARTIFACT,
            MARKER: "learngene_zoo: this folder was written by lgzoo; format 1\n" + "0" * 64 + "\n",
        },
        {**ARTIFACT, DRAFT: ""},
        {DRAFT: "", "thesis.txt": "mine"},
    ],
    ids=range(10),
)
def test_force_replaces_only_what_is_ours(tmp_path: Path, names: dict[str, str]) -> None:
    """A folder without a valid marker is not ours, whatever its files are called and contain."""
    for name, text in names.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(text)
    first = min(name.partition("/")[0] for name in names if name != MARKER)
    with pytest.raises(
        Refused, match=rf"out holds {re.escape(first)}, and no valid \.lgzoo file"
    ) as refused:
        fill(tmp_path / "out", "new", force=True)
    assert "\n" not in str(refused.value)
    assert read_all(tmp_path / "out") == names


def test_a_marker_of_another_folder_marks_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path / "ours", "old")
    (tmp_path / "out").mkdir()
    for name, text in {"README.md": "mine", "config.json": json.dumps(CONFIG)}.items():
        (tmp_path / "out" / name).write_text(text)
    (tmp_path / "out" / MARKER).write_bytes((tmp_path / "ours" / MARKER).read_bytes())
    with pytest.raises(Refused, match=r"holds README\.md, which was changed since lgzoo wrote it"):
        fill(tmp_path / "out", "new", force=True)
    (tmp_path / "out" / MARKER).unlink()
    (tmp_path / "out" / MARKER).symlink_to(tmp_path / "ours" / MARKER)
    with pytest.raises(Refused, match="no valid"):
        fill(tmp_path / "out", "new", force=True)


@pytest.mark.parametrize(
    "name", ["notes.txt", ".DS_Store", "data/1.png", "README.md~", ".lgzoo-notes"]
)
def test_what_a_user_added_to_our_folder_is_named_and_stays(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "out", "old")
    (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / name).write_text("mine")
    before = read_all(tmp_path)
    with pytest.raises(
        Refused, match=rf"holds {re.escape(name.partition('/')[0])}, which lgzoo did not write"
    ):
        fill(tmp_path / "out", "new", force=True)
    remove_marked(
        tmp_path / "out"
    )  # what is removed is what the marker lists, whatever else is there
    assert read_all(tmp_path) == {f"out/{name}": before[f"out/{name}"]}


@pytest.mark.parametrize("change", ["edit", "link", "empty folder", "link to a folder"])
def test_what_a_user_changed_in_our_folder_is_named_and_stays(tmp_path: Path, change: str) -> None:
    fill(tmp_path / "out", "old")
    readme = tmp_path / "out" / "README.md"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("old")
    if change == "edit":
        readme.write_text("old, and my notes")
    elif change == "link":
        readme.unlink()
        readme.symlink_to(tmp_path / "mine" / "README.md")
    elif change == "empty folder":
        (tmp_path / "out" / "data").mkdir()
    else:
        (tmp_path / "out" / "data").symlink_to(tmp_path / "mine")
    before = read_all(tmp_path)
    with pytest.raises(Refused, match=r"holds (README\.md|data), which"):
        fill(tmp_path / "out", "new", force=True)
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("way_there", ["copied", "moved", "a file is gone"])
def test_a_folder_of_ours_stays_ours(tmp_path: Path, way_there: str) -> None:
    with new_folder(tmp_path / "out") as draft:
        (draft / "three").mkdir()
        (draft / "three" / "config.json").write_text("{}")
        (draft / "README.md").write_text("a card")
    folder = tmp_path / "there"
    if way_there == "copied":
        shutil.copytree(tmp_path / "out", folder)
    else:
        (tmp_path / "out").rename(folder)
    if way_there == "a file is gone":
        (folder / "README.md").unlink()
    fill(folder, "new", force=True)
    assert set(read_all(folder)) == {"config.json", "README.md"}


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


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("bad"), OSError(errno.ENOSPC, "No space left")]
)
def test_a_failure_in_the_middle_leaves_what_was_there(
    tmp_path: Path, error: BaseException
) -> None:
    fill(tmp_path / "out", "old")
    before = read_all(tmp_path)
    kind = Unavailable if isinstance(error, OSError) else type(error)

    def half() -> None:
        with new_folder(tmp_path / "out", force=True) as draft:
            (draft / "README.md").write_text("half")
            raise error

    with pytest.raises(kind) as raised:
        half()
    assert read_all(tmp_path) == before
    if kind is Unavailable:
        assert "the disk is full; free some space" in str(raised.value)
        assert "nothing was changed" in str(raised.value)


KILLED = """
import os, shutil, sys
from pathlib import Path
from learngene_zoo import atomic
if sys.argv[2] == "renames":
    atomic._load_renameat2 = lambda: None
stop = int(sys.argv[3])
real, calls = os.replace, []
def replace(source, target):
    calls.append(source)
    if len(calls) == stop:
        os._exit(9)
    real(source, target)
os.replace = replace
if stop == 3:
    atomic.remove_marked = lambda *arguments: os._exit(9)
if stop == 4:
    unlink = Path.unlink
    def once(path, **named):
        unlink(path, **named)
        if path.name == "config.json":
            os._exit(9)
    Path.unlink = once
with atomic.new_folder(Path(sys.argv[1]), force=True) as draft:
    (draft / "config.json").write_text('{"method": "toy", "spec": {}, "format": 1}')
    (draft / "README.md").write_text("new")
    if stop == 0:
        os._exit(9)
"""


@pytest.mark.parametrize(
    ("way", "stop"),
    [
        ("exchange", 0),
        ("renames", 0),
        ("renames", 1),
        ("renames", 2),
        ("renames", 3),
        ("exchange", 4),
        ("renames", 4),
    ],
)
def test_the_next_call_finishes_what_a_kill_interrupted(
    tmp_path: Path, way: str, stop: int
) -> None:
    path = tmp_path / "out"
    fill(path, "old")
    process = subprocess.run([sys.executable, "-c", KILLED, str(path), way, str(stop)], timeout=60)
    assert process.returncode == 9
    assert len(list(tmp_path.iterdir())) > 1
    atomic.recover(path)
    assert read_all(tmp_path)["out/README.md"] == ("new" if stop >= 2 else "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def dead_name(place: Path) -> Path:
    """Return the name of a draft of a process that has ended."""
    return place.with_name(re.sub(r"-\d+-", "-999999999-", atomic._draft(place).name, count=1))


@pytest.mark.parametrize("moved", ["thesis.txt", "README.md"])
def test_only_what_lgzoo_moved_away_takes_a_place_again(tmp_path: Path, moved: str) -> None:
    dead = dead_name(tmp_path / "out").name
    (tmp_path / f"{dead}.old").mkdir()
    (tmp_path / f"{dead}.old" / moved).write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / f".out.{atomic._identify_machine()}-999999998-5-abc.draft.old").symlink_to(
        tmp_path / "mine"
    )
    (tmp_path / ".out.swap").write_text('{"new": "mine", "old": "mine"}')
    (tmp_path / f".out.{'9' * 30}.draft.old").mkdir()
    before = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    atomic.recover(tmp_path / "out")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == before


def test_a_draft_that_is_not_whole_takes_no_place(tmp_path: Path) -> None:
    dead = dead_name(tmp_path / "out").name
    fill(tmp_path / f"{dead}.old", "old")
    fill(tmp_path / dead, "half")
    write_draft_mark(tmp_path / dead)
    atomic.recover(tmp_path / "out")
    assert read_all(tmp_path) == {"out/README.md": "old", "out/config.json": json.dumps(CONFIG)}


def test_what_is_half_removed_takes_no_place(tmp_path: Path) -> None:
    dead = dead_name(tmp_path / "out").name
    fill(tmp_path / f"{dead}.old", "old")
    (tmp_path / f"{dead}.old" / "config.json").unlink()
    atomic.recover(tmp_path / "out")
    assert read_all(tmp_path) == {}


def test_drafts_of_living_processes_and_of_strangers_stay(tmp_path: Path) -> None:
    mine = atomic._draft(tmp_path / "out")
    strange = tmp_path / ".out.00000000-1-1-abc.draft"  # of another machine
    dead = dead_name(tmp_path / "out")
    for folder in (mine, strange, dead):
        folder.mkdir()
    full, copied = dead_name(tmp_path / "out"), dead_name(tmp_path / "out")
    for folder in (full, copied):
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
    write_draft_mark(dead)
    (copied / DRAFT).write_bytes((dead / DRAFT).read_bytes())  # the mark of another draft
    file = tmp_path / f"{dead_name(tmp_path / 'out').name}.json"
    file.write_text("mine")
    fill(tmp_path / "out", "new")
    with new_file(tmp_path / "out.json") as draft:
        draft.write_text("{}")
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left == {"out", "out.json", mine.name, strange.name, full.name, copied.name, file.name}


def test_a_draft_of_a_dead_process_goes_whatever_it_holds(tmp_path: Path) -> None:
    draft = dead_name(tmp_path / "out")
    (draft / "tests").mkdir(parents=True)
    write_draft_mark(draft)
    (draft / "pyproject.toml").write_text("of a plugin")
    (draft / "tests" / ".x.draft").mkdir()
    (draft / "tests" / "link").symlink_to(tmp_path)
    (tmp_path / f"{draft.name}.old").mkdir()
    (tmp_path / f"{draft.name}.old" / "thesis.txt").write_text("mine")
    fill(tmp_path / "out", "new")
    assert {entry.name for entry in tmp_path.iterdir()} == {"out", f"{draft.name}.old"}


@pytest.mark.parametrize("bytes_written", [0, 10])
def test_a_draft_that_was_killed_at_its_mark_goes(tmp_path: Path, bytes_written: int) -> None:
    draft = dead_name(tmp_path / "out")
    draft.mkdir()
    write_draft_mark(draft)
    (draft / DRAFT).write_bytes((draft / DRAFT).read_bytes()[:bytes_written])
    fill(tmp_path / "out", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


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
        assert draft.name == "plot.png"
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
    assert read_all(tmp_path) == {"plot.png": "x"}
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
    """Run where the kernel limits files to 64 KiB."""
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
    before = read_all(tmp_path)

    def large() -> None:
        with new_folder(tmp_path / "out", force=True) as draft:
            write_tensors(draft / "model.safetensors", {"x": torch.zeros(100_000)})

    with pytest.raises(Unavailable, match="larger than this process may write"):
        in_a_full_file_system(large)
    assert read_all(tmp_path) == before


def test_drafts_of_everything_in_a_folder_are_removed_if_their_writers_have_ended(
    tmp_path: Path,
) -> None:
    ended = f"{atomic._identify_machine()}-999999999-1-abc123"
    running = (
        f"{atomic._identify_machine()}-{os.getpid()}-{atomic._read_start_time(os.getpid())}-abc123"
    )
    for name in (f".a.json.{ended}.draft", f".b.c.json.{ended}.draft", f".a.json.{running}.draft"):
        (tmp_path / name).mkdir()
        ownership.write_draft_mark(tmp_path / name)
    (tmp_path / f".theirs.{ended}.draft").mkdir()
    (tmp_path / f".theirs.{ended}.draft" / "photo.png").write_bytes(b"x")
    (tmp_path / "a.json").write_text("{}")
    atomic.remove_drafts_in(tmp_path)
    atomic.remove_drafts_in(tmp_path / "nowhere")
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left == {"a.json", f".a.json.{running}.draft", f".theirs.{ended}.draft"}
