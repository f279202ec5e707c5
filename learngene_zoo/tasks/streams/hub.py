"""`hf-stream:org/name[:config][@revision]`: a data set of the Hub, read over the network in order, nothing kept on disk."""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.runs.progress import progress
from learngene_zoo.tasks.hub_data import in_our_words, is_offline, of_the_network, parsed, streamed
from learngene_zoo.tasks.images import make_cell
from learngene_zoo.tasks.labels import find_split_column, read_label, read_split
from learngene_zoo.tasks.streams.facts import FACTS, Facts, classes_of, kept, stream_task
from learngene_zoo.tasks.streams.tally import Tally, check_trained, divide_stream, note_untested
from learngene_zoo.tasks.tables import check_column, columns, known_splits, listed_classes, undecoded
from learngene_zoo.tasks.task import HubSource, Sample, Stream, Task

Tables = Mapping[str, Any]  # `datasets.IterableDataset` by split
LOST = (OSError, RuntimeError, ValueError, EOFError)  # what `datasets` raises for a broken file or connection


@dataclass(frozen=True)
class HubRows:
    """One split, read a file at a time. `numbers` has the number of every label, as text."""

    table: Any
    name: str
    counts: tuple[int, ...]
    image: str
    label: str
    numbers: Mapping[str, int]
    repository: str = ""

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As every `Stream`. The rows that are not wanted come over the network too."""
        last, row = int(np.flatnonzero(wanted)[-1]), 0
        for row, found in enumerate(islice(_rows(self.table, shard, self.name), last + 1)):
            yield self._sample(found, f"{self.name} file {shard} row {row}") if wanted[row] else None
        if row < last:
            raise BadData(f"{self.name} file {shard} ends after row {row}, and {self.counts[shard]} rows were counted")

    def _sample(self, found: Mapping[str, Any], where: str) -> Sample:
        label = _read_text(found[self.label], self.label, where)
        if label not in self.numbers:
            raise BadData(f"{where}: label {label} is none of the {len(self.numbers)} classes")
        image = _fetch_image(found[self.image], where, self.repository)
        return Sample(image, where, self.numbers[label])


def open_hub_stream(reference: str, offline: bool) -> Task:
    """The task of `org/name[:config][@revision]`. Raises `WrongCall`, `Unavailable`, or `BadData` if it cannot be used."""
    name = f"hf-stream:{reference}"
    repository, _, _ = parsed(reference)
    if is_offline(offline):
        raise Unavailable(f"{name} is read over the network; remove --offline, or download all of it as hf:{reference}")
    source = streamed(HubSource(reference=reference))
    tables = _known(reference, source.splits)
    image, label = columns(tables["train"].features, name)
    for split, table in tables.items():
        check_column(table.features, image, f"{name} {split}")
    class_names = listed_classes(tables, label, name)
    facts = _counted(reference, source.commit, label, tables)
    classes = class_names or classes_of(name, facts["labels"])
    numbers = {str(place) if class_names else text: place for place, text in enumerate(classes)}
    found: dict[str, Stream] = {}
    for split, table in tables.items():
        rows, counts = undecoded(table.select_columns([image, label])), tuple(facts["counts"][split])
        found[split] = HubRows(rows, f"{name} {split}", counts, image, label, numbers, repository)
    found = divide_stream(found, facts)
    notes = list(note_untested(facts, classes, numbers))
    task = stream_task(name, found, classes, notes, revision=source.commit, licence=source.licence)
    check_trained(name, facts)
    return task


def _read_text(value: Any, column: str, where: str) -> str:
    """Return a row's label as text. Raises `BadData` for what is no label."""
    try:
        return str(read_label(value))
    except ValueError as error:
        raise BadData(f"{where}: column {column!r} {error}") from None


def _known(reference: str, splits: Tables) -> dict[str, Any]:
    """The splits by the zoo's names, with known features. Raises `BadData` if there is no train split."""
    repository, config, _ = parsed(reference)
    known = known_splits(f"hf-stream:{reference}", splits, {})
    with in_our_words(repository, config):
        return {split: table if table.features else table._resolve_features() for split, table in known.items()}


def _labels_only(reference: str, commit: str, needed: list[str], tables: Tables) -> Tables:
    """The same splits. If they are stored in Parquet, only the labels come over the network."""
    from datasets import load_dataset, load_dataset_builder

    repository, config, _ = parsed(reference)
    with in_our_words(repository, config):
        if not hasattr(load_dataset_builder(repository, config, revision=commit).config, "columns"):
            return tables
        return _known(reference, load_dataset(repository, config, revision=commit, streaming=True, columns=needed))


def _counted(reference: str, commit: str, label: str, tables: Tables) -> Facts:
    """The rows of every file of every split, and the distinct labels."""
    name = f"hf-stream:{reference}"
    word = find_split_column(tables["train"])
    needed = [label, word] if word else [label]

    def find() -> Facts:
        tally = Tally()
        for split, table in _labels_only(reference, commit, needed, tables).items():
            held = [column for column in needed if column in table.features]
            for shard in progress(range(table.num_shards), f"counting {split} of {name}"):
                tally.begin(split)
                for number, row in enumerate(_rows(table.select_columns(held), shard, f"{name} {split}")):
                    text = _read_text(row[label], label, f"{name} {split} file {shard} row {number}")
                    said = read_split(row[word], table.features[word]) if word in held else ""
                    tally.add(split, text, str(said or ""))
        return tally.facts(name)

    return kept("hub", [FACTS, name, str(commit)], find)


def _rows(table: Any, shard: int, name: str) -> Iterator[Any]:
    """The rows of one file. Raises `Unavailable` or `BadData` if it cannot be read."""
    try:
        yield from table.shard(table.num_shards, shard)
    except Exception as error:  # the HTTP library's own family, which differs between versions of huggingface_hub
        if not isinstance(error, LOST) and not of_the_network(error):
            raise
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        kind = BadData if isinstance(error, ValueError) else Unavailable
        raise kind(f"{name} file {shard} cannot be read ({reason}); check the connection and the file") from None


def _fetch_image(stored: Any, where: str, repository: str) -> Any:
    """Return the encoded image; if only its address in this very data set is stored, what is there.

    Raises `BadData` for any other address, of this machine or another, and if it cannot be read.
    """
    cell = make_cell(stored)
    if cell.data is not None or not cell.path or not _is_in_repository(cell.path, repository):
        return cell
    import fsspec

    try:
        with fsspec.open(cell.path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadData(f"{where}: {cell.path} cannot be read ({error}); check the connection") from None


def _is_in_repository(address: Any, repository: str) -> bool:
    """Return whether an address is that of a file in a data set of the Hub, or of a file in a zip there."""
    inner, chain, outer = address.rpartition("::") if isinstance(address, str) else ("", "", "")
    if chain and not (inner.startswith("zip://") and "::" not in inner):
        return False
    top = f"hf://datasets/{repository}"
    below = outer.removeprefix(top)
    is_own = outer.startswith(top) and below[:1] in ("@", "/")
    return is_own and ".." not in address.split("/")
