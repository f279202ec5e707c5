"""Every error a user can cause, as one family. A message says what was got, what was expected and what to do."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches


class ZooError(Exception):
    """Something that the user can fix. The command line prints its one line and exits with `exit_code`."""

    exit_code = 1


class WrongCall(ZooError):
    """The call itself is wrong: an unknown name, an impossible size, settings that exclude each other."""

    exit_code = 2


class BadFile(ZooError):
    """A file or folder is not what it claims to be: truncated, foreign, of another format, or unsafe to open."""


class BadPlugin(ZooError):
    """A plugin breaks the contract of its kind: it cannot be imported, or does not build what it was asked for."""


class BadData(ZooError):
    """A task's images or labels cannot be used."""


class Refused(ZooError):
    """Continuing would overwrite or mix up something that exists already."""


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


def explained(error: OSError) -> str:
    """An operating system's error in words, with what to do about it where that is known."""
    return _REMEDIES.get(error.errno or 0, error.strerror or str(error))


def nearest(got: str, known: Iterable[str]) -> str | None:
    """The known name that was most probably meant, whatever its case; None if none is near."""
    names = {name.lower(): name for name in sorted(known, reverse=True)}
    close = get_close_matches(got.lower(), names, n=1, cutoff=0.5)
    return names[close[0]] if close else None


def unknown(kind: str, got: str, known: Iterable[str]) -> WrongCall:
    """An error for a name that does not exist, with the nearest one that does.

    `unknown("method", "tlge", ["tleg"])` says: no method named 'tlge'; did you mean tleg?
    """
    names = sorted(known)
    close = nearest(got, names)
    if close is not None:
        hint = f"did you mean {close}?"
    elif names:
        hint = f"known: {', '.join(names)}"
    else:
        hint = "none exist"
    return WrongCall(f"no {kind} named {got!r}; {hint}")
