"""List the named tasks: each package provides a `Suite` of entries, and the catalogue joins them.

The catalogue is known without opening a task: `lgzoo list tasks` reads neither images nor the
network. `open_task` opens any task.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from learngene_zoo.artifacts.own_data import (
    LocalOrigin,
    find_origin,
    is_unnamed,
    locate,
)
from learngene_zoo.artifacts.records import TASKS, is_own_data, parse_reference
from learngene_zoo.errors import (
    BadData,
    BadPlugin,
    WrongCall,
    ZooError,
    describe_crash,
    find_nearest,
    is_shortage,
    refuse_unknown,
    suggest_path,
)
from learngene_zoo.registry import CHOICE, SUITE_GROUP, Broken, PluginEntry, Plugins
from learngene_zoo.runs.progress import say_once
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.stamps import FileStamp
from learngene_zoo.tasks.task import (
    COLUMNS,
    KIND_OF,
    TABLES,
    Entry,
    HubSource,
    Split,
    Task,
    stamp_task,
)
from learngene_zoo.text import name_option, quote_word

DEFAULT_SUITE = "mini"  # the suite of a bench
DEFAULT_TASKS = ("objects", "signs", "glyphs")  # the tasks that an extraction trains on
# The task that a descendant is fine-tuned on; no bundled learngene was extracted from it.
DEFAULT_TARGET = "digits"
SOURCE_TASK = "forms"  # the task of the bundled ancestry model's training
OWN_DATA_FORMS = (
    "folder:PATH, parquet:PATH, csv:PATH, jsonl:PATH, hf:org/name[:config], or a stream: "
    "wds:PATTERN, hf-stream:org/name[:config]"
)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A named group of tasks: `lgzoo list tasks` shows `entries`, `lgzoo bench SUITE` runs `tasks`.

    A package registers it in the entry-point group `learngene_zoo.suites`. The module that defines
    it must not import torch or numpy at the top: `open` imports them when it is called.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    # Takes an entry and whether the network must not be used
    open: Callable[[Entry, bool], Task] = field(repr=False, compare=False)
    tasks: tuple[str, ...] = ()  # names of the entries that a bench runs; (): all
    # Returns the source on the Hub from which an entry's data would be read now; None if the data
    # is on this machine, or not on the Hub.
    hub: Callable[[Entry], HubSource | None] = field(
        default=lambda entry: None, repr=False, compare=False
    )
    # For generated images: the tasks, the version that determines their test images, and the tasks
    # whose families pretraining leaves out.
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
                raise refuse_unknown(f"task of the suite {self.name!r}", name, names)
        if not self.tasks:
            object.__setattr__(self, "tasks", tuple(names))


def build_task(
    entry: Entry, class_names: Sequence[str], open_split: Callable[[str], Split], **changes: Any
) -> Task:
    """Build the task of a catalogue entry.

    Args:
        entry: the entry.
        class_names: the names of the classes.
        open_split: opens "train", "validation" or "test".
        changes: fields that are known only once the data is read.

    Raises:
        BadPlugin: for another number of class names than classes.
    """
    shared = {name: value for name, value in vars(entry).items() if name != "description"}
    names = tuple(class_names)
    task = Task(**{**shared, "class_names": names, "open_split": open_split, **changes})
    if len(task.class_names) != task.classes:
        raise BadPlugin(
            f"the suite of {entry.name} gives it {len(task.class_names)} class names and "
            f"{task.classes} classes; expected a name for each class"
        )
    return task


def split_sizes(train: int, validation: int, test: int) -> dict[str, int]:
    """Return the number of images in each split, as `Entry.sizes` takes it."""
    return {"train": train, "validation": validation, "test": test}


# The catalogue of the installed packages.


SUITES = Plugins(SUITE_GROUP, "suite", Suite)


def load_suites() -> tuple[tuple[Suite, ...], tuple[Broken, ...]]:
    """Return every usable suite, the default one first, and every unusable one with the reason.

    A suite that uses the name of another suite or of one of its tasks is refused, unless it belongs
    to this project.
    """
    return _load_suites(SUITES.find_all())


@lru_cache(maxsize=1)
def _load_suites(points: tuple[PluginEntry, ...]) -> tuple[tuple[Suite, ...], tuple[Broken, ...]]:
    loaded, broken = SUITES.load_all()
    in_tree = {point.name for point in points if point.in_tree}
    num_uses = Counter(name for suite in loaded for name in _list_names(suite))
    good = []
    for suite in sorted(loaded, key=lambda suite: (suite.name != DEFAULT_SUITE, suite.name)):
        shared = [name for name in _list_names(suite) if num_uses[name] > 1]
        if shared and suite.name not in in_tree:
            reason = (
                f"the suite {suite.name!r} uses the name {shared[0]!r}, which another suite also "
                "uses; uninstall one of them"
            )
            broken.append(Broken(suite.name, SUITES.references()[suite.name], reason))
        else:
            good.append(suite)
    return tuple(good), tuple(broken)


def _list_names(suite: Suite) -> list[str]:
    return [suite.name, *(entry.name for entry in suite.entries)]


def find_suite(name: str) -> Suite:
    """Return the suite with this name.

    Raises `WrongCall` for an unknown one and `BadFile` for one that cannot be used.
    """
    good, broken = load_suites()
    for suite in good:
        if suite.name == name:
            return suite
    SUITES.refuse(name, broken)
    SUITES.check_unused(name)
    raise refuse_unknown("suite", name, [suite.name for suite in good])


def list_entries() -> list[Entry]:
    """Return the entries of all named tasks."""
    return [entry for suite in load_suites()[0] for entry in suite.entries]


def find_entry(name: str) -> Entry | None:
    """Return the entry with this name; None if there is none."""
    return next((entry for entry in list_entries() if entry.name == name), None)


def find_suite_of(entry: Entry) -> Suite:
    """Return the suite that an entry of the catalogue belongs to."""
    return next(suite for suite in load_suites()[0] if entry in suite.entries)


def list_suites_of(task: str) -> list[str]:
    """Return the names of the suites that run a task."""
    return [suite.name for suite in load_suites()[0] if task in suite.tasks]


def expand_suites(references: Sequence[str]) -> list[str]:
    """Replace each name of a suite among the references by its tasks."""
    if not references:
        return []
    members = {suite.name: suite.tasks for suite in load_suites()[0]}
    return [task for reference in references for task in members.get(reference, (reference,))]


Origin = Literal["real", "generated", "left out"]


def get_origin(task: str) -> Origin:
    """Return whether a task's images are real or generated.

    "left out" are generated ones whose family is not in the suite's pretraining task.
    """
    entry = find_entry(task)
    suite = find_suite_of(entry) if entry else None
    if suite is None or task not in suite.generated:
        return "real"
    return "left out" if task in suite.left_out else "generated"


def get_version(task: str) -> int:
    """Return the version of a generated task, which determines its test images; else 1."""
    entry = find_entry(task)
    suite = find_suite_of(entry) if entry else None
    return suite.version if suite is not None and task in suite.generated else 1


def open_seen(
    reference: str, option: str = "task", *, offline: bool = False, require_labels: bool = True
) -> Task:
    """Open data that an artifact names by digest, at the location recorded on this machine.

    Args:
        reference: the name in the artifact.
        option: the option by which the user can name the data.
        offline: do not use the network.
        require_labels: as for `open_task`.

    Raises:
        WrongCall: if the artifact was not made on this machine from this data, or if the data is
            missing or cannot be opened, or has changed since.
    """
    origin = find_origin(reference)
    if origin is None:
        raise WrongCall(
            f"it was made with {reference!r}, which is opened only if you name it: add "
            f"{name_option(option, reference)}"
        )
    kind, _, path = origin.location.partition(":")
    try:
        task = _open_own(origin.location, offline, require_labels)
        stamp = locate_task(task, origin.location).stamp
    except ZooError as error:
        other = name_option(option, f"{'folder' if kind in ('hf', 'hf-stream') else kind}:PATH")
        missing = _find_missing(origin.location)
        if missing:
            raise WrongCall(
                f"the data {reference!r} is missing: there is no {missing}; name its path now: add "
                f"{other}"
            ) from None
        raise WrongCall(
            f"the data {reference!r} ({path}) cannot be opened ({error}); correct this, or name "
            f"other data: add {other}"
        ) from None
    if stamp != origin.stamp:
        named = reference if locate(reference) == origin.location else origin.location
        raise WrongCall(
            f"the data {reference!r} ({path}) has changed since this was made from it (other files "
            f"or labels); name it: add {name_option(option, named)}"
        )
    return replace(
        task, name=reference, source=reference if task.source == task.name else task.source
    )


def _find_missing(location: str) -> str:
    """Return the path of a local folder or file that does not exist; "" for any other data."""
    kind, _, path = location.partition(":")
    if kind not in ("folder", "parquet", "csv", "jsonl") or "://" in path:
        return ""
    if kind == "folder":
        from learngene_zoo.tasks.layout import split_reference

        path = str(split_reference(path)[0])
    elif not os.path.exists(path):
        path = COLUMNS.sub("", path)
    return "" if os.path.exists(path) else path


def locate_task(task: Task, reference: str) -> LocalOrigin:
    """Return the location of a task's data, with the stamp of its content.

    The location is empty if the data has none.
    """
    location = locate(reference)
    return LocalOrigin(location, stamp_task(task) or task.revision or _stamp_files(location))


def locate_own_data(opened: Mapping[str, Task]) -> dict[str, LocalOrigin]:
    """Return the locations of the user's own data among tasks, by their references."""
    return {
        reference: locate_task(task, reference)
        for reference, task in opened.items()
        if is_own_data(reference)
    }


def _stamp_files(location: str) -> str:
    """Return the stamp of the tables or tars that a local reference names; "" for any other."""
    kind, _, rest = location.partition(":")
    if kind not in ("parquet", "wds") or "://" in rest:
        return ""
    if kind == "wds":
        from learngene_zoo.tasks.streams.places import list_tars

        return FileStamp([(os.path.basename(path), path) for path in list_tars(rest)], tuple)()
    folder = Path(rest)
    files = (
        sorted(str(path) for path in folder.rglob("*") if path.is_file())
        if folder.is_dir()
        else [rest]
    )
    return FileStamp([(os.path.relpath(file, rest), file) for file in files], tuple)()


def open_task(reference: str, *, offline: bool = False, require_labels: bool = True) -> Task:
    """Open a named task, or the user's data.

    Data is `folder:PATH`, `parquet:PATH` or `hf:org/name[:config]`, and texts also `csv:PATH` or
    `jsonl:PATH`. Images that do not fit on disk or in memory are streamed: tars with `wds:PATTERN`,
    or `hf-stream:org/name[:config]`.

    Args:
        reference: the name or the data.
        offline: do not use the network.
        require_labels: refuse data without labels. Otherwise they are opened as images of one
            class (`Task.is_labelled` is False).

    Raises:
        WrongCall: for an unknown name.
        BadData: for data that cannot be used.
        Unavailable: if the data must be downloaded and `offline` is set.
    """
    reference = parse_reference("task", reference, TASKS)
    if not is_own_data(reference):
        return _open_named(reference, offline)
    if is_unnamed(reference):
        return open_seen(reference, offline=offline, require_labels=require_labels)
    return _open_own(reference, offline, require_labels)


def _open_own(reference: str, offline: bool, require_labels: bool) -> Task:
    _check_location(reference)
    open_labelled = partial(_open_labelled, reference, offline)
    if require_labels:
        return open_labelled()
    from learngene_zoo.tasks.unlabelled.plain import open_labelled_or_plain

    return open_labelled_or_plain(reference, offline, open_labelled)


def _open_labelled(reference: str, offline: bool) -> Task:
    kind, _, rest = reference.partition(":")
    if not rest:
        raise WrongCall(f"{reference!r} has nothing after the colon; expected {OWN_DATA_FORMS}")
    if kind == "folder":
        from learngene_zoo.tasks.folders import open_folder
        from learngene_zoo.tasks.texts.folders import is_text_folder, open_text_folder

        return open_text_folder(rest) if is_text_folder(rest) else open_folder(rest)
    if kind in ("parquet", "csv", "jsonl"):
        from learngene_zoo.tasks.texts import files

        return files.open_parquet(rest) if kind == "parquet" else files.open_rows(kind, rest)
    if kind == "hf":
        from learngene_zoo.tasks.hub_data import open_hub

        return open_hub(rest, offline)
    if kind == "wds":
        from learngene_zoo.tasks.streams.tars import open_tars

        return open_tars(rest, offline)
    if kind == "hf-stream":
        from learngene_zoo.tasks.streams.hub import open_hub_stream

        return open_hub_stream(rest, offline)
    raise WrongCall(
        f"{reference!r} is not a task; expected a name (see `lgzoo list tasks`) or {OWN_DATA_FORMS}"
    )


def _open_named(name: str, offline: bool) -> Task:
    check_name(name)
    entry = find_entry(name)
    assert entry is not None
    suite = find_suite_of(entry)
    with report_failure(suite.name, name):
        task = suite.open(entry, offline)
    if not isinstance(task, Task):
        raise BadPlugin(
            f"{SUITES.describe(suite.name)} opened {name} as {type(task).__name__}; expected a Task"
        )
    return replace(task, open_split=partial(_open_split, suite.name, name, task.open_split))


def _open_split(suite: str, task: str, open_split: Callable[[str], Split], split: str) -> Split:
    with report_failure(suite, task):
        return open_split(split)


@contextmanager
def report_failure(suite: str, task: str) -> Iterator[None]:
    """Report an error in the code of a suite as `BadPlugin`, with its name and package.

    Errors of this package, and those that are due to a lack of memory, disk space, open files or
    rights, are raised as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ZooError) or is_shortage(error):
            raise
        what = f"{SUITES.describe(suite)} could not open {task}"
        raise BadPlugin(describe_crash(what, error)) from error


def check_name(name: str) -> None:
    """Check that a task with this name, or the path of the user's data, exists.

    Nothing is read. Raises `WrongCall` for an unknown name, `BadData` for a missing path.
    """
    if is_own_data(name):
        _check_location(name)
        return
    if find_entry(name) is not None:
        return
    broken = load_suites()[1]
    suggestion = _suggest_nearest(name, [entry.name for entry in list_entries()])
    hint = f"{suggestion} (your own data: {OWN_DATA_FORMS})"
    if broken:
        hint += f" (the suite {broken[0].name} cannot be used; see `lgzoo doctor`)"
    raise WrongCall(f"{hint}{suggest_left_out_suites()}")


def suggest_left_out_suites() -> str:
    """Return a hint with the suites that `LGZOO_PLUGINS` leaves out, else ""."""
    names = SUITES.list_left_out()
    return f" ({CHOICE} leaves out the suites {', '.join(names)})" if names else ""


def _holds_files(folder: Path) -> bool:
    """Return whether a folder or a folder in it contains a file, or a link, which is not opened."""
    return any(path.is_symlink() or not path.is_dir() for path in folder.rglob("*"))


def _describe_missing_folder(path: Path) -> str:
    """Describe that a folder does not exist, with the remedy."""
    if path.is_file():
        return f"{path} is a file, not a folder; {suggest_file(str(path)) or 'give a folder'}"
    remedy = "give a folder of images (with labels: with a subfolder for each class)"
    return f"there is no folder {path}; {suggest_path(path, remedy, Path.is_dir)}"


def _check_location(reference: str) -> None:
    """Raise `BadData` if the folder or file that a local reference names does not exist."""
    kind, _, rest = reference.partition(":")
    path = Path(os.path.expanduser(rest))
    if kind == "folder" and rest and "=" not in rest and not path.is_dir():
        raise BadData(_describe_missing_folder(path))
    if kind == "folder" and rest and "=" not in rest and not _holds_files(path):
        raise BadData(f"{path} contains no files; give a folder of images")
    # The columns may follow after a colon, as in csv:reviews.csv:text=body.
    table = Path(os.path.expanduser(COLUMNS.sub("", rest)))
    if kind in TABLES and rest and not (path.exists() or table.exists()):
        _check_options(reference, rest)
        remedy = f"give a {TABLES[kind][0]} file or a folder of them"
        raise BadData(f"there is no file or folder {table}; {suggest_path(table, remedy)}")


def _check_options(reference: str, rest: str) -> None:
    """Raise `WrongCall` for an unknown option after the path of a table that exists."""
    path, _, options = rest.rpartition(":")
    keys = [pair.partition("=")[0] for pair in options.split(",")]
    unknown_key = next((key for key in keys if key not in ("text", "label")), None)
    if not path or "=" not in options or not Path(os.path.expanduser(path)).exists():
        return
    if unknown_key is not None:
        raise WrongCall(f"{reference}: unknown option {unknown_key!r}; expected text= or label=")
    raise WrongCall(f"{reference}: expected text=COLUMN or label=COLUMN, got {options}")


def suggest_folder(name: str) -> str:
    """Return a hint to write folder:PATH if there is a folder with this name, else ""."""
    return (
        f"to use the folder of that name, write folder:{quote_word(name)}"
        if name and Path(name).is_dir()
        else ""
    )


def suggest_file(name: str) -> str:
    """Return a hint to write csv:FILE if there is a table with this name, else ""."""
    kind = KIND_OF.get(Path(name).suffix.lower())
    return f"did you mean {kind}:{quote_word(name)}?" if kind and Path(name).is_file() else ""


def say_notes(tasks: Iterable[Task], run: Run) -> None:
    """Print the notes on a user's data, such as which files are left out, one line each.

    A command whose steps read the same data prints them once.
    """
    for task in tasks:
        for note in task.notes if is_own_data(task.name) else ():
            say_once(run, f"{task.name}: {note}")


def _suggest_nearest(name: str, names: Sequence[str]) -> str:
    """Return the error message for an unknown task, with the name that may be meant."""
    hint = suggest_folder(name) or suggest_file(name)
    if hint or find_nearest(name, names) is None:
        return f"no task named {name!r}; {hint or 'see `lgzoo list tasks`'}"
    return str(refuse_unknown("task", name, names))
