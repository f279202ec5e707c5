"""Which split a file belongs to, by the words in its name or in those of its folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.task import SPLITS
from learngene_zoo.text import count_noun

# The words that name a split, in `datasets` and in the names of archives. Used by
# `find_roles` and `split_name`.
SPLIT_WORDS = {
    "train": ("train", "training", "trainset", "trainval"),
    "validation": ("val", "valid", "validation", "validate", "valset", "dev"),
    "test": ("test", "testing", "testset", "eval", "holdout"),
}

ROLE_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def split_name(name: str) -> str:
    """Return the zoo's name of a split (`val` is validation); other names in lower case."""
    return ROLE_OF.get(name.lower(), name.lower())


def find_roles(name: str) -> list[str]:
    """Return the splits whose words are in the name of a file or folder.

    Words end at characters that are not letters, and between a lower-case and an upper-case letter:
    `imagenet-train`, `Train_data`, `valSet2017` and `split=test` contain one each, `restrain` and
    `latest` none.
    """
    roles = {ROLE_OF[word] for word in _list_words(name)}
    return [split for split in SPLITS if split in roles]


def _list_words(name: str) -> list[str]:
    """Return the words of splits in the name of a file or folder, in lower case."""
    parts = re.split(r"[\W\d_]+", CAMEL_CASE.sub(" ", name).lower())
    return [word for word in parts if word in ROLE_OF]


class SplitFiles(NamedTuple):
    """The files of each split, and notes for the user about those that are left out."""

    files: dict[str, list[str]]
    notes: tuple[str, ...] = ()


def group_files_by_split(name: str, files: Sequence[str]) -> SplitFiles:
    """Return the files of each split, by a word in their names or else in their folders'.

    If no file has one, all are `train`. Files with a split's exact name take precedence over those
    with another word for it, which are left out: `trainval` often repeats `train`. Raises `BadData`
    if only some files have a word, if a name has words of several splits, or if none is `train`.
    """
    folder = _count_shared_folders(files)
    roles = {file: _find_role(file, folder) for file in files}
    lost = [file for file, (role, _) in roles.items() if not role]
    if 0 < len(lost) < len(files):
        raise BadData(
            f"{lost[0]} belongs to no split; put train, val or test into its name, as in the others"
        )
    exact = {role for role, is_exact in roles.values() if is_exact}
    groups: dict[str, list[str]] = {}
    left_out = []
    for file, (role, is_exact) in roles.items():
        if role in exact and not is_exact:
            left_out.append(file)
        else:
            groups.setdefault(role or "train", []).append(file)
    if "train" not in groups:
        raise BadData(
            f"{name} has no training files, only {', '.join(sorted(groups))}; name those too"
        )
    return SplitFiles(groups, _describe_left_out(left_out))


def _describe_left_out(files: Sequence[str]) -> tuple[str, ...]:
    """Return a note about files that are left out, if there are any."""
    if not files:
        return ()
    return (
        f"{count_noun(len(files), 'file')} left out, because other files have the exact name of "
        f"the same split; first: {files[0]}",
    )


def _split_path(file: str) -> list[str]:
    """Return the folders and the name in a path or URL."""
    return file.partition("?")[0].replace("\\", "/").split("/")


def _count_shared_folders(files: Sequence[str]) -> int:
    """Return the number of leading folders that all files share."""
    folders = [_split_path(file)[:-1] for file in files]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders))
    return sum(1 for _ in shared)


def _find_role(file: str, shared: int) -> tuple[str, bool]:
    """Return the split in the name of a file, and whether the name contains its exact name.

    If the name contains none, that of the nearest folder is used; without any the split is "".
    The folders that all files share are ignored, except for the last of them, if its name is that
    of a split.
    """
    parts = _split_path(file)
    for part in reversed(parts[shared:]):
        roles = find_roles(part)
        if len(roles) > 1:
            raise BadData(
                f"{file}: the name {part!r} contains {' and '.join(roles)}; rename it, so that "
                "it contains one split"
            )
        if roles:
            return roles[0], roles[0] in _list_words(part)
    last = split_name(parts[shared - 1]) if 0 < shared == len(parts) - 1 else ""
    return (last, True) if last in SPLITS else ("", False)
