"""Tables and lines of text that fit the width of a terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest

COLUMN_GAP = "   "
MIN_TEXT_WIDTH = 40  # columns of sentences are not folded below this width
DEFAULT_LINE_WIDTH = 80  # characters of a line without a terminal


def format_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    title: str = "",
    width: int | None = None,
    drops: Sequence[str] = (),
    keeps: Collection[str] = (),
) -> str:
    """Return a table as text: a heading, a rule and the lines of every row.

    Args:
        columns: names of the columns.
        rows: cells of each row.
        right: numbers of the columns that are aligned to the right; their cells are never folded.
        title: a line above the table.
        width: maximum length of a line (None: unlimited). Words are not broken. The first column,
            which names the row, is neither folded nor left out: other columns are left out first,
            as in `choose_columns`, then the cells of the remaining ones are folded.
        drops: as in `choose_columns`.
        keeps: as in `choose_columns`. A line is longer than `width` if a word of theirs does not
            fit.
    """
    chosen = choose_columns(columns, rows, right, width, drops, keeps)
    right = [position for position, index in enumerate(chosen) if index in right]
    columns, rows = [columns[index] for index in chosen], [[row[i] for i in chosen] for row in rows]
    widths = _fit_widths(columns, rows, right, width)
    heading, *parts = (_fold_row(row, widths, right) for row in [columns, *rows])
    rule = "─" * (sum(widths) + len(COLUMN_GAP) * (len(widths) - 1))
    folded = [line for part in parts for line in part]
    return "\n".join([*([title] if title else []), *heading, rule, *folded])


def choose_columns(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int | None = None,
    drops: Sequence[str] = (),
    keeps: Collection[str] = (),
) -> list[int]:
    """Return the numbers of the columns that fit into lines of `width` characters.

    The first two columns always stay, except those named in `drops`.

    Args:
        columns: names of the columns.
        rows: cells of each row.
        right: numbers of the columns that are aligned to the right.
        width: maximum length of a line (None: unlimited).
        drops: names of the columns to leave out first, the least important one first. After them
            the last columns are left out.
        keeps: names of further columns that always stay.
    """
    remaining = list(range(len(columns)))
    if width is None:
        return remaining
    cells = list(zip(columns, *rows))
    wide = [_measure_least_width(column, index, right) for index, column in enumerate(cells)]
    narrow = [
        _measure_least_width(column, index, right, prose=1) for index, column in enumerate(cells)
    ]
    named = [columns.index(name) for name in drops if name in columns]
    unnamed = [
        index
        for index in reversed(remaining)
        if index > 1 and index not in named and columns[index] not in keeps
    ]
    lost: list[int] = []
    for indices, least in ((named, wide), (unnamed, narrow)):
        for index in indices:
            if _measure_line(least[i] for i in remaining) > width:
                remaining.remove(index)
                lost.append(index)
    for index in reversed(lost):  # a narrow column may fit after a wide one was left out
        if _measure_line(wide[i] for i in [*remaining, index]) <= width:
            remaining.append(index)
    return sorted(remaining)


def _measure_line(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)


def _measure_least_width(
    cells: Sequence[str], index: int, right: Collection[int], prose: int = MIN_TEXT_WIDTH
) -> int:
    """Return the smallest width to which a column may be folded.

    Args:
        cells: the heading of the column, then its other cells.
        index: number of the column.
        right: numbers of the columns that are aligned to the right.
        prose: sentences are not folded below this width.
    """
    heading, *texts = cells
    word = max(map(len, _split_words(heading)), default=0)
    longest = max(map(len, texts), default=0)
    if index == 0 or index in right:
        return max(word, longest)
    words = max((len(part) for text in texts for part in _split_words(text)), default=0)
    return max(word, words, min(prose, longest))


def _fit_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int], width: int | None
) -> list[int]:
    """Return the widths of the columns, narrowed until a line has at most `width` characters."""
    cells = list(zip(columns, *rows))
    widths = [max(map(len, column)) for column in cells]
    least = [
        _measure_least_width(column, index, right, prose=1) for index, column in enumerate(cells)
    ]
    while width is not None and _measure_line(widths) > width:
        spare = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not spare:
            break
        widths[max(spare, key=lambda index: widths[index])] -= 1
    return widths


def _fold_row(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    """Return the lines of a row."""
    cells = [wrap_words(text, width) for text, width in zip(row, widths)]
    aligned = [
        [part.rjust(width) if index in right else part.ljust(width) for part in cell]
        for index, (cell, width) in enumerate(zip(cells, widths))
    ]
    blank = [" " * width for width in widths]
    return [
        COLUMN_GAP.join(part or empty for part, empty in zip(line, blank)).rstrip()
        for line in zip_longest(*aligned, fillvalue="")
    ]


def wrap_words(text: str, width: int) -> list[str]:
    """Return the lines of `text`, at most `width` characters long unless a single word is longer.

    A line ends at a space, or within a path or a list after a slash or a comma. Words are not
    broken.
    """
    if len(text) <= width:
        return [text]
    lines = [""]
    for word in re.findall(r"\S+\s*", text):
        parts = [word] if len(word.rstrip()) <= width else _PART.findall(word)
        for part in parts:
            if lines[-1] and len((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


_PART = re.compile(r"[^\s/,]*[/,]+\s*|[^\s/,]+\s*")


def _split_words(text: str) -> list[str]:
    """Return the parts of a text that `wrap_words` does not break."""
    return [part.rstrip() for part in _PART.findall(text)]


def measure_terminal() -> int:
    """Return the characters of a line: $COLUMNS, else the width of the terminal, else 80."""
    return shutil.get_terminal_size((DEFAULT_LINE_WIDTH, 24)).columns
