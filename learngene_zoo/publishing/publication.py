"""Collect and check the files to publish: a learngene, a model or a family, cards, manifest.

Nothing here uses the network. A family is a learngene at the top of a repository and chosen
descendants of it, one folder each.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.card import (
    ArtifactLocation,
    read_notes,
    render_descendant_card,
    render_learngene_card,
)
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import LOCAL_SCHEMES, LearngeneConfig
from learngene_zoo.errors import Refused, WrongCall
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.hub.client import Repository, parse_repository
from learngene_zoo.hub.manifest import (
    EXTRAS,
    MANIFEST,
    README,
    FileRecord,
    Manifest,
    describe_fault,
    find_same_path,
    make_manifest,
)
from learngene_zoo.ownership import MARKER
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import CONFIG, POOLING, SENTENCE_FILES, TOKENIZER_FILES, WEIGHTS
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant

REPORT = "report.html"  # of a training; it shows pictures of its data, so it is not published
BRANCH = "main"  # the branch that is published to
# Addresses and references to the Hub, which may contain slashes, are matched first.
_ELSEWHERE = (
    r"(?:[a-z-]{1,20}:)?(?!file:)[a-z][a-z+.-]{0,20}://\S+|hf(?:-[a-z]+)?:\S+|data:[a-z]+/\S+"
)
# The start of a path: data with a scheme (`folder:photos`), `/`, `~/`, `~user/` or `C:\`.
_PATH_START = (
    rf"(?:{'|'.join(LOCAL_SCHEMES)}):(?=\S)"
    r"|(?:file://|[a-z-]{1,20}:)?(?:~(?:[A-Za-z_][\w.-]*)?)?/(?=[^\s/])|[A-Za-z]:\\"
)
# A path in quotes may contain spaces; one inside a word, as in image/png, is none.
_PATH = re.compile(
    rf"{_ELSEWHERE}|(?<=\')(?P<single>(?:{_PATH_START})[^\']*)(?=\')"
    rf"|(?<=\")(?P<double>(?:{_PATH_START})[^\"]*)(?=\")"
    rf"|(?<![\w.:/@<~-])(?P<word>(?:{_PATH_START})[^\s\'\"`]*)"
)


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """One file: its path or its rendered content, its sha256 and git's checksum."""

    source: Path | bytes
    bytes: int
    sha256: str
    git: str


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Every file by its path in the repository."""

    repository: Repository  # at the tag, if there is one
    title: str
    kind: shelf.Kind
    files: Mapping[str, PublishedFile]
    manifest: Manifest
    paths: Sequence[str] = ()  # of this machine, which a config.json names


def parse_target(repository: str, tag: str | None) -> Repository:
    """Parse `organisation/name` at a tag.

    Raises `WrongCall` for any other part that a reference may have.
    """
    try:
        named = parse_repository(repository)
    except WrongCall:
        raise WrongCall(
            f"{repository!r} is not the name of a Hub repository; write organisation/name"
        ) from None
    if named.revision is not None or named.inside:
        raise WrongCall(
            f"{repository!r}: write the repository as organisation/name, "
            f"and a tag such as v1.0 with {name_option('tag')}"
        )
    if tag is None:
        return named
    try:
        tagged = parse_repository(f"{named}@{tag}")
    except WrongCall:
        tagged = named
    if tagged.revision != tag or tagged.pinned or tag == BRANCH:
        raise WrongCall(f"the tag {tag!r} is not the name of a version; write a tag such as v1.0")
    return tagged


def build_publication(
    folder: Path,
    repository: Repository,
    *,
    members: Sequence[Path] = (),
    licence: str | None = None,
) -> Publication:
    """Collect the files that a folder is published as.

    Raises `WrongCall`, `BadFile` or `Refused` for content that cannot be published.
    """
    opened = _open_artifact(folder)
    inside = _open_members(opened, members)
    inherited_licence = find_licence(opened)
    if licence is not None and inherited_licence not in ("unknown", licence):
        raise WrongCall(
            f"{folder} is under the licence {inherited_licence}, which its ancestry models have; "
            f"leave out {name_option('licence', licence)}"
        )
    location = ArtifactLocation(
        reference=_format_reference(repository),
        timm=f"hf-hub:{repository}",
        transformers=repository.name,
        note="",
        licence=licence or "unknown",
    )
    files: dict[str, Path | bytes] = {}
    if isinstance(opened, Learngene):
        sizes = tuple((name, model.spec) for name, model in inside.items())
        card = render_learngene_card(opened.config, replace(location, members=sizes))
    else:
        card = render_descendant_card(
            opened.config(), replace(location, learngene=_find_origin(opened))
        )
    files |= _list_files(folder, "", card, _is_of_texts(opened))
    for name, model in inside.items():
        files |= _list_member_files(name, model, repository, location)
    _check_paths(files)
    configs = [
        to_json(artifact.config if isinstance(artifact, Learngene) else artifact.config())
        for artifact in (opened, *inside.values())
    ]
    contents = {path: _describe_content(source) for path, source in files.items()}
    records = {
        path: FileRecord(sha256=content.sha256, bytes=content.bytes)
        for path, content in contents.items()
    }
    manifest = make_manifest(records)
    text = json.dumps(manifest.json(), indent=1) + "\n"
    return Publication(
        repository=repository,
        title=_make_title(opened, inside),
        kind="learngene" if isinstance(opened, Learngene) else "model",
        files={**contents, MANIFEST: _describe_content(text.encode())},
        manifest=manifest,
        paths=sorted(set(find_machine_paths(configs))),
    )


def _list_member_files(
    name: str, model: Descendant, repository: Repository, location: ArtifactLocation
) -> dict[str, Path | bytes]:
    """Return the files of a model that is published inside of a learngene's repository.

    Args:
        name: its folder in the repository.
        model: the model.
        repository: the repository.
        location: the location of the learngene.
    """
    assert model.folder is not None
    note = (
        f"`{name}` is this folder: "
        f"`lgzoo fetch {_format_reference(replace(repository, inside=name))} -o {name}`."
    )
    within = replace(
        location,
        learngene=repository.name,
        timm=f"local-dir:{name}",
        transformers=name,
        note=note,
    )
    card = render_descendant_card(model.config(), within)
    return _list_files(model.folder, f"{name}/", card, _is_of_texts(model))


def _check_paths(files: Mapping[str, Path | bytes]) -> None:
    """Raise `Refused` for a file that `fetch` would refuse by its name."""
    for path in files:
        reason = describe_fault(path)
        if reason:
            raise Refused(f"{path!r:.120} cannot be published: {reason}; rename it")
    same = find_same_path(files)
    if same is not None:
        raise Refused(f"{same[0]} and {same[1]} are one file on some systems; rename one of them")


def find_licence(artifact: Learngene | Descendant) -> str:
    """Return the licence that an artifact inherits; "unknown" if it is not known."""
    return artifact.config.licence if isinstance(artifact, Learngene) else artifact.licence


def _open_artifact(folder: Path) -> Learngene | Descendant:
    """Open an artifact and read every tensor."""
    if not folder.is_dir():
        raise WrongCall(
            f"there is no folder {folder}; "
            "publish what `lgzoo extract`, `expand` or `finetune` wrote"
        )
    kind = shelf.read_kind(folder)
    from learngene_zoo.artifacts.descendant import load_descendant

    opened = load_learngene(folder) if kind == "learngene" else load_descendant(folder)
    for name in opened.state:
        opened.state[name]  # raises `BadFile` for numbers that are not finite
    return opened


def _open_members(top: Learngene | Descendant, folders: Sequence[Path]) -> dict[str, Descendant]:
    """Return the descendants of a family by the names of their folders."""
    if not isinstance(top, Learngene):
        if folders:
            raise WrongCall(
                f"{name_option('descendants')} is for publishing a learngene; publish a model by "
                "itself"
            )
        return {}
    members: dict[str, Descendant] = {}
    for folder in folders:
        name = folder.resolve().name
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
            raise WrongCall(
                f"{folder}: the name of a descendant's folder may hold letters, "
                "digits, '.', '_' and '-' only"
            )
        if name == POOLING.partition("/")[0]:
            raise WrongCall(f"a sentence encoder has a folder {name}; rename {folder}")
        if name in members:
            raise WrongCall(f"two descendants are called {name}; rename one of the folders")
        model = _open_artifact(folder)
        if isinstance(model, Learngene) or not _is_descendant(model, top.config):
            raise WrongCall(f"{folder} is not a descendant of this learngene; publish it by itself")
        members[name] = model
    return members


def _is_descendant(model: Descendant, config: LearngeneConfig) -> bool:
    """Return whether a model records the same method and ancestry models."""
    ours = model.provenance
    return ours.get("method") == config.method and to_json(ours.get("ancestries", [])) == to_json(
        config.ancestries
    )


def _is_of_texts(artifact: Learngene | Descendant) -> bool:
    """Return whether the inputs of a model, or of those of a learngene, are texts."""
    spec = artifact.config.spec if isinstance(artifact, Learngene) else artifact.spec
    return isinstance(spec, TextSpec)


def _list_files(folder: Path, prefix: str, card: str, is_of_texts: bool) -> dict[str, Path | bytes]:
    """Return the files of one folder, with a newly rendered card.

    Notes that people wrote into the old card are kept. The files of a tokenizer and of
    sentence-transformers belong to text models only.
    """
    files: dict[str, Path | bytes] = {CONFIG: folder / CONFIG, WEIGHTS: folder / WEIGHTS}
    pooling = folder / POOLING
    entries = set(folder.iterdir())
    is_pooling = pooling.is_file() and not pooling.parent.is_symlink()
    if is_of_texts and is_pooling and [*pooling.parent.iterdir()] == [pooling]:
        entries = entries - {pooling.parent} | {pooling}
    for entry in sorted(entries):
        name = entry.relative_to(folder).as_posix()
        if name in (README, MANIFEST, REPORT, MARKER, *files):
            continue
        is_of_model = is_of_texts and name in (*TOKENIZER_FILES, *SENTENCE_FILES)
        is_extra = entry.suffix in EXTRAS or is_of_model
        if not is_extra or entry.is_symlink() or not entry.is_file():
            raise Refused(
                f"{entry} is not part of an artifact; move it away (beside the artifact, "
                f"{', '.join(EXTRAS)} are published)"
            )
        files[name] = entry
    files[README] = f"{card}{read_notes(folder / README)}".encode()
    return {prefix + name: content for name, content in files.items()}


def _describe_content(source: Path | bytes) -> PublishedFile:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    digest, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
            git.update(block)
    return PublishedFile(source=source, bytes=size, sha256=digest.hexdigest(), git=git.hexdigest())


def find_machine_paths(value: Json) -> list[str]:
    """Return the paths of this machine in data such as a config.

    These are references to local data, relative (`folder:photos`) or absolute and with their
    options, and other absolute paths, as values or keys or as words of a longer text. Addresses and
    references to the Hub are none.
    """
    if isinstance(value, str):
        return _find_paths(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    inside = value if isinstance(value, list) else ()
    return [path for item in inside for path in find_machine_paths(item)]


def _find_paths(text: str) -> list[str]:
    """Return the paths in a text; a text that begins with one is one path, with its spaces."""
    matches = [match for match in _PATH.finditer(text) if match.lastgroup]
    if matches and matches[0].start() == 0:
        return [text]
    return [
        match[match.lastgroup].rstrip(".,;:)") if match["word"] else match[match.lastgroup]
        for match in matches
        if match.lastgroup
    ]


def _format_reference(repository: Repository) -> str:
    """Return the reference that commands take; without a revision it has the Hub's scheme."""
    return str(repository) if repository.revision else f"hf-hub:{repository}"


def _find_origin(model: Descendant) -> str:
    """Return the repository of the learngene that a model was built from, if it is on the Hub."""
    try:
        repository = parse_repository(str(model.provenance.get("learngene", "")))
    except WrongCall:
        return ""
    return repository.name if repository.pinned else ""


def _make_title(top: Learngene | Descendant, members: Mapping[str, Descendant]) -> str:
    if isinstance(top, Learngene):
        count = f" with {len(members)} descendants" if members else ""
        return f"A learngene of {top.config.method}{count}"
    return f"A model of {top.spec.layers} layers, {top.spec.width} wide"
