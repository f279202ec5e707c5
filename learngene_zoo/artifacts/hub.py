"""One file of a Hub repository, at a pinned revision, from the network or the cache."""

import re
from dataclasses import dataclass
from pathlib import Path

from learngene_zoo.errors import BadFile, Unavailable, WrongCall

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Repository:
    """A model repository on the Hub; `revision` is a branch, a tag or a commit, None the default branch."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


@dataclass(frozen=True)
class HubFile:
    """A file in the cache and the commit (40 hexadecimal digits) that it comes from."""

    path: Path
    commit: str


def fetch_from_hub(repository: Repository, filename: str, *, offline: bool) -> HubFile:
    """The file, downloaded unless this very revision is cached.

    Raises `WrongCall` for a repository or revision that does not exist, `BadFile` if the repository lacks the file, and
    `Unavailable` for a gated repository, without a network, or offline if the file is not cached.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download

    try:
        path = Path(hf_hub_download(repository.name, filename, revision=repository.revision, local_files_only=offline))
    except hub.HFValidationError:
        raise WrongCall(
            f"{repository.name!r} is not the name of a Hub repository; write hf-hub:organisation/name"
        ) from None
    except hub.GatedRepoError:
        raise Unavailable(
            f"the Hub repository {repository} is gated; request access, then log in: hf auth login"
        ) from None
    except hub.RepositoryNotFoundError:
        raise WrongCall(f"there is no Hub repository {repository.name} (or it is private: hf auth login)") from None
    except hub.RevisionNotFoundError:
        raise WrongCall(f"the Hub repository {repository.name} has no revision {repository.revision!r}") from None
    except hub.LocalEntryNotFoundError:
        why = f"it is not cached and {'this run is offline' if offline else 'the Hub cannot be reached'}"
        raise Unavailable(f"{filename} of {repository} is not available: {why}; run once while online") from None
    except hub.EntryNotFoundError:
        raise BadFile(f"the Hub repository {repository} has no {filename}") from None
    except (hub.HfHubHTTPError, OSError) as error:
        reason = [*str(error).strip().splitlines(), repr(error)][0]
        raise Unavailable(f"{filename} of {repository} cannot be downloaded: {reason}") from error
    return HubFile(path, _commit(path))


def _commit(path: Path) -> str:
    """The cache keeps each revision in a folder named by its commit: .../snapshots/COMMIT/filename."""
    for parent in path.parents:
        if _COMMIT.fullmatch(parent.name):
            return parent.name
    raise BadFile(f"{path} is not in a Hub cache, so its revision is unknown")


def licence_on_card(repository: Repository, *, offline: bool) -> str:
    """The licence that a repository's model card declares; "unknown" if it has no card or the card no licence."""
    import yaml  # type: ignore[import-untyped]
    from huggingface_hub.repocard import metadata_load

    try:
        card = fetch_from_hub(repository, "README.md", offline=offline)
    except (BadFile, Unavailable):
        return "unknown"
    try:
        metadata = metadata_load(card.path) or {}
    except (ValueError, yaml.YAMLError):  # front matter that is not a YAML object
        return "unknown"
    licence = metadata.get("license")
    if licence == "other":
        licence = metadata.get("license_name", licence)
    return licence if isinstance(licence, str) else "unknown"
