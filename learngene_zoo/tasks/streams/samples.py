"""Files of a tar that belong together: `00042.jpg` and `00042.cls` are one image and its label (WebDataset's convention)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.streams.archive import Archive, Member
from learngene_zoo.tasks.tables import LABEL_COLUMNS

IMAGES = ("jpg", "jpeg", "png", "webp")
MASK = "seg.png"
LABELS = ("cls", "json")  # the first that is there
PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")


@dataclass
class Group:
    """Consecutive files of one key, and the bytes of those that were asked for."""

    key: str
    tar: str
    names: dict[str, str] = field(default_factory=dict)  # by kind
    data: dict[str, bytes] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """Which kind of image it has. Raises `BadData` for none or several."""
        found = [kind for kind in IMAGES if kind in self.names]
        if len(found) != 1:
            got = ", ".join(self.names)
            raise BadData(f"{self.where} has {len(found)} images (its files: {got}); keep one of {', '.join(IMAGES)}")
        return found[0]

    @property
    def labelled_by(self) -> str:
        """Which kind of file says what the image is. Raises `BadData` if there is none."""
        for kind in (*LABELS, MASK):
            if kind in self.names:
                return kind
        raise BadData(f"{self.where} has no label; add {self.key}.cls, or a .json with one")

    @property
    def where(self) -> str:
        """The tar and the key."""
        return f"{self.tar}: {self.key}"

    def label(self) -> str:
        """What the label's file says, whole numbers without leading zeros. Raises `BadData`."""
        kind = self.labelled_by
        try:
            text = self.data[kind].decode("utf-8").strip()
            value = _field(json.loads(text)) if kind == "json" else text
        except (ValueError, RecursionError):
            raise BadData(f"{self.tar}: {self.names[kind]} cannot be read as {kind}; write it anew") from None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            wanted = f"a field {', '.join(LABEL_COLUMNS)}" if kind == "json" else "a number or a name"
            raise BadData(f"{self.tar}: {self.names[kind]} holds no label; write {wanted}")
        text = str(value)
        if text.startswith("-") and text[1:].isdecimal():
            raise BadData(f"{self.tar}: {self.names[kind]} says {text}, which is no class; leave out what has no label")
        return str(int(text)) if text.isdecimal() else text


def _field(record: object) -> object:
    """The label in a record, None if it has none."""
    if not isinstance(record, dict):
        return None
    return next((record[key] for key in LABEL_COLUMNS if key in record), None)


def groups(archive: Archive, ask: Callable[[int, str], bool]) -> Iterator[Group]:
    """The samples of a tar. Of number n, files of the kind k are read where `ask(n, k)`.

    Raises `BadData` for a pickle, for two files of one name, and as `Archive` does.
    """
    group, number = None, -1
    for member in archive:
        key, kind = _parts(member.name)
        if not kind:
            continue
        if kind.rpartition(".")[2] in PICKLES:
            raise BadData(f"{archive.name}: {member.name} may hold a pickle, which is never opened; leave it out")
        if group is None or key != group.key:
            if group is not None:
                yield group
            group, number = Group(key, archive.name), number + 1
        _add(group, kind, member, ask(number, kind))
    if group is not None:
        yield group


def _add(group: Group, kind: str, member: Member, read: bool) -> None:
    if kind in group.names:
        raise BadData(f"{group.tar}: {member.name} is there twice; name every image once")
    group.names[kind] = member.name
    if read:
        group.data[kind] = member.read()


def _parts(name: str) -> tuple[str, str]:
    """Key and kind: "a/7.seg.png" is "a/7" and "seg.png". No kind for a hidden file, or one without a dot."""
    folder, slash, file = name.rpartition("/")
    stem, _, kind = file.partition(".")
    return (f"{folder}{slash}{stem}", kind.lower()) if stem else (name, "")
