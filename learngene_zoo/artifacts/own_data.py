"""Local data and models that artifacts of this machine were made from, stored outside of them.

An artifact may name data or an ancestry model of its maker (`folder:mine`), and a stranger's may
name anything. Such a reference is opened without the user naming it only if this very artifact was
made on this machine: `own_data.json` in the user's cache has its digest, the location that the
reference led to, and a stamp of the content. The digest covers the config and every tensor, so that
a copy of an artifact is recognised in any folder, and a replaced one is not.

None of this is written into an artifact. Entries that the file lacks only have to be named again,
so it is bounded, and a file that cannot be read is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from learngene_zoo.artifacts.records import LOCAL_SCHEMES
from learngene_zoo.atomic import new_file
from learngene_zoo.errors import BadFile, ZooError
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import to_json
from learngene_zoo.storage import compute_sha256, digest_of_state, read_json

FILE, LOCK, FORMAT = "own_data.json", "own_data.lock", 1
MAX_ARTIFACTS, MAX_REFERENCES, MAX_LENGTH = 1000, 64, 2048
MAX_BYTES = 4 * 2**20
LOCK_SECONDS = 10
DIGEST = re.compile("[0-9a-f]{64}")


class LocalArtifact(Protocol):
    """A learngene or a model; `folder` is its source, for an exported model the file."""

    @property
    def folder(self) -> Path | None: ...


A = TypeVar("A", bound=LocalArtifact)


@dataclass(frozen=True)
class LocalOrigin:
    """The location of a reference when the artifact was made, and a stamp of its content."""

    location: str
    stamp: str


Origins = Mapping[str, LocalOrigin]  # by the reference, as the artifact names it


def locate(reference: str) -> str:
    """Return the reference with an absolute path, if it has a path and no address."""
    kind, colon, rest = reference.partition(":")
    if not colon or kind not in LOCAL_SCHEMES or "://" in rest:
        return reference
    return f"{kind}:{os.path.abspath(os.path.expanduser(rest))}"


# The artifact at hand, and the references that may be opened for it.


@dataclass(frozen=True)
class _CurrentArtifact:
    artifact: LocalArtifact
    unnamed: frozenset[str]

    @cached_property
    def origins(self) -> Origins:
        return recall(self.artifact)


_SERVED: ContextVar[_CurrentArtifact | None] = ContextVar("served", default=None)


@contextmanager
def open_for_artifact(artifact: LocalArtifact, unnamed: Collection[str] = ()) -> Iterator[None]:
    """Open references for an artifact within this context.

    `unnamed` are those data that only the artifact names.
    """
    token = _SERVED.set(_CurrentArtifact(artifact, frozenset(unnamed)))
    try:
        yield
    finally:
        _SERVED.reset(token)


def is_unnamed(reference: str) -> bool:
    """Return whether only the artifact at hand names these data."""
    served = _SERVED.get()
    return served is not None and reference in served.unnamed


def find_origin(reference: str) -> LocalOrigin | None:
    """Return the location that a reference of the artifact at hand leads to.

    None if the artifact was not made here from it.
    """
    served = _SERVED.get()
    return None if served is None else served.origins.get(reference)


# Stored origins: in memory for the session, and of written artifacts in a file.

_session: OrderedDict[str, Origins] = OrderedDict()
_ignored: set[Path] = set()  # files that the user was told of


def identify(artifact: LocalArtifact) -> str:
    """Return the digest of an artifact: of its config and every tensor, or of its file."""
    if artifact.folder is not None and artifact.folder.is_file():
        return compute_sha256(artifact.folder)
    content: Any = artifact
    config = to_json(content.config() if callable(content.config) else content.config)
    if "tensors" in config:  # an artifact in memory lists none yet
        config["tensors"] = sorted(content.state)
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode() + digest_of_state(content.state)).hexdigest()


def remember(artifact: A, origins: Origins, load: Callable[[Path], A], out: str | Path | None) -> A:
    """Store the origins of an artifact, in the file if it was written to `out`; return it.

    Origins that cannot be stored have to be named again; no error is raised.
    """
    storable = {name: origin for name, origin in origins.items() if _is_storable(name, origin)}
    if storable and is_first():
        with suppress(OSError, ZooError):
            _keep(
                identify(artifact if out is None else load(Path(out))),
                storable,
                is_written=out is not None,
            )
    return artifact


def remember_file(file: Path, origins: Origins) -> None:
    """Store the origins of an exported file, as `remember` does."""
    storable = {name: origin for name, origin in origins.items() if _is_storable(name, origin)}
    if storable and is_first():
        with suppress(OSError, ZooError):
            _keep(compute_sha256(file), storable, is_written=True)


def _keep(digest: str, origins: Origins, is_written: bool) -> None:
    _session[digest] = dict(list(origins.items())[:MAX_REFERENCES])
    _session.move_to_end(digest)
    while len(_session) > MAX_ARTIFACTS:
        _session.popitem(last=False)
    if is_written:
        _write(digest, _session[digest])


def recall(artifact: LocalArtifact) -> Origins:
    """Return the origins of an artifact, if it was made on this machine."""
    digest = identify(artifact)
    return _session.get(digest) or _read(_find_folder()).get(digest, {})


def _find_folder() -> Path:
    return Path(os.path.expanduser(os.environ.get("LGZOO_CACHE") or "~/.cache/learngene_zoo"))


def _is_storable(reference: str, origin: LocalOrigin) -> bool:
    texts = (reference, origin.location, origin.stamp)
    return all(0 < len(text) <= MAX_LENGTH and text.isprintable() for text in texts)


def _write(digest: str, origins: Origins) -> None:
    """Add an artifact to the file; the oldest leave it when there are too many."""
    from filelock import FileLock, Timeout

    folder = _find_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(Timeout), FileLock(folder / LOCK, timeout=LOCK_SECONDS):
        artifacts = _read(folder)
        artifacts.pop(digest, None)
        artifacts[digest] = origins
        entries = list(artifacts.items())[-MAX_ARTIFACTS:]
        while len(text := _format_value(entries)) > MAX_BYTES:
            entries = entries[len(entries) // 4 + 1 :]
        with new_file(folder / FILE, force=True) as draft:
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o600)


def _format_value(entries: list[tuple[str, Origins]]) -> str:
    artifacts = {
        digest: {name: [o.location, o.stamp] for name, o in origins.items()}
        for digest, origins in entries
    }
    return json.dumps({"format": FORMAT, "artifacts": artifacts}, ensure_ascii=False)


def _read(folder: Path) -> dict[str, Origins]:
    """Return the file's content by the digests of artifacts.

    Empty, with one warning, if it cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        return _parse(read_json(path))
    except (BadFile, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = (
            str(error) if isinstance(error, BadFile) else f"{path} is not what this package wrote"
        )
        if path not in _ignored:
            print(f"note: {reason}; it is ignored, so name your data again", file=sys.stderr)
            _ignored.add(path)
        return {}


def _parse(data: dict[str, Any]) -> dict[str, Origins]:
    """Check the content of the file and return the origins by digest.

    Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError`.
    """
    if data.get("format") != FORMAT or len(data["artifacts"]) > MAX_ARTIFACTS:
        raise ValueError("another format")
    artifacts: dict[str, Origins] = {}
    for digest, origins in data["artifacts"].items():
        artifacts[digest] = {name: LocalOrigin(*values) for name, values in origins.items()}
        if not all(isinstance(values, list) for values in origins.values()):
            raise TypeError("an origin is a list")
        bad = [name for name, origin in artifacts[digest].items() if not _is_storable(name, origin)]
        if bad or not DIGEST.fullmatch(digest) or len(origins) > MAX_REFERENCES:
            raise ValueError("an entry that was not written here")
    return artifacts
