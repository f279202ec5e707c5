"""Parts of a run that are computed once: `once(run, "method.part", function, settings, inputs)`.

What is passed is the key: the part's name, its own settings, its inputs, its seed and the run's precision. No name of a
function, class or module is in it, so that code can move without a part being computed again.
A part that a run has finished is loaded, not repeated. One that has no tensors is kept with its key even when the whole run is
finished (`kept.json`): a later run in the same folder, with settings that this part does not depend on, takes it over.

Runs that share parts (`Run.shared`) take those with equal keys from one another: `FOLDER/<key>` holds a part as a run's
own folder does, with metrics, checkpoints until it is finished, and `done`. Of several processes one computes and the
others wait; after an interruption any of them continues from the checkpoint. `cost.json` there records what the part
took, and a note in the folder of every run that used it refers to it, so that the cost of each run alone is known
(`taken`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from learngene_zoo.atomic import new_file
from learngene_zoo.ownership import remove_marked
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, is_first, wait_for_all, world
from learngene_zoo.settings import Json, fingerprint, from_json, stated_fields, to_json
from learngene_zoo.storage import load_result, parse_json, read_json, save_result, write_json

if TYPE_CHECKING:
    from learngene_zoo.storage import StateDict

NOTE, COST, DONE, KEPT = "shared.json", "cost.json", "done", "kept.json"


@dataclass(frozen=True, kw_only=True)
class Note:
    """That a run used a shared part, and the seconds that it spent with it: computing, or waiting for another process."""

    key: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a run would have taken alone: seconds beyond those that it took, and all training images."""

    seconds: float = 0.0
    images: int = 0


@dataclass(frozen=True)
class Part:
    """The result of a part of a run."""

    state: StateDict
    record: Json
    key: str  # hashes everything that it depends on; as an input of another part it stands for the tensors

    @property
    def identity(self) -> Json:
        """What tells it from other parts."""
        return {"part": self.key}


def once(
    run: Run,
    name: str,
    function: Callable[..., tuple[StateDict, Json]],
    settings: Any = None,
    inputs: Sequence[Any] = (),
) -> Part:
    """Return what `function(settings, *inputs, run)` computes; load it where this part is finished already.

    A run that is not resumed loads only what an earlier one has kept under the same key. Under torchrun every process
    computes (they train together) and the first one writes.

    Args:
        run: the part of a run, `run.part(...)`, in whose folder the result is kept.
        name: what is computed, "method.part". It never changes, and no two functions share one.
        function: defined at the top of a module, so that it depends on nothing but its arguments.
        settings: the part's own frozen dataclass.
        inputs: ancestry models, tasks, learngenes, descendants, earlier parts, frozen dataclasses, plain values, and
            sequences and mappings of them.

    Raises:
        TypeError: for a name that is not a string, and a function or an input that has no identity.
    """
    if not isinstance(name, str):
        raise TypeError(
            f'the name of a part is {name!r}; expected a string such as "my_method.train" before the function'
        )
    check_function(function)
    key = key_of(name, settings, [*inputs, run.precision], run.seed)
    compute = partial(function, settings, *inputs)
    if run.shared is not None and world() == 1:
        return Part(*_shared(run, run.shared, compute, key), key)
    if run.folder is None:
        return Part(*_compute(compute, run), key)
    done, kept = run.folder / DONE, run.folder / KEPT
    if run.resume and done.is_dir():
        return Part(*load_result(done), key)
    before = read_json(kept) if kept.is_file() else {}
    taken_over = before.get("key") == key
    state, record = ({}, before.get("record")) if taken_over else _compute(compute, run)
    if is_first():
        if not state and not taken_over:  # first: a part that is done is not written again, so neither would this be
            _write(kept, {"key": key, "record": record})
        save_result(done, state, record)
    wait_for_all()
    return Part(state, record, key)


def _compute(compute: Callable[[Run], tuple[StateDict, Json]], run: Run) -> tuple[StateDict, Json]:
    with report_activity(run.name or "computing"):
        return compute(run)


def check_function(function: Callable[..., Any]) -> None:
    """Raise `TypeError` for a function that may depend on more than its arguments."""
    if not isinstance(function, FunctionType) or function.__closure__ or "<" in function.__qualname__:
        raise TypeError(f"{function!r} may depend on more than its arguments; pass a function from the top of a module")


def key_of(name: str, settings: Any, inputs: Sequence[Any], seed: int) -> str:
    """Return the hash that a part is kept under. Raises `TypeError` for an input that has no identity."""
    return fingerprint([name, _identity(settings), [_identity(value) for value in inputs], seed])


def _identity(value: Any) -> Json:
    """Return JSON that two values share only if a part cannot tell them apart."""
    if hasattr(value, "identity"):
        return value.identity
    if is_dataclass(value) and not isinstance(value, type):
        return {"fields": {field.name: _identity(getattr(value, field.name)) for field in stated_fields(value)}}
    if isinstance(value, Mapping):
        return {str(key): _identity(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_identity(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, Path)):
        return to_json(value)
    raise TypeError(f"a {type(value).__name__} has no identity that a part's key could hold; pass what it is made from")


def _shared(
    run: Run, shared: Path, compute: Callable[[Run], tuple[StateDict, Json]], key: str
) -> tuple[StateDict, Json]:
    """The result of a part in the folder `shared`, computed now if it is not there."""
    from filelock import FileLock

    place, began = shared / key, time.monotonic()
    shared.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(shared / f"{key}.lock"):
            if not (place / DONE).is_dir():
                _make(place, run, key, compute)
            for checkpoint in [path for path in place.glob("**/checkpoint*") if path.is_dir()]:
                remove_marked(checkpoint)
    finally:
        _note(run, key, time.monotonic() - began)
    return load_result(place / DONE)


def _make(place: Path, run: Run, key: str, compute: Callable[[Run], tuple[StateDict, Json]]) -> None:
    """Compute a part, write what it took, and mark it as done last: a part that is there has its cost, whatever is killed."""
    began = time.monotonic()
    try:
        state, record = _compute(compute, replace(run, folder=place, resume=True, plan=key))
    finally:
        _write(place / COST, {"seconds": _seconds(place) + time.monotonic() - began})
    save_result(place / DONE, state, record)


def _note(run: Run, key: str, seconds: float) -> None:
    """Note in the run's own folder which part it used; the seconds of resumed runs add up."""
    if run.folder is None:
        return
    path = run.folder / NOTE
    before = _read(path).seconds if path.is_file() else 0.0
    _write(path, to_json(Note(key=key, seconds=before + seconds)))


def taken(folder: Path, shared: Path | None) -> Taken:
    """What a run in `folder` would have taken if it had computed everything that it used by itself.

    `seconds` come on top of those that it took: what its shared parts took, less the time that it spent with them.
    `images` are the training images of all steps of all parts, from the metrics.
    """
    lines = (line for path in folder.rglob("metrics.jsonl") for line in path.read_bytes().splitlines())
    images = sum(number_in(line, "images") for line in lines)
    notes = [_read(path) for path in sorted(folder.rglob(NOTE))]
    seconds = -sum(note.seconds for note in notes)
    for key in {note.key for note in notes} if shared is not None else ():
        assert shared is not None
        inner = taken(shared / key, shared)
        seconds += _seconds(shared / key) + inner.seconds
        images += inner.images
    return Taken(seconds=seconds, images=images)


def number_in(line: bytes, name: str) -> int:
    """What one line of the metrics says of a step, as its number of images; 0 for a line that a kill cut short."""
    try:
        return int(parse_json(line)[name])
    except (ValueError, KeyError, TypeError):
        return 0


def _seconds(place: Path) -> float:
    return float(read_json(place / COST)["seconds"]) if (place / COST).is_file() else 0.0


def _read(path: Path) -> Note:
    return from_json(Note, read_json(path), str(path))


def _write(path: Path, data: Json) -> None:
    with new_file(path, force=True) as draft:
        write_json(draft, data)
