"""One file of a Hub repository, at a pinned revision, from the network or the cache; and what the Hub's client raises, in words."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Any

from learngene_zoo.errors import BadFile, Unavailable, WrongCall, ZooError, explained

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ETAG = re.compile(rf'(?:W/)?"?(?:{_COMMIT.pattern}|{_SHA256.pattern})"?')
_WORD = r"[A-Za-z0-9][\w.-]*"
_REFERENCE = re.compile(rf"(?P<name>{_WORD}/{_WORD})(?:/(?P<inside>{_WORD}))?(?:@(?P<revision>{_WORD}(?:/{_WORD})*))?")
_CACHED = re.compile(rf"(?:^|/)models--([^/]*?)--([^/]+)/snapshots/({_COMMIT.pattern})(?:/|$)(.*)")
SCHEME = "hf-hub:"
log = logging.getLogger(__name__)
PATIENCE = 5.0  # seconds after which somebody who waits for the Hub is told so; its client tries again for about twenty
CERTAIN = (400, 401, 403, 404, 413)  # answers that will be the same next time, and after which nothing was done


@dataclass(frozen=True)
class Repository:
    """A model repository on the Hub; `revision` is a branch, a tag or a commit, None the default branch.

    `inside` is the folder of a member of a family; "" is what lies at the top.
    """

    name: str
    revision: str | None = None
    inside: str = ""

    def __str__(self) -> str:
        name = f"{self.name}/{self.inside}" if self.inside else self.name
        return f"{name}@{self.revision}" if self.revision else name

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> Repository:
        """The same repository at another revision."""
        return replace(self, revision=revision)


def parse_repository(text: str) -> Repository:
    """`organisation/name`, `organisation/name@revision` or `organisation/name/member@revision`. Raises `WrongCall`."""
    found = _REFERENCE.fullmatch(text.removeprefix(SCHEME))
    if found is None or "--" in found["name"] or ".." in text:
        raise WrongCall(
            f"{text!r} is not the name of a Hub repository; write organisation/name or organisation/name@v1.0"
        )
    return Repository(found["name"], found["revision"], found["inside"] or "")


def reference_to_hub(text: str) -> Repository | None:
    """The repository that a reference to an artifact names; None for a path or a name on the shelf, which may be mistyped.

    `hf-hub:organisation/name` always names one, `organisation/name@revision` only where there is no folder `organisation`.
    """
    if text.startswith(SCHEME):
        return parse_repository(text)
    found = _REFERENCE.fullmatch(text)
    if found is None or not found["revision"] or Path(text.partition("/")[0]).exists():
        return None
    return parse_repository(text)


@dataclass(frozen=True)
class HubFile:
    """A file in the cache and the commit (40 hexadecimal digits) that it comes from."""

    path: Path
    commit: str


def fetch_from_hub(repository: Repository, filename: str, *, offline: bool) -> HubFile:
    """The file, downloaded unless this very revision is cached. One whose checksum is not the Hub's is evicted and fetched once more.

    Raises `WrongCall` for a repository or revision that does not exist, `BadFile` if the repository lacks the file, and
    `Unavailable` for a gated repository, without a network, or offline if the file is not cached whole.
    """
    for _ in range(1 if offline else 2):
        path = _in_cache(repository, filename, offline)
        if not _is_damaged(path):
            return HubFile(path, _commit(path))
        evict([path])
    where = "in the cache" if offline else "twice on its way"
    raise Unavailable(f"{filename} of {repository} was damaged {where} and is removed; run again while online")


def _in_cache(repository: Repository, filename: str, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    with asking(repository, f"{filename} of {repository} is not available", offline=offline):
        try:
            found = hf_hub_download(repository.name, filename, revision=repository.revision, local_files_only=offline)
        except _client().EntryNotFoundError as error:
            if isinstance(error, _client().LocalEntryNotFoundError) and not (
                offline and _known_absent(repository, filename)
            ):
                raise
            raise BadFile(f"the Hub repository {repository} has no {filename}") from None
    return Path(found)


def _known_absent(repository: Repository, filename: str) -> bool:
    """Whether the cache says that the Hub had no such file when it was asked; offline, the client itself does not look there."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    return try_to_load_from_cache(repository.name, filename, revision=repository.revision) is _CACHED_NO_EXIST


def _is_damaged(path: Path) -> bool:
    """Whether a file of the cache is not what the Hub listed: it is a link to a blob that has its checksum for a name."""
    listed = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    if re.fullmatch("[0-9a-f]{64}", listed):
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() != listed
    return _COMMIT.fullmatch(listed) is not None and git_checksum(path.read_bytes()) != listed


def git_checksum(data: bytes) -> str:
    """git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def evict(paths: Sequence[Path]) -> None:
    """Take files out of the Hub's cache, in every revision that shares their content."""
    from huggingface_hub import scan_cache_dir

    if not paths:
        return
    blobs = {path.resolve() for path in paths}
    cache = scan_cache_dir(next(parent.parent for parent in paths[0].parents if parent.name.startswith("models--")))
    files = [
        file
        for repository in cache.repos
        for revision in repository.revisions
        for file in revision.files
        if file.blob_path.resolve() in blobs
    ]
    cache.delete_files(*files).execute()


def _commit(path: Path) -> str:
    """The cache keeps each revision in a folder named by its commit: .../snapshots/COMMIT/filename."""
    for parent in path.parents:
        if _COMMIT.fullmatch(parent.name):
            return parent.name
    raise BadFile(f"{path} is not in a Hub cache, so its revision is unknown")


def cached_repository(folder: Path) -> Repository | None:
    """The repository and commit that a folder of the Hub's cache holds; None for any other folder."""
    found = _CACHED.search(folder.as_posix())
    return Repository(f"{found[1]}/{found[2]}", found[3], found[4]) if found else None


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


# What the client raises


def _client() -> Any:
    """The client's exceptions; it is imported only when it is used."""
    from huggingface_hub import errors

    return errors


@contextmanager
def asking(repository: Repository, failed: str, *, offline: bool = False, progress: bool = False) -> Iterator[None]:
    """Whatever the client raises leaves as an error of ours: one line that begins with `failed` and says why.

    Meanwhile the client logs nothing, because its warnings quote signed addresses, and it shows bars only with `progress`. Without
    bars, one warning says that the Hub takes long.
    """
    _guard_client()
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as client_log

    before, hidden = client_log.get_verbosity(), not progress and not are_progress_bars_disabled()
    client_log.set_verbosity(client_log.CRITICAL)
    patience = Timer(PATIENCE, log.warning, ["no answer from the Hub yet about %s; still trying", repository])
    patience.daemon = True
    if not progress:
        patience.start()
    if hidden:
        disable_progress_bars()
    try:
        yield
    except _Untrusted as error:
        raise Unavailable(f"{failed}: {error}") from error
    except ZooError:
        raise
    except Exception as error:  # it lets errors of its transport, of JSON and of missing keys through
        raise translated(error, repository, failed, offline) from error
    finally:
        patience.cancel()
        client_log.set_verbosity(before)
        if hidden:
            enable_progress_bars()


def _guard_client() -> None:
    """Have every client that huggingface_hub opens from now on pass its answers to `check_answer`."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    make = getattr(_http, "_GLOBAL_CLIENT_FACTORY", _http.default_client_factory)
    if hasattr(make, "checks_answers"):
        return

    def make_client() -> Any:
        client = make()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks.get("response", ()), check_answer]}
        return client

    make_client.checks_answers = True  # type: ignore[attr-defined]
    set_client_factory(make_client)


def check_answer(answer: Any) -> None:
    """Raises `Unavailable` for headers that the Hub never sends and its client would trust.

    The client takes the ETag for the name of a file in its cache, the commit and Xet's hash for parts of paths, and a
    redirect for an address to ask.
    """
    headers = answer.headers
    commit, xet = headers.get("X-Repo-Commit"), headers.get("X-Xet-Hash")
    if commit is not None and not _COMMIT.fullmatch(commit):
        raise _untrusted(f"X-Repo-Commit is {commit!r:.80}; expected a commit of 40 hexadecimal digits")
    if xet is not None and not _SHA256.fullmatch(xet):
        raise _untrusted(f"X-Xet-Hash is {xet!r:.80}; expected 64 hexadecimal digits")
    linked = headers.get("X-Linked-Etag")
    etag = linked or (headers.get("ETag") if commit is not None and answer.status_code < 400 else None)
    if etag is not None and not _ETAG.fullmatch(etag):
        raise _untrusted(
            f"{'X-Linked-Etag' if linked else 'ETag'} is {etag!r:.80}; expected a checksum of 40 or 64 hexadecimal digits"
        )
    scheme = re.match(r"\s*([a-zA-Z][\w+.-]*):", headers.get("Location", ""))
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise _untrusted(f"it redirects to an address that begins with {scheme[1]:.40}:; expected https://")


class _Untrusted(Unavailable):
    """An answer that no Hub gives; `asking` says what it was about."""


def _untrusted(reason: str) -> _Untrusted:
    return _Untrusted(
        f"the answer is not that of a Hub, so it was not used: {reason}; check HF_ENDPOINT and proxies, or tell its owners"
    )


def translated(error: Exception, repository: Repository, failed: str, offline: bool = False) -> ZooError:
    """An error of ours for one of the client's. It quotes no address, because that may hold a signature."""
    hub, chain = _client(), _chain(error)
    if _first(chain, hub.HFValidationError):
        return WrongCall(f"{repository.name!r} is not the name of a Hub repository; write organisation/name")
    if _first(chain, hub.GatedRepoError):
        return Unavailable(f"the Hub repository {repository} is gated; request access, then log in: hf auth login")
    if _first(chain, hub.RepositoryNotFoundError):
        return WrongCall(f"there is no Hub repository {repository.name} (or it is private: hf auth login)")
    if _first(chain, hub.RevisionNotFoundError):
        return WrongCall(f"the Hub repository {repository.name} has no revision {repository.revision!r}")
    if _first(chain, hub.OfflineModeIsEnabled) or (offline and _first(chain, hub.LocalEntryNotFoundError)):
        return Unavailable(f"{failed}: it is not cached and this run is offline; run once while online")
    return Unavailable(f"{failed}: {_reason(chain)}")


_ANSWERS = {
    401: "the Hub does not accept this login; log in: hf auth login",
    403: "forbidden; your login has no permission for this: hf auth login, or ask the owners",
    404: "the Hub has no such thing; check the name",
    409: "somebody else is changing it at this moment; try again",
    412: "somebody else has changed it meanwhile; try again",
    413: "the Hub accepts no file that large",
    429: "the Hub is busy (429); try again later",
    503: "the Hub is busy (503); try again later",
}


def _reason(chain: Sequence[BaseException]) -> str:
    """Why a request failed, and what to do."""
    from huggingface_hub import get_token
    from huggingface_hub.utils import httpx

    status = status_of(chain[0])
    if status == 401 and get_token() is None:
        return "you are not logged in to the Hub; log in: hf auth login"
    if status is not None and status >= 400:
        return _ANSWERS.get(status, f"the Hub answered {status}; try again later")
    system = next((error for error in chain if isinstance(error, OSError) and error.errno), None)
    lost = _first(chain, httpx.HTTPError, ConnectionError, TimeoutError)
    if _first(chain, httpx.ConnectError) or (_first(chain, _client().LocalEntryNotFoundError) and len(chain) == 1):
        return "the Hub cannot be reached; run again while online"
    if _first(chain, httpx.UnsupportedProtocol):
        return "the address of the Hub begins with neither http:// nor https://; correct HF_ENDPOINT"
    if lost is not None:
        return f"the connection to the Hub broke ({type(lost).__name__}); try again"
    if system is not None:
        return explained(system)
    last = chain[-1]
    if isinstance(last, OSError):
        said = [*str(last).strip().splitlines(), type(last).__name__][0]
        return "it arrived incomplete; try again" if said.startswith("Consistency check failed") else said
    return f"the Hub's answer cannot be understood ({type(last).__name__}); try again"


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of the client's is about."""
    for each in _chain(error):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """An error and what it comes from."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def _first(chain: Sequence[BaseException], *kinds: type[BaseException]) -> BaseException | None:
    return next((error for error in chain if isinstance(error, kinds)), None)
