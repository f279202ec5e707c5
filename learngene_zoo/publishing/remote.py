"""The content of a repository on the Hub compared with a publication: listed, and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from learngene_zoo.artifacts.shelf import read_kind
from learngene_zoo.errors import BadFile, Refused
from learngene_zoo.hub.client import Repository, fetch_from_hub
from learngene_zoo.hub.fetch import THREADS, fetch_manifest
from learngene_zoo.hub.manifest import MANIFEST, Manifest
from learngene_zoo.publishing.publication import BRANCH, README, Publication, PublishedFile
from learngene_zoo.storage import CONFIG
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change of one file of a repository by a publication."""

    file: str
    change: Literal["add", "replace", "delete", "same", "unknown"]  # unknown: it was not compared
    bytes: int


@dataclass(frozen=True, kw_only=True)
class RemoteState:
    """A commit of a repository, with its files, and the tags of the repository."""

    commit: str
    tree: Mapping[str, RepoFile]
    tags: Mapping[str, str]
    stale: Sequence[str] = ()  # files of an earlier publication that are in this one no more

    def lists(self, path: str, content: PublishedFile) -> bool:
        """Return whether a file is there with our checksum: sha256 in LFS, else git's."""
        entry = self.tree.get(path)
        if entry is None or entry.size != content.bytes:
            return False
        return (
            entry.blob_id == content.git
            if entry.lfs is None
            else entry.lfs.sha256 == content.sha256
        )

    def holds(self, publication: Publication) -> bool:
        """Return whether every file is there, and no stale one."""
        return not self.stale and all(
            self.lists(path, content) for path, content in publication.files.items()
        )

    def changes(self, publication: Publication) -> list[Change]:
        """Return the change of every file, in the order of their paths."""
        changes = [
            Change(file=path, change="delete", bytes=self.tree[path].size) for path in self.stale
        ]
        for path, content in publication.files.items():
            kind = (
                "same" if self.lists(path, content) else "replace" if path in self.tree else "add"
            )
            change = Change(file=path, change=kind, bytes=content.bytes)  # type: ignore[arg-type]
            changes.append(change)
        return sorted(changes, key=lambda change: change.file)


EMPTY = RemoteState(commit="", tree={}, tags={})


def look(api: HfApi, publication: Publication) -> RemoteState:
    """Return the head of the branch. Raises `Refused` if foreign files have our names."""
    name = publication.repository.name
    refs = api.list_repo_refs(name)
    head = next((branch.target_commit for branch in refs.branches if branch.name == BRANCH), None)
    if head is None:
        raise Refused(
            f"the Hub repository {name} has no branch {BRANCH}; publish to another repository"
        )
    state = _list_state(api, name, head, {tag.name: tag.target_commit for tag in refs.tags})
    if MANIFEST in state.tree:
        return _add_stale(state, publication)
    _refuse_foreign(state, publication, {README})
    return state


def _refuse_foreign(state: RemoteState, publication: Publication, known: Collection[str]) -> None:
    """Raise `Refused` if a file has one of our names and is not among the known ones."""
    foreign = [path for path in publication.files if path in state.tree and path not in known]
    if foreign:
        raise Refused(
            f"the Hub repository {publication.repository.name} holds {foreign[0]}, which was not "
            "published by `lgzoo publish`; publish to another repository, or delete it there first"
        )


def look_for(api: HfApi, publication: Publication) -> RemoteState | None:
    """Return the state to publish on; None if there is no such repository.

    It is the head, or the tag if that holds the files already. Raises `Refused` if the tag names
    other files.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        state = look(api, publication)
    except RepositoryNotFoundError:
        return None
    tagged = state.tags.get(publication.repository.revision or "")
    if tagged is None:
        return state
    tag_state = _list_state(api, publication.repository.name, tagged, state.tags)
    if not tag_state.holds(publication):
        raise make_tag_error(publication, tagged)
    return tag_state


def make_tag_error(publication: Publication, commit: str) -> Refused:
    """Return the error for a tag that names another commit."""
    name, tag = publication.repository.name, publication.repository.revision
    return Refused(
        f"the tag {tag} of {name} names commit {commit}, which holds other files; tags are never "
        f"moved: choose another with {name_option('tag')}"
    )


def _list_state(api: HfApi, name: str, commit: str, tags: Mapping[str, str]) -> RemoteState:
    from huggingface_hub.hf_api import RepoFile

    listed = api.list_repo_tree(name, recursive=True, revision=commit)
    return RemoteState(
        commit=commit,
        tree={file.path: file for file in listed if isinstance(file, RepoFile)},
        tags=tags,
    )


def _add_stale(state: RemoteState, publication: Publication) -> RemoteState:
    """Return the state with the files that only its own manifest names.

    A damaged manifest names none. Raises `Refused` for a repository of the other kind of artifact,
    and if files have our names that its manifest does not name.
    """
    if state.lists(MANIFEST, publication.files[MANIFEST]):
        return state
    try:
        _, earlier = fetch_manifest(publication.repository.at(state.commit), offline=False)
    except BadFile:  # a damaged download would raise `Unavailable`
        return state
    _check_kind(publication, publication.repository.at(state.commit), earlier)
    _refuse_foreign(state, publication, {README, MANIFEST, *earlier.files})
    stale = [path for path in earlier.files if path in state.tree and path not in publication.files]
    return RemoteState(commit=state.commit, tree=state.tree, tags=state.tags, stale=stale)


def _check_kind(publication: Publication, repository: Repository, earlier: Manifest) -> None:
    """Raise `Refused` if a learngene would replace a model, or a model a learngene.

    A damaged config is accepted, since it states neither.
    """
    record = earlier.files.get(CONFIG)
    if record is None or record.sha256 == publication.files[CONFIG].sha256:
        return
    try:
        kind = read_kind(fetch_from_hub(repository, CONFIG, offline=False).path.parent)
    except BadFile:
        return
    if kind != publication.kind:
        raise Refused(
            f"the Hub repository {repository.name} holds a {kind}, and this is a "
            f"{publication.kind}; publish it to another repository"
        )


def read_back(publication: Publication, state: RemoteState) -> None:
    """Check that every file is listed and, if git itself stores it, served as it was sent.

    Raises `BadFile` otherwise.
    """
    name = publication.repository.name
    small = [
        path for path in publication.files if path in state.tree and state.tree[path].lfs is None
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        served = pool.map(
            lambda path: hashlib.sha256(_download_file(name, state.commit, path)).hexdigest(), small
        )
        sums = dict(zip(small, served))
    for path, content in publication.files.items():
        if not state.lists(path, content) or sums.get(path, content.sha256) != content.sha256:
            raise BadFile(
                f"{path} of {name} at {state.commit} is not what was sent, so it is not tagged; "
                "run the same command again"
            )


def _download_file(name: str, commit: str, path: str) -> bytes:
    """Return a small file as the Hub serves it."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    address = hf_hub_url(name, path, revision=commit)
    answer = http_backoff(
        "GET",
        address,
        headers=build_hf_headers(library_name="learngene_zoo"),
        follow_redirects=True,
    )
    hf_raise_for_status(answer)
    return answer.content
