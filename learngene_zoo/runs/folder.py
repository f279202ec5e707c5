"""The folder of a run (`learngene.run` beside `learngene`): begun, resumed or refused, and finished.

It holds `run.json` (what is being computed, and whether it is done), `metrics.jsonl`, checkpoints and finished parts.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from learngene_zoo.errors import BadFile, Refused
from learngene_zoo.runs.distributed import is_first, join, wait_for_all
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json
from learngene_zoo.storage import claim, nearest_parent, read_json, write_json

RECORD = "run.json"


def begin(out: Path | None, verb: str, settings: Json, run: Run, force: bool) -> Run:
    """The run, with its folder. Called before anything is computed.

    Raises `Refused` if `out` exists (without `force`), if an unfinished run exists (without `resume` or `force`), or if
    the run to resume was started with other settings; `Unavailable` if the folder cannot be written.
    """
    if out is None:
        return run
    claim(out, force)
    folder = out.with_name(out.name + ".run")
    plan = {"verb": verb, "seed": run.seed, "precision": run.precision, "settings": settings}
    join(run.device)
    if is_first():
        _open(folder, plan, run.resume, force)
    wait_for_all()
    return replace(run, folder=folder)


def _open(folder: Path, plan: dict[str, Json], resume: bool, force: bool) -> None:
    if folder.exists():
        before = _read(folder)
        if resume and not before.get("finished"):
            _same(before, plan, folder)
            return
        if not (force or before.get("finished")):
            raise Refused(f"an unfinished run is in {folder}; continue it with --resume or start over with --force")
        shutil.rmtree(folder)
    nearest_parent(folder)
    folder.mkdir(parents=True)
    write_json(folder / RECORD, {**plan, "finished": False})


def _read(folder: Path) -> dict[str, Json]:
    """The record in a run's folder. A run that was killed before it wrote one counts as finished: it holds nothing."""
    if not folder.is_dir():
        raise Refused(f"{folder} exists and is not the folder of a run; move it, or choose another place with -o")
    if not any(folder.iterdir()):
        return {"finished": True}
    if not (folder / RECORD).is_file():
        raise Refused(
            f"{folder} has files but no {RECORD}, so it is not the folder of a run; choose another place with -o"
        )
    try:
        return read_json(folder / RECORD)
    except BadFile:
        return {"finished": True} if set(folder.iterdir()) == {folder / RECORD} else {}


def _same(before: dict[str, Json], plan: dict[str, Json], folder: Path) -> None:
    changed = _first_difference(before, plan)
    if changed:
        raise Refused(
            f"the run in {folder} was started with other settings ({changed}); "
            "resume it with the same ones, or start over with --force"
        )


def _first_difference(before: Json, now: Json, name: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now:
            inner = _first_difference(before.get(key), now[key], f"{name}.{key}" if name else key)
            if inner:
                return inner
        return ""
    return "" if before == now else f"{name.removeprefix('settings.')}: {before} then, {now} now"


def finish(run: Run) -> None:
    """Mark the run as finished and delete what only an unfinished one needs. Its record and metrics stay."""
    if run.folder is None or not is_first():
        return
    record = read_json(run.folder / RECORD)
    write_json(run.folder / RECORD, {**record, "finished": True})
    for checkpoint in sorted(run.folder.rglob("checkpoint*")) + sorted(run.folder.rglob("done")):
        if checkpoint.is_dir():
            shutil.rmtree(checkpoint)
