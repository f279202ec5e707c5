"""The samples in a tar: consecutive files that share a key, such as `00042.jpg` and `00042.cls` (WebDataset's convention).

Nothing is unpacked to disk or unpickled. Python's `tarfile` takes a damaged header for the end of the archive, so that a data
set would silently shrink; here it is an error.
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.tables import LABEL_COLUMNS

IMAGES = ("jpg", "jpeg", "png", "webp")
MASK = "seg.png"
LABELS = ("cls", "json")  # in order of preference
MOST_LABEL = 1000  # characters
MOST_LABEL_BYTES = 2**20  # a record may hold captions beside the label
PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")


@dataclass
class Group:
    """The files of one sample, and the bytes of those that were read."""

    key: str
    tar: str
    names: dict[str, str] = field(default_factory=dict)  # by kind
    data: dict[str, bytes] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The kind of its image. Raises `BadData` if it has none or several."""
        found = [kind for kind in IMAGES if kind in self.names]
        if len(found) != 1:
            got = ", ".join(self.names)
            raise BadData(
                f"{self.where} has {len(found)} images (its files: {got}); expected one of {', '.join(IMAGES)}"
            )
        return found[0]

    @property
    def labelled_by(self) -> str:
        """The kind of the file that holds its label or mask. Raises `BadData` if there is none."""
        for kind in (*LABELS, MASK):
            if kind in self.names:
                return kind
        raise BadData(f"{self.where} has no label; add {self.key}.cls, or a .json with a label")

    @property
    def where(self) -> str:
        """The tar and the key."""
        return f"{self.tar}: {self.key}"

    def label(self) -> str:
        """The label, whole numbers without leading zeros. Raises `BadData`."""
        kind = self.labelled_by
        where = f"{self.tar}: {self.names[kind]}"
        try:
            text = self.data[kind].decode("utf-8").strip()
            value = _label_in(json.loads(text)) if kind == "json" else text
        except (ValueError, RecursionError):
            raise BadData(f"{where} cannot be read as {kind}; write it again") from None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            expected = f"a field {', '.join(LABEL_COLUMNS)}" if kind == "json" else "a number or a name"
            raise BadData(f"{where} holds no label; expected {expected}")
        text = str(value)
        if len(text) > MOST_LABEL:
            raise BadData(f"{where} holds a label of {len(text)} characters; expected at most {MOST_LABEL}")
        if text.startswith("-") and text[1:].isdecimal():
            raise BadData(f"{where} holds {text}, which is not a class; leave out images without a label")
        return str(int(text)) if text.isdecimal() else text


def _label_in(record: object) -> object:
    """The label in a record, None if it has none."""
    if not isinstance(record, dict):
        return None
    return next((record[key] for key in LABEL_COLUMNS if key in record), None)


class _Header(tarfile.TarInfo):
    """A header; `tarfile` itself ends quietly at a damaged or a missing one."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the zeros that end an archive
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def groups(file: Any, name: str, wanted: Callable[[int, str], bool]) -> Iterator[Group]:
    """The samples of an open tar called `name`. Files of kind k of sample number n are read where `wanted(n, k)`.

    Raises `BadData` for a damaged tar, a link, a pickle, and two files of one name.
    """
    group, number, last = None, -1, "its beginning"
    try:
        with _opened(file) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # else it keeps every header
                last = member.name
                key, kind = _parts(member, name)
                if not kind:
                    continue
                if group is None or key != group.key:
                    if group is not None:
                        yield group
                    group, number = Group(key, name), number + 1
                if kind in group.names:
                    raise BadData(f"{name}: {member.name} is there twice; give every image a name of its own")
                group.names[kind] = member.name
                if kind in LABELS and member.size > MOST_LABEL_BYTES:
                    raise BadData(f"{name}: {member.name} has {member.size} bytes; expected a label")
                if wanted(number, kind):
                    content = archive.extractfile(member)
                    group.data[kind] = content.read() if content else b""
    except (tarfile.TarError, OverflowError, ValueError) as error:  # the last two for sizes that no file has
        reason = str(error).replace("unexpected end of data", "it ends too early")
        raise BadData(f"{name} is damaged or cut short after {last} ({reason}); download or write it again") from None
    if group is not None:
        yield group


def _opened(file: Any) -> Any:
    return tarfile.open(fileobj=file, mode="r:" if file.seekable() else "r|", tarinfo=_Header)


def _parts(member: tarfile.TarInfo, tar: str) -> tuple[str, str]:
    """Key and kind: "a/7.seg.png" is "a/7" and "seg.png". The kind is "" for a folder, a hidden file, or one without a dot."""
    if member.isdir():
        return member.name, ""
    if not member.isreg():
        raise BadData(f"{tar}: {member.name} is a link or a device; replace it by the file itself")
    folder, slash, file = member.name.rpartition("/")
    stem, _, kind = file.partition(".")
    if not stem:
        return member.name, ""
    if kind.lower().rpartition(".")[2] in PICKLES:
        raise BadData(f"{tar}: {member.name} may hold a pickle, which is never opened; leave it out")
    return f"{folder}{slash}{stem}", kind.lower()
