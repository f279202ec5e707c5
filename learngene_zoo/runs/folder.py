"""Manage the folder of a long command (`learngene.run` beside `learngene`): lock, resume, refuse,
finish.

A hidden file, `.lgzoo`, marks it as a run's (`ownership`). It holds `run.json` (the settings of the
computation, and whether it is finished), `metrics.jsonl`, checkpoints and finished parts. One
process at a time works in it: a lock is held for as long as the run lives, and the error of a
second process names the holder. Files of a tracker or the user stay.

When the artifact is complete, its digest is written into `run.json` before it is moved to its path.
So the next call with `resume` recognises a run that was killed afterwards: its artifact is there,
and nothing is left to compute.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from learngene_zoo.atomic import (
    claim,
    digest_of,
    find_nearest_parent,
    is_draft,
    new_file,
    recover,
    resolve_path,
    show_path,
)
from learngene_zoo.errors import CAN_RESUME, BadFile, Refused, Unavailable
from learngene_zoo.ownership import MARKER, is_workspace, mark_workspace, remove_marked
from learngene_zoo.runs.cache import KEPT, NOTE
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import PARTS, Run, is_first, join, wait_for_all
from learngene_zoo.settings import Json, fingerprint
from learngene_zoo.storage import read_json, write_json

if TYPE_CHECKING:
    from filelock import BaseFileLock

RECORD, LOCK, HOLDER = "run.json", "run.lock", "holder.json"
_DATE = "%Y-%m-%d %H:%M:%S"
_FILES = ("metrics.jsonl", NOTE, RECORD)
_RECORDS = ("record.json", "checkpoint.json")  # of results
_KIND = "run"


class Saveable(Protocol):
    """An artifact that can be written to a folder."""

    def save(
        self, path: Path, force: bool = False, before: Callable[[Path], None] | None = None
    ) -> Path: ...


A = TypeVar("A", bound=Saveable)


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
    """Return the result of `make(run)`; with `out`, compute it in `OUT.run`, where it can be
    resumed, and write it to `out`.

    With `run.resume`, the artifact at `out` is loaded if this very run has written it already.

    Args:
        make: computes the artifact.
        load: loads it from a folder.
        out: the artifact's folder; None: nothing is written.
        verb: the command that is recorded.
        settings: the settings of the computation; a run is resumed with equal ones only.
        run: how and where to compute.
        force: replace an artifact at `out`, and discard an unfinished run.
        data: returns the stamps of the data by name; a run is not resumed after its data changed.

    Raises:
        Refused: if `out` exists (without `force`), if an unfinished run lies there (without
            `resume` or `force`), if another process works there, or if a run that was started with
            other settings is to be resumed.
        Unavailable: if `out` cannot be written.
    """
    if out is None:
        return make(run)
    join(run.device_name)
    plan: dict[str, Json] = {
        "verb": verb,
        "seed": run.seed,
        "precision": run.precision,
        "settings": settings,
    }
    stamps = dict(data())
    if stamps:
        plan["data"] = stamps
    out = Path(out)
    path, folder = resolve_path(out), locate_run(out)
    run = replace(run, folder=folder, plan=fingerprint(plan))
    if not is_first():
        wait_for_all()
        return load(path) if _read(folder).get("finished") else make(run)
    with _lock_folder(folder, run.resume):
        delivered = _open(folder, path, plan, run.resume, force)
        wait_for_all()
        if delivered:
            return load(path)
        try:
            artifact = make(run)
            artifact.save(out, force, partial(_record_result, folder))
        except BaseException as error:
            if folder.is_dir() and not has_results(folder):
                clear(folder)
                raise
            if isinstance(error, Unavailable):
                raise Unavailable(
                    f"{error}; what was computed is in {show_path(folder)}: "
                    "go on with Run(resume=True)"
                ) from error
            error.add_note(CAN_RESUME)
            raise
        finish(folder)
        return artifact


def locate_run(out: str | Path) -> Path:
    """Return the folder of the run that writes the artifact `out`."""
    path = resolve_path(Path(out))
    return resolve_path(path.with_name(f"{path.name}.run"))


def check_start(out: str | Path | None, run: Run, force: bool) -> None:
    """Check that `out` can be written, before anything is imported or opened.

    Raises as `produce` does. A run that is to be resumed is checked by `produce` alone, which knows
    its settings.
    """
    if out is None or run.resume or not is_first():
        return
    claim(Path(out), force)
    folder = locate_run(out)
    _check_ours(folder, run.resume)
    if is_unfinished(folder) and has_results(folder) and not force:
        raise Refused(_describe_unfinished(folder))


def _describe_unfinished(folder: Path) -> str:
    verb = _read(folder).get("verb")
    kind = f" ({verb})" if isinstance(verb, str) else ""
    return (
        f"an unfinished run is in {show_path(folder)}{kind}; continue it with Run(resume=True) or "
        "start over with force=True"
    )


@contextmanager
def _lock_folder(folder: Path, resume: bool) -> Iterator[None]:
    """Hold the folder's lock; a folder that ends up empty is removed.

    Raises `Refused` while another process holds it.
    """
    _check_ours(folder, resume)
    find_nearest_parent(folder)
    with hold_lock(folder / LOCK) as is_held:
        if not is_held:
            raise Refused(
                f"{_describe_holder(folder)} works in {show_path(folder)}; wait until it has "
                "finished, or stop it first"
            )
        try:
            _check_ours(folder, resume)
            if not (folder / RECORD).is_file():
                mark_workspace(folder, _KIND)
            holder = {
                "process": os.getpid(),
                "machine": socket.gethostname(),
                "since": time.strftime(_DATE),
            }
            (folder / HOLDER).write_text(json.dumps(holder), encoding="utf-8")
            yield
        finally:
            (folder / HOLDER).unlink(missing_ok=True)
            if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {LOCK, MARKER}:
                (folder / MARKER).unlink(missing_ok=True)


def _describe_holder(folder: Path) -> str:
    try:
        holder = read_json(folder / HOLDER)
        return (
            f"process {int(holder['process'])} on {holder['machine']} (running since "
            f"{holder['since']})"
        )
    except (BadFile, KeyError, TypeError, ValueError):
        return "another process"


def _check_ours(folder: Path, resume: bool) -> None:
    """Check that a folder is empty or marked as a run's. Raises `Refused` otherwise.

    A folder of an earlier version, without a mark, may be resumed if its record is that of a run;
    nothing of it is removed. Symbolic links in place of a run's files, through which it would write
    elsewhere, are refused.
    """
    if folder.exists() and not folder.is_dir():
        raise Refused(
            f"{show_path(folder)} exists and is not the folder of a run; move it, or choose "
            "another place with out=PATH"
        )
    if not folder.is_dir():
        return
    link = _find_link(folder)
    if link is not None:
        raise Refused(
            f"{show_path(link)} is a symbolic link, and a run writes only into its own folder; "
            "replace the link by the files that it leads to, or choose another place with out=PATH"
        )
    if is_workspace(folder, _KIND) or (resume and _is_earlier(folder)):
        return
    ours = (LOCK, HOLDER, MARKER)
    strange = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in ours and not is_draft(entry.name)
    )
    if strange:
        raise Refused(
            f"{show_path(folder)} holds {strange[0]}, and no valid {MARKER} file that says that "
            "it is the folder of a run; "
            "move it, or choose another place with out=PATH"
        )


def _find_link(folder: Path) -> Path | None:
    """Return a symbolic link with the name of a run's file, or in the folder of a part."""
    ours = {*_FILES, KEPT, LOCK, HOLDER, MARKER, PARTS}
    for subfolder in _iterate_folders(folder):
        for entry in sorted(subfolder.iterdir()):
            is_named = subfolder != folder or entry.name in ours or _is_named_result(entry.name)
            if is_named and entry.is_symlink():
                return entry
    return None


def _is_earlier(folder: Path) -> bool:
    """Return whether a folder has the record of a run of a version that wrote no mark."""
    return {"verb", "seed", "precision", "settings", "finished"} <= _read(folder).keys()


def _open(folder: Path, path: Path, plan: dict[str, Json], resume: bool, force: bool) -> bool:
    """Prepare the folder for this run, new or as it was interrupted; return whether the artifact is
    there already.
    """
    recover(path)
    record = _read(folder)
    if resume and record and not _find_difference(record, plan) and _is_delivered(record, path):
        finish(folder)
        return True
    if resume and not force and _is_delivered(record, path):
        raise Refused(
            f"{show_path(path)} is finished, and was made with other settings "
            f"({_find_difference(record, plan)}); write the new one to another path with out=PATH, "
            "or replace it with force=True"
        )
    claim(path, force)
    unfinished = bool(record) and not record.get("finished") and has_results(folder)
    if resume and unfinished:
        changed = _find_difference(
            record, {key: value for key, value in plan.items() if key != "data"}
        )
        if changed:
            raise Refused(
                f"the run in {show_path(folder)} was started with other settings ({changed}); "
                "resume it with the same ones, or start over with force=True"
            )
        _check_data(record, plan, folder)
        return False
    if unfinished and not force:
        raise Refused(_describe_unfinished(folder))
    if resume:
        print_note(
            f"there is nothing to resume in {show_path(folder)}; the run starts from the beginning",
            "resume",
        )
    clear(folder, but_kept=not unfinished and bool(_find_difference(record, plan)))
    _write(folder, {**plan, "finished": False})
    return False


def _check_data(record: dict[str, Json], plan: dict[str, Json], folder: Path) -> None:
    """Check that the files and labels of a run's data are those it began with.

    Raises `Refused` otherwise.
    """
    data: Json = record.get("data")
    old = data if isinstance(data, dict) else {}  # the file may hold any JSON
    for name, stamp in (plan.get("data") or {}).items():
        if old.get(name) != stamp:
            raise Refused(
                f"the data {name} changed since the run in {show_path(folder)} began (its files, "
                "their contents or the labels); "
                "restore it and resume, or start over with force=True"
            )


def _read(folder: Path) -> dict[str, Json]:
    """Return the record of the run in a folder; {} if none was begun there.

    An unreadable one is that of an unfinished run.
    """
    if not (folder / RECORD).is_file():
        return {}
    try:
        return read_json(folder / RECORD)
    except BadFile:
        return {"finished": not has_results(folder)}


def _write(folder: Path, record: Json) -> None:
    with new_file(folder / RECORD, force=True) as draft:
        write_json(draft, record)


def _record_result(folder: Path, draft: Path) -> None:
    """Record the digest of the complete artifact that is about to be moved to its path."""
    _write(folder, {**_read(folder), "result": digest_of(draft)})


def _is_delivered(record: dict[str, Json], path: Path) -> bool:
    return "result" in record and path.is_dir() and digest_of(path) == record["result"]


def finish(folder: Path) -> None:
    """Mark the run as finished and remove the files that only an unfinished run needs.

    Its record and metrics stay.
    """
    if (folder / RECORD).is_file():
        _write(folder, {**_read(folder), "finished": True})
    for rest in _list_resumable(folder):
        remove_marked(rest)


def clear(folder: Path, *, but_kept: bool = False) -> None:
    """Remove everything of a run from its folder; files of a tracker or the user stay.

    The record is removed last: if this call is killed, the next one recognises the folder by it and
    goes on.

    Args:
        folder: the run's folder.
        but_kept: leave the small results of its parts, which a run with other settings may take
            over (`compute_once`).
    """
    if _list_resumable(folder) and (folder / RECORD).is_file():
        _write(folder, {"finished": True})  # half a checkpoint is nothing to resume
    for rest in _list_resumable(folder):
        remove_marked(rest)
    for subfolder in reversed(list(_iterate_folders(folder))):
        for name in _FILES if but_kept else (*_FILES, KEPT):
            (subfolder / name).unlink(missing_ok=True)
        if subfolder != folder and not any(subfolder.iterdir()):
            subfolder.rmdir()


def _iterate_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in which a run stores files: the run's folder, and those of its parts, each
    after its parent.

    Symbolic links are not followed: a run creates none.
    """
    yield folder
    waiting = [folder / PARTS]
    while waiting:
        subfolder = waiting.pop()
        if subfolder.is_dir() and not subfolder.is_symlink() and not _is_result(subfolder):
            yield subfolder
            waiting.extend(sorted(subfolder.iterdir(), reverse=True))


def _is_result(path: Path) -> bool:
    """Return whether a path is a checkpoint, the best weights so far, or a finished part.

    A part may have such a name as well, that of a task; its folder has no marker. Results of
    earlier versions have none either, but their records. An empty folder is the rest of a result.
    """
    if not _is_named_result(path.name) or path.is_symlink() or not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    return not names or not names.isdisjoint((MARKER, *_RECORDS))


def _is_named_result(name: str) -> bool:
    return name == "done" or name.startswith(("checkpoint-", "best-"))


def _list_resumable(folder: Path) -> list[Path]:
    """Return the checkpoints, the best weights so far, and the finished parts."""
    return [
        entry
        for subfolder in _iterate_folders(folder)
        for entry in sorted(subfolder.iterdir())
        if _is_result(entry)
    ]


def is_begun(folder: Path) -> bool:
    """Return whether a folder has the record of a run, finished or not."""
    return bool(_read(folder))


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder is that of a run that has not finished."""
    record = _read(folder)
    return bool(record) and not record.get("finished")


def has_results(folder: Path) -> bool:
    """Return whether there are results that a resumed run would not have to compute again: here, or
    shared by runs. False if the folder does not exist.
    """
    if not folder.is_dir():
        return False
    notes = (subfolder / name for subfolder in _iterate_folders(folder) for name in (NOTE, KEPT))
    return bool(_list_resumable(folder)) or any(note.is_file() for note in notes)


def _find_difference(old: Json, new: Json, name: str = "") -> str:
    """Return the first value that differs, in words; "" if there is none.

    A setting may be recorded only where it is not the default. Of the record itself only the keys
    of the new one count.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*new, *old]) if name else new:
            inner = _find_difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if inner:
                return inner
        return ""
    then, now = ("not set" if value is None else value for value in (old, new))
    return "" if old == new else f"{name.removeprefix('settings.')}: {then} then, {now} now"


@contextmanager
def hold_lock(path: Path) -> Iterator[bool]:
    """Yield whether this process holds the lock, taken without waiting.

    Its folder is created, and removed if it ends up empty. The holder removes the file before it
    releases the lock. Another process may have opened that file meanwhile and lock it then, while a
    third one creates and locks a new file of the same name. So a lock counts only if it is on the
    file that has the name.
    """
    lock = _take_lock(path)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # where a file that is open cannot be removed, it stays
            path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            path.parent.rmdir()


def _take_lock(path: Path) -> BaseFileLock | None:
    from filelock import FileLock, Timeout

    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except FileNotFoundError:  # the folder was removed between the two lines
            continue
        except Timeout:
            return None
        if _is_at(lock, path):
            return lock
        lock.release()


def _is_at(lock: BaseFileLock, path: Path) -> bool:
    """Return whether the file that a lock holds is the one at its path."""
    descriptor = lock._context.lock_file_fd
    try:
        return descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
