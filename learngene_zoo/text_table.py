"""Tables as aligned text: whole in a pipe or a file, folded to the width of a terminal."""

import os
import sys
from collections.abc import Collection, Sequence
from itertools import zip_longest
from textwrap import wrap

GAP = "   "
LEAST = 8  # columns are folded to this width at least


def text_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    title: str = "",
    width: int | None = None,
) -> str:
    """A heading, a rule and a line per row.

    right: numbers of the columns that are aligned to the right. width: fold cells so that lines have at most this many
    characters, as far as that is possible; None: never.
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows)]
    while width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > LEAST:
        widths[widths.index(max(widths))] -= 1
    lines = [line for row in [columns, *rows] for line in _folded(row, widths, right)]
    heading = len(_folded(columns, widths, right))
    rule = "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
    return "\n".join([*([title] if title else []), *lines[:heading], rule, *lines[heading:]])


def _folded(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    """The lines of one row."""
    cells = [wrap(text, width) if len(text) > width else [text] for text, width in zip(row, widths)]
    aligned = [
        [part.rjust(width) if index in right else part.ljust(width) for part in cell] or [" " * width]
        for index, (cell, width) in enumerate(zip(cells, widths))
    ]
    blank = [" " * width for width in widths]
    return [
        GAP.join(part or empty for part, empty in zip(line, blank)).rstrip()
        for line in zip_longest(*aligned, fillvalue="")
    ]


def terminal_width() -> int | None:
    """Characters of a line of the terminal that stdout is; None if it is none."""
    return os.get_terminal_size().columns if sys.stdout.isatty() else None
