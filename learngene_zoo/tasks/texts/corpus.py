"""Open the texts that a language model is trained on: `open_corpus`.

A corpus joins the texts of tasks, without their labels, and plain texts: `text:PATH` is a .txt file
in UTF-8, or a folder with such files at any depth. The texts of a file are its paragraphs, which
empty lines separate; within a paragraph a line break counts as a space. Every 20th paragraph is a
validation text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from learngene_zoo.artifacts.records import TaskRecord, is_own_data
from learngene_zoo.errors import BadData, WrongCall, explain_os_error, suggest_path
from learngene_zoo.tasks.catalogue import expand_suites, open_task
from learngene_zoo.tasks.listing import list_files
from learngene_zoo.tasks.stamps import FileStamp
from learngene_zoo.tasks.task import COLUMNS, Task, stamp_task
from learngene_zoo.tasks.texts.encoding import Text
from learngene_zoo.tasks.texts.rows import decode_text

SCHEME = "text:"
SUFFIX = ".txt"
LOCAL = ("folder", "csv", "jsonl", "parquet", "text")  # forms of references with a path
HELD_OUT = 20  # one paragraph of so many is a validation text


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """The texts of one reference."""

    reference: str
    record: TaskRecord
    train: tuple[Text, ...]
    validation: tuple[Text, ...]
    stamp: str  # changes with the texts; "" for texts that cannot change


@dataclass(frozen=True)
class Corpus:
    """The texts of all references, in order."""

    sources: tuple[TextSource, ...]

    @property
    def train(self) -> list[Text]:
        """The texts to train on."""
        return [text for source in self.sources for text in source.train]

    @property
    def validation(self) -> list[Text]:
        """The texts to measure on; those that are training texts too are left out."""
        known = set(self.train)
        texts = (text for source in self.sources for text in source.validation)
        return [text for text in dict.fromkeys(texts) if text not in known]

    def stamp(self) -> dict[str, str]:
        """Return the stamps of the texts that can change, by reference."""
        return {source.reference: source.stamp for source in self.sources if source.stamp}


def open_corpus(references: Sequence[str], *, offline: bool = False) -> Corpus:
    """Open the texts of tasks, suites and plain files.

    Args:
        references: names of tasks and suites, `text:PATH`, or a user's labelled texts such as
            `csv:PATH`.
        offline: do not use the network.

    Raises:
        WrongCall: for an unknown name, for an image task and for a reference that is repeated.
        BadData: for files that cannot be read or have no text.
    """
    names = expand_suites(references)
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise WrongCall(f"{repeated} is named twice; name each text once")
    return Corpus(
        tuple(
            _open_plain(name) if name.startswith(SCHEME) else _open_texts(name, offline)
            for name in names
        )
    )


def _open_texts(name: str, offline: bool) -> TextSource:
    task = open_task(name, offline=offline)
    if not task.is_text:
        raise WrongCall(
            f"{name} is an image task, and a language model is trained on texts; give a text"
            f" task, or {SCHEME}PATH"
        )
    return TextSource(
        reference=name,
        record=_hide_folder(task.record) if is_own_data(name) else task.record,
        train=_read_split(task, "train"),
        validation=_read_split(task, "validation"),
        stamp=stamp_task(task),
    )


def _hide_folder(record: TaskRecord) -> TaskRecord:
    """Return a record that names a user's file or folder without the folders that it lies in."""
    kind, _, rest = record.name.partition(":")
    if kind not in LOCAL:
        return record
    path = COLUMNS.sub("", rest)
    name = f"{kind}:{Path(path).name}{rest[len(path) :]}"
    return replace(record, name=name, source=name)


def _read_split(task: Task, split: str) -> tuple[Text, ...]:
    texts = task.split(split)
    return tuple(texts.__getitems__(range(len(texts))))


def _open_plain(reference: str) -> TextSource:
    path = Path(os.path.expanduser(reference.removeprefix(SCHEME)))
    files = list_text_files(path)
    paragraphs = [part for file in files for part in split_paragraphs(_read(file))]
    if not paragraphs:
        raise BadData(f"{path} has no text; write some, or name another file")
    train = [text for row, text in enumerate(paragraphs) if (row + 1) % HELD_OUT]
    record = TaskRecord(name=reference, source=reference, kind="text", images=len(train))
    record = _hide_folder(record)
    named = [(os.path.relpath(file, path), str(file)) for file in files]
    return TextSource(
        reference=reference,
        record=record,
        train=tuple(train),
        validation=tuple(paragraphs[HELD_OUT - 1 :: HELD_OUT]),
        stamp=FileStamp(named, tuple)(),
    )


def list_text_files(path: Path) -> list[Path]:
    """Return a .txt file, or those of a folder at any depth, sorted, without hidden ones.

    Raises `BadData` if there is none.
    """
    if path.is_file() and path.suffix.lower() == SUFFIX:
        return [path]
    if path.is_file():
        raise BadData(f"{path} is not a {SUFFIX} file; plain texts are {SUFFIX} files in UTF-8")
    if not path.is_dir():
        remedy = suggest_path(path, f"give a {SUFFIX} file or a folder")
        raise BadData(f"there is no file or folder {path}; {remedy}")
    files = [file for file in list_files(path, (SUFFIX,)) if file.is_file()]
    if not files:
        raise BadData(f"there is no {SUFFIX} file in {path}; plain texts are such files")
    return files


def _read(file: Path) -> str:
    try:
        return decode_text(file.read_bytes(), str(file))
    except OSError as error:
        raise BadData(f"{file} cannot be read: {explain_os_error(error)}") from None


def split_paragraphs(content: str) -> list[str]:
    """Return the paragraphs of a text, each in one line."""
    return list(_join_lines(content.splitlines()))


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
    words: list[str] = []
    for line in (*lines, ""):
        if line.strip():
            words += line.split()
        elif words:
            yield " ".join(words)
            words = []
