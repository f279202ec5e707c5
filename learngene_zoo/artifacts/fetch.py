"""`fetch`: a published artifact in the Hub's cache, pinned to a commit, with every file checked against its manifest.

A file that is not what the manifest says is evicted from the cache and fetched once more. What is cached by its commit is used
without a request.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo.artifacts.hub import (
    CERTAIN,
    HubFile,
    Repository,
    asking,
    evict,
    fetch_from_hub,
    git_checksum,
    parse_repository,
    status_of,
)
from learngene_zoo.artifacts.manifest import MANIFEST, FileRecord, Manifest, read_manifest
from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile, Unavailable, WrongCall
from learngene_zoo.storage import CONFIG

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

THREADS = 8  # as many downloads at once as the client's own snapshots


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A published artifact on this machine."""

    repository: Repository  # at the commit
    top: Path  # of the repository
    files: Mapping[str, FileRecord]  # that are here, by their path in it
    manifest: Manifest

    @property
    def folder(self) -> Path:
        """What was named: the top, or a member of a family."""
        return self.top / self.repository.inside

    @property
    def bytes(self) -> int:
        """The size of the files that are here."""
        return sum(file.bytes for file in self.files.values())


def fetch(reference: str, out: str | Path | None = None, *, offline: bool = False, force: bool = False) -> Path:
    """The folder of `organisation/name[/member][@revision]` in the Hub's cache, whole and checked; with `out`, a copy there.

    Raises as `fetch_repository` does, and `Refused` if something stands at `out` and `force` is not set.
    """
    repository = parse_repository(reference)
    found = fetch_repository(repository, whole=not repository.inside, offline=offline)
    return found.folder if out is None else copy(found, Path(out), force)


def fetch_repository(
    repository: Repository, *, whole: bool = False, offline: bool = False, progress: bool = False
) -> Fetched:
    """What a reference names, in the cache and checked: the files at the top or of one member, `whole` those of all members.

    Raises `WrongCall` for one that does not exist, `BadFile` if it was not published by this package or its files stay
    damaged, `Unavailable` if something is missing and cannot be downloaded.
    """
    found, manifest = fetch_manifest(repository, offline)
    pinned, top = repository.at(found.commit), found.path.parent
    if repository.inside and repository.inside not in manifest.members:
        members = ", ".join(manifest.members) or "none"
        raise WrongCall(f"{pinned.name} at {found.commit} has no member {repository.inside!r}; it has: {members}")
    named = {
        path: file for path, file in manifest.files.items() if whole or path.rpartition("/")[0] == repository.inside
    }
    if f"{repository.inside}/{CONFIG}".lstrip("/") not in named:
        raise BadFile(f"{pinned} has no {CONFIG}, so it is neither a learngene nor a model")
    wrong = _wrong(top, named)
    if wrong:
        _repair(pinned, top, manifest, wrong, offline, progress)
    return Fetched(repository=pinned, top=top, files=named, manifest=manifest)


def copy(fetched: Fetched, place: Path, force: bool = False) -> Path:
    """What was fetched as a folder of its own, whole or not at all. Raises as `atomic.new_folder` does."""
    inside = f"{fetched.repository.inside}/".lstrip("/")
    with new_folder(place, force) as draft:
        for path in [*fetched.files, *([] if inside else [MANIFEST])]:
            target = draft / path.removeprefix(inside)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(fetched.top / path, target)
    return place


def fetch_manifest(repository: Repository, offline: bool) -> tuple[HubFile, Manifest]:
    """The manifest and the commit that it is of, fetched again if it is damaged. Raises as `fetch` does."""
    where = f"{MANIFEST} of {repository}"
    try:
        found = fetch_from_hub(repository, MANIFEST, offline=offline)
    except BadFile:
        raise BadFile(
            f"the Hub repository {repository} has no {MANIFEST}, so it was not published by `lgzoo publish` and cannot be checked; "
            f"as an ancestry model it is --ancestry hf-hub:{repository}, any other use begins with `hf download {repository.name}`"
        ) from None
    try:
        return found, read_manifest(found.path, where)
    except BadFile:
        evict([found.path])
        if offline:
            raise
    found = fetch_from_hub(repository.at(found.commit), MANIFEST, offline=offline)
    try:
        return found, read_manifest(found.path, where)
    except BadFile:
        evict([found.path])
        raise


def _wrong(top: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """The files that are missing or are not what the manifest says."""
    with ThreadPoolExecutor(THREADS) as pool:
        right = pool.map(lambda item: item[1].holds(top / item[0]), files.items())
        return [path for path, good in zip(files, right) if not good]


def _repair(
    pinned: Repository, top: Path, manifest: Manifest, wrong: Sequence[str], offline: bool, progress: bool
) -> None:
    """Download what is missing or damaged, once more if need be."""
    damaged = {path for path in wrong if (top / path).exists()}
    with asking(pinned, f"{pinned} cannot be checked", offline=offline):
        evict([top / path for path in damaged])
    if offline:
        why = "was damaged and is removed" if wrong[0] in damaged else "is not cached"
        raise Unavailable(f"{wrong[0]} of {pinned} {why}, and this run is offline; run once while online")
    with asking(pinned, f"{pinned} cannot be fetched", progress=progress):
        tree = _compare(pinned, manifest)
        for _ in range(2):
            _download(pinned, wrong, damaged, progress)
            wrong = [path for path in wrong if not _is_right(top / path, manifest.files[path], tree[path])]
            damaged = set(wrong)
            evict([top / path for path in wrong])
            if not wrong:
                return
    raise BadFile(
        f"{wrong[0]} of {pinned} arrived twice with another checksum than its manifest has; nothing of it was kept: "
        "try again, or tell its owners"
    )


def _is_right(path: Path, record: FileRecord, listed: RepoFile) -> bool:
    """Whether a file is what the manifest says and, if git itself stores it, has the checksum that the Hub lists."""
    return record.holds(path) and (listed.lfs is not None or git_checksum(path.read_bytes()) == listed.blob_id)


def _compare(pinned: Repository, manifest: Manifest) -> dict[str, RepoFile]:
    """The Hub's own list of the files. Raises `BadFile` if it contradicts the manifest: then nothing is downloaded."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    listed = HfApi().list_repo_tree(pinned.name, recursive=True, revision=pinned.revision)
    tree = {file.path: file for file in listed if isinstance(file, RepoFile)}
    for path, record in manifest.files.items():
        found = tree.get(path)
        if found is None or found.size != record.bytes or (found.lfs and found.lfs.sha256 != record.sha256):
            raise BadFile(
                f"{MANIFEST} of {pinned} and the Hub disagree about {path}; it was changed by hand: tell its owners"
            )
    return tree


def _download(pinned: Repository, paths: Sequence[str], damaged: Container[str], progress: bool) -> None:
    """Files into the cache, whole or not at all. The client goes on after most breaks by itself; after the others we begin again."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import tqdm

    def one(path: str) -> None:
        for wait in (1, 2, 0):
            try:
                hf_hub_download(pinned.name, path, revision=pinned.revision, force_download=path in damaged)
                return
            except Exception as error:  # a connection breaks with errors of several libraries; the last one is raised
                if not wait or isinstance(error, LocalEntryNotFoundError) or status_of(error) in CERTAIN:
                    raise
            time.sleep(wait)

    with ThreadPoolExecutor(THREADS) as pool, tqdm(total=len(paths), unit="file", disable=not progress) as bar:
        for _ in pool.map(one, paths):
            bar.update()
