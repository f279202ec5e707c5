"""Compute parts of a run once: `compute_once(run, "method.part", function, settings, inputs)`.

The arguments are the key: the part's name, its settings, its inputs, its seed, the run's precision
and, for a plugin of another package, the digest of its code (`Run.code`). The key has no name of a
function, class or module, so code of this project can move without a part being computed again. A
part that a run has finished is loaded, not repeated. A part without tensors is
stored with its key even when the whole run is finished (`kept.json`): a later run in the same
folder, with settings that this part does not depend on, takes it over.

Runs that share parts (`Run.shared`) take those with equal keys from one another: `FOLDER/<key>`
holds a part as a run's folder does, with metrics, checkpoints until it is finished, and `done`. Of
several processes one computes and the others wait; after an interruption any of them continues from
the checkpoint. `cost.json` there records the part's cost, and a note in the folder of every run
that used it refers to it, so that the cost of each run alone is known (`measure_cost_alone`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from learngene_zoo.atomic import new_file
from learngene_zoo.ownership import remove_marked
from learngene_zoo.runs.progress import print_unless_shown, read_number, report_activity
from learngene_zoo.runs.run import Run, get_world_size, is_first, wait_for_all
from learngene_zoo.settings import Json, fingerprint, from_json, list_stated_fields, to_json
from learngene_zoo.storage import (
    load_result,
    normalise_json,
    read_json,
    save_result,
    write_json,
)

if TYPE_CHECKING:
    from learngene_zoo.storage import StateDict

SILENT_SECONDS = 1.0  # of waiting for another process
NOTE, COST, DONE, KEPT = "shared.json", "cost.json", "done", "kept.json"


@dataclass(frozen=True, kw_only=True)
class Note:
    """A record that a run used a shared part, and the seconds spent with it: computing, or waiting
    for another process.
    """

    key: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CostAlone:
    """The cost of a run without sharing: seconds beyond those it took, and all training images."""

    seconds: float = 0.0
    images: int = 0


@dataclass(frozen=True)
class Part:
    """The result of a part of a run."""

    state: StateDict
    record: Json
    # hashes everything that it depends on; as an input of another part it stands for the tensors
    key: str

    @property
    def identity(self) -> Json:
        """The JSON that distinguishes it from other parts."""
        return {"part": self.key}


def compute_once(
    run: Run,
    name: str,
    function: Callable[..., tuple[StateDict, Json]],
    settings: Any = None,
    inputs: Sequence[Any] = (),
) -> Part:
    """Return the result of `function(settings, *inputs, run)`; load it where this part is finished
    already.

    A run that is not resumed loads only results that an earlier run has stored under the same key.
    Under torchrun every process computes (they train together) and the first one writes. The
    record is the one that a later run would read from its file.

    Args:
        run: the part of a run, `run.part(...)`, in whose folder the result is kept.
        name: the name of the part, "method.part". It never changes, and no two functions share one.
        function: defined at the top of a module, so that it depends on nothing but its arguments.
        settings: the part's own frozen dataclass.
        inputs: ancestry models, tasks, learngenes, descendants, earlier parts, frozen dataclasses,
            plain values, and sequences and mappings of them.

    Raises:
        TypeError: for a name that is not a string, and a function or an input that has no identity.
    """
    if not isinstance(name, str):
        raise TypeError(
            f'the name of a part is {name!r}; expected a string such as "my_method.train" before '
            "the function"
        )
    check_function(function)
    code = [run.code] if run.code else []
    key = compute_key(name, settings, [*inputs, run.precision, *code], run.seed)
    compute = partial(function, settings, *inputs)
    if run.shared is not None and get_world_size() == 1:
        return Part(*_load_shared(run, run.shared, compute, key), key)
    if run.folder is None:
        return Part(*_compute(compute, run), key)
    done_path, kept_path = run.folder / DONE, run.folder / KEPT
    if run.resume and done_path.is_dir():
        return Part(*load_result(done_path), key)
    previous = read_json(kept_path) if kept_path.is_file() else {}
    taken_over = previous.get("key") == key
    state, record = ({}, previous.get("record")) if taken_over else _compute(compute, run)
    if is_first():
        if not state and not taken_over:
            # First: a finished part is not written again, so this file would not be written
            # either.
            _write_json(kept_path, {"key": key, "record": record})
        save_result(done_path, state, record)
    wait_for_all()
    return Part(state, record, key)


def _compute(compute: Callable[[Run], tuple[StateDict, Json]], run: Run) -> tuple[StateDict, Json]:
    with report_activity(run.name or "computing"):
        state, record = compute(run)
    return state, normalise_json(record)


def check_function(function: Callable[..., Any]) -> None:
    """Check that a function depends on its arguments alone. Raises `TypeError` otherwise."""
    if (
        not isinstance(function, FunctionType)
        or function.__closure__
        or "<" in function.__qualname__
    ):
        raise TypeError(
            f"{function!r} may depend on more than its arguments; pass a function from the top of "
            "a module"
        )


def compute_key(name: str, settings: Any, inputs: Sequence[Any], seed: int) -> str:
    """Return the hash under which a part is stored.

    Raises `TypeError` for an input that has no identity.
    """
    return fingerprint([name, _identity(settings), [_identity(value) for value in inputs], seed])


def _identity(value: Any) -> Json:
    """Return JSON that two values share only if a part cannot tell them apart."""
    if hasattr(value, "identity"):
        return value.identity
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "fields": {
                field.name: _identity(getattr(value, field.name))
                for field in list_stated_fields(value)
            }
        }
    if isinstance(value, Mapping):
        return {str(key): _identity(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_identity(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, Path)):
        return to_json(value)
    raise TypeError(
        f"a {type(value).__name__} has no identity that a part's key could hold; pass what it is "
        "made from"
    )


@contextmanager
def wait_for_lock(path: Path, work: str) -> Iterator[None]:
    """Wait for the lock of a file, and hold it.

    Lines of progress name what another holder does. Where none are printed, as in a script, a
    single line names it after `SILENT_SECONDS`.

    Args:
        path: the file of the lock, made if it does not exist.
        work: what the holder does, as "extracting lsamd".
    """
    from filelock import FileLock, Timeout

    lock, title = FileLock(path), f"waiting for another process ({work})"
    with report_activity(title):
        try:
            lock.acquire(timeout=SILENT_SECONDS)
        except Timeout:
            print_unless_shown(title)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _load_shared(
    run: Run, shared: Path, compute: Callable[[Run], tuple[StateDict, Json]], key: str
) -> tuple[StateDict, Json]:
    """Return the result of a part in the folder `shared`, computed now if it is not there."""
    folder, start = shared / key, time.monotonic()
    shared.mkdir(parents=True, exist_ok=True)
    try:
        with wait_for_lock(shared / f"{key}.lock", f"computing {run.name or 'the same part'}"):
            if not (folder / DONE).is_dir():
                _compute_shared(folder, run, key, compute)
            for pattern in ("**/checkpoint-*", "**/best-*"):
                for left in [path for path in folder.glob(pattern) if path.is_dir()]:
                    remove_marked(left)
    finally:
        _record_use(run, key, time.monotonic() - start)
    return load_result(folder / DONE)


def _compute_shared(
    folder: Path, run: Run, key: str, compute: Callable[[Run], tuple[StateDict, Json]]
) -> None:
    """Compute a part, write its cost, and mark it as done last: a finished part has its cost,
    wherever the process is killed.
    """
    start = time.monotonic()
    try:
        state, record = _compute(compute, replace(run, folder=folder, resume=True, plan=key))
    finally:
        _write_json(folder / COST, {"seconds": _read_seconds(folder) + time.monotonic() - start})
    save_result(folder / DONE, state, record)


def _record_use(run: Run, key: str, seconds: float) -> None:
    """Write which part the run used into its folder; the seconds of resumed runs add up."""
    if run.folder is None:
        return
    path = run.folder / NOTE
    before = _read_note(path).seconds if path.is_file() else 0.0
    _write_json(path, to_json(Note(key=key, seconds=before + seconds)))


def measure_cost_alone(folder: Path, shared: Path | None) -> CostAlone:
    """Return the cost of a run in `folder` as if it had computed all the parts that it used.

    `seconds` are added to those of the run: the seconds of its shared parts, less the time that it
    spent with them. `images` are the training images of all steps of all parts, from the metrics.
    """
    lines = (
        line for path in folder.rglob("metrics.jsonl") for line in path.read_bytes().splitlines()
    )
    images = sum(read_number(line, "images") for line in lines)
    notes = [_read_note(path) for path in sorted(folder.rglob(NOTE))]
    seconds = -sum(note.seconds for note in notes)
    for key in {note.key for note in notes} if shared is not None else ():
        assert shared is not None
        inner = measure_cost_alone(shared / key, shared)
        seconds += _read_seconds(shared / key) + inner.seconds
        images += inner.images
    return CostAlone(seconds=seconds, images=images)


def _read_seconds(folder: Path) -> float:
    return float(read_json(folder / COST)["seconds"]) if (folder / COST).is_file() else 0.0


def _read_note(path: Path) -> Note:
    return from_json(Note, read_json(path), str(path))


def _write_json(path: Path, data: Json) -> None:
    with new_file(path, force=True) as draft:
        write_json(draft, data)
