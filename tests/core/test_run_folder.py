"""A run's folder is locked by one process, resumed or refused; finished runs are recognised;
foreign files are kept.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo import lifecycle, ownership
from learngene_zoo.atomic import digest_of, new_folder
from learngene_zoo.errors import Refused, Unavailable, WrongCall
from learngene_zoo.lifecycle.opening import resume_if_begun
from learngene_zoo.ownership import MARKER, mark_workspace
from learngene_zoo.runs import progress
from learngene_zoo.runs.folder import clear, finish, hold_lock, locate_run, produce
from learngene_zoo.runs.progress import print_activities
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import read_json, save_result

SETTINGS = {"settings": {"training": {"lr": 0.1}}}


@dataclass
class Toy:
    """An artifact of one line."""

    text: str

    def save(
        self, path: Path, force: bool = False, before: Callable[[Path], None] | None = None
    ) -> Path:
        with new_folder(path, force, before) as draft:
            (draft / "config.json").write_text(json.dumps({"learngene": {}, "text": self.text}))
        return path


def load(path: Path) -> Toy:
    return Toy(json.loads((path / "config.json").read_text())["text"])


def half(run: Run) -> Toy:
    """Interrupt a run after its first checkpoint."""
    assert run.folder is not None
    save_result(run.folder / "checkpoint-1", {}, None)
    raise KeyboardInterrupt


def whole(run: Run) -> Toy:
    return Toy(f"{run.seed}")


def call(
    make: Callable[[Run], Toy],
    out: Path | None,
    run: Run | None = None,
    force: bool = False,
    **changes: Any,
) -> Toy:
    what = {"verb": "extract", "settings": SETTINGS, **changes}
    return produce(make, load, out=out, run=run or Run(), force=force, **what)


def names(place: Path) -> list[str]:
    """Return every name below a folder except markers."""
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.name != MARKER)


def test_a_run_without_an_output_keeps_nothing(tmp_path: Path) -> None:
    assert call(whole, None) == Toy("0")
    call(lambda run: Toy(str(run.folder)), None)
    assert names(tmp_path) == []


def test_a_finished_run_keeps_its_record_and_metrics_only(tmp_path: Path) -> None:
    def make(run: Run) -> Toy:
        assert run.folder is not None
        assert run.folder == tmp_path / "deep" / "learngene.run"
        for name in ("checkpoint-7", "parts/a/done", "parts/b/c/checkpoint-3"):
            (run.folder / name).mkdir(parents=True)
        (run.folder / "metrics.jsonl").write_text("{}\n")
        (run.folder / "parts/a/metrics.jsonl").write_text("{}\n")
        return Toy("x")

    out = tmp_path / "deep" / "learngene"
    assert call(make, out) == load(out) == Toy("x")
    folder = tmp_path / "deep" / "learngene.run"
    assert [name for name in names(folder) if (folder / name).is_file()] == [
        "metrics.jsonl",
        "parts/a/metrics.jsonl",
        "run.json",
    ]
    record = read_json(folder / "run.json")
    assert record["finished"] is True
    assert record["result"] == digest_of(out)


def test_an_unfinished_run_is_refused_resumed_or_started_over(tmp_path: Path) -> None:
    out = tmp_path / "learngene"
    with pytest.raises(KeyboardInterrupt):
        call(half, out)
    with pytest.raises(Refused, match=r"Run\(resume=True\)"):
        call(whole, out)
    seen = []

    def resumed(run: Run) -> Toy:
        assert run.folder is not None
        seen.append((run.folder / "checkpoint-1").is_dir())
        raise KeyboardInterrupt

    for run, force in ((Run(resume=True), False), (Run(), True)):
        with pytest.raises(KeyboardInterrupt):
            call(resumed, out, run, force)
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("verb", "settings", "run", "named"),
    [
        (
            "extract",
            {"settings": {"training": {"lr": 0.2}}},
            Run(resume=True),
            "training.lr: 0.1 then, 0.2 now",
        ),
        ("extract", SETTINGS, Run(resume=True, seed=1), "seed: 0 then, 1 now"),
        ("finetune", SETTINGS, Run(resume=True), "verb"),
    ],
)
def test_resuming_with_other_settings_names_the_one_that_differs(
    tmp_path, verb, settings, run, named
) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "learngene")
    with pytest.raises(Refused, match=named):
        call(whole, tmp_path / "learngene", run, verb=verb, settings=settings)


def test_a_refused_call_leaves_nothing_behind(tmp_path: Path) -> None:
    def refused(run: Run) -> Toy:
        raise WrongCall("no device named gpu")

    with pytest.raises(WrongCall):
        call(refused, tmp_path / "learngene")
    assert names(tmp_path) == []
    assert call(whole, tmp_path / "learngene") == Toy("0")


def test_a_run_that_was_killed_when_its_artifact_was_there_is_recognised(tmp_path: Path) -> None:
    out, folder = tmp_path / "learngene", tmp_path / "learngene.run"
    call(whole, out)
    record = read_json(folder / "run.json")
    (folder / "run.json").write_text(json.dumps({**record, "finished": False}))
    (folder / "checkpoint-3").mkdir()

    def never(run: Run) -> Toy:
        raise AssertionError("there is nothing left to compute")

    assert call(never, out, Run(resume=True)) == Toy("0")
    assert read_json(folder / "run.json")["finished"] is True
    assert names(folder) == ["run.json"]
    assert call(never, out, Run(resume=True)) == Toy("0")  # as often as one likes
    with pytest.raises(Refused, match="already exists"):
        call(never, out)
    with pytest.raises(Refused, match="made with other settings"):
        call(never, out, Run(resume=True, seed=1))


def test_another_artifact_in_its_place_is_not_the_runs(tmp_path: Path) -> None:
    out = tmp_path / "learngene"
    call(whole, out)
    Toy("another").save(out, force=True)
    assert call(whole, out, Run(resume=True), force=True) == Toy("0")
    assert load(out) == Toy("0")
    (out / "config.json").write_text(json.dumps({"learngene": {}, "text": "mine"}))
    with pytest.raises(Refused, match=r"config\.json, which was changed since lgzoo wrote it"):
        call(whole, out, Run(resume=True), force=True)
    assert load(out) == Toy("mine")


def test_what_the_user_put_into_a_run_folder_stays(tmp_path: Path) -> None:
    out, folder = tmp_path / "learngene", tmp_path / "learngene.run"
    call(whole, out)
    (folder / "thesis.txt").write_text("mine")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "metrics.jsonl").write_text("theirs")
    call(whole, out, force=True)
    assert (folder / "thesis.txt").read_text() == "mine"
    assert (folder / "tensorboard" / "metrics.jsonl").read_text() == "theirs"


@pytest.mark.parametrize("kept", range(5))
def test_clearing_that_is_killed_is_finished_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    out, folder = tmp_path / "out", tmp_path / "out.run"
    with pytest.raises(KeyboardInterrupt):
        call(half, out)
    (folder / "metrics.jsonl").touch()
    remove, left = os.unlink, iter(range(kept))

    def killed(path: Any, *args: Any, **kwargs: Any) -> None:
        if (
            str(path).endswith((".json", ".jsonl"))
            and "holder" not in str(path)
            and next(left, None) is None
        ):
            raise KeyboardInterrupt
        remove(path, *args, **kwargs)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("os.unlink", killed)
        call(half, out, force=True)
    assert call(whole, out, run=Run(resume=True)).text == "0"
    assert names(folder) == ["run.json"]


def test_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "learngene.run").mkdir()
    (tmp_path / "learngene.run" / "thesis.txt").write_text("mine")
    with pytest.raises(Refused, match=r"holds thesis\.txt, and no valid \.lgzoo file"):
        call(whole, tmp_path / "learngene", force=True)
    assert names(tmp_path / "learngene.run") == ["thesis.txt"]


HOLD = """
import sys, time
from itertools import product
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_run_folder import call, Toy
def slow(run):
    (run.folder / "checkpoint-1").mkdir()
    print("holding", flush=True)
    time.sleep(60)
    return Toy("slow")
call(slow, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_second_process_says_who_works_there(tmp_path: Path) -> None:
    out = tmp_path / "learngene"
    command = [sys.executable, "-c", HOLD, str(Path(__file__).parent), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            for run, force in product((Run(), Run(resume=True)), (False, True)):
                with pytest.raises(Refused, match=rf"process {holder.pid} on .* works in"):
                    call(whole, out, run, force)
            assert (tmp_path / "learngene.run" / "checkpoint-1").is_dir()
        finally:
            holder.kill()
    assert call(whole, out, Run(resume=True)) == Toy("0")


def test_a_finished_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "learngene"
    call(whole, out)
    with pytest.raises(Refused, match=r"is finished, and was made with other settings \(seed: 0"):
        call(whole, out, Run(seed=1, resume=True))
    assert call(whole, out, Run(resume=True)) == Toy("0")
    assert call(whole, out, Run(seed=1, resume=True), force=True) == Toy("1")


def test_a_setting_that_is_left_at_its_default_again_is_a_difference(tmp_path: Path) -> None:
    out = tmp_path / "learngene"
    call(whole, out, settings={**SETTINGS, "image_size": 64})
    with pytest.raises(Refused, match=r"other settings \(image_size: 64 then, not set now\)"):
        call(whole, out, Run(resume=True))
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "other", settings={**SETTINGS, "image_size": 64})
    with pytest.raises(Refused, match=r"started with other settings \(image_size: 64 then"):
        call(whole, tmp_path / "other", Run(resume=True))


def test_a_record_that_was_cut_short_is_of_an_unfinished_run(tmp_path: Path) -> None:
    out, folder = tmp_path / "learngene", tmp_path / "learngene.run"
    with pytest.raises(KeyboardInterrupt):
        call(half, out)
    whole_record = (folder / "run.json").read_bytes()
    (folder / "run.json").write_bytes(whole_record[: len(whole_record) // 2])
    with pytest.raises(Refused, match="an unfinished run is in"):
        call(whole, out)
    with pytest.raises(Refused, match="was started with other settings"):
        call(whole, out, Run(resume=True))
    assert (folder / "checkpoint-1").is_dir()
    assert call(whole, out, force=True) == Toy("0")
    (folder / "run.json").write_bytes(
        whole_record[:10]
    )  # nothing is kept there: a run that was finished, or had not begun
    assert call(whole, tmp_path / "learngene", force=True) == Toy("0")


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.runs.folder.join", lambda device: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert call(whole, tmp_path / "learngene") == Toy("0")
    assert names(tmp_path) == []
    monkeypatch.setenv("RANK", "0")
    assert call(whole, tmp_path / "learngene") == Toy("0")
    assert "learngene/config.json" in names(tmp_path)


def test_a_run_folder_that_disappears_costs_nothing(tmp_path: Path) -> None:
    import shutil

    def make(run: Run) -> Toy:
        assert run.folder is not None
        shutil.rmtree(run.folder)
        return Toy("x")

    assert call(make, tmp_path / "learngene") == load(tmp_path / "learngene") == Toy("x")
    finish(tmp_path / "learngene.run")


def strangers(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("record", ['{"pace": 5}', "{}", "[]", '{"finished": false}', "{"])
def test_a_folder_with_the_names_of_a_run_is_not_one(
    tmp_path: Path, record: str, resume: bool, force: bool
) -> None:
    files = {
        "run.json": record,
        "metrics.jsonl": "mine",
        "checkpoint-1/notes.txt": "mine",
        "done/x": "mine",
    }
    folder = strangers(tmp_path / "out.run", files)
    with pytest.raises(Refused, match=r"out\.run holds checkpoint-1, and no valid \.lgzoo file"):
        call(whole, tmp_path / "out", Run(resume=resume), force)
    assert {name: (folder / name).read_text() for name in files} == files


def test_a_run_of_an_earlier_version_is_resumed_and_nothing_of_it_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "out")
    for marker in (tmp_path / "out.run").rglob(MARKER):
        marker.unlink()
    for force in (False, True):
        with pytest.raises(Refused, match=r"no valid \.lgzoo file"):
            call(whole, tmp_path / "out", force=force)
    assert call(whole, tmp_path / "out", Run(resume=True)) == Toy("0")
    assert "checkpoint-1/record.json" in names(tmp_path / "out.run")


@pytest.mark.parametrize(
    "name", ["notes.txt", "checkpoint-9/notes.txt", "checkpoint-1/notes.txt", "done/notes.txt"]
)
def test_what_the_user_put_beside_a_checkpoint_stays(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "out")
    strangers(tmp_path / "out.run", {name: "mine"})
    call(whole, tmp_path / "out", force=True)
    assert (tmp_path / "out.run" / name).read_text() == "mine"
    assert "checkpoint-1/record.json" not in names(tmp_path / "out.run")


@pytest.mark.parametrize("name", ["folder:/data/best-photos", "done", "checkpoint-3/a"])
def test_a_part_may_have_the_name_of_a_result(tmp_path: Path, name: str) -> None:
    def make(run: Run) -> Toy:
        part = run.part(f"search/{name}").folder
        assert part is not None
        save_result(part / "done", {}, None)
        (part / "metrics.jsonl").touch()
        (part / "kept.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(make, tmp_path / "out")
    with pytest.raises(Refused, match="an unfinished run is in"):
        call(whole, tmp_path / "out")
    call(whole, tmp_path / "out", force=True)
    assert names(tmp_path / "out.run") == ["run.json"]


@pytest.mark.parametrize("linked", ["parts", "parts/p", "parts/a/p"])
@pytest.mark.parametrize("name", ["", "done", "checkpoint-3"])
def test_links_in_a_run_folder_are_not_followed(tmp_path: Path, linked: str, name: str) -> None:
    files = dict.fromkeys(("metrics.jsonl", "run.json", "kept.json", "shared.json"), "mine")
    mine = strangers(tmp_path / "mine" / name, {**files, "done/metrics.jsonl": "mine"})
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "out")
    link = tmp_path / "out.run" / linked / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine)
    with pytest.raises(Refused, match="is a symbolic link"):
        call(whole, tmp_path / "out", force=True)
    clear(tmp_path / "out.run")
    assert link.is_symlink()
    assert {file: (mine / file).read_text() for file in files} == files


def test_a_run_of_which_nothing_is_kept_blocks_no_call(tmp_path: Path) -> None:
    """As after a kill before the first checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "out")
    ownership.remove_marked(tmp_path / "out.run" / "checkpoint-1")
    assert read_json(tmp_path / "out.run" / "run.json")["finished"] is False
    assert call(whole, tmp_path / "out") == Toy("0")


@dataclass
class Large(Toy):
    """An artifact larger than any disk."""

    def save(
        self, path: Path, force: bool = False, before: Callable[[Path], None] | None = None
    ) -> Path:
        with new_folder(path, force, before):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_at_the_end_blocks_no_call(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the disk is full"):
        call(lambda run: Large("x"), tmp_path / "out")
    assert names(tmp_path) == []
    assert call(whole, tmp_path / "out") == Toy("0")


def test_what_was_computed_before_a_failure_is_kept_and_named(tmp_path: Path) -> None:
    def large(run: Run) -> Toy:
        assert run.folder is not None
        save_result(run.folder / "done", {}, None)
        return Large("x")

    with pytest.raises(
        Unavailable, match=r"what was computed is in .*out\.run: go on with Run\(resume=True\)"
    ):
        call(large, tmp_path / "out")
    assert call(whole, tmp_path / "out", Run(resume=True)) == Toy("0")


def test_a_lock_counts_only_on_the_file_that_has_its_name(tmp_path: Path) -> None:
    """A releases between B's opening and locking the file; C creates a new file: B and C must not
    both hold the lock.
    """
    from filelock import FileLock

    path = tmp_path / "run" / "run.lock"
    acquire, inside = FileLock.acquire, []

    def between(lock: Any, *args: Any, **named: Any) -> Any:
        taken = acquire(lock, *args, **named)
        if (
            not inside
        ):  # B has the lock on the old file: A has just removed that name, and C makes a file of it
            inside.append("C")
            path.unlink()
            inside.append(holder := hold_lock(path))
            assert holder.__enter__()
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLock, "acquire", between)
        with hold_lock(path) as is_held:
            assert not is_held
    inside[1].__exit__(None, None, None)
    with hold_lock(path) as is_held:
        assert is_held
        assert path.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [[], "x", 5, {"photos": None}])
def test_a_record_whose_data_are_anything_else_is_refused_in_words(
    tmp_path: Path, data: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(half, tmp_path / "out", data=lambda: {"photos": "a stamp"})
    path = tmp_path / "out.run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": data}))
    with pytest.raises(Refused, match="the data photos changed since the run in"):
        call(whole, tmp_path / "out", Run(resume=True), data=lambda: {"photos": "a stamp"})


def test_it_is_said_where_there_is_nothing_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        progress, "_printer", progress._Printer()
    )  # other tests may have printed the note already
    note = "note: there is nothing to resume in "
    with print_activities():
        assert call(whole, tmp_path / "new", Run(resume=True)) == Toy("0")
    assert capsys.readouterr().err.startswith(note)
    with print_activities():
        assert call(whole, tmp_path / "new", Run(resume=True)) == Toy("0")  # there already
        with suppress(KeyboardInterrupt):
            call(half, tmp_path / "other")
        call(whole, tmp_path / "other", Run(resume=True))
        call(whole, tmp_path / "third")
    assert note not in capsys.readouterr().err


def test_as_a_part_of_another_verb_only_a_run_with_results_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not resume_if_begun(out, Run(resume=True)).resume
    (tmp_path / "killed.run").mkdir()  # before its first checkpoint
    assert not resume_if_begun(tmp_path / "killed", Run(resume=True)).resume
    with suppress(KeyboardInterrupt):
        call(half, out, Run())
    assert resume_if_begun(out, Run()).resume
    call(whole, out, Run(resume=True))
    assert resume_if_begun(out, Run()).resume


@pytest.mark.parametrize(
    "name", ["run.json", "run.lock", "holder.json", "metrics.jsonl", "parts", "parts/search"]
)
def test_a_run_does_not_write_through_links(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    folder = locate_run(tmp_path / "out")
    folder.mkdir()
    mark_workspace(folder, "run")
    link = folder / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine if name.startswith("parts") else mine / "notes.txt")
    for resume in (False, True):
        with pytest.raises(Refused, match=rf"out\.run/{name} is a symbolic link, and a run writes"):
            extract_first_k(tmp_path / "out", resume)
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]
    link.unlink()
    (folder / "latest").symlink_to(mine)  # of a tracker
    extract_first_k(tmp_path / "out", resume=False)


def extract_first_k(out: Path, resume: bool) -> None:
    lifecycle.extract("first_k", out=out, run=Run(threads=1, resume=resume))
