"""Standard streams that are closed, full or of a narrow encoding."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


def open_streams() -> None:
    """Make closed streams and characters that a stream cannot encode harmless.

    Output to a closed stream is dropped, and characters outside a stream's encoding are escaped. A
    closed stream is opened on the null device: else the next opened file would get its number.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  until the process ends
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    buffer = getattr(sys.stderr, "buffer", None)
    raw = buffer.raw if isinstance(buffer, io.BufferedWriter) else buffer
    if isinstance(raw, io.FileIO) and not isinstance(raw, _LossyFile):
        sys.stderr = io.TextIOWrapper(
            _LossyFile(raw.fileno(), "w", closefd=False),  # type: ignore[arg-type]
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            write_through=True,
        )


class _LossyFile(io.FileIO):
    """A file that drops data that cannot be written.

    A progress line that does not fit on a full disk must not end a training or change an exit code.
    """

    def write(self, data: Any) -> int:
        """Write the data, or drop the rest."""
        size = memoryview(data).nbytes
        with suppress(OSError):
            super().write(data)
        return size
