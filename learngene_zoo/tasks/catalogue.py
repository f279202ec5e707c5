"""The tasks that have a name, from the suites that installed packages register, and `open_task`, which opens any task.

The catalogue is known without opening a task: `lgzoo list tasks` reads neither images nor the network.
"""

from collections import Counter
from functools import lru_cache

from learngene_zoo.entry_points import Broken, Found, Plugins
from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.tasks.suite import Entry, Suite
from learngene_zoo.tasks.task import Task

SUITES = Plugins("learngene_zoo.suites", "suite", Suite)
DEFAULT_SUITE = "mini"  # what a bench runs
DEFAULT_TASKS = ("objects", "signs", "glyphs")  # what an extraction trains on
DEFAULT_TARGET = "digits"  # what a descendant is fine-tuned on; no bundled learngene was extracted from digits
SOURCE_TASK = "source"  # what the bundled ancestry model was trained on
OWN = "folder:PATH, parquet:PATH, hf:org/name[:config], or a stream: wds:PATTERN, hf-stream:org/name[:config]"


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


def is_own_data(reference: str) -> bool:
    """Whether a reference says where data lies, unlike the name of a task."""
    return ":" in reference


def open_task(reference: str, *, offline: bool = False) -> Task:
    """The task of that name, or the user's own data: `folder:PATH`, `parquet:PATH`, `hf:org/name[:config]`.

    Data that does not fit on the disk or in memory is streamed: `wds:PATTERN` of tars, `hf-stream:org/name[:config]`.

    Raises `WrongCall` for an unknown name, `BadData` for data that cannot be used, and `Unavailable` if it must be
    downloaded and `offline` is set.
    """
    kind, colon, rest = reference.partition(":")
    if not colon:
        return _named(reference, offline)
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
    entry = find_entry(name)
    if entry is not None:
        return suite_of(entry).open(entry, offline)
    broken = suites()[1]
    hint = f"{unknown('task', name, [entry.name for entry in entries()])}; or write {OWN}"
    if broken:
        hint += f" (the suite {broken[0].name} cannot be used; see `lgzoo doctor`)"
    raise WrongCall(hint)
