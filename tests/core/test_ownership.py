"""A bench's folder is recognised by its marker, and restarting removes no foreign files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from learngene_zoo.atomic import new_folder
from learngene_zoo.bench.running.runner import _remove_results, claim_workspace
from learngene_zoo.errors import BadFile, Refused
from learngene_zoo.ownership import (
    MARKER,
    is_workspace,
    mark_workspace,
    remove_marked,
    write_marker,
)

ROW = {
    "key": "k",
    "arm": "a",
    "method": "lsamd",
    "control": None,
    "task": "t",
    "layers": 2,
    "width": 16,
    "seed": 0,
    "epochs": 1,
    "lr": 0.1,
    "images": 9,
    "split": "test",
}
KEY = "0123456789abcdef"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def read(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MARKER]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Create a bench's folder with every kind of file in it."""
    out = tmp_path / "bench"
    claim_workspace(out, anew=False)
    files = [
        f"learngenes/lsamd-{KEY}.cost.json",
        f"learngenes/lsamd-{KEY}.lock",
        f"trained/{KEY}.json",
        "ancestries.json",
    ]
    files += [
        f"learngenes/lsamd-{KEY}.run/run.json",
        f"parts/{KEY}/metrics.jsonl",
        f"checkpoints/{KEY}/metrics.jsonl",
    ]
    write(out, dict.fromkeys(files, "{}"))
    mark_workspace(out / "learngenes" / f"lsamd-{KEY}.run", "run")
    for name in (
        f"learngenes/lsamd-{KEY}",
        f"parts/{KEY}/done",
        f"checkpoints/{KEY}/checkpoint-3",
    ):
        with new_folder(out / name) as draft:
            (draft / "config.json").write_text("{}")
    return out


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "mine"},
        {"report.html": "mine", "summary.csv": "mine", "grid.json": "{}"},
        {"results.jsonl": "", "learngenes/notes.txt": "mine"},
        {"trained/me.json": "mine", MARKER: "learngene_zoo: the folder of a bench; format 1\n"},
    ],
)
def test_a_strangers_folder_is_no_bench(tmp_path: Path, files: dict[str, str], anew: bool) -> None:
    out = write(tmp_path / "out", files)
    before = read(out)
    with pytest.raises(
        Refused,
        match=r"out holds [\w.]+, and no valid \.lgzoo file that says that it is the folder of a b",
    ):
        claim_workspace(out, anew)
    assert read(out) == before


def test_a_strangers_results_are_no_rows(tmp_path: Path) -> None:
    out = write(tmp_path / "out", {"results.jsonl": '{"time": 9.58}\n', "report.html": "mine"})
    with pytest.raises(BadFile, match="line 1"):
        claim_workspace(out, anew=False)


def test_a_bench_of_an_earlier_version_goes_on_and_is_not_started_over(tmp_path: Path) -> None:
    out = write(
        tmp_path / "out", {"results.jsonl": json.dumps(ROW) + "\n", "report.html": "of the bench"}
    )
    claim_workspace(out, anew=False)
    assert not is_workspace(out, "bench")
    with pytest.raises(Refused, match="no valid"):
        claim_workspace(out, anew=True)


def test_starting_over_removes_what_a_bench_keeps(bench: Path) -> None:
    claim_workspace(bench, anew=True)
    _remove_results(bench)
    assert read(bench) == {f"learngenes/lsamd-{KEY}.lock": "{}"}  # others may wait for it
    assert is_workspace(bench, "bench")


@pytest.mark.parametrize(
    "name",
    [
        "learngenes/notes.txt",
        f"learngenes/lsamd-{KEY}/notes.txt",
        f"parts/{KEY}/done/notes.txt",
        "parts/mine.json",
        f"trained/{KEY}.json.txt",
        "checkpoints/data/1.png",
        f"untrained/.{KEY}.json.draft/x.json",
    ],
)
def test_what_a_user_put_into_a_bench_is_named_and_stays(bench: Path, name: str) -> None:
    write(bench, {name: "mine"})
    before = read(bench)
    with pytest.raises(Refused, match=r"which lgzoo did not write; move it, then start over"):
        claim_workspace(bench, anew=True)
    assert read(bench) == before
    claim_workspace(bench, anew=False)  # going on removes nothing
    _remove_results(bench)
    assert read(bench)[name] == "mine"


def test_links_in_a_bench_are_not_followed(bench: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine", {f"{KEY}.json": "mine"})
    (bench / "trained" / "linked").symlink_to(mine)
    with pytest.raises(Refused, match="trained/linked"):
        claim_workspace(bench, anew=True)
    _remove_results(bench)
    (bench / "trained" / "linked").unlink()
    (bench / "trained" / f"{KEY}.json").symlink_to(mine / f"{KEY}.json")
    with pytest.raises(Refused, match=rf"trained/{KEY}\.json"):
        claim_workspace(bench, anew=True)
    _remove_results(bench)
    assert (bench / "trained" / f"{KEY}.json").is_symlink()
    assert read(mine) == {f"{KEY}.json": "mine"}


def test_a_marked_file_behind_a_link_is_not_removed(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine", {"thesis.txt": "mine", "deep/notes.txt": "mine"})
    (mine / "empty").mkdir()
    folder = write(tmp_path / "checkpoint-5", {"evil/thesis.txt": "x", "evil/deep/notes.txt": "x"})
    write(folder, {"evil/empty/x.txt": "x", "deep/state.json": "{}"})
    write_marker(folder)
    shutil.rmtree(folder / "evil")
    (folder / "evil").symlink_to(mine)
    remove_marked(folder)
    assert read(mine) == {"thesis.txt": "mine", "deep/notes.txt": "mine"}
    assert (mine / "empty").is_dir()
    assert [path.name for path in folder.iterdir() if path.name != MARKER] == ["evil"]


def test_a_linked_folder_of_a_bench_is_not_emptied(bench: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine", {f"{KEY}.json": "mine", "metrics.jsonl": "mine"})
    shutil.rmtree(bench / "trained")
    (bench / "trained").symlink_to(mine)
    with pytest.raises(Refused, match="holds trained, which lgzoo did not write"):
        claim_workspace(bench, anew=True)
    _remove_results(bench)
    assert read(mine) == {f"{KEY}.json": "mine", "metrics.jsonl": "mine"}
