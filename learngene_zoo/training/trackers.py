"""Outside trackers (TensorBoard, Weights & Biases, ...): those accelerate knows, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from learngene_zoo.errors import Unavailable, WrongCall, unknown
from learngene_zoo.run import Run

if TYPE_CHECKING:
    from accelerate import Accelerator


class Log(Protocol):
    """Takes the values of one step."""

    def __call__(self, values: Mapping[str, float], step: int) -> None: ...


def check_tracker(name: str | None, folder: Path | None) -> None:
    """Raises `WrongCall` for a tracker nobody knows, `Unavailable` for one whose package is not installed."""
    if name is None:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known: dict[str, Any] = {str(key): value for key, value in LOGGER_TYPE_TO_CLASS.items()}
    if name not in known:
        raise unknown("tracker", name, known)
    from accelerate.utils import LoggerType

    builtin = {str(kind) for kind in LoggerType}
    if name in builtin and name not in map(str, get_available_trackers()):
        raise Unavailable(
            f"the tracker {name} is not installed; install the package {name}, or train without --tracker"
        )
    if known[name].requires_logging_directory and folder is None:
        raise WrongCall(f"the tracker {name} writes files; give an output folder with -o")


@contextmanager
def tracking(accelerator: Accelerator, run: Run, label: str) -> Iterator[Log]:
    """A function that hands values to the run's tracker, if it has one; the tracker is finished on leaving."""
    if run.tracker is None:
        yield lambda values, step: None
        return
    accelerator.init_trackers("learngene_zoo", config={"label": label, "part": run.name, "seed": str(run.seed)})
    try:
        yield lambda values, step: accelerator.log(dict(values), step=step)
    finally:
        # Not accelerator.end_training(): that also takes down the process group.
        for tracker in accelerator.trackers:
            tracker.finish()
