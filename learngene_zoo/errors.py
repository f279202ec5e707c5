"""Every error a user can cause: one family, each message says what was got, what was wanted and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ZooError(Exception):
    """Something went wrong that the user can mend. The command line prints its one line and exits with `exit_code`."""

    exit_code = 1


class WrongCall(ZooError):
    """The call itself cannot be meant: an unknown name, an impossible size, settings that exclude each other."""

    exit_code = 2


class BadFile(ZooError):
    """A file or folder is not what it says it is: truncated, foreign, of another format, or dangerous to open."""


class BadPlugin(ZooError):
    """A plugin breaks the contract of its kind: it cannot be imported, or does not build what it was asked for."""


class BadData(ZooError):
    """A task's images or labels cannot be used."""


class Refused(ZooError):
    """Going on would destroy or mix up something that exists already."""


class Unavailable(ZooError):
    """Something outside this program is needed and cannot be had: a download, a package, disk space."""


class TrainingFailed(ZooError):
    """Training cannot go on: a loss that is not finite, or one that does not move."""


def unknown(kind: str, got: str, known: Iterable[str]) -> WrongCall:
    """An error for a name that does not exist, with the nearest one that does.

    `unknown("method", "tlge", ["tleg"])` says: no method named 'tlge'; did you mean tleg?
    """
    names = sorted(known)
    close = get_close_matches(got, names, n=1, cutoff=0.5)
    if close:
        hint = f"did you mean {close[0]}?"
    elif names:
        hint = f"there are: {', '.join(names)}"
    else:
        hint = "there are none"
    return WrongCall(f"no {kind} named {got!r}; {hint}")
