"""What the artifacts of this machine were made from: the user's own data and models, remembered outside of the artifacts.

An artifact may name data or an ancestry model of its maker (`folder:mine`), and a stranger's may name anything. Such a
reference is opened without a word of the user only if this very artifact was made on this machine: `own_data.json` in the
user's cache has its digest, where the reference leads, and a stamp of what was there. The digest covers the whole config and
every tensor, so that a copy of an artifact is known wherever it lies, and another one in its place is not.

Nothing of this is written into an artifact. What the file lacks only has to be named again, so it is bounded, and one
that cannot be read is ignored.
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

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import BadFile, ZooError
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import to_json
from learngene_zoo.storage import StateDict, digest_of_state, read_json
from learngene_zoo.text import shell_word

FILE, LOCK, FORMAT = "own_data.json", "own_data.lock", 1
MAX_ARTIFACTS, MAX_REFERENCES, MAX_LENGTH = 1000, 64, 2048
MAX_BYTES = 4 * 2**20
LOCK_SECONDS = 10
DIGEST = re.compile("[0-9a-f]{64}")


class Artifact(Protocol):
    """A learngene or a model: `config` is its record, or a function that returns the content of its config.json."""

    @property
    def config(self) -> Any: ...
    @property
    def state(self) -> StateDict: ...
    @property
    def folder(self) -> Path | None: ...


A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True)
class LocalOrigin:
    """Where a reference of an artifact led when the artifact was made, and the stamp of what was there."""

    location: str
    stamp: str


Origins = Mapping[str, LocalOrigin]  # by the reference, as the artifact names it


def locate(reference: str) -> str:
    """Return the reference with an absolute path in it, if it has a path and no address."""
    kind, colon, rest = reference.partition(":")
    if not colon or kind not in ("folder", "parquet", "wds") or "://" in rest:
        return reference
    return f"{kind}:{os.path.abspath(os.path.expanduser(rest))}"


# The artifact at hand, and what of it may be opened.


@dataclass(frozen=True)
class _Served:
    artifact: Artifact
    verb: str
    unnamed: frozenset[str]

    @cached_property
    def origins(self) -> Origins:
        return recall(self.artifact)


_SERVED: ContextVar[_Served | None] = ContextVar("served", default=None)
_IN_PYTHON: ContextVar[bool] = ContextVar("in_python", default=False)


@contextmanager
def serving(artifact: Artifact, verb: str, unnamed: Collection[str] = ()) -> Iterator[None]:
    """Within this, references are opened for an artifact; `unnamed` are those data that only the artifact names."""
    token = _SERVED.set(_Served(artifact, verb, frozenset(unnamed)))
    try:
        yield
    finally:
        _SERVED.reset(token)


def is_unnamed(reference: str) -> bool:
    """Return whether only the artifact at hand names these data."""
    served = _SERVED.get()
    return served is not None and reference in served.unnamed


def find_origin(reference: str) -> LocalOrigin | None:
    """Return where a reference of the artifact at hand leads; None if the artifact was not made here from it."""
    served = _SERVED.get()
    return None if served is None else served.origins.get(reference)


@contextmanager
def in_python() -> Iterator[None]:
    """Within this, messages say what to type in Python, not on the command line."""
    token = _IN_PYTHON.set(True)
    try:
        yield
    finally:
        _IN_PYTHON.reset(token)


def name_option(option: str, value: str) -> str:
    """Return what the user has to add to name a value: `--task folder:mine`, or `task="folder:mine"`."""
    if _IN_PYTHON.get():
        return f"{option}={json.dumps(value, ensure_ascii=False)}"
    return f"--{option} {shell_word(value)}"


def name_call(option: str, value: str) -> str:
    """Return what the user has to type to name a value for the artifact at hand."""
    served = _SERVED.get()
    if served is None or _IN_PYTHON.get():
        return f"add {name_option(option, value)}"
    kind = "LEARNGENE" if served.verb == "expand" else "MODEL"
    return f"lgzoo {served.verb} {shell_word(str(served.artifact.folder or kind))} {name_option(option, value)}"


# What is remembered: for the session, and of written artifacts in a file.

_session: OrderedDict[str, Origins] = OrderedDict()
_ignored: set[Path] = set()  # files that the user was told of


def identify(artifact: Artifact) -> str:
    """Return the digest of a whole artifact: its config and every tensor."""
    config: Any = artifact.config() if callable(artifact.config) else to_json(artifact.config)
    if isinstance(config, dict) and "tensors" in config:
        config = {**config, "tensors": sorted(artifact.state)}
    text = json.dumps(to_json(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode() + digest_of_state(artifact.state)).hexdigest()


def remember(made: A, origins: Origins, load: Callable[[Path], A], out: str | Path | None) -> A:
    """Remember what an artifact was made from, in the file if it was written to `out`; return it.

    What cannot be remembered has to be named again; nothing is raised for it.
    """
    kept = {name: origin for name, origin in origins.items() if _is_storable(name, origin)}
    if kept and is_first():
        with suppress(OSError, ZooError):
            digest = identify(made if out is None else load(Path(out)))
            _session[digest] = dict(list(kept.items())[:MAX_REFERENCES])
            _session.move_to_end(digest)
            while len(_session) > MAX_ARTIFACTS:
                _session.popitem(last=False)
            if out is not None:
                _write(digest, _session[digest])
    return made


def recall(artifact: Artifact) -> Origins:
    """Return what an artifact was made from, if it was made on this machine."""
    digest = identify(artifact)
    return _session.get(digest) or _read(_folder()).get(digest, {})


def _folder() -> Path:
    return Path(os.path.expanduser(os.environ.get("LGZOO_CACHE") or "~/.cache/learngene_zoo"))


def _is_storable(reference: str, origin: LocalOrigin) -> bool:
    texts = (reference, origin.location, origin.stamp)
    return all(0 < len(text) <= MAX_LENGTH and text.isprintable() for text in texts)


def _write(digest: str, origins: Origins) -> None:
    """Add an artifact to the file; the oldest leave it when there are too many."""
    from filelock import FileLock, Timeout

    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(Timeout), FileLock(folder / LOCK, timeout=LOCK_SECONDS):
        known = _read(folder)
        known.pop(digest, None)
        known[digest] = origins
        entries = list(known.items())[-MAX_ARTIFACTS:]
        while len(text := _to_text(entries)) > MAX_BYTES:
            entries = entries[len(entries) // 4 + 1 :]
        with new_file(folder / FILE, force=True) as draft:
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o600)


def _to_text(entries: list[tuple[str, Origins]]) -> str:
    artifacts = {digest: {name: [o.location, o.stamp] for name, o in origins.items()} for digest, origins in entries}
    return json.dumps({"format": FORMAT, "artifacts": artifacts}, ensure_ascii=False)


def _read(folder: Path) -> dict[str, Origins]:
    """Return the file's content by the digests of artifacts; nothing, with one warning, if it cannot be read."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        return _parse(read_json(path))
    except (BadFile, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, BadFile) else f"{path} is not what this package wrote"
        if path not in _ignored:
            print(f"note: {reason}; it is ignored, so name your data again", file=sys.stderr)
            _ignored.add(path)
        return {}


def _parse(data: dict[str, Any]) -> dict[str, Origins]:
    """Check what the file holds. Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError`."""
    if data.get("format") != FORMAT or len(data["artifacts"]) > MAX_ARTIFACTS:
        raise ValueError("another format")
    known: dict[str, Origins] = {}
    for digest, origins in data["artifacts"].items():
        known[digest] = {name: LocalOrigin(*values) for name, values in origins.items()}
        if not all(isinstance(values, list) for values in origins.values()):
            raise TypeError("an origin is a list")
        bad = [name for name, origin in known[digest].items() if not _is_storable(name, origin)]
        if bad or not DIGEST.fullmatch(digest) or len(origins) > MAX_REFERENCES:
            raise ValueError("an entry that was not written here")
    return known
