"""Open `hf:org/name[:config]`: a data set of the Hub, at one commit, through `datasets`."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from learngene_zoo.errors import BadData, Unavailable, WrongCall, ZooError
from learngene_zoo.tasks.tables import assemble_from_tables, disable_decoding, silence_datasets
from learngene_zoo.tasks.task import Entry, HubSource, MetricName, Task
from learngene_zoo.tasks.texts.tables import assemble_from_texts, holds_texts
from learngene_zoo.text import name_option

SCRIPT_HINT = (
    "use a revision in Parquet, which the Hub makes in the branch refs/convert/parquet or a pull "
    "request offers"
)
# The metrics of GLUE (Wang et al. 2019) where these are not accuracy.
METRICS: dict[tuple[str, str | None], MetricName] = {
    ("nyu-mll/glue", "cola"): "matthews",
    ("nyu-mll/glue", "mrpc"): "F1",
}


class Reference(NamedTuple):
    """The parts of a reference to a data set of the Hub."""

    repository: str
    config: str | None
    revision: str | None


def parse_reference(reference: str) -> Reference:
    """Parse `org/name[:config][@revision]`. Raises `WrongCall` for any other form."""
    rest, _, revision = reference.partition("@")
    repository, _, config = rest.partition(":")
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise WrongCall(
            f"'hf:{reference}' is not a data set of the Hub; expected hf:org/name or "
            "hf:org/name:config"
        )
    return Reference(repository, config or None, revision or None)


def open_hub(reference: str, offline: bool, entry: Entry | None = None) -> Task:
    """Open the data set `org/name[:config][@revision]` of the Hub.

    With an entry of the catalogue the task has its name, title, sizes and notes.

    Raises `Unavailable` if the data set is neither cached nor can be downloaded, `BadData` if it
    cannot be used.
    """
    tables, fields = load_hub_tables(HubSource(reference=reference), offline)
    if entry is not None:
        # These images are small; their size and normalisation are the catalogue's.
        half = (0.5, 0.5, 0.5)
        fields |= {
            "name": entry.name,
            "title": entry.title,
            "flip": entry.flip,
            "image_size": entry.image_size,
        }
        fields |= {"mean": half, "std": half, "notes": entry.notes}
        if fields["licence"] == "unknown":
            fields["licence"] = entry.licence
        fields["counts"] = dict(entry.sizes)
    name = f"hf:{reference}"
    if holds_texts(tables):
        return assemble_from_texts(name, tables, **fields, **describe_texts(reference))
    return assemble_from_tables(name, tables, folders=list_image_folders(reference), **fields)


def describe_texts(reference: str) -> dict[str, Any]:
    """Return the fields of a text task that its data set does not state: the metric."""
    repository, config, _ = parse_reference(reference)
    metric = METRICS.get((repository, config))
    return {"metric": metric} if metric else {}


def list_image_folders(reference: str) -> tuple[Path, ...]:
    """Return the folders in which `datasets` caches the image files of a data set."""
    from datasets import config
    from huggingface_hub import constants

    repository, _, _ = parse_reference(reference)
    folder = Path(constants.HF_HUB_CACHE) / f"datasets--{repository.replace('/', '--')}"
    return folder, Path(config.EXTRACTED_DATASETS_PATH)


def load_hub_tables(source: HubSource, offline: bool) -> tuple[Any, dict[str, Any]]:
    """Return the `DatasetDict` of a data set of the Hub, and the task's fields from the Hub.

    The fields are commit and licence. The commit is None if the paths of the cached files do not
    contain it. Raises `Unavailable` if the data set is no longer at the commit that was reviewed,
    or if another commit is cached than the reference names.
    """
    repository, config, revision = parse_reference(source.reference)
    if is_offline(offline):
        tables = _load(repository, config, revision, True)
        cached = _find_cached_commit(tables)
        _check_cached_commit(source, cached)
        return tables, {"revision": cached, "licence": "unknown"}
    commit, licence = _check_reviewed(source)
    return _load(repository, config, commit, False), {"revision": commit, "licence": licence}


def _load(
    repository: str, config: str | None, revision: str | None, offline: bool, **options: Any
) -> Any:
    """Load the splits; errors of `datasets` are raised as `ZooError`."""
    from datasets import load_dataset

    with translate_errors(repository, config, offline), _forbid_network(offline):
        tables = load_dataset(repository, config, revision=revision, **options)
    if not isinstance(tables, dict) or not tables:
        raise BadData(f"{repository} is not a set of splits; only stored data sets can be used")
    return tables


class HubStream(NamedTuple):
    """A data set of the Hub that is downloaded row by row, when read."""

    splits: dict[str, Any]
    sizes: list[str]
    commit: str
    licence: str


def stream_splits(source: HubSource) -> HubStream:
    """Return the splits of a data set, with their sizes if the Hub knows them."""
    repository, config, _ = parse_reference(source.reference)
    commit, licence = _check_reviewed(source)
    splits = _load(repository, config, commit, False, streaming=True)
    infos = next(iter(splits.values())).info.splits or {}
    sizes = [
        f"{name} {infos[name].num_examples}" if name in infos else str(name) for name in splits
    ]
    return HubStream(dict(splits), sizes, commit, licence)


def read_first_row(split: Any, reference: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the features of a streamed split and its first row, with undecoded images.

    Raises `BadData` if it is empty.
    """
    from datasets import Features

    repository, config, _ = parse_reference(reference)
    with translate_errors(repository, config):
        split = split if split.features else split._resolve_features()
        row = next(iter(disable_decoding(split)), None)
    if row is None:
        raise BadData(f"hf:{reference} has an empty split; choose another revision")
    return Features(split.features), row


def _check_reviewed(source: HubSource) -> tuple[str, str]:
    """Return the current commit and the licence.

    Raises `Unavailable` if it is not the commit that was reviewed.
    """
    repository, _, revision = parse_reference(source.reference)
    commit, licence = _find_revision(repository, revision)
    if not commit.startswith(source.pin):
        name = f"hf:{source.reference}"
        raise Unavailable(
            f"{name} is now at {commit[:7]}, not at {source.pin}; review it, then use it as {name}"
        )
    return commit, licence


def _check_cached_commit(source: HubSource, cached: str | None) -> None:
    """Raise `Unavailable` if the cached commit is not the one that the source names.

    `datasets` does not compare them offline. An unknown commit, or a branch or tag, cannot be
    compared.
    """
    revision = parse_reference(source.reference).revision or ""
    pins = [source.pin, revision if re.fullmatch("[0-9a-f]{40}", revision) else ""]
    other = next((pin for pin in pins if cached and not cached.startswith(pin)), None)
    if other is not None:
        raise Unavailable(
            f"hf:{source.reference} is cached at commit {cached}, not at {other}; open it once "
            "online, or use the cached commit"
        )


def is_offline(offline: bool) -> bool:
    """Return whether the Hub must not be contacted.

    That is the case with `offline`, or if the environment variable HF_HUB_OFFLINE is set.
    """
    return offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def _forbid_network(offline: bool) -> Iterator[None]:
    """Restrict the Hub's libraries to the cache if `offline`."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if offline:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _find_cached_commit(tables: Any) -> str | None:
    """Return the commit in the path of the cached files; None if there is none."""
    files = [str(file["filename"]) for table in tables.values() for file in table.cache_files]
    commits = [
        part
        for file in files
        for part in re.split(r"[/\\\\]", file)
        if re.fullmatch("[0-9a-f]{40}", part)
    ]
    return commits[0] if commits else None


def _find_revision(repository: str, revision: str | None) -> tuple[str, str]:
    """Return the current commit of the data set, and its licence."""
    from huggingface_hub import HfApi

    with translate_errors(repository):
        info = HfApi().dataset_info(repository, revision=revision, timeout=30)
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return str(info.sha), licence if isinstance(licence, str) else "unknown"


# Errors.


@contextmanager
def translate_errors(
    repository: str, config: str | None = None, offline: bool = False
) -> Iterator[None]:
    """Translate errors of `datasets` and the Hub's library to `ZooError`; nothing is printed."""
    from datasets.exceptions import DatasetsError

    try:
        with silence_datasets():
            yield
    except Exception as error:  # the HTTP errors have no base class that all versions share
        if not isinstance(
            error, (RuntimeError, ValueError, OSError, DatasetsError)
        ) and not is_network_error(error):
            raise
        raise _translate_error(repository, config, offline, error) from None


def is_network_error(error: Exception) -> bool:
    """Return whether an error comes from the HTTP library.

    The library differs between versions of huggingface_hub.
    """
    return type(error).__module__.startswith(
        ("httpx", "httpcore", "requests", "urllib3", "aiohttp")
    )


def _translate_error(
    repository: str, config: str | None, offline: bool, error: Exception
) -> ZooError:
    from huggingface_hub import errors as hub

    text = " ".join(str(error).split())[:160]
    words = re.findall(r"\w+", text.replace(repository, "").lower())
    if isinstance(error, hub.GatedRepoError) or "gated" in words:
        return Unavailable(
            f"{repository} is gated: accept its terms at "
            f"https://huggingface.co/datasets/{repository} and log in with "
            "`hf auth login`, or set HF_TOKEN"
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        return WrongCall(
            f"the Hub has no data set {repository!r} that you may read; check the name or log in"
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return WrongCall(f"data set {repository!r} has no such revision ({text})")
    if not {"script", "scripts"}.isdisjoint(words):
        return BadData(f"{repository} is built by a script, which is never run; {SCRIPT_HINT}")
    if "onfig" in text and isinstance(error, ValueError):
        return WrongCall(f"{repository}: {text}; write hf:{repository}:CONFIG")
    # Checked before the OSErrors below, as some network errors are OSErrors
    if is_network_error(error) or isinstance(error, hub.HfHubHTTPError):
        reason = text[:120] or type(error).__name__
        return Unavailable(
            f"the Hub cannot be reached for {repository} ({reason}); connect, or use "
            f"{name_option('offline', True, of_run=True)} if it is cached"
        )
    if offline or isinstance(error, ConnectionError | FileNotFoundError):
        return Unavailable(
            f"data set {repository} is not in the cache, so it is not available offline; open it "
            "once online"
        )
    return BadData(f"{repository}{f' ({config})' if config else ''} cannot be loaded: {text}")
