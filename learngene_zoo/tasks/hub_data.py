"""`hf:org/name[:config]`: a data set of the Hub, at one commit, through `datasets`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import BadData, Unavailable, WrongCall, ZooError
from learngene_zoo.tasks.quiet import no_progress
from learngene_zoo.tasks.tables import task_of_tables
from learngene_zoo.tasks.task import Task

if TYPE_CHECKING:
    from learngene_zoo.tasks.catalogue import Entry

SCRIPT_HINT = (
    "use a revision in Parquet, which the Hub makes in the branch refs/convert/parquet or a pull request offers"
)


def open_hub(reference: str, offline: bool, entry: Entry | None = None) -> Task:
    """The task of `org/name[:config][@revision]`; one of the catalogue keeps its own name and facts.

    Raises `Unavailable` if it is neither cached nor to be had, `BadData` if it cannot be used.
    """
    rest, _, revision = reference.partition("@")
    repository, _, config = rest.partition(":")
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise WrongCall(f"'hf:{reference}' is no data set of the Hub; write hf:org/name or hf:org/name:config")
    offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    commit, licence = (revision or None, "unknown") if offline else _pinned(repository, revision or None)
    with no_progress(), _without_network(offline):
        tables = _load(repository, config or None, commit, offline)
    fields: dict[str, Any] = {"revision": commit or _cached_commit(tables), "licence": licence}
    if entry is not None:
        # These photographs are small; their size and normalisation are the catalogue's.
        half = (0.5, 0.5, 0.5)
        fields |= {"name": entry.name, "title": entry.title, "flip": entry.flip, "image_size": entry.image_size}
        fields |= {"mean": half, "std": half}
        if licence == "unknown":
            fields["licence"] = entry.licence
        fields["counts"] = dict(entry.sizes)
    return task_of_tables(f"hf:{reference}", tables, **fields)


@contextmanager
def _without_network(offline: bool) -> Iterator[None]:
    """Inside, if `offline`, the Hub's libraries use what is cached and ask nobody."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if offline:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _cached_commit(tables: Any) -> str | None:
    """The commit in the name of the cache's folder, None if there is none."""
    files = [str(file["filename"]) for table in tables.values() for file in table.cache_files]
    found = [part for file in files for part in re.split(r"[/\\\\]", file) if re.fullmatch("[0-9a-f]{40}", part)]
    return found[0] if found else None


def _pinned(repository: str, revision: str | None) -> tuple[str, str]:
    """The commit that the data set is at now, and its licence."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi().dataset_info(repository, revision=revision, timeout=30)
    except RepositoryNotFoundError:
        raise WrongCall(f"the Hub has no data set {repository!r} that you may read; check the name or log in") from None
    except RevisionNotFoundError:
        raise WrongCall(f"data set {repository!r} has no revision {revision!r}") from None
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise _unreachable(repository, error) from None
    except Exception as error:  # the HTTP library's own family, which differs between versions of huggingface_hub
        if type(error).__module__.split(".")[0] in ("httpx", "httpcore", "requests", "urllib3"):
            raise _unreachable(repository, error) from None
        raise
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return str(info.sha), licence if isinstance(licence, str) else "unknown"


def _unreachable(repository: str, error: Exception) -> ZooError:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return Unavailable(f"the Hub cannot be asked for {repository} ({reason}); connect, or --offline if it is cached")


def _load(repository: str, config: str | None, revision: str | None, offline: bool) -> Any:
    """The `DatasetDict`, its errors in our words."""
    from datasets import DatasetDict, load_dataset
    from datasets.exceptions import DatasetsError

    try:
        tables = load_dataset(repository, config, revision=revision)
    except (RuntimeError, ValueError, OSError, DatasetsError) as error:
        raise _translated(repository, config, offline, error) from None
    if not isinstance(tables, DatasetDict):
        raise BadData(f"{repository} is no set of splits; only stored data sets can be used")
    return tables


def _translated(repository: str, config: str | None, offline: bool, error: Exception) -> ZooError:
    text = " ".join(str(error).split())[:160]
    if "script" in text.lower():
        return BadData(f"{repository} is made by a script, which is never run; {SCRIPT_HINT}")
    if "onfig" in text and isinstance(error, ValueError):
        return WrongCall(f"{repository}: {text}; write hf:{repository}:CONFIG")
    if offline or isinstance(error, ConnectionError | FileNotFoundError):
        return Unavailable(f"data set {repository} is not in the cache and cannot be had offline; open it once online")
    return BadData(f"{repository}{f' ({config})' if config else ''} cannot be loaded: {text}")
