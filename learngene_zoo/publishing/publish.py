"""`publish`: an artifact becomes one commit on the Hub, is read back, and then tagged.

Nothing is half published: all files and the removal of stale ones are one commit on a known parent,
and the tag comes last. A commit whose answer was lost is detected by the content of the repository,
not repeated. A concurrent publication is never overwritten, and a tag never moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.records import parse_reference, parse_references
from learngene_zoo.errors import BadFile, Refused, ZooError
from learngene_zoo.hub.client import CERTAIN, Repository, get_status, translate_hub_errors
from learngene_zoo.publishing.publication import (
    BRANCH,
    Publication,
    build_publication,
    parse_target,
)
from learngene_zoo.publishing.remote import (
    EMPTY,
    Change,
    RemoteState,
    look,
    look_for,
    make_tag_error,
    read_back,
)
from learngene_zoo.text import count_noun, name_option
from learngene_zoo.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ATTEMPTS = 3
FOLDER = "the path of a folder; write an object with its method `save`"


@dataclass(frozen=True, kw_only=True)
class Published:
    """The result of a publication, after every file was read back."""

    repository: Repository  # at the commit
    tag: str | None
    changes: Sequence[Change]

    @property
    def url(self) -> str:
        """Return the address of its page."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.repository.name}/tree/{self.repository.revision}"


def list_changes(publication: Publication) -> list[Change]:
    """Return the changes that publishing would make, without making them.

    Raises as `publish` does before it uploads.
    """
    with _connect(publication, f"nothing was compared with {publication.repository}") as api:
        return (look_for(api, publication) or EMPTY).changes(publication)


def list_files(publication: Publication) -> list[Change]:
    """Return the files that would be published, without comparing them; no network is needed."""
    return [
        Change(file=path, change="unknown", bytes=content.bytes)
        for path, content in sorted(publication.files.items())
    ]


@refuse_unknown_arguments
def publish(
    folder: str | Path,
    repository: str,
    *,
    tag: str | None = None,
    descendants: str | Path | Sequence[str | Path] = (),
    licence: str | None = None,
    private: bool = False,
) -> Published:
    """Publish a learngene, with descendants of it, or a model.

    Args:
        folder: the learngene or the model.
        repository: `organisation/name` on the Hub.
        tag: a tag for the commit, such as "v1.0".
        descendants: folders of descendants of the learngene, for the same repository.
        licence: of the artifact, if it inherits none.
        private: make a new repository private.

    Raises:
        ZooError: as `publication.build_publication` and `carry_out` do.
    """
    members = parse_references("descendants", descendants, FOLDER)
    publication = build_publication(
        Path(parse_reference("folder", folder, FOLDER)),
        parse_target(repository, tag),
        members=[*map(Path, members)],
        licence=licence,
    )
    return carry_out(publication, private=private)


def carry_out(
    publication: Publication,
    *,
    private: bool = False,
    progress: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Published:
    """Commit the files of a publication, read them back, and tag the commit.

    Args:
        publication: the files and the repository.
        private: make a new repository private.
        progress: show bars for uploads.
        tell: called with a line for each step.

    Raises:
        Refused: for a repository that holds files not published by us or the other kind of
            artifact, for a tag that names something else, and for a concurrent publication.
        WrongCall: for a request that the Hub refuses.
        Unavailable: for a request that the Hub does not answer.
    """
    repository, created = publication.repository, False
    try:
        with _connect(publication, f"{publication.repository} was not published", progress) as api:
            if private:
                _check_private(api, repository.name)
            state = look_for(api, publication)
            if state is None:
                api.create_repo(repository.name, private=private, exist_ok=True)
                created = True
                tell(f"created {repository.name}; it is empty until all files are there")
                state = look(api, publication)
            changes = state.changes(publication)
            state = _commit_files(api, publication, state, tell)
            created = False
            tell(f"reading back commit {state.commit}")
            with translate_hub_errors(
                repository,
                f"{repository.name} has a commit {state.commit} that could "
                "not be read back and is not tagged",
            ):
                read_back(publication, state)
            _tag(api, publication, state)
    except ZooError as error:
        if created:
            raise type(error)(
                f"{error}; the repository {repository.name} was created for it"
            ) from error
        raise
    return Published(
        repository=repository.at(state.commit), tag=repository.revision, changes=changes
    )


@contextmanager
def _connect(publication: Publication, failed: str, progress: bool = False) -> Iterator[HfApi]:
    from huggingface_hub import HfApi

    with translate_hub_errors(publication.repository, failed, progress=progress):
        yield HfApi(library_name="learngene_zoo", library_version=__version__)


def _check_private(api: HfApi, name: str) -> None:
    """Raise `Refused` for a public repository: its content may already have been read."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        public = not api.repo_info(name).private
    except RepositoryNotFoundError:
        return
    if public:
        raise Refused(
            f"the Hub repository {name} exists and is public; "
            f"leave out {name_option('private')}, or change it in its settings"
        )


def _commit_files(
    api: HfApi, publication: Publication, state: RemoteState, tell: Callable[[str], None]
) -> RemoteState:
    """Return the commit that holds the files: `state` if it does already, else a new one on it."""
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if state.holds(publication):
            return state
        if attempt:
            time.sleep(2 ** (attempt - 1))
        commit = None
        with ExitStack() as opened:
            operations = _upload_files(api, publication, state, opened, tell)
            try:
                commit = _commit(api, publication, operations, state.commit)
            except Exception as error:  # after any error, the commit may have happened
                if get_status(error) in CERTAIN:
                    raise
                failure = error
        with translate_hub_errors(
            publication.repository,
            f"whether {publication.repository} was published is not known; run it again",
        ):
            remote = look(api, publication)
        if remote.commit not in (state.commit, commit) and not remote.holds(publication):
            _check_untouched(publication, state, remote)
        state = remote
    if state.holds(publication):
        return state
    raise failure or BadFile(
        f"{publication.repository.name} does not hold what was sent, after {ATTEMPTS} attempts; "
        "try again"
    )


def _upload_files(
    api: HfApi,
    publication: Publication,
    state: RemoteState,
    opened: ExitStack,
    tell: Callable[[str], None],
) -> list[Any]:
    """Upload large files and return the operations of a commit.

    Uploaded files are invisible until a commit names them.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    changes = state.changes(publication)
    operations: list[Any] = [
        CommitOperationDelete(each.file, is_folder=False)
        for each in changes
        if each.change == "delete"
    ]
    sources = {
        each.file: publication.files[each.file].source
        for each in changes
        if each.change in ("add", "replace")
    }
    tell(f"uploading {count_noun(len(sources), 'file')}")
    has_files = any(isinstance(source, Path) for source in sources.values())
    by_lfs = has_files and _lacks_xet(publication.repository.name)
    additions = []
    for path, source in sources.items():
        if isinstance(source, Path) and by_lfs:
            additions.append(CommitOperationAdd(path, opened.enter_context(source.open("rb"))))
        else:
            additions.append(CommitOperationAdd(path, source))
    if additions:
        api.preupload_lfs_files(
            publication.repository.name, additions=additions, revision=BRANCH, free_memory=False
        )
    return [*additions, *operations]


def _lacks_xet(name: str) -> bool:
    """Return whether the client would upload by Xet and this endpoint has none.

    Open files are uploaded by LFS.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, http_backoff
    from huggingface_hub.utils._runtime import is_xet_available

    if not is_xet_available():
        return False
    address = f"{constants.ENDPOINT}/api/models/{name}/xet-write-token/{BRANCH}"
    answer = http_backoff("GET", address, headers=build_hf_headers(library_name="learngene_zoo"))
    return answer.status_code != 200 or not (
        "X-Xet-Cas-Url" in answer.headers or b"casUrl" in answer.content
    )


def _commit(api: HfApi, publication: Publication, operations: Sequence[Any], parent: str) -> str:
    info = api.create_commit(
        publication.repository.name,
        operations=operations,
        commit_message=publication.title,
        commit_description=f"digest {publication.manifest.digest}",
        revision=BRANCH,
        parent_commit=parent,
    )
    return str(info.oid)


def _check_untouched(publication: Publication, before: RemoteState, after: RemoteState) -> None:
    """Raise `Refused` if another commit changed files that we publish."""
    for path in [*publication.files, *before.stale]:
        earlier, later = before.tree.get(path), after.tree.get(path)
        if (earlier and earlier.blob_id) != (later and later.blob_id):
            raise Refused(
                f"somebody else changed {path} of {publication.repository.name} meanwhile (commit "
                f"{after.commit}); look at it, then try again"
            )


def _tag(api: HfApi, publication: Publication, state: RemoteState) -> None:
    """Make the tag if it does not exist.

    Raises `Refused` if another process made one of that name meanwhile.
    """
    name, tag = publication.repository.name, publication.repository.revision
    if tag is None or state.tags.get(tag) == state.commit:
        return
    failure: Exception | None = None
    with translate_hub_errors(
        publication.repository,
        f"{name} holds it as commit {state.commit}, but the tag {tag} was not made",
    ):
        for _ in range(2):
            try:
                api.create_tag(name, tag=tag, revision=state.commit)
            except Exception as error:  # after any error, the tag may have been made
                failure = error
            named = {each.name: each.target_commit for each in api.list_repo_refs(name).tags}.get(
                tag
            )
            if named == state.commit:
                return
            if named is not None:
                raise make_tag_error(publication, named)
        raise failure or BadFile(
            f"the tag {tag} of {name} was not made; run the same command again"
        )
