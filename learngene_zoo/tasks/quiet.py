"""`datasets` without progress bars, its state put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_progress() -> Iterator[None]:
    """Inside, `datasets` prints no progress bar."""
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()
