"""What the verbs work on: ancestry models and tasks that a call names, else the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall
from learngene_zoo.method import Method
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET, DEFAULT_TASKS, SOURCE_TASK, is_own_data
from learngene_zoo.text import shell_word

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.tasks.task import Task

DEFAULT_ANCESTRY = "bundled"  # see artifacts/ancestry.py


def sources_for(method: Method, ancestries: Sequence[str]) -> list[str]:
    """The ancestry models of an extraction, by default the bundled one. Raises `WrongCall` for a wrong number."""
    least, most = method.ancestries
    sources = list(ancestries) or [DEFAULT_ANCESTRY] * least
    if len(sources) < least or (most is not None and len(sources) > most):
        expected = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
        raise WrongCall(f"{method.name} takes {expected} ancestries (--ancestry), not {len(sources)}")
    return sources


def references_for(method: Method, tasks: Sequence[str]) -> list[str]:
    """The tasks of an extraction: those named, else the method's defaults. Raises `WrongCall` for a wrong number."""
    defaults = {"none": (), "one": (SOURCE_TASK,), "many": DEFAULT_TASKS}
    references = list(tasks) or list(defaults[method.tasks])
    if method.tasks == "none" and references:
        raise WrongCall(f"{method.name} does not train on a task; leave out --task")
    if method.tasks == "one" and len(references) != 1:
        raise WrongCall(f"{method.name} trains on one task, not {len(references)}")
    return references


def check_distinct(tasks: Sequence[Task]) -> None:
    """Raises `WrongCall` if two tasks have one name: their parts of the run would be mixed up."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongCall(f"the task {twice[0]} is named twice; name each once")


def own_task(model: Descendant, verb: str) -> str:
    """The task of the catalogue that a model names. Raises `WrongCall` for other data: only the caller may name it."""
    task = model.task or DEFAULT_TARGET
    if is_own_data(task):
        call = f"lgzoo {verb} {shell_word(str(model.folder or 'MODEL'))} --task {shell_word(task)}"
        raise WrongCall(f"the model names its data as {task!r}, which is opened only if you name it: {call}")
    return task


def check_head(model: Descendant, task: Task) -> None:
    """Raises `WrongCall` for a model that does not have the classes of the task."""
    train = f"train it first: lgzoo finetune --task {task.name}"
    if model.spec.dense != task.dense:
        each = {True: "pixel", False: "image"}
        raise WrongCall(
            f"the model gives one class per {each[model.spec.dense]} and {task.name} has one per {each[task.dense]}; {train}"
        )
    if model.spec.classes != task.classes:
        raise WrongCall(f"the model has {model.spec.classes} classes and {task.name} has {task.classes}; {train}")
