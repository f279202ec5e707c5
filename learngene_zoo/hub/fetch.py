"""`fetch`: a published artifact in the Hub's cache, pinned to a commit and checked.

Every file is checked against the manifest. A file that differs is evicted from the cache and
fetched once more. Files that are cached by their commit are used without a request.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile, Unavailable, WrongCall
from learngene_zoo.hub.client import (
    CERTAIN,
    HubFile,
    Repository,
    compute_git_checksum,
    evict,
    fetch_from_hub,
    get_status,
    parse_repository,
    translate_hub_errors,
)
from learngene_zoo.hub.manifest import MANIFEST, FileRecord, Manifest, find_folder, read_manifest
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
        """Return the folder that was named: the top, or a member of a family."""
        return self.top / self.repository.inside

    @property
    def bytes(self) -> int:
        """Return the total size of `files`."""
        return sum(file.bytes for file in self.files.values())


def fetch(
    reference: str, out: str | Path | None = None, *, offline: bool = False, force: bool = False
) -> Path:
    """Return the checked folder of `organisation/name[/member][@revision]` in the Hub's cache.

    With `out`, the folder is copied there. Raises as `fetch_repository` does, and `Refused` if
    `out` exists and `force` is not set.
    """
    repository = parse_repository(reference)
    fetched = fetch_repository(repository, with_members=not repository.inside, offline=offline)
    return fetched.folder if out is None else copy(fetched, Path(out), force)


def fetch_repository(
    repository: Repository,
    *,
    with_members: bool = False,
    offline: bool = False,
    progress: bool = False,
) -> Fetched:
    """Fetch and check the files that a reference names: those at the top, or of one member.

    With `with_members`, the files of all members are fetched too. Raises `WrongCall` for a
    reference that does not exist, `BadFile` if it was not published by this package or its files
    stay damaged, `Unavailable` if a file is missing and cannot be downloaded.
    """
    manifest_file, manifest = fetch_manifest(repository, offline)
    pinned, top = repository.at(manifest_file.commit), manifest_file.path.parent
    if repository.inside and repository.inside not in manifest.members:
        members = ", ".join(manifest.members) or "none"
        raise WrongCall(
            f"{pinned.name} at {manifest_file.commit} has no member {repository.inside!r}; "
            f"it has: {members}"
        )
    named = {
        path: file
        for path, file in manifest.files.items()
        if with_members or find_folder(path) == repository.inside
    }
    if f"{repository.inside}/{CONFIG}".lstrip("/") not in named:
        raise BadFile(f"{pinned} has no {CONFIG}, so it is neither a learngene nor a model")
    wrong = _list_wrong(top, named)
    if wrong:
        _repair(pinned, top, manifest, wrong, offline, progress)
    return Fetched(repository=pinned, top=top, files=named, manifest=manifest)


def copy(fetched: Fetched, out: Path, force: bool = False) -> Path:
    """Copy a fetched artifact to the folder `out`, atomically.

    Raises as `atomic.new_folder` does.
    """
    inside = f"{fetched.repository.inside}/".lstrip("/")
    with new_folder(out, force) as draft:
        for path in [*fetched.files, *([] if inside else [MANIFEST])]:
            target = draft / path.removeprefix(inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fetched.top / path, target)
    return out


def fetch_manifest(repository: Repository, offline: bool) -> tuple[HubFile, Manifest]:
    """Return the manifest and its commit; a damaged one is fetched again.

    Raises as `fetch` does.
    """
    where = f"{MANIFEST} of {repository}"
    try:
        manifest_file = fetch_from_hub(repository, MANIFEST, offline=offline)
    except BadFile:
        raise BadFile(
            f"the Hub repository {repository} has no {MANIFEST}, so it was not published by `lgzoo "
            "publish` and cannot be checked; as an ancestry model it is "
            f"hf-hub:{repository}, any other use begins with `hf download {repository.name}`"
        ) from None
    try:
        return manifest_file, read_manifest(manifest_file.path, where)
    except BadFile:
        evict([manifest_file.path])
        if offline:
            raise
    manifest_file = fetch_from_hub(repository.at(manifest_file.commit), MANIFEST, offline=offline)
    try:
        return manifest_file, read_manifest(manifest_file.path, where)
    except BadFile:
        evict([manifest_file.path])
        raise


def _list_wrong(top: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """Return the files that are missing or differ from the manifest."""
    with ThreadPoolExecutor(THREADS) as pool:
        right = pool.map(lambda item: item[1].holds(top / item[0]), files.items())
        return [path for path, good in zip(files, right) if not good]


def _repair(
    pinned: Repository,
    top: Path,
    manifest: Manifest,
    wrong: Sequence[str],
    offline: bool,
    progress: bool,
) -> None:
    """Download files that are missing or damaged, at most twice."""
    damaged = {path for path in wrong if (top / path).exists()}
    with translate_hub_errors(pinned, f"{pinned} cannot be checked", offline=offline):
        evict([top / path for path in damaged])
    if offline:
        why = "was damaged and is removed" if wrong[0] in damaged else "is not cached"
        raise Unavailable(
            f"{wrong[0]} of {pinned} {why}, and this run is offline; run once while online"
        )
    with translate_hub_errors(pinned, f"{pinned} cannot be fetched", progress=progress):
        tree = _compare(pinned, manifest)
        for _ in range(2):
            _download(pinned, wrong, damaged, progress)
            wrong = [
                path
                for path in wrong
                if not _is_right(top / path, manifest.files[path], tree[path])
            ]
            damaged = set(wrong)
            evict([top / path for path in wrong])
            if not wrong:
                return
    raise BadFile(
        f"{wrong[0]} of {pinned} arrived twice with another checksum than its manifest has; "
        "nothing of it was kept: try again, or tell its owners"
    )


def _is_right(path: Path, record: FileRecord, listed: RepoFile) -> bool:
    """Return whether a file matches the manifest and the Hub's checksum.

    The Hub lists git's checksum for files that git itself stores.
    """
    return record.holds(path) and (
        listed.lfs is not None or compute_git_checksum(path.read_bytes()) == listed.blob_id
    )


def _compare(pinned: Repository, manifest: Manifest) -> dict[str, RepoFile]:
    """Return the Hub's list of the files.

    Raises `BadFile` if it contradicts the manifest; nothing is downloaded then.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    listed = HfApi().list_repo_tree(pinned.name, recursive=True, revision=pinned.revision)
    tree = {file.path: file for file in listed if isinstance(file, RepoFile)}
    for path, record in manifest.files.items():
        entry = tree.get(path)
        if (
            entry is None
            or entry.size != record.bytes
            or (entry.lfs and entry.lfs.sha256 != record.sha256)
        ):
            raise BadFile(
                f"{MANIFEST} of {pinned} and the Hub disagree about {path}; "
                "it was changed by hand: tell its owners"
            )
    return tree


def _download(
    pinned: Repository, paths: Sequence[str], damaged: Container[str], progress: bool
) -> None:
    """Download files into the cache, each atomically.

    The client resumes after most interruptions; other failures are repeated here.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import tqdm

    def download_file(path: str) -> None:
        for wait in (1, 2, 0):
            try:
                hf_hub_download(
                    pinned.name, path, revision=pinned.revision, force_download=path in damaged
                )
                return
            # A connection breaks with errors of several libraries; the last one is raised.
            except Exception as error:
                if (
                    not wait
                    or isinstance(error, LocalEntryNotFoundError)
                    or get_status(error) in CERTAIN
                ):
                    raise
            time.sleep(wait)

    with (
        ThreadPoolExecutor(THREADS) as pool,
        tqdm(total=len(paths), unit="file", disable=not progress) as bar,
    ):
        for _ in pool.map(download_file, paths):
            bar.update()
