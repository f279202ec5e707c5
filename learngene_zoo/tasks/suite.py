"""`Suite`: the tasks that a package offers under one name, and `Entry`: what is known of one of them without opening it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from learngene_zoo.errors import Unavailable, WrongCall, unknown
from learngene_zoo.tasks.task import Kind, Split, Task


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the catalogue: a task that has a name."""

    name: str
    title: str
    classes: int
    sizes: Mapping[str, int]
    licence: str
    description: str
    kind: Kind = "classification"
    flip: bool = False  # whether a mirrored image keeps its label
    source: str = "built in"
    image_size: int = 32
    notes: tuple[str, ...] = ()  # what users of the data should know


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A data set of the Hub and how it is read."""

    reference: str  # org/name[:config][@revision]
    pin: str = ""  # beginning of the commit that was reviewed, if the revision is a branch that can move
    roles: Mapping[str, str] = field(default_factory=dict)  # a split -> the stored split that is used for it
    label: str | None = None  # the label column, where the features do not say
    also_classes: tuple[int, ...] = ()  # further numbers of classes that are accepted
    alternative: str = ""  # what to do where the Hub is not available

    @contextmanager
    def or_alternative(self) -> Iterator[None]:
        """Adds the alternative to an `Unavailable` that is raised inside."""
        try:
            yield
        except Unavailable as error:
            if not self.alternative:
                raise
            raise Unavailable(f"{error}; or {self.alternative}") from None


def never_on_hub(entry: Entry) -> HubSource | None:
    """For suites none of whose data is on the Hub."""
    return None


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
    hub: Callable[[Entry], HubSource | None] = field(default=never_on_hub, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not names:
            raise WrongCall(f"the suite {self.name!r} has no tasks")
        repeated = [name for name, count in Counter([self.name, *names]).items() if count > 1]
        if repeated:
            raise WrongCall(f"the suite {self.name!r} uses the name {repeated[0]!r} twice")
        for name in self.tasks:
            if name not in names:
                raise unknown(f"task of the suite {self.name!r}", name, names)
        if not self.tasks:
            object.__setattr__(self, "tasks", tuple(names))


def built_in(entry: Entry, class_names: Sequence[str], open_split: Callable[[str], Split], **changes: Any) -> Task:
    """The task of a catalogue entry; `changes` are fields that are known only once its data is found."""
    settings: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "classes": entry.classes,
        "class_names": tuple(class_names),
        "image_size": entry.image_size,
        "flip": entry.flip,
        "licence": entry.licence,
        "source": entry.source,
        "sizes": dict(entry.sizes),
        "notes": entry.notes,
        "open_split": open_split,
    }
    return Task(**{**settings, **changes})


def split_sizes(train: int, validation: int, test: int) -> dict[str, int]:
    """The number of images in each split, as `Entry.sizes` takes it."""
    return {"train": train, "validation": validation, "test": test}
