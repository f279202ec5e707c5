"""What this process does to the outside: files it opens or changes, hosts it asks, programs it
starts, packages it imports.

Python's own audit events tell. A hook cannot be taken away again, so there is one, and it is silent
outside `watched`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_CHANGES = {
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
}
_LOOKS = {"os.listdir", "os.scandir"}
_HOSTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"}
_PROGRAMS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "webbrowser.open",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Where the program itself lies, and what every program reads of its system.
_PROGRAM = (
    *{
        str(Path(place).resolve())
        for place in (sys.prefix, sys.base_prefix, ROOT, *filter(None, sys.path))
    },
)
_SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/null",
    "/dev/urandom",
    "/usr/lib/",
    "/usr/share/zoneinfo",
    "/etc/localtime",
)


@dataclass
class Seen:
    """What happened; `faults` says what should not have."""

    read: set[str] = field(default_factory=set)
    opened: list[str] = field(default_factory=list)  # for reading, once for each time
    changed: set[str] = field(default_factory=set)
    hosts: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    unpickled: list[str] = field(default_factory=list)

    def faults(self, *own: Path) -> list[str]:
        """Everything but reading and changing what lies in `own`, reading the program itself and
        loading more of it.
        """
        inside = tuple(str(place.resolve()) for place in own)
        return [
            *(
                f"read {path}"
                for path in sorted(self.read)
                if not _within(path, (*inside, *_PROGRAM), _SYSTEM)
            ),
            *(
                f"changed {path}"
                for path in sorted(self.changed)
                if not _within(path, inside, ("/dev/null",))
            ),
            *(f"asked {host}" for host in self.hosts),
            *(f"started {program}" for program in self.programs),
            *(f"unpickled {name}" for name in self.unpickled),
            *(f"imported {name}" for name in sorted(self.imported)),
        ]


def _within(path: str, folders: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    return path.startswith(prefixes) or any(
        path == place or path.startswith(place + os.sep) for place in folders
    )


_watching: list[Seen] = []
_known: set[str] = set()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    seen = _watching[-1]
    if event == "open":
        path, mode, flags = arguments
        if not isinstance(path, int) and path is not None:
            writes = bool(flags & _WRITING) or any(letter in (mode or "") for letter in "wax+")
            (seen.changed if writes else seen.read).add(_real(path))
            if not writes:
                seen.opened.append(_real(path))
    elif event in _CHANGES and not any(
        isinstance(item, int) and item != -1 for item in arguments[1:]
    ):
        # Within a folder that is open already, as `shutil.rmtree` does after it said so itself, the
        # path would mislead.
        seen.changed.update(
            _real(path) for path in arguments if isinstance(path, (str, bytes, os.PathLike))
        )
    elif event in _LOOKS:
        if isinstance(arguments[0], (str, bytes, os.PathLike)):
            seen.read.add(_real(arguments[0]))
    elif event in _HOSTS:
        seen.hosts.append(f"{event} {arguments[:2]!r}")
    elif event in _PROGRAMS:
        seen.programs.append(f"{arguments[0]!r}")
    elif event == "pickle.find_class":
        seen.unpickled.append(".".join(map(str, arguments)))


def _real(path: Any) -> str:
    return os.path.realpath(os.fsdecode(path))


sys.addaudithook(_hook)


class _Searched:
    """Is asked first for every module that is not loaded yet, and finds none.
    `importlib.import_module` has no audit event.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        top = name.partition(".")[0]
        if _watching and top not in _known:
            _watching[-1].imported.add(top)


@contextmanager
def watched() -> Iterator[Seen]:
    """What happens within, in this thread or another. Packages of which something is loaded already
    do not count as imported.
    """
    _known.clear()
    _known.update(name.partition(".")[0] for name in sys.modules)
    _watching.append(Seen())
    sys.meta_path.insert(0, _Searched)  # type: ignore[arg-type]
    try:
        yield _watching[-1]
    finally:
        sys.meta_path.remove(_Searched)  # type: ignore[arg-type]
        _watching.pop()
