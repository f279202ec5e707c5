"""`hf-stream:org/name[:config][@revision]`: a data set of the Hub, read over the network in order, nothing kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks.hub_data import in_our_words, is_offline, parsed, streamed
from learngene_zoo.tasks.own_data import split_name
from learngene_zoo.tasks.streams.counting import cache_file, classes_of, progress, read_cache, write_cache
from learngene_zoo.tasks.streams.parts import completed, told
from learngene_zoo.tasks.streams.task import stream_task
from learngene_zoo.tasks.suite import HubSource
from learngene_zoo.tasks.tables import columns, no_progress
from learngene_zoo.tasks.task import SPLITS, Sample, Stream, Task

Tables = Mapping[str, Any]  # `datasets.IterableDataset` by split
LOST = (OSError, RuntimeError, ValueError, EOFError)  # what `datasets` raises for a file or a connection that is broken
NETWORK = ("httpx", "httpcore", "requests", "urllib3", "aiohttp")  # whose errors are of families of their own


@dataclass(frozen=True)
class Rows:
    """One split, read a file at a time. `numbers` has the number of every label; without it labels are numbers."""

    table: Any
    name: str
    counts: tuple[int, ...]
    image: str
    label: str
    numbers: Mapping[str, int] | None
    classes: int

    def read(self, shard: int, wanted: np.ndarray) -> Generator[Sample | None]:
        """As of every stream. The rows that are not wanted come over the network too."""
        last, row = int(np.flatnonzero(wanted)[-1]), 0
        for row, found in enumerate(islice(_rows(self.table, shard, self.name), last + 1)):
            yield self._sample(found, f"{self.name} file {shard} row {row}") if wanted[row] else None
        if row < last:
            raise BadData(f"{self.name} file {shard} ends after row {row}, and {self.counts[shard]} rows were counted")

    def _sample(self, found: Mapping[str, Any], where: str) -> Sample:
        label = found[self.label]
        number = label if self.numbers is None else self.numbers.get(str(label))
        if number is None or not 0 <= number < self.classes:
            raise BadData(f"{where}: label {label} is none of the {self.classes} classes")
        return Sample(_bytes(found[self.image], where), int(number), where)


def open_hub_stream(reference: str, offline: bool) -> Task:
    """The task of `org/name[:config][@revision]`. Raises `WrongCall`, `Unavailable`, or `BadData` if it cannot be used."""
    name = f"hf-stream:{reference}"
    parsed(reference)
    if is_offline(offline):
        raise Unavailable(f"{name} is read over the network; leave --offline out, or fetch it whole as hf:{reference}")
    source = streamed(HubSource(reference=reference))
    tables = _known(reference, source.splits)
    if "train" not in tables:
        raise BadData(f"{name} has no train split, only {', '.join(source.splits) or 'none'}; name one of them train")
    image, label = columns(tables["train"].features, name)
    class_names = _class_names(name, tables, image, label)
    alone = partial(_labels_alone, reference, source.commit, label, tables)
    facts = _counted(name, alone, label, [name, str(source.commit)])
    classes = class_names or classes_of(name, facts["labels"])
    if len(classes) < 2:
        raise BadData(f"{name} has one class ({', '.join(classes) or 'none'}); a task needs at least two")
    numbers = None if class_names else {text: place for place, text in enumerate(classes)}
    found: dict[str, Stream] = {
        split: Rows(
            _undecoded(table, image, label),
            f"{name} {split}",
            tuple(facts["counts"][split]),
            image,
            label,
            numbers,
            len(classes),
        )
        for split, table in tables.items()
    }
    fields = {"notes": told(found), "revision": source.commit, "licence": source.licence}
    return stream_task(name, completed(name, found), classes, **fields)


def _class_names(name: str, tables: Tables, image: str, label: str) -> tuple[str, ...] | None:
    """As the features say, None if they do not. Raises `BadData` for splits that differ."""
    names = getattr(tables["train"].features[label], "names", None)
    for split, table in tables.items():
        lost = next((column for column in (image, label) if column not in table.features), None)
        if lost:
            raise BadData(f"{name} {split} has no column {lost!r}, only {', '.join(table.features)}")
        if getattr(table.features[label], "names", None) != names:
            raise BadData(f"{name}: the classes of {split} and train differ; give both the same list")
    return tuple(names) if names else None


def _known(reference: str, splits: Tables) -> dict[str, Any]:
    """The splits by the zoo's names, their features known."""
    repository, config, _ = parsed(reference)
    with no_progress(), in_our_words(repository, config, offline=False):
        return {
            split_name(key): table if table.features else table._resolve_features()
            for key, table in splits.items()
            if split_name(key) in SPLITS
        }


def _labels_alone(reference: str, commit: str | None, label: str, tables: Tables) -> Tables:
    """The same splits, of which only the labels come over the network if they are stored in Parquet."""
    from datasets import load_dataset, load_dataset_builder

    repository, config, _ = parsed(reference)
    with no_progress(), in_our_words(repository, config, offline=False):
        if not hasattr(load_dataset_builder(repository, config, revision=commit).config, "columns"):
            return tables
        return _known(reference, load_dataset(repository, config, revision=commit, streaming=True, columns=[label]))


def _counted(name: str, alone: Callable[[], Tables], label: str, stamps: list[str]) -> dict[str, Any]:
    """Rows of every file of every split, and the distinct labels: counted once, and kept."""
    file = cache_file("hub", stamps)
    kept = read_cache(file)
    if kept is not None:
        return kept
    labels: dict[str, set[str]] = {}
    counts: dict[str, list[int]] = {}
    for split, table in alone().items():
        counts[split], labels[split] = [], set()
        for shard in progress(range(table.num_shards), f"counting {split} of {name}"):
            values = [row[label] for row in _rows(table.select_columns([label]), shard, f"{name} {split}")]
            if None in values:
                row = values.index(None)
                raise BadData(f"{name} {split} file {shard} row {row}: column {label!r} is empty; fill it")
            counts[split].append(len(values))
            labels[split].update(map(str, values))
    facts = {"name": name, "counts": counts, "labels": {split: sorted(own) for split, own in labels.items()}}
    write_cache(file, facts)
    return facts


def _rows(table: Any, shard: int, name: str) -> Iterator[Any]:
    """The rows of one file. Raises `Unavailable` or `BadData` where it cannot be read."""
    try:
        yield from table.shard(table.num_shards, shard)
    except Exception as error:  # the HTTP library's own family, which differs between versions of huggingface_hub
        if not isinstance(error, LOST) and not type(error).__module__.startswith(NETWORK):
            raise
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        kind = BadData if isinstance(error, ValueError) else Unavailable
        raise kind(f"{name} file {shard} cannot be read ({reason}); check the connection and the file") from None


def _undecoded(table: Any, image: str, label: str) -> Any:
    from datasets import Image

    only = table.select_columns([image, label])
    return only.cast_column(image, Image(decode=False)) if isinstance(only.features[image], Image) else only


def _bytes(stored: Any, where: str) -> Any:
    """The encoded image; where only an address is stored, what is there."""
    if not isinstance(stored, dict) or stored.get("bytes") is not None or not stored.get("path"):
        return stored
    import fsspec

    try:
        with fsspec.open(stored["path"], "rb") as file:
            return file.read()
    except OSError as error:
        raise BadData(f"{where}: {stored['path']} cannot be read ({error}); check the connection") from None
