"""What an extraction works on: its preset, ancestry models and tasks, where the call does not name them. Cold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.method import Extractor, Method
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, SOURCE_TASK

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task

DEFAULT_ANCESTRY = "bundled"  # see ancestry.py


def preset_of(method: Method, preset: str | None) -> Extractor:
    """The extractor with the settings of a preset; "mini" if none is named. Raises `WrongCall`."""
    if preset is not None and preset not in method.presets:
        raise unknown(f"preset of {method.name}", preset, method.presets)
    return method.presets[preset] if preset else method.extractor


def sources_for(method: Method, ancestries: Sequence[str]) -> list[str]:
    """The ancestry models of an extraction: those named, else the bundled one. Raises `WrongCall` for a wrong number."""
    least, most = method.ancestries
    sources = list(ancestries) or [DEFAULT_ANCESTRY] * least
    if len(sources) < least or (most is not None and len(sources) > most):
        wanted = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise WrongCall(f"{method.name} takes {wanted} ancestries (--ancestry), not {len(sources)}")
    return sources


def references_for(method: Method, tasks: Sequence[str]) -> list[str]:
    """The tasks of an extraction: those named, else the method's defaults. Raises `WrongCall` for a wrong number."""
    defaults = {"none": (), "one": (SOURCE_TASK,), "many": DEFAULT_TASKS}
    references = list(tasks) or list(defaults[method.tasks])
    if method.tasks == "none" and references:
        raise WrongCall(f"{method.name} trains on no task; leave --task out")
    if method.tasks == "one" and len(references) != 1:
        raise WrongCall(f"{method.name} trains on one task, not {len(references)}")
    return references


def check_distinct(tasks: Sequence[Task]) -> None:
    """Raises `WrongCall` if two tasks have one name: their parts of the run would be mixed up."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is named twice; name each once")
