"""Open the tasks of the suite `words` whose texts come from packages.

A text belongs to a split by a hash of its source package, synset or snippet, so that the splits are
the same on every machine. Texts that occur twice are used once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from learngene_zoo.plugin import (
    SPLITS,
    BadData,
    Entry,
    Labelled,
    Task,
    TextRows,
    Unavailable,
    assemble_task,
)

VARIABLE = "LGZOO_WORDS"
PACKAGES_FILE = "dumpavail"
WORDNET_PLACE = "wordnet/data.noun"
SNIPPETS_ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
SNIPPETS_INNER = "hutto_ICWSM_2014.tar.gz"
SNIPPETS_FILE = "movieReviewSnippets_GroundTruth.txt"
MAX_ARCHIVE = 64 * 2**20  # bytes of a file in the archive
SECTIONS = (
    *("admin", "fonts", "games", "gnu-r", "golang", "graphics", "haskell", "java", "javascript"),
    *("net", "perl", "php", "python", "ruby", "rust", "science", "sound", "text", "utils", "x11"),
)
FIELD = re.compile(r"^(Package|Source|Section|Description): *(.*)$", re.MULTILINE)
FIRST_TOPIC = 3  # the number of the first lexicographer file of nouns
TOPICS = (
    *("Tops", "act", "animal", "artifact", "attribute", "body", "cognition", "communication"),
    *("event", "feeling", "food", "group", "location", "motive", "object", "person"),
    *("phenomenon", "plant", "possession", "process", "quantity", "relation", "shape", "state"),
    *("substance", "time"),
)
MIN_RATING = 0.5  # distance of a snippet's mean rating from neutral
# Tenths of the texts by split.
PARTS = ("test", "test", "validation", *("train",) * 7)


class Item(NamedTuple):
    """A text with its class; texts of one group belong to one split."""

    text: str
    label: int
    group: str


def open_real(entry: Entry) -> Task:
    """Open the task of an entry.

    Raises `Unavailable` with the command that installs the texts, and `BadData` for a damaged file.
    """
    read, class_names = READERS[entry.name]
    items = list(_drop_repeated(read(entry)))
    labelled = {split: _select(entry, items, split) for split in SPLITS}
    fields = {name: getattr(entry, name) for name in ("title", "licence", "source")}
    return assemble_task(
        entry.name, labelled, class_names, kind="text", notes=_describe(entry, labelled), **fields
    )


def _describe(entry: Entry, labelled: Mapping[str, Labelled]) -> tuple[str, ...]:
    """Return a note if there are fewer texts than the entry states, as in another release."""
    sizes = {split: len(part.labels) for split, part in labelled.items()}
    if sizes == dict(entry.sizes):
        return ()
    return (
        f"{sum(sizes.values()):,} texts on this machine, {sum(entry.sizes.values()):,} in the "
        "catalogue: results are not comparable",
    )


def _drop_repeated(items: Iterable[Item]) -> Iterator[Item]:
    seen: set[str] = set()
    for item in items:
        if item.text and item.text not in seen:
            seen.add(item.text)
            yield item


def find_split(group: str) -> str:
    """Return the split of a group of texts."""
    return PARTS[_hash(group) % len(PARTS)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _select(entry: Entry, items: Sequence[Item], split: str) -> Labelled:
    """Return the texts of a split; of more than the entry states those with the smallest hashes."""
    chosen = [item for item in items if find_split(item.group) == split]
    chosen = sorted(chosen, key=lambda item: _hash(item.text))[: entry.sizes[split]]
    labels_N = np.array([item.label for item in chosen], dtype=np.int64)
    return Labelled(TextRows([item.text for item in chosen], f"{entry.name} {split}"), labels_N)


def _find_file(place: str, tops: Sequence[Path]) -> Path | None:
    named = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    return next((top / place for top in (*named, *tops) if (top / place).is_file()), None)


# Sections of Debian packages.


def read_packages(entry: Entry) -> Iterator[Item]:
    """Yield the description of each package in one of the sections, in the order of their names.

    Raises `Unavailable` without lists of packages.
    """
    path = _find_file(PACKAGES_FILE, ())
    text = _run_apt_cache(entry) if path is None else path.read_text("utf-8", errors="replace")
    packages = {}
    for fields in _read_paragraphs(text):
        section = fields.get("Section", "").rpartition("/")[2]
        if section in SECTIONS and fields.get("Description"):
            source = fields.get("Source", fields["Package"]).partition(" ")[0]
            label = SECTIONS.index(section)
            packages[fields["Package"]] = Item(fields["Description"], label, source)
    if not packages:
        raise _refuse_packages(entry)
    return (packages[name] for name in sorted(packages))


def _run_apt_cache(entry: Entry) -> str:
    try:
        done = subprocess.run(
            ["apt-cache", "dumpavail"],
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        raise _refuse_packages(entry) from None
    return done.stdout.decode("utf-8", errors="replace")


def _refuse_packages(entry: Entry) -> Unavailable:
    return Unavailable(
        f"the texts of {entry.name} are Debian's lists of packages: apt-get update (or set "
        f"{VARIABLE} to a folder with the output of `apt-cache dumpavail` as {PACKAGES_FILE})"
    )


def _read_paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each package; `Package` is the first field of a paragraph."""
    fields: dict[str, str] = {}
    for match in FIELD.finditer(text):
        if match[1] == "Package":
            if "Package" in fields:
                yield fields
            fields = {}
        fields[match[1]] = match[2].strip()
    if "Package" in fields:
        yield fields


# Definitions of WordNet.


def read_definitions(entry: Entry) -> Iterator[Item]:
    """Yield the definition of each synset of nouns, without its examples.

    Raises `Unavailable` if the package is not installed, `BadData` for a line of another form.
    """
    path = _find_file(WORDNET_PLACE, (Path("/usr/share"),))
    if path is None:
        raise Unavailable(
            f"the texts of {entry.name} are not installed: apt-get install wordnet-base (or set "
            f"{VARIABLE} to a folder with {WORDNET_PLACE})"
        )
    for number, line in enumerate(path.read_text("utf-8", errors="replace").split("\n"), 1):
        if line.strip() and not line.startswith("  "):  # which lines of the licence do
            yield _read_synset(line, f"{path} line {number}")


def _read_synset(line: str, where: str) -> Item:
    data, bar, gloss = line.partition("|")
    try:
        offset, topic = data.split()[:2]
        label = int(topic) - FIRST_TOPIC
    except ValueError:
        bar, label, offset = "", 0, ""
    if not bar or not 0 <= label < len(TOPICS):
        raise BadData(f"{where} is not a synset of nouns; install wordnet-base again")
    return Item(gloss.partition('; "')[0].strip(), label, offset)


# Rated snippets.


def read_snippets(entry: Entry) -> Iterator[Item]:
    """Yield the snippets of film reviews that are not neutral.

    Raises `Unavailable` without the archive, `BadData` for an archive of another content.
    """
    path = _find_file(SNIPPETS_ARCHIVE, (Path(),))
    if path is None:
        raise Unavailable(
            f"the texts of {entry.name} are in a source package: pip download --no-deps "
            "--no-binary :all: vaderSentiment==3.3.2 (here, or in the folder that "
            f"{VARIABLE} names)"
        )
    try:
        archive = _read_member(path.read_bytes(), SNIPPETS_INNER)
        text = _read_member(archive, SNIPPETS_FILE).decode("utf-8", errors="replace")
        rows = [line.split("\t", 2) for line in text.splitlines() if line.strip()]
        rated = [(number, float(rating), snippet.strip()) for number, rating, snippet in rows]
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, gzip.BadGzipFile) as error:
        raise BadData(
            f"{path} is not the source package of vaderSentiment 3.3.2 ({error}); download it again"
        ) from None
    for number, rating, snippet in rated:
        if abs(rating) >= MIN_RATING:
            yield Item(snippet, int(rating > 0), number)


def _read_member(data: bytes, name: str) -> bytes:
    """Return the file of a packed archive with this name. Raises `KeyError` if there is none."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            if member.isfile() and member.name.rpartition("/")[2] == name:
                if member.size > MAX_ARCHIVE:
                    raise ValueError(f"{name} has {member.size} bytes")
                file = archive.extractfile(member)
                assert file is not None, "a file has content"
                return file.read()
    raise KeyError(name)


READERS: Mapping[str, tuple[Callable[[Entry], Iterator[Item]], Sequence[str]]] = {
    "debian_sections": (read_packages, SECTIONS),
    "wordnet": (read_definitions, TOPICS),
    "snippets": (read_snippets, ("negative", "positive")),
}
