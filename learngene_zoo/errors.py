"""All errors that a user can cause; a message states input, expectation and remedy."""

import errno
import re
from collections.abc import Iterable


class ZooError(Exception):
    """An error that the user can fix.

    The command line prints its one line and exits with `exit_code`.
    """

    exit_code = 1


class WrongCall(ZooError):
    """A wrong call: an unknown name, an impossible size, contradictory settings."""

    exit_code = 2


class BadFile(ZooError):
    """A file or folder that is truncated, foreign, of another format, or unsafe to open."""


class BadPlugin(ZooError):
    """A plugin that breaks its contract: it cannot be imported, or builds something else."""


class BadData(ZooError):
    """A task's images or labels cannot be used."""


class Refused(ZooError):
    """A call that would overwrite or mix up something that exists already."""


class Exists(Refused):
    """The path of a result exists; the command line adds the call that writes beside it."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"{path} already exists; choose another place with -o, or replace it with --force"
        )
        self.path = str(path)


class Unavailable(ZooError):
    """Something outside this program is missing: a download, a package, disk space."""


class TrainingFailed(ZooError):
    """Training cannot continue: the loss is not finite, or does not leave chance."""


_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space, or choose another place with -o",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another place with -o",
    errno.EFBIG: "the file would be larger than this process may write (see `ulimit -f`)",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`, or use fewer workers",
    errno.ENFILE: "the system has too many open files; close some programs, or use fewer workers",
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.EROFS: "the file system is read-only; choose another place with -o",
    errno.EACCES: "permission denied; choose another place with -o",
    errno.EPERM: "permission denied; choose another place with -o",
}


def explain_os_error(error: OSError) -> str:
    """Describe an operating system's error, with a remedy where one is known."""
    return _REMEDIES.get(error.errno or 0, error.strerror or str(error))


def nearest(got: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that was most probably meant; None if no name is near.

    First comes the shortest name that begins with the typed text (`deit_tiny` for
    `deit_tiny_patch16_224`), then the one that has all of its words, then the one that differs by a
    typing error or two (`sings` for `signs`), last one that contains it.
    """
    typed = _plain(got)
    names = {_plain(name): name for name in sorted(known_names, reverse=True)}
    if typed in names:
        return names[typed]
    ordered = sorted(names, key=lambda name: (len(name), name))
    for is_near in (_begins_with, _has_words, None, _contains):
        close = (
            [name for name in ordered if is_near(name, typed)]
            if is_near
            else _misspelt(typed, ordered)
        )
        if close:
            return names[close[0]]
    return None


LEAST_LETTERS = 3  # that a part of a name has, to be taken for the name


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _begins_with(name: str, typed: str) -> bool:
    return len(typed) >= LEAST_LETTERS and name.startswith(typed)


def _has_words(name: str, typed: str) -> bool:
    words = re.findall(r"[^\W_]+", typed)
    return (
        len(typed) >= LEAST_LETTERS
        and bool(words)
        and set(words) <= set(re.findall(r"[^\W_]+", name))
    )


def _contains(name: str, typed: str) -> bool:
    return len(typed) >= LEAST_LETTERS and typed in name and 3 * len(typed) >= len(name)


def _misspelt(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that `typed` misspells, or whose beginning it misspells.

    The nearest come first.
    """
    close = []
    for name in names:
        limit = _most_slips(typed, name)
        if abs(len(name) - len(typed)) <= limit:
            slips = count_slips(typed, name)
        elif len(typed) > 2 * limit + 1 and len(name) > len(typed):
            slips = count_slips(typed, name[: len(typed)]) + 1  # the rest was left out
        else:
            continue
        if slips <= limit:
            close.append(
                (slips, sorted(typed) != sorted(name), typed[0] != name[0], len(name), name)
            )
    return [name for *_, name in sorted(close)]


def _most_slips(typed: str, name: str) -> int:
    """Return how many slips are plausible.

    More in long names, fewer where the first letter differs.
    """
    if not typed or not name or len(typed) < LEAST_LETTERS:
        return 0
    most = 1 if len(typed) < 4 else 2 if len(typed) < 10 else 3
    return most if typed[0] == name[0] else min(most, len(typed) // 4)


def count_slips(first: str, second: str) -> int:
    """Return how many letters are left out, added, changed or exchanged with their neighbour."""
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


def unknown(kind: str, got: str, known_names: Iterable[str]) -> WrongCall:
    """Return the error for an unknown name, with the nearest known one.

    The message of `unknown("method", "tlge", ["tleg"])` is: no method named 'tlge'; did you mean
    tleg?
    """
    names = sorted(known_names)
    close = nearest(got, names)
    if close is not None:
        hint = f"did you mean {close}?"
    elif names:
        hint = f"known: {', '.join(names)}"
    else:
        hint = "none exist"
    return WrongCall(f"no {kind} named {got!r}; {hint}")
