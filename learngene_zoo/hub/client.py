"""Files of Hub repositories at pinned revisions, and translation of the client's errors."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Any

from learngene_zoo.errors import BadFile, Unavailable, WrongCall, ZooError, explain_os_error
from learngene_zoo.storage import parse_json

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ETAG = re.compile(rf'(?:W/)?"?(?:{_COMMIT.pattern}|{_SHA256.pattern})"?')
_WORD = r"[A-Za-z0-9][\w.-]*"
_REFERENCE = re.compile(
    rf"(?P<name>{_WORD}/{_WORD})(?:/(?P<inside>{_WORD}))?(?:@(?P<revision>{_WORD}(?:/{_WORD})*))?"
)
_CACHED = re.compile(rf"(?:^|/)models--([^/]*?)--([^/]+)/snapshots/({_COMMIT.pattern})(?:/|$)(.*)")
SCHEME = "hf-hub:"
# Seconds before a slow Hub request is reported; the client tries again for about twenty.
PATIENCE = 5.0
# Statuses that a repeated request gets again, and after which nothing was done.
CERTAIN = (400, 401, 403, 404, 413)


@dataclass(frozen=True)
class Repository:
    """A model repository on the Hub.

    `revision` is a branch, a tag or a commit; None is the default branch. `inside` is the folder of
    a member of a family; "" is the top of the repository.
    """

    name: str
    revision: str | None = None
    inside: str = ""

    def __str__(self) -> str:
        name = f"{self.name}/{self.inside}" if self.inside else self.name
        return f"{name}@{self.revision}" if self.revision else name

    @property
    def pinned(self) -> bool:
        """Return whether the revision is a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> Repository:
        """Return the same repository at another revision."""
        return replace(self, revision=revision)


def parse_repository(text: str) -> Repository:
    """Parse `organisation/name[/member][@revision]`. Raises `WrongCall`."""
    match = _REFERENCE.fullmatch(text.removeprefix(SCHEME)) if isinstance(text, str) else None
    if match is None or "--" in match["name"] or ".." in text:
        raise WrongCall(
            f"{text!r:.60} is not the name of a Hub repository; "
            "write organisation/name or organisation/name@v1.0"
        )
    return Repository(match["name"], match["revision"], match["inside"] or "")


def parse_hub_reference(text: str) -> Repository | None:
    """Return the repository that a reference to an artifact names.

    None for a path or a name on the shelf, which may be mistyped. `hf-hub:organisation/name` always
    names a repository, `organisation/name@revision` only where there is no folder `organisation`.
    """
    if text.startswith(SCHEME):
        return parse_repository(text)
    match = _REFERENCE.fullmatch(text)
    if match is None or not match["revision"] or Path(text.partition("/")[0]).exists():
        return None
    return parse_repository(text)


@dataclass(frozen=True)
class HubFile:
    """A file in the cache and its commit (40 hexadecimal digits)."""

    path: Path
    commit: str


def fetch_from_hub(repository: Repository, filename: str, *, offline: bool) -> HubFile:
    """Return a file, downloaded unless this revision is cached.

    A file whose checksum differs from the Hub's is evicted and fetched once more. Raises
    `WrongCall` for a repository or revision that does not exist, `BadFile` if the repository lacks
    the file, and `Unavailable` for a gated repository, without a network, or offline if the file is
    not cached completely.
    """
    for _ in range(1 if offline else 2):
        path = _find_in_cache(repository, filename, offline)
        if not _is_damaged(path):
            return HubFile(path, _commit(path))
        evict([path])
    where = "in the cache" if offline else "twice on its way"
    raise Unavailable(
        f"{filename} of {repository} was damaged {where} and is removed; run again while online"
    )


def _find_in_cache(repository: Repository, filename: str, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    with translate_hub_errors(
        repository, f"{filename} of {repository} is not available", offline=offline
    ):
        try:
            path = hf_hub_download(
                repository.name, filename, revision=repository.revision, local_files_only=offline
            )
        except _import_client().EntryNotFoundError as error:
            if isinstance(error, _import_client().LocalEntryNotFoundError) and not (
                offline and _is_known_absent(repository, filename)
            ):
                raise
            raise BadFile(f"the Hub repository {repository} has no {filename}") from None
    return Path(path)


def _is_known_absent(repository: Repository, filename: str) -> bool:
    """Return whether the cache records that the Hub has no such file.

    It does so if somebody has asked for the file, or if `snapshot_download` has stored the list of
    the commit's files. The client itself does not look there offline.
    """
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    cached = try_to_load_from_cache(repository.name, filename, revision=repository.revision)
    if cached is _CACHED_NO_EXIST:
        return True
    top = Path(HF_HUB_CACHE, repo_folder_name(repo_id=repository.name, repo_type="model"))
    commit = repository.revision or "main"
    if not repository.pinned:
        with suppress(OSError):
            commit = (top / "refs" / commit).read_text().strip()
    files = _list_files(top, commit)
    return files is not None and filename not in files


def _is_damaged(path: Path) -> bool:
    """Return whether a file of the cache differs from the Hub's listing.

    False if the cache contains no checksum of it.
    """
    listed = _find_checksum(path)
    if re.fullmatch("[0-9a-f]{64}", listed):
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() != listed
    return (
        _COMMIT.fullmatch(listed) is not None and compute_git_checksum(path.read_bytes()) != listed
    )


def _find_checksum(path: Path) -> str:
    """Return the Hub's checksum of a cached file; "" if the cache does not contain it.

    A file is a link to a blob that is named by its checksum. On systems without symbolic links the
    client moves the blob to the place of the link, and its name is lost. Then the checksum is known
    only if `snapshot_download` has stored the list of the commit's files in `trees/COMMIT.json`
    (format 1 of huggingface_hub).
    """
    if path.is_symlink():
        return os.path.basename(os.readlink(path))
    commit = next((parent for parent in path.parents if parent.parent.name == "snapshots"), None)
    if commit is None:
        return ""
    files = _list_files(commit.parent.parent, commit.name) or {}
    with suppress(KeyError, TypeError, AttributeError):
        entry = files[path.relative_to(commit).as_posix()]
        return str(entry.get("lfs_sha256") or entry["blob_id"])
    return ""


def _list_files(top: Path, commit: str) -> dict[str, Any] | None:
    """Return the stored list of a commit's files; None without a usable list.

    Args:
        top: the folder of the repository in the cache.
        commit: 40 hexadecimal digits; there is no list of anything else.
    """
    if not _COMMIT.fullmatch(commit):
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        listing = parse_json((top / "trees" / f"{commit}.json").read_bytes())
        if listing["format_version"] == 1 and isinstance(listing["files"], dict):
            return dict(listing["files"])
    return None


def compute_git_checksum(data: bytes) -> str:
    """Return git's checksum of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def evict(paths: Sequence[Path]) -> None:
    """Remove files from the Hub's cache, in every revision that shares their content."""
    from huggingface_hub import scan_cache_dir

    if not paths:
        return
    blobs = {path.resolve() for path in paths}
    cache = scan_cache_dir(
        next(parent.parent for parent in paths[0].parents if parent.name.startswith("models--"))
    )
    files = [
        file
        for repository in cache.repos
        for revision in repository.revisions
        for file in revision.files
        if file.blob_path.resolve() in blobs
    ]
    cache.delete_files(*files).execute()


def _commit(path: Path) -> str:
    """Return the commit of a cached file.

    The cache keeps each revision in a folder named by its commit: .../snapshots/COMMIT/filename.
    """
    for parent in path.parents:
        if _COMMIT.fullmatch(parent.name):
            return parent.name
    raise BadFile(f"{path} is not in a Hub cache, so its revision is unknown")


def find_cached_repository(folder: Path) -> Repository | None:
    """Return the repository and commit of a folder in the Hub's cache; None for other folders."""
    match = _CACHED.search(folder.as_posix())
    return Repository(f"{match[1]}/{match[2]}", match[3], match[4]) if match else None


def read_card_licence(repository: Repository, *, offline: bool) -> str:
    """Return the licence that a repository's model card declares.

    "unknown" if there is no card, or no licence on it.
    """
    try:
        card = fetch_from_hub(repository, "README.md", offline=offline)
    except (BadFile, Unavailable):
        return "unknown"
    return read_licence(card.path)


def read_licence(card: Path) -> str:
    """Return the licence that the front matter of a model card declares; "unknown" without one."""
    import yaml  # type: ignore[import-untyped]
    from huggingface_hub.repocard import metadata_load

    try:
        metadata = metadata_load(card) or {}
    except (ValueError, yaml.YAMLError):  # front matter that is not a YAML object
        return "unknown"
    licence = metadata.get("license")
    if licence == "other":
        licence = metadata.get("license_name", licence)
    return licence if isinstance(licence, str) else "unknown"


# Errors of the client


def _import_client() -> Any:
    """Return the module of the client's exceptions, which is imported only when it is used."""
    from huggingface_hub import errors

    return errors


@contextmanager
def translate_hub_errors(
    repository: Repository, failed: str, *, offline: bool = False, progress: bool = False
) -> Iterator[None]:
    """Raise every error of the client as one of ours, in one line that begins with `failed`.

    Within the context the client logs nothing, because its warnings quote signed addresses, and it
    shows bars only with `progress`. Without bars, one warning reports that the Hub takes long.
    """
    _guard_client()
    import logging

    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from huggingface_hub.utils import logging as client_log

    before, hidden = client_log.get_verbosity(), not progress and not are_progress_bars_disabled()
    client_log.set_verbosity(client_log.CRITICAL)
    log = logging.getLogger(__name__)
    patience = Timer(
        PATIENCE, log.warning, ["no answer from the Hub yet about %s; still trying", repository]
    )
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
    except (
        Exception
    ) as error:  # it lets errors of its transport, of JSON and of missing keys through
        raise translate_error(error, repository, failed, offline) from error
    finally:
        patience.cancel()
        client_log.set_verbosity(before)
        if hidden:
            enable_progress_bars()


def _guard_client() -> None:
    """Make every client that huggingface_hub opens from now on call `check_answer`."""
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
    """Raise `Unavailable` for headers that the Hub never sends and its client would trust.

    The client uses the ETag as the name of a file in its cache, the commit and Xet's hash as parts
    of paths, and a redirect as the next address.
    """
    headers = answer.headers
    commit, xet = headers.get("X-Repo-Commit"), headers.get("X-Xet-Hash")
    if commit is not None and not _COMMIT.fullmatch(commit):
        raise _make_untrusted(
            f"X-Repo-Commit is {commit!r:.80}; expected a commit of 40 hexadecimal digits"
        )
    if xet is not None and not _SHA256.fullmatch(xet):
        raise _make_untrusted(f"X-Xet-Hash is {xet!r:.80}; expected 64 hexadecimal digits")
    linked = headers.get("X-Linked-Etag")
    etag = linked or (
        headers.get("ETag") if commit is not None and answer.status_code < 400 else None
    )
    if etag is not None and not _ETAG.fullmatch(etag):
        raise _make_untrusted(
            f"{'X-Linked-Etag' if linked else 'ETag'} is {etag!r:.80}; expected a checksum of 40 "
            "or 64 hexadecimal digits"
        )
    scheme = re.match(r"\s*([a-zA-Z][\w+.-]*):", headers.get("Location", ""))
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise _make_untrusted(
            f"it redirects to an address that begins with {scheme[1]:.40}:; expected https://"
        )


class _Untrusted(Unavailable):
    """An answer that no Hub gives; `translate_hub_errors` adds the request."""


def _make_untrusted(reason: str) -> _Untrusted:
    return _Untrusted(
        f"the answer is not that of a Hub, so it was not used: {reason}; check HF_ENDPOINT and "
        "proxies, or tell its owners"
    )


def translate_error(
    error: Exception, repository: Repository, failed: str, offline: bool = False
) -> ZooError:
    """Return our error for one of the client's.

    It quotes no address, because an address may hold a signature.
    """
    hub, chain = _import_client(), _list_causes(error)
    if _find_first(chain, hub.HFValidationError):
        return WrongCall(
            f"{repository.name!r} is not the name of a Hub repository; write organisation/name"
        )
    if _find_first(chain, hub.GatedRepoError):
        return Unavailable(
            f"the Hub repository {repository} is gated; request access, then log in: hf auth login"
        )
    if _find_first(chain, hub.RepositoryNotFoundError):
        return WrongCall(
            f"there is no Hub repository {repository.name} (or it is private: hf auth login)"
        )
    if _find_first(chain, hub.RevisionNotFoundError):
        return WrongCall(
            f"the Hub repository {repository.name} has no revision {repository.revision!r}"
        )
    if _find_first(chain, hub.OfflineModeIsEnabled) or (
        offline and _find_first(chain, hub.LocalEntryNotFoundError)
    ):
        return Unavailable(
            f"{failed}: it is not cached and this run is offline; run once while online"
        )
    return Unavailable(f"{failed}: {_explain(chain)}")


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


def _explain(chain: Sequence[BaseException]) -> str:
    """Return why a request failed, and a remedy."""
    from huggingface_hub import get_token
    from huggingface_hub.utils import httpx

    status = get_status(chain[0])
    if status == 401 and get_token() is None:
        return "you are not logged in to the Hub; log in: hf auth login"
    if status is not None and status >= 400:
        return _ANSWERS.get(status, f"the Hub answered {status}; try again later")
    system = next((error for error in chain if isinstance(error, OSError) and error.errno), None)
    lost = _find_first(chain, httpx.HTTPError, ConnectionError, TimeoutError)
    if _find_first(chain, httpx.ConnectError) or (
        _find_first(chain, _import_client().LocalEntryNotFoundError) and len(chain) == 1
    ):
        return "the Hub cannot be reached; run again while online"
    if _find_first(chain, httpx.UnsupportedProtocol):
        return (
            "the address of the Hub begins with neither http:// nor https://; correct HF_ENDPOINT"
        )
    if lost is not None:
        return f"the connection to the Hub broke ({type(lost).__name__}); try again"
    if system is not None:
        return explain_os_error(system)
    last = chain[-1]
    if isinstance(last, OSError):
        first_line = [*str(last).strip().splitlines(), type(last).__name__][0]
        return (
            "it arrived incomplete; try again"
            if first_line.startswith("Consistency check failed")
            else first_line
        )
    return f"the Hub's answer cannot be understood ({type(last).__name__}); try again"


def get_status(error: BaseException) -> int | None:
    """Return the HTTP status of one of the client's errors."""
    for each in _list_causes(error):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def _find_first(
    chain: Sequence[BaseException], *kinds: type[BaseException]
) -> BaseException | None:
    return next((error for error in chain if isinstance(error, kinds)), None)
