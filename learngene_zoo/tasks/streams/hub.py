"""Open `hf-stream:org/name[:config][@revision]`: a data set of the Hub, read in order without
storing it on disk.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.runs.progress import show_progress
from learngene_zoo.tasks.hub_data import (
    is_network_error,
    is_offline,
    parse_reference,
    stream_splits,
    translate_errors,
)
from learngene_zoo.tasks.images import make_stored_image
from learngene_zoo.tasks.labels import find_split_column, list_classes, read_label, read_split
from learngene_zoo.tasks.streams.facts import (
    FACTS,
    Facts,
    load_facts,
    make_stream_task,
)
from learngene_zoo.tasks.streams.tally import Tally, check_trained, divide_stream, list_untested
from learngene_zoo.tasks.tables import (
    check_column,
    disable_decoding,
    find_columns,
    read_listed_classes,
    select_known_splits,
)
from learngene_zoo.tasks.task import HubSource, Sample, Stream, Task
from learngene_zoo.text import name_option

Tables = Mapping[str, Any]  # `datasets.IterableDataset` by split
# The errors of `datasets` for a broken file or connection.
READ_ERRORS = (
    OSError,
    RuntimeError,
    ValueError,
    EOFError,
)


@dataclass(frozen=True)
class HubRows:
    """One split, read a file at a time.

    `numbers` maps every label, as text, to the number of its class.
    """

    table: Any
    name: str
    counts: tuple[int, ...]
    image: str
    label: str
    numbers: Mapping[str, int]
    repository: str = ""

    def read(self, shard: int, selected: np.ndarray) -> Generator[Sample | None]:
        """Yield the samples as `Stream.read` does.

        Unselected rows are downloaded too.
        """
        last, row = int(np.flatnonzero(selected)[-1]), 0
        for row, stored in enumerate(islice(_iterate_rows(self.table, shard, self.name), last + 1)):
            yield (
                self._sample(stored, f"{self.name} file {shard} row {row}")
                if selected[row]
                else None
            )
        if row < last:
            raise BadData(
                f"{self.name} file {shard} ends after row {row}, and {self.counts[shard]} rows "
                "were counted"
            )

    def _sample(self, stored: Mapping[str, Any], where: str) -> Sample:
        label = _read_text(stored[self.label], self.label, where)
        if label not in self.numbers:
            raise BadData(f"{where}: label {label} is not one of the {len(self.numbers)} classes")
        image = _fetch_image(stored[self.image], where, self.repository)
        return Sample(image, where, self.numbers[label])


def open_hub_stream(reference: str, offline: bool) -> Task:
    """Open the data set `org/name[:config][@revision]` as a stream.

    Raises `WrongCall`, `Unavailable`, or `BadData` if it cannot be used.
    """
    name = f"hf-stream:{reference}"
    repository, _, _ = parse_reference(reference)
    if is_offline(offline):
        raise Unavailable(
            f"{name} is read over the network; remove {name_option('offline', True, of_run=True)}, "
            f"or download all of it as hf:{reference}"
        )
    source = stream_splits(HubSource(reference=reference))
    tables = _select_splits(reference, source.splits)
    image, label = find_columns(tables["train"].features, name)
    for split, table in tables.items():
        check_column(table.features, image, f"{name} {split}")
    class_names = read_listed_classes(tables, label, name)
    facts = _count_rows(reference, source.commit, label, tables)
    classes = class_names or list_classes(name, facts["labels"])
    numbers = {str(index) if class_names else text: index for index, text in enumerate(classes)}
    streams: dict[str, Stream] = {}
    for split, table in tables.items():
        rows, counts = (
            disable_decoding(table.select_columns([image, label])),
            tuple(facts["counts"][split]),
        )
        streams[split] = HubRows(rows, f"{name} {split}", counts, image, label, numbers, repository)
    streams = divide_stream(streams, facts)
    notes = list(list_untested(facts, classes, numbers))
    task = make_stream_task(
        name, streams, classes, notes, revision=source.commit, licence=source.licence
    )
    check_trained(name, facts)
    return task


def _read_text(value: Any, column: str, where: str) -> str:
    """Return a row's label as text. Raises `BadData` for a value that is not a label."""
    try:
        return str(read_label(value))
    except ValueError as error:
        raise BadData(f"{where}: column {column!r} {error}") from None


def _select_splits(reference: str, splits: Tables) -> dict[str, Any]:
    """Return the splits by the zoo's names, with known features.

    Raises `BadData` if there is no train split.
    """
    repository, config, _ = parse_reference(reference)
    selected = select_known_splits(f"hf-stream:{reference}", splits, {})
    with translate_errors(repository, config):
        return {
            split: table if table.features else table._resolve_features()
            for split, table in selected.items()
        }


def _select_labels(reference: str, commit: str, needed: list[str], tables: Tables) -> Tables:
    """Return the same splits; of data stored in Parquet only the needed columns are read."""
    from datasets import load_dataset, load_dataset_builder

    repository, config, _ = parse_reference(reference)
    with translate_errors(repository, config):
        if not hasattr(load_dataset_builder(repository, config, revision=commit).config, "columns"):
            return tables
        return _select_splits(
            reference,
            load_dataset(repository, config, revision=commit, streaming=True, columns=needed),
        )


def _count_rows(reference: str, commit: str, label: str, tables: Tables) -> Facts:
    """Count the rows of every file of every split, and list the distinct labels."""
    name = f"hf-stream:{reference}"
    word = find_split_column(tables["train"])
    needed = [label, word] if word else [label]

    def find() -> Facts:
        tally = Tally()
        for split, table in _select_labels(reference, commit, needed, tables).items():
            present = [column for column in needed if column in table.features]
            for shard in show_progress(range(table.num_shards), f"counting {split} of {name}"):
                tally.begin(split)
                for number, row in enumerate(
                    _iterate_rows(table.select_columns(present), shard, f"{name} {split}")
                ):
                    text = _read_text(
                        row[label], label, f"{name} {split} file {shard} row {number}"
                    )
                    name_of_split = (
                        read_split(row[word], table.features[word]) if word in present else ""
                    )
                    tally.add(split, text, str(name_of_split or ""))
        return tally.facts(name)

    return load_facts("hub", [FACTS, name, str(commit)], find)


def _iterate_rows(table: Any, shard: int, name: str) -> Iterator[Any]:
    """Yield the rows of one file. Raises `Unavailable` or `BadData` if it cannot be read."""
    try:
        yield from table.shard(table.num_shards, shard)
    except Exception as error:  # the HTTP errors differ between versions of huggingface_hub
        if not isinstance(error, READ_ERRORS) and not is_network_error(error):
            raise
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        kind = BadData if isinstance(error, ValueError) else Unavailable
        raise kind(
            f"{name} file {shard} cannot be read ({reason}); check the connection and the file"
        ) from None


def _fetch_image(stored: Any, where: str, repository: str) -> Any:
    """Return the encoded image; an address of a file in this data set is downloaded.

    Other addresses, of this machine or another, are not read. Raises `BadData` if the download
    fails.
    """
    cell = make_stored_image(stored)
    if cell.data is not None or not cell.path or not _is_in_repository(cell.path, repository):
        return cell
    import fsspec

    try:
        with fsspec.open(cell.path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadData(
            f"{where}: {cell.path} cannot be read ({error}); check the connection"
        ) from None


def _is_in_repository(address: Any, repository: str) -> bool:
    """Return whether an address is that of a file in a data set, or in a zip file there."""
    inner, chain, outer = address.rpartition("::") if isinstance(address, str) else ("", "", "")
    if chain and not (inner.startswith("zip://") and "::" not in inner):
        return False
    top = f"hf://datasets/{repository}"
    below = outer.removeprefix(top)
    is_inside = outer.startswith(top) and below[:1] in ("@", "/")
    return is_inside and ".." not in address.split("/")
