"""Errors that a user can cause. A message states the input, the expectation and the remedy.

`text.name_option` names an argument in a remedy: as in Python, or as an option of the command line.
`force=True`, `out=PATH` and `Run(resume=True)` are written as such; the command line replaces them.
"""

import errno
import os
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


class ZooError(Exception):
    """An error that the user can fix.

    The command line prints its message and exits with `exit_code`.
    """

    exit_code = 1


class WrongCall(ZooError):
    """A wrong call: an unknown name, an impossible size, contradictory settings."""

    exit_code = 2


class WrongTensor(WrongCall):
    """A tensor that the model to build does not have, or that has another shape there."""


class BadFile(ZooError):
    """A file or folder that is truncated, foreign, of another format, or unsafe to open."""


class BadPlugin(ZooError):
    """A plugin that breaks its contract: it cannot be imported, or builds the wrong model."""


class MethodFailed(ZooError):
    """An unexpected error in the code of a method; the cause of this error is the error itself."""


class BadData(ZooError):
    """Images or labels of a task that cannot be used."""


class NoLabels(BadData):
    """Data whose labels cannot be found, which can still be used where none are needed."""


class Refused(ZooError):
    """A call that would overwrite or mix up existing files."""


class Exists(Refused):
    """The path of a result exists already.

    The command line names its options instead, and a call that writes to another path. Without
    `can_replace` there is no way to replace it.
    """

    def __init__(self, path: object, *, can_replace: bool = True) -> None:
        remedy = ", or replace it with force=True" if can_replace else ""
        super().__init__(f"{path} already exists; choose another path{remedy}")
        self.path, self.can_replace = str(path), can_replace


# A note of any exception, interrupts included, that ends a run of which results are kept.
CAN_RESUME = "what was computed is kept; the same call with Run(resume=True) continues"


class Unavailable(ZooError):
    """Something outside this program that is missing: a download, a package, disk space."""


class TrainingFailed(ZooError):
    """A training that cannot continue: the loss is not finite, or stays at chance level."""


class TrainingWarning(UserWarning):
    """A model should not be used without a look at its training.

    The training diverged, is no better than a constant answer, or few validation images chose its
    weights; or there was none, so that the head of the model has random weights. Also given if the
    images to evaluate on may have been training images.
    """


_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space, or choose another path",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another path",
    errno.EFBIG: "the file would be larger than this process may write (see `ulimit -f`)",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`, or use fewer workers",
    errno.ENFILE: "the system has too many open files; close some programs, or use fewer workers",
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.EROFS: "the file system is read-only; choose another path",
    errno.EACCES: "permission denied; choose another path",
    errno.EPERM: "permission denied; choose another path",
}


def explain_os_error(error: OSError) -> str:
    """Describe an error of the operating system, with a remedy where one is known."""
    return _REMEDIES.get(error.errno or 0, error.strerror or str(error))


# Parts of messages. torch raises RuntimeErrors: of the CPU's allocator, of a memory map, of a GPU.
OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "unable to mmap",
    "failed to map segment",  # the system's loader, of a library
)
# RuntimeErrors, too: of torch's DataLoader, and of the connection to its workers.
TOO_MANY_FILES = ("Too many open files", "received 0 items of ancdata")


def is_shortage(error: Exception) -> bool:
    """Return whether an error may be due to a lack of memory, disk space, open files or rights."""
    message = f"{type(error).__name__}: {error}"
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in (*_REMEDIES, errno.ENOMEM, errno.EIO))
        or any(sign in message for sign in (*OUT_OF_MEMORY, *TOO_MANY_FILES))
    )


# The end of a message about an error in code, not in what was given.
SEE_TRACEBACK = "; run again with --debug to see the traceback"


def describe_crash(what: str, error: Exception) -> str:
    """Return the message for an unexpected error in the code of a plugin.

    Args:
        what: the words for what failed.
        error: the error.
    """
    return f"{what}: {type(error).__name__}: {error}{SEE_TRACEBACK}"


def find_nearest(got: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that was most probably meant, or None.

    The first of these that exists is returned: the shortest name that begins with the typed text
    (`deit_tiny` for `deit_tiny_patch16_224`), the shortest that contains all of its words, the
    nearest that differs by a typing error or two (`sings` for `signs`), the shortest that contains
    it.
    """
    typed = _reduce_name(got)
    names = {_reduce_name(name): name for name in sorted(known_names, reverse=True)}
    if typed in names:
        return names[typed]
    ordered = sorted(names, key=lambda name: (len(name), name))
    for is_near in (_begins_with, _has_words, None, _contains):
        close = (
            [name for name in ordered if is_near(name, typed)]
            if is_near
            else _find_misspelt(typed, ordered)
        )
        if close:
            return names[close[0]]
    return None


def suggest_path(path: Path, remedy: str, accepts: Callable[[Path], bool] = Path.exists) -> str:
    """Return the end of the error for a path that does not exist: a similar one, or the remedy.

    A path with another number in its name, such as that of another picture, is not similar.

    Args:
        path: the missing path.
        remedy: what to do if no path of that folder has a similar name.
        accepts: whether a path may have been meant; hidden ones never are.
    """
    names: list[str] = []
    with suppress(OSError, ValueError):  # a folder that cannot be read
        names = [
            name
            for name in os.listdir(path.parent)
            if not name.startswith(".") and _mask_numbers(name) != _mask_numbers(path.name)
        ]
    if len(names) > MAX_SIBLINGS:
        return remedy
    accepted = [name for name in names if accepts(path.parent / name)]
    # An equal suffix is no sign of a similar name
    stems = {
        name.removesuffix(path.suffix): name for name in accepted if name.endswith(path.suffix)
    }
    near = stems.get(find_nearest(path.stem, stems) or "") or find_nearest(
        path.name, [name for name in accepted if name not in stems.values()]
    )
    return remedy if near is None else f"did you mean {path.parent / near}?"


def _mask_numbers(name: str) -> str:
    return re.sub(r"\d+", "0", name)


MAX_SIBLINGS = 1000  # names that are compared with that of a missing path
MIN_LETTERS = 3  # of a typed text that is compared with the parts of names


def _reduce_name(name: str) -> str:
    return name.lower().replace("-", "_")


def _begins_with(name: str, typed: str) -> bool:
    return len(typed) >= MIN_LETTERS and name.startswith(typed)


def _has_words(name: str, typed: str) -> bool:
    words = re.findall(r"[^\W_]+", typed)
    return (
        len(typed) >= MIN_LETTERS
        and bool(words)
        and set(words) <= set(re.findall(r"[^\W_]+", name))
    )


def _contains(name: str, typed: str) -> bool:
    return len(typed) >= MIN_LETTERS and typed in name and 3 * len(typed) >= len(name)


def _find_misspelt(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names of which `typed` misspells all or the first letters, the nearest first."""
    close = []
    for name in names:
        limit = _count_max_slips(typed, name)
        if abs(len(name) - len(typed)) <= limit:
            slips = count_slips(typed, name)
        elif len(typed) > 2 * limit + 1 and len(name) > len(typed):
            slips = count_slips(typed, name[: len(typed)]) + 1  # plus one for the missing end
        else:
            continue
        if slips <= limit:
            close.append(
                (slips, sorted(typed) != sorted(name), typed[0] != name[0], len(name), name)
            )
    return [name for *_, name in sorted(close)]


def _count_max_slips(typed: str, name: str) -> int:
    """Return the plausible number of typing errors.

    It is larger for long names, and smaller if the first letters differ.
    """
    if not typed or not name or len(typed) < MIN_LETTERS:
        return 0
    most = 1 if len(typed) < 4 else 2 if len(typed) < 10 else 3
    return most if typed[0] == name[0] else min(most, len(typed) // 4)


def count_slips(first: str, second: str) -> int:
    """Return the number of letters that are missing, added, changed or swapped."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        last, row, older = row, [i], before
        for j, expected in enumerate(second, 1):
            slips = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != expected))
            if i > 1 and j > 1 and (letter, first[i - 2]) == (second[j - 2], expected):
                slips = min(slips, older[j - 2] + 1)
            row.append(slips)
        before = last
    return row[-1]


MAX_KNOWN = 12  # names that an error lists without a command that lists them
MAX_NEAR = 5
# The command that lists all names of a kind, by the last word of the kind.
_LISTS = {
    "method": "lgzoo list methods --all",
    "learngene": "lgzoo list learngenes --all",
    "task": "lgzoo list tasks --all",
    "model": 'python -c "import timm; print(*timm.list_models())"',
}

# Arguments that users give by name to a function with an argument `run`, and that `Run` has.
FIELDS_OF_RUN = frozenset(("ancestry", "device", "offline", "precision", "progress")) | frozenset(
    ("resume", "seed", "threads", "workers")
)


def refuse_unknown(kind: str, got: object, known_names: Iterable[str]) -> WrongCall:
    """Return the error for an unknown name, with the nearest known name as a suggestion.

    The message of `refuse_unknown("method", "tlge", ["tleg"])` is: no method named 'tlge'; did you
    mean
    tleg? If no name is near, the message lists the known names; of many names that a command lists,
    it has that command and at most `MAX_NEAR` similar ones. If `run` is one of the known names of
    arguments, a field of `Run` is recognised.
    """
    names, got = sorted(known_names), got if isinstance(got, str) else repr(got)
    if "run" in names and got in FIELDS_OF_RUN:
        return WrongCall(f"no {kind} named {got!r}; it is a field of Run: run=Run({got}=...)")
    close = find_nearest(got, names)
    command = _LISTS.get(kind.rpartition(" ")[2])
    if close is not None:
        hint = f"did you mean {close}?"
    elif len(names) > MAX_KNOWN and command:
        hint = f"{_list_similar(got, names)}`{command}` lists all"
    elif names:
        hint = f"known: {', '.join(names)}"
    else:
        hint = "none exist"
    return WrongCall(f"no {kind} named {got!r}; {hint}")


def check_choice(kind: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise `WrongCall` for a value that is none of the choices, as `refuse_unknown` does."""
    known = list(choices)
    if value not in known:
        raise refuse_unknown(kind, str(value), map(str, known))


def _list_similar(got: str, names: Iterable[str]) -> str:
    """Return the beginning of a hint, with the names that share many letters with `got`."""
    from difflib import get_close_matches

    similar = get_close_matches(got, names, MAX_NEAR, cutoff=0.5)
    return f"similar: {', '.join(similar)}; " if similar else ""


def warn_of_new_name(module: str, former: str, name: str) -> str:
    """Return the name of a function that had another one, with a `DeprecationWarning`."""
    warnings.warn(
        f"{former} of {module} is now called {name}; the former name will be removed",
        DeprecationWarning,
        stacklevel=3,
    )
    return name
