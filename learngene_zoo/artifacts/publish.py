"""`publish`: an artifact becomes one commit on the Hub, read back before anything is claimed, and then a tag.

Nothing is half published: all files and the removal of stale ones are one commit on a known parent, and the tag comes last. A
commit whose answer was lost is found by what the repository holds, not repeated. What somebody else published meanwhile is never
overwritten, and a tag never moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.hub import CERTAIN, Repository, asking, status_of
from learngene_zoo.artifacts.hub_state import EMPTY, Change, State, look, look_for, read_back, taken
from learngene_zoo.artifacts.publication import BRANCH, Publication, publication, target
from learngene_zoo.errors import BadFile, Refused, ZooError
from learngene_zoo.text import counted
from learngene_zoo.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Published:
    """What was published, after every file was read back."""

    repository: Repository  # at the commit
    tag: str | None
    changes: Sequence[Change]

    @property
    def url(self) -> str:
        """Its page."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.repository.name}/tree/{self.repository.revision}"


def changes(wanted: Publication) -> list[Change]:
    """What publishing would change, with nothing changed. Raises as `publish` does before it uploads."""
    with _speaking(wanted, f"nothing was compared with {wanted.repository}") as api:
        return (look_for(api, wanted) or EMPTY).changes(wanted)


def list_files(wanted: Publication) -> list[Change]:
    """Return what would be published, compared with nothing: no network is needed."""
    return [Change(file=path, change="unknown", bytes=content.bytes) for path, content in sorted(wanted.files.items())]


def publish(
    folder: str | Path,
    repository: str,
    *,
    tag: str | None = None,
    descendants: Sequence[str | Path] = (),
    licence: str | None = None,
    private: bool = False,
) -> Published:
    """Publish a learngene, with descendants of it, or a model. Raises as `publication.publication` and `carry_out` do."""
    members = [Path(each) for each in descendants]
    wanted = publication(Path(folder), target(repository, tag), members=members, licence=licence)
    return carry_out(wanted, private=private)


def carry_out(
    wanted: Publication,
    *,
    private: bool = False,
    progress: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Published:
    """Commit, read back, tag. `tell` is told what is happening.

    Raises `Refused` for a repository that holds what was not published by us or the other kind of artifact, for a tag
    that names something else, and if somebody else publishes meanwhile; `WrongCall` or `Unavailable` for what the Hub
    refuses or does not answer.
    """
    repository, created = wanted.repository, False
    try:
        with _speaking(wanted, f"{wanted.repository} was not published", progress) as api:
            if private:
                _check_private(api, repository.name)
            state = look_for(api, wanted)
            if state is None:
                api.create_repo(repository.name, private=private, exist_ok=True)
                created = True
                tell(f"created {repository.name}; it is empty until all files are there")
                state = look(api, wanted)
            done = state.changes(wanted)
            state = _committed(api, wanted, state, tell)
            created = False
            tell(f"reading back commit {state.commit}")
            with asking(
                repository,
                f"{repository.name} has a commit {state.commit} that could not be read back and is not tagged",
            ):
                read_back(wanted, state)
            _tag(api, wanted, state)
    except ZooError as error:
        if created:
            raise type(error)(f"{error}; the repository {repository.name} was created for it") from error
        raise
    return Published(repository=repository.at(state.commit), tag=repository.revision, changes=done)


@contextmanager
def _speaking(wanted: Publication, failed: str, progress: bool = False) -> Iterator[HfApi]:
    from huggingface_hub import HfApi

    with asking(wanted.repository, failed, progress=progress):
        yield HfApi(library_name="learngene_zoo", library_version=__version__)


def _check_private(api: HfApi, name: str) -> None:
    """Raises `Refused` for a public repository: --private does not hide what everybody may have seen."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        public = not api.repo_info(name).private
    except RepositoryNotFoundError:
        return
    if public:
        raise Refused(
            f"the Hub repository {name} exists and is public; leave out --private, or change it in its settings"
        )


def _committed(api: HfApi, wanted: Publication, state: State, tell: Callable[[str], None]) -> State:
    """The commit that holds the files: `state` if it does already, else a new one on top of it."""
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if state.holds(wanted):
            return state
        if attempt:
            time.sleep(2 ** (attempt - 1))
        made = None
        with ExitStack() as opened:
            operations = _uploaded(api, wanted, state, opened, tell)
            try:
                made = _commit(api, wanted, operations, state.commit)
            except Exception as error:  # whatever it was, the commit may have happened
                if status_of(error) in CERTAIN:
                    raise
                failure = error
        with asking(wanted.repository, f"whether {wanted.repository} was published is not known; run it again"):
            seen = look(api, wanted)
        if seen.commit not in (state.commit, made) and not seen.holds(wanted):
            _check_untouched(wanted, state, seen)
        state = seen
    if state.holds(wanted):
        return state
    raise failure or BadFile(
        f"{wanted.repository.name} does not hold what was sent, after {ATTEMPTS} attempts; try again"
    )


def _uploaded(
    api: HfApi, wanted: Publication, state: State, opened: ExitStack, tell: Callable[[str], None]
) -> list[Any]:
    """The operations of a commit. Large files are on the Hub by then, seen by nobody until a commit names them."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    changes = state.changes(wanted)
    operations: list[Any] = [
        CommitOperationDelete(each.file, is_folder=False) for each in changes if each.change == "delete"
    ]
    sources = {each.file: wanted.files[each.file].source for each in changes if each.change in ("add", "replace")}
    tell(f"uploading {counted(len(sources), 'file')}")
    by_lfs = any(isinstance(source, Path) for source in sources.values()) and _lacks_xet(wanted.repository.name)
    additions = []
    for path, source in sources.items():
        is_open = isinstance(source, Path) and by_lfs
        additions.append(CommitOperationAdd(path, opened.enter_context(source.open("rb")) if is_open else source))  # type: ignore[union-attr]
    if additions:
        api.preupload_lfs_files(wanted.repository.name, additions=additions, revision=BRANCH, free_memory=False)
    return [*additions, *operations]


def _lacks_xet(name: str) -> bool:
    """Whether the client would upload files by Xet and this endpoint has none; files that are open are uploaded by LFS."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, http_backoff
    from huggingface_hub.utils._runtime import is_xet_available

    if not is_xet_available():
        return False
    address = f"{constants.ENDPOINT}/api/models/{name}/xet-write-token/{BRANCH}"
    answer = http_backoff("GET", address, headers=build_hf_headers(library_name="learngene_zoo"))
    return answer.status_code != 200 or not ("X-Xet-Cas-Url" in answer.headers or b"casUrl" in answer.content)


def _commit(api: HfApi, wanted: Publication, operations: Sequence[Any], parent: str) -> str:
    info = api.create_commit(
        wanted.repository.name,
        operations=operations,
        commit_message=wanted.title,
        commit_description=f"digest {wanted.manifest.digest}",
        revision=BRANCH,
        parent_commit=parent,
    )
    return str(info.oid)


def _check_untouched(wanted: Publication, before: State, after: State) -> None:
    """Raises `Refused` if somebody else's commit touched files that we publish."""
    for path in [*wanted.files, *before.stale]:
        one, other = before.tree.get(path), after.tree.get(path)
        if (one and one.blob_id) != (other and other.blob_id):
            raise Refused(
                f"somebody else changed {path} of {wanted.repository.name} meanwhile (commit {after.commit}); look at it, "
                "then try again"
            )


def _tag(api: HfApi, wanted: Publication, state: State) -> None:
    """Make the tag if it is not there. Raises `Refused` if somebody else made one of that name meanwhile."""
    name, tag = wanted.repository.name, wanted.repository.revision
    if tag is None or state.tags.get(tag) == state.commit:
        return
    failure: Exception | None = None
    with asking(wanted.repository, f"{name} holds it as commit {state.commit}, but the tag {tag} was not made"):
        for _ in range(2):
            try:
                api.create_tag(name, tag=tag, revision=state.commit)
            except Exception as error:  # whatever it was, the tag may have been made
                failure = error
            named = {each.name: each.target_commit for each in api.list_repo_refs(name).tags}.get(tag)
            if named == state.commit:
                return
            if named is not None:
                raise taken(wanted, named)
        raise failure or BadFile(f"the tag {tag} of {name} was not made; run the same command again")
