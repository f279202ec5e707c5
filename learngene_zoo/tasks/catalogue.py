"""The tasks that have a name: a package offers them as a `Suite` of entries, and the catalogue has those of every package.

The catalogue is known without opening a task: `lgzoo list tasks` reads neither images nor the network. `open_task` opens any task.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from learngene_zoo.artifacts.own_data import LocalOrigin, find_origin, is_unnamed, locate, name_call
from learngene_zoo.errors import WrongCall, ZooError, nearest, unknown
from learngene_zoo.registry import Broken, Found, Plugins
from learngene_zoo.tasks.stamps import FileStamp, stamp_task
from learngene_zoo.tasks.task import Entry, HubSource, Split, Task
from learngene_zoo.text import shell_word

DEFAULT_SUITE = "mini"  # what a bench runs
DEFAULT_TASKS = ("objects", "signs", "glyphs")  # what an extraction trains on
DEFAULT_TARGET = "digits"  # what a descendant is fine-tuned on; no bundled learngene was extracted from digits
SOURCE_TASK = "forms"  # what the bundled ancestry model was trained on
OWN = "folder:PATH, parquet:PATH, hf:org/name[:config], or a stream: wds:PATTERN, hf-stream:org/name[:config]"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tasks under one name: `lgzoo list tasks` shows `entries`, and `lgzoo bench SUITE` runs `tasks`.

    A package registers it in the entry-point group `learngene_zoo.suites`. The module that holds it imports neither torch
    nor numpy at its top: `open` imports what it needs.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    open: Callable[[Entry, bool], Task] = field(repr=False, compare=False)  # takes an entry and whether it is offline
    tasks: tuple[str, ...] = ()  # those of the entries that are used together; (): all
    # Where on the Hub the data of an entry would be read from now; None if it is found on this machine, or nowhere.
    hub: Callable[[Entry], HubSource | None] = field(default=lambda entry: None, repr=False, compare=False)
    # Of pictures that are drawn: the tasks, the version that their test images are drawn from, and the tasks whose families no
    # source task of the suite shows, or none from some version on.
    generated: tuple[str, ...] = ()
    version: int = 1
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not names:
            raise WrongCall(f"the suite {self.name!r} has no tasks")
        repeated = [name for name, count in Counter([self.name, *names]).items() if count > 1]
        if repeated:
            raise WrongCall(f"the suite {self.name!r} uses the name {repeated[0]!r} twice")
        for name in (*self.tasks, *self.generated, *self.left_out):
            if name not in names:
                raise unknown(f"task of the suite {self.name!r}", name, names)
        if not self.tasks:
            object.__setattr__(self, "tasks", tuple(names))


def built_in(entry: Entry, class_names: Sequence[str], open_split: Callable[[str], Split], **changes: Any) -> Task:
    """The task of a catalogue entry; `changes` are fields that are known only once its data is found."""
    shared = {name: value for name, value in vars(entry).items() if name != "description"}
    return Task(**{**shared, "class_names": tuple(class_names), "open_split": open_split, **changes})


def split_sizes(train: int, validation: int, test: int) -> dict[str, int]:
    """The number of images in each split, as `Entry.sizes` takes it."""
    return {"train": train, "validation": validation, "test": test}


# The catalogue of what is installed.


SUITES = Plugins("learngene_zoo.suites", "suite", Suite)


def suites() -> tuple[tuple[Suite, ...], tuple[Broken, ...]]:
    """Every suite that can be used, the default one first, and every one that cannot, with the reason.

    A suite that uses the name of another suite or of one of its tasks is refused, unless it belongs to this project.
    """
    return _suites(SUITES.found())


@lru_cache(maxsize=1)
def _suites(found: tuple[Found, ...]) -> tuple[tuple[Suite, ...], tuple[Broken, ...]]:
    loaded, broken = SUITES.load_all()
    own = {point.name for point in found if point.in_tree}
    taken = Counter(name for suite in loaded for name in _names(suite))
    good = []
    for suite in sorted(loaded, key=lambda suite: (suite.name != DEFAULT_SUITE, suite.name)):
        shared = [name for name in _names(suite) if taken[name] > 1]
        if shared and suite.name not in own:
            reason = (
                f"the suite {suite.name!r} uses the name {shared[0]!r}, which another suite uses too; uninstall one"
            )
            broken.append(Broken(suite.name, SUITES.references()[suite.name], reason))
        else:
            good.append(suite)
    return tuple(good), tuple(broken)


def _names(suite: Suite) -> list[str]:
    return [suite.name, *(entry.name for entry in suite.entries)]


def suite(name: str) -> Suite:
    """The suite of that name. Raises `WrongCall` for an unknown one and `BadFile` for one that cannot be used."""
    good, broken = suites()
    for suite in good:
        if suite.name == name:
            return suite
    SUITES.refuse(name, broken)
    raise unknown("suite", name, [suite.name for suite in good])


def entries() -> list[Entry]:
    """Every task with a name."""
    return [entry for suite in suites()[0] for entry in suite.entries]


def find_entry(name: str) -> Entry | None:
    """The entry of that name, None if there is none."""
    return next((entry for entry in entries() if entry.name == name), None)


def suite_of(entry: Entry) -> Suite:
    """The suite that an entry of the catalogue belongs to."""
    return next(suite for suite in suites()[0] if entry in suite.entries)


def suites_of(task: str) -> list[str]:
    """The names of the suites that run a task."""
    return [suite.name for suite in suites()[0] if task in suite.tasks]


def tasks_named(references: Sequence[str]) -> list[str]:
    """The references, with the tasks of a suite where its name stands."""
    members = {suite.name: suite.tasks for suite in suites()[0]}
    return [task for reference in references for task in members.get(reference, (reference,))]


Origin = Literal["real", "generated", "left out"]


def origin_of(task: str) -> Origin:
    """Whether a task's pictures are real or drawn, and of the latter whether pretraining leaves its family out."""
    entry = find_entry(task)
    of = suite_of(entry) if entry else None
    if of is None or task not in of.generated:
        return "real"
    return "left out" if task in of.left_out else "generated"


def version_of(task: str) -> int:
    """The version of a generated task, on which its test images depend; 1 for all others."""
    entry = find_entry(task)
    of = suite_of(entry) if entry else None
    return of.version if of is not None and task in of.generated else 1


def is_own_data(reference: str) -> bool:
    """Whether a reference says where data lies, unlike the name of a task."""
    return ":" in reference


def open_seen(reference: str, option: str = "task", *, offline: bool = False) -> Task:
    """Return the data that the artifact at hand names, opened where they were when it was made on this machine.

    `option` is that by which the user can name them. Raises `WrongCall` if it was not made here from these data, or if they are gone or were changed since.
    """
    origin = find_origin(reference)
    if origin is None:
        call = name_call(option, reference)
        raise WrongCall(f"its data is named as {reference!r}, which is opened only if you name it: {call}")
    try:
        task = _open_own(origin.location, offline)
        reason = "" if locate_task(task, origin.location).stamp == origin.stamp else "other files or labels"
    except ZooError as error:
        reason = str(error)
    if reason:
        call = name_call(option, reference)
        raise WrongCall(f"the data {reference!r} has changed since this was made from it ({reason}); name it: {call}")
    return replace(task, name=reference, source=reference if task.source == task.name else task.source)


def locate_task(task: Task, reference: str) -> LocalOrigin:
    """Return where the data of a task lie, with the stamp of what is there; an empty one if they have none."""
    location = locate(reference)
    return LocalOrigin(location, stamp_task(task) or task.revision or _stamp_files(location))


def _stamp_files(location: str) -> str:
    """Return the stamp of all files that a local reference names; "" for an address."""
    kind, _, rest = location.partition(":")
    if kind not in ("folder", "parquet", "wds") or "://" in rest:
        return ""
    if kind == "wds":
        from learngene_zoo.tasks.streams.places import places_of

        return FileStamp([(os.path.basename(place), place) for place in places_of(rest)], tuple)()
    top = Path(rest)
    files = sorted(str(path) for path in top.rglob("*") if path.is_file()) if top.is_dir() else [rest]
    return FileStamp([(os.path.relpath(file, rest), file) for file in files], tuple)()


def open_task(reference: str, *, offline: bool = False) -> Task:
    """The task of that name, or the user's own data: `folder:PATH`, `parquet:PATH`, `hf:org/name[:config]`.

    Data that does not fit on the disk or in memory is streamed: `wds:PATTERN` of tars, `hf-stream:org/name[:config]`.

    Raises `WrongCall` for an unknown name, `BadData` for data that cannot be used, and `Unavailable` if it must be
    downloaded and `offline` is set.
    """
    if not is_own_data(reference):
        return _named(reference, offline)
    if is_unnamed(reference):
        return open_seen(reference, offline=offline)
    return _open_own(reference, offline)


def _open_own(reference: str, offline: bool) -> Task:
    kind, _, rest = reference.partition(":")
    if not rest:
        raise WrongCall(f"{reference!r} names nothing after the colon; expected {OWN}")
    if kind == "folder":
        from learngene_zoo.tasks.folders import open_folder

        return open_folder(rest)
    if kind == "parquet":
        from learngene_zoo.tasks.tables import open_parquet

        return open_parquet(rest)
    if kind == "hf":
        from learngene_zoo.tasks.hub_data import open_hub

        return open_hub(rest, offline)
    if kind == "wds":
        from learngene_zoo.tasks.streams.tars import open_tars

        return open_tars(rest, offline)
    if kind == "hf-stream":
        from learngene_zoo.tasks.streams.hub import open_hub_stream

        return open_hub_stream(rest, offline)
    raise WrongCall(f"{reference!r} is not a task; expected a name (see `lgzoo list tasks`) or {OWN}")


def _named(name: str, offline: bool) -> Task:
    check_name(name)
    entry = find_entry(name)
    assert entry is not None
    return suite_of(entry).open(entry, offline)


def check_name(name: str) -> None:
    """Raise `WrongCall` for the name of a task that does not exist; data of the user's own is not looked at."""
    if is_own_data(name) or find_entry(name) is not None:
        return
    broken = suites()[1]
    hint = f"{_nearest(name, [entry.name for entry in entries()])} (data of your own: {OWN})"
    if broken:
        hint += f" (the suite {broken[0].name} cannot be used; see `lgzoo doctor`)"
    raise WrongCall(hint)


def folder_hint(name: str) -> str:
    """What to write for a folder of pictures that has the name; empty if there is none."""
    return f"for the folder of that name write folder:{shell_word(name)}" if name and Path(name).is_dir() else ""


def _nearest(name: str, known: Sequence[str]) -> str:
    """That there is no such task, and the folder or the task that may be meant."""
    hint = folder_hint(name)
    if hint or nearest(name, known) is None:
        return f"no task named {name!r}; {hint or 'see `lgzoo list tasks`'}"
    return str(unknown("task", name, known))
