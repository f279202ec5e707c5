"""What a repository on the Hub holds, beside what is to be published: listed by a commit, and read back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from learngene_zoo.artifacts.fetch import THREADS, fetch_manifest
from learngene_zoo.artifacts.hub import Repository, fetch_from_hub
from learngene_zoo.artifacts.manifest import MANIFEST, Manifest
from learngene_zoo.artifacts.publication import BRANCH, README, Content, Publication
from learngene_zoo.artifacts.shelf import kind_of
from learngene_zoo.errors import BadFile, Refused
from learngene_zoo.storage import CONFIG

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile


@dataclass(frozen=True, kw_only=True)
class Change:
    """What publishing does to one file of a repository."""

    file: str
    change: Literal["add", "replace", "delete", "same", "unknown"]  # unknown: it was not compared
    bytes: int


@dataclass(frozen=True, kw_only=True)
class State:
    """A commit of a repository, with its files, and the tags that there are."""

    commit: str
    tree: Mapping[str, RepoFile]
    tags: Mapping[str, str]
    stale: Sequence[str] = ()  # files of an earlier publication that are in this one no more

    def lists(self, path: str, content: Content) -> bool:
        """Whether a file is there with our checksum: sha256 in LFS, else git's."""
        found = self.tree.get(path)
        if found is None or found.size != content.bytes:
            return False
        return found.blob_id == content.git if found.lfs is None else found.lfs.sha256 == content.sha256

    def holds(self, publication: Publication) -> bool:
        """Whether every file is there, and nothing stale."""
        return not self.stale and all(self.lists(path, content) for path, content in publication.files.items())

    def changes(self, publication: Publication) -> list[Change]:
        """What happens to every file, in the order of their paths."""
        found = [Change(file=path, change="delete", bytes=self.tree[path].size) for path in self.stale]
        for path, content in publication.files.items():
            there = "same" if self.lists(path, content) else "replace" if path in self.tree else "add"
            found.append(Change(file=path, change=there, bytes=content.bytes))  # type: ignore[arg-type]
        return sorted(found, key=lambda change: change.file)


EMPTY = State(commit="", tree={}, tags={})


def look(api: HfApi, publication: Publication) -> State:
    """The head of the branch. Raises `Refused` if other files than ours stand under our names."""
    name = publication.repository.name
    refs = api.list_repo_refs(name)
    head = next((branch.target_commit for branch in refs.branches if branch.name == BRANCH), None)
    if head is None:
        raise Refused(f"the Hub repository {name} has no branch {BRANCH}; publish to another repository")
    state = _listed(api, name, head, {tag.name: tag.target_commit for tag in refs.tags})
    if MANIFEST in state.tree:
        return _with_stale(state, publication)
    foreign = [path for path in publication.files if path in state.tree and path != README]
    if foreign:
        raise Refused(
            f"the Hub repository {name} holds {foreign[0]}, which was not published by `lgzoo publish`; publish to another "
            "repository, or delete it there first"
        )
    return state


def look_for(api: HfApi, publication: Publication) -> State | None:
    """Where to publish: the head, or the tag if it holds the files already; None if there is no such repository.

    Raises `Refused` if the tag names other files.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        state = look(api, publication)
    except RepositoryNotFoundError:
        return None
    tagged = state.tags.get(publication.repository.revision or "")
    if tagged is None:
        return state
    there = _listed(api, publication.repository.name, tagged, state.tags)
    if not there.holds(publication):
        raise taken(publication, tagged)
    return there


def taken(publication: Publication, commit: str) -> Refused:
    """The error for a tag that names another commit."""
    name, tag = publication.repository.name, publication.repository.revision
    return Refused(
        f"the tag {tag} of {name} names commit {commit}, which holds other files; tags are never moved: choose another with --tag"
    )


def _listed(api: HfApi, name: str, commit: str, tags: Mapping[str, str]) -> State:
    from huggingface_hub.hf_api import RepoFile

    listed = api.list_repo_tree(name, recursive=True, revision=commit)
    return State(commit=commit, tree={file.path: file for file in listed if isinstance(file, RepoFile)}, tags=tags)


def _with_stale(state: State, publication: Publication) -> State:
    """The state with what its own manifest names and ours does not; a damaged manifest names nothing.

    Raises `Refused` for a repository of the other kind of artifact.
    """
    if state.lists(MANIFEST, publication.files[MANIFEST]):
        return state
    try:
        _, earlier = fetch_manifest(publication.repository.at(state.commit), offline=False)
    except BadFile:  # what is damaged on its way is `Unavailable`
        return state
    _check_kind(publication, publication.repository.at(state.commit), earlier)
    stale = [path for path in earlier.files if path in state.tree and path not in publication.files]
    return State(commit=state.commit, tree=state.tree, tags=state.tags, stale=stale)


def _check_kind(publication: Publication, there: Repository, earlier: Manifest) -> None:
    """Raises `Refused` if a learngene would replace a model, or a model a learngene; a damaged config says neither."""
    record = earlier.files.get(CONFIG)
    if record is None or record.sha256 == publication.files[CONFIG].sha256:
        return
    try:
        kind = kind_of(fetch_from_hub(there, CONFIG, offline=False).path.parent)
    except BadFile:
        return
    if kind != publication.kind:
        raise Refused(
            f"the Hub repository {there.name} holds a {kind}, and this is a {publication.kind}; publish it to another repository"
        )


def read_back(publication: Publication, state: State) -> None:
    """Raises `BadFile` unless every file is listed and, if git itself stores it, also served as it was sent."""
    name = publication.repository.name
    small = [path for path in publication.files if path in state.tree and state.tree[path].lfs is None]
    with ThreadPoolExecutor(THREADS) as pool:
        served = pool.map(lambda path: hashlib.sha256(_served(name, state.commit, path)).hexdigest(), small)
        sums = dict(zip(small, served))
    for path, content in publication.files.items():
        if not state.lists(path, content) or sums.get(path, content.sha256) != content.sha256:
            raise BadFile(
                f"{path} of {name} at {state.commit} is not what was sent, so it is not tagged; run the same command again"
            )


def _served(name: str, commit: str, path: str) -> bytes:
    """A small file as the Hub serves it."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    address = hf_hub_url(name, path, revision=commit)
    answer = http_backoff("GET", address, headers=build_hf_headers(library_name="learngene_zoo"), follow_redirects=True)
    hf_raise_for_status(answer)
    return answer.content
