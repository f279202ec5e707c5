"""The folder that a long command works in (`learngene.run` beside `learngene`): held, resumed or refused, and finished.

A hidden file, `.lgzoo`, marks it as a run's (`ownership`). It holds `run.json` (what is being computed, and whether it is finished), `metrics.jsonl`, checkpoints and finished parts. One
process at a time works in it: a lock is held for as long as the run lives, and a second process learns who holds it. What a
tracker or the user puts there stays.

When the artifact is whole, its digest is written into `run.json` before it takes its place. So a run that was killed afterwards
is recognised by the next call with `resume`: its artifact is there, and nothing is left to compute.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from learngene_zoo.atomic import claim, digest_of, is_draft, nearest_parent, new_file, recover, resolved, shown
from learngene_zoo.errors import BadFile, Refused, Unavailable
from learngene_zoo.ownership import MARKER, is_workspace, mark_workspace, remove_marked
from learngene_zoo.runs.cache import KEPT, NOTE
from learngene_zoo.runs.lock import hold_lock
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run, is_first, join, wait_for_all
from learngene_zoo.settings import Json, fingerprint
from learngene_zoo.storage import read_json, write_json

RECORD, LOCK, HOLDER = "run.json", "run.lock", "holder.json"
_DATE = "%Y-%m-%d %H:%M:%S"
_FILES = ("metrics.jsonl", NOTE, RECORD)
_KIND = "run"


class Artifact(Protocol):
    """What can be written to a folder."""

    def save(self, path: Path, force: bool = False, before: Callable[[Path], None] | None = None) -> Path: ...


A = TypeVar("A", bound=Artifact)


def produce(
    make: Callable[[Run], A],
    load: Callable[[Path], A],
    *,
    out: str | Path | None,
    verb: str,
    settings: Json,
    run: Run,
    force: bool,
    data: Callable[[], Mapping[str, str]] = dict,
) -> A:
    """What `make(run)` returns; with `out`, computed in `OUT.run`, where it can be resumed, and written to `out` at the end.

    With `run.resume`, the artifact at `out` is loaded if this very run has written it already. Raises `Refused` if `out` exists
    (without `force`), if an unfinished run lies there (without `resume` or `force`), if another process works there, or if a
    run that was started with other settings is to be resumed; `Unavailable` if the place cannot be written.
    `data` returns the stamps of what is read, by name: a run is not resumed after its data changed.
    """
    if out is None:
        return make(run)
    join(run.device_name)
    plan: dict[str, Json] = {"verb": verb, "seed": run.seed, "precision": run.precision, "settings": settings}
    stamps = dict(data())
    if stamps:
        plan["data"] = stamps
    out = Path(out)
    place = resolved(out)
    folder = resolved(place.with_name(f"{place.name}.run"))
    run = replace(run, folder=folder, plan=fingerprint(plan))
    if not is_first():
        wait_for_all()
        return load(place) if _read(folder).get("finished") else make(run)
    with _held(folder, run.resume):
        delivered = _open(folder, place, plan, run.resume, force)
        wait_for_all()
        if delivered:
            return load(place)
        try:
            made = make(run)
            made.save(out, force, partial(_promise, folder))
        except BaseException as error:
            if folder.is_dir() and not _anything_kept(folder):
                clear(folder)
            elif isinstance(error, Unavailable):
                raise Unavailable(f"{error}; what was computed is in {shown(folder)}: go on with --resume") from error
            raise
        finish(folder)
        return made


def check_start(out: str | Path | None, run: Run, force: bool) -> None:
    """Raise as `produce` does for a place that cannot be written, before anything is imported or opened.

    A run that is to be resumed is checked by `produce` alone, which knows its settings.
    """
    if out is None or run.resume or not is_first():
        return
    place = claim(Path(out), force)
    folder = resolved(place.with_name(f"{place.name}.run"))
    _check_ours(folder, run.resume)
    record = _read(folder)
    if record and not record.get("finished") and not force:
        raise Refused(_unfinished(folder))


def _unfinished(folder: Path) -> str:
    return f"an unfinished run is in {shown(folder)}; continue it with --resume or start over with --force"


@contextmanager
def _held(folder: Path, resume: bool) -> Iterator[None]:
    """The folder's lock. Raises `Refused` while another process holds it. A folder that ends up empty is removed."""
    _check_ours(folder, resume)
    nearest_parent(folder)
    with hold_lock(folder / LOCK) as is_held:
        if not is_held:
            raise Refused(f"{_holder(folder)} works in {shown(folder)}; wait until it has finished, or stop it first")
        try:
            _check_ours(folder, resume)
            if not (folder / RECORD).is_file():
                mark_workspace(folder, _KIND)
            holder = {"process": os.getpid(), "machine": socket.gethostname(), "since": time.strftime(_DATE)}
            (folder / HOLDER).write_text(json.dumps(holder), encoding="utf-8")
            yield
        finally:
            (folder / HOLDER).unlink(missing_ok=True)
            if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {LOCK, MARKER}:
                (folder / MARKER).unlink(missing_ok=True)


def _holder(folder: Path) -> str:
    try:
        held = read_json(folder / HOLDER)
        return f"process {int(held['process'])} on {held['machine']} (running since {held['since']})"
    except (BadFile, KeyError, TypeError, ValueError):
        return "another process"


def _check_ours(folder: Path, resume: bool) -> None:
    """Raises `Refused` for a folder that holds something and is not marked as a run's.

    One that an earlier version left, without a mark, may be resumed if its record is that of a run; nothing of it is removed.
    """
    if folder.exists() and not folder.is_dir():
        raise Refused(
            f"{shown(folder)} exists and is not the folder of a run; move it, or choose another place with -o"
        )
    if not folder.is_dir() or is_workspace(folder, _KIND) or (resume and _is_earlier(folder)):
        return
    ours = (LOCK, HOLDER, MARKER)
    strange = sorted(entry.name for entry in folder.iterdir() if entry.name not in ours and not is_draft(entry.name))
    if strange:
        raise Refused(
            f"{shown(folder)} holds {strange[0]}, and no valid {MARKER} file that says that it is the folder of a run; "
            "move it, or choose another place with -o"
        )


def _is_earlier(folder: Path) -> bool:
    """Whether a folder has the record of a run of a version that wrote no mark."""
    return {"verb", "seed", "precision", "settings", "finished"} <= _read(folder).keys()


def _open(folder: Path, place: Path, plan: dict[str, Json], resume: bool, force: bool) -> bool:
    """Whether the artifact is there already; otherwise the folder is ready for this run, new or as it was interrupted."""
    recover(place)
    before = _read(folder)
    if resume and before and not _difference(before, plan) and _delivered(before, place):
        finish(folder)
        return True
    claim(place, force)
    unfinished = bool(before) and not before.get("finished") and _anything_kept(folder)
    if resume and unfinished:
        changed = _difference(before, {key: value for key, value in plan.items() if key != "data"})
        if changed:
            raise Refused(
                f"the run in {shown(folder)} was started with other settings ({changed}); "
                "resume it with the same ones, or start over with --force"
            )
        _check_data(before, plan, folder)
        return False
    if unfinished and not force:
        raise Refused(_unfinished(folder))
    if resume:
        print_note(f"there is nothing to resume in {shown(folder)}; the run starts from the beginning", "resume")
    clear(folder, but_kept=not unfinished and bool(_difference(before, plan)))
    _write(folder, {**plan, "finished": False})
    return False


def _check_data(before: dict[str, Json], plan: dict[str, Json], folder: Path) -> None:
    """Raise `Refused` if the files or labels of a run's data are not those that it began with."""
    data: Json = before.get("data")
    old = data if isinstance(data, dict) else {}  # a file may say anything
    for name, stamp in (plan.get("data") or {}).items():
        if old.get(name) != stamp:
            raise Refused(
                f"the data {name} changed since the run in {shown(folder)} began (its files, their contents or the labels); "
                "restore it and resume, or start over with --force"
            )


def _read(folder: Path) -> dict[str, Json]:
    """The record of the run in a folder; empty if none was begun there. One that cannot be read is of an unfinished run."""
    if not (folder / RECORD).is_file():
        return {}
    try:
        return read_json(folder / RECORD)
    except BadFile:
        return {"finished": not _anything_kept(folder)}


def _write(folder: Path, record: Json) -> None:
    with new_file(folder / RECORD, force=True) as draft:
        write_json(draft, record)


def _promise(folder: Path, draft: Path) -> None:
    """Record the digest of the whole artifact that is about to take its place."""
    _write(folder, {**_read(folder), "result": digest_of(draft)})


def _delivered(record: dict[str, Json], place: Path) -> bool:
    return "result" in record and place.is_dir() and digest_of(place) == record["result"]


def finish(folder: Path) -> None:
    """Mark the run as finished and remove what only an unfinished one needs. Its record and metrics stay."""
    if (folder / RECORD).is_file():
        _write(folder, {**_read(folder), "finished": True})
    for rest in _resumable(folder):
        remove_marked(rest)


def clear(folder: Path, *, but_kept: bool = False) -> None:
    """Remove everything of a run from its folder; what a tracker or the user put there stays.

    but_kept: leave the small results of its parts, which a run with other settings may take over (`cache.once`).
    Its record goes last: by it the next call knows the folder, and goes on, if this one is killed.
    """
    if _resumable(folder) and (folder / RECORD).is_file():
        _write(folder, {"finished": True})  # half a checkpoint is nothing to resume
    for rest in _resumable(folder):
        remove_marked(rest)
    for place in reversed(list(_places(folder))):
        for name in _FILES if but_kept else (*_FILES, KEPT):
            (place / name).unlink(missing_ok=True)
        if place != folder and not any(place.iterdir()):
            place.rmdir()


def _places(folder: Path) -> Iterator[Path]:
    """The folders in which a run keeps things: its own, and those of its parts, each after the one that it lies in."""
    yield folder
    inside = [place for place in (folder / "parts").rglob("*") if place.is_dir()]
    yield from [place for place in (folder / "parts",) if place.is_dir()]
    yield from sorted(
        place for place in inside if not any(_is_result(part) for part in place.relative_to(folder).parts)
    )


def _is_result(name: str) -> bool:
    return name == "done" or name.startswith(("checkpoint-", "best-"))


def _resumable(folder: Path) -> list[Path]:
    """Checkpoints, the best weights so far, and finished parts."""
    return [
        entry
        for place in _places(folder)
        for entry in sorted(place.iterdir())
        if entry.is_dir() and _is_result(entry.name)
    ]


def _anything_kept(folder: Path) -> bool:
    """Whether there is something that a resumed run would not have to compute again: here, or noted as shared by runs."""
    notes = (place / name for place in _places(folder) for name in (NOTE, KEPT))
    return bool(_resumable(folder)) or any(note.is_file() for note in notes)


def _difference(before: Json, now: Json, name: str = "") -> str:
    """The first value that differs, in words; empty if there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now:
            inner = _difference(before.get(key), now[key], f"{name}.{key}" if name else key)
            if inner:
                return inner
        return ""
    return "" if before == now else f"{name.removeprefix('settings.')}: {before} then, {now} now"
