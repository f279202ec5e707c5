"""Format text for people: escaping, tables, quantities such as 20M or 15ms, parts of Markdown.

Text from others (artifacts, tasks, file names, errors) passes the function for its output: a
terminal, JSON, a shell's command line, HTML, Markdown, a cell of a spreadsheet. None of these
functions changes the meaning of ordinary text in any language.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from learngene_zoo.errors import WrongCall

_JOINERS = "\u200c\u200d"  # parts of words in some scripts and of emoji; invisible, but harmless


def printable(text: str) -> str:
    """Return `text` on one line, without characters that control a terminal or reorder text.

    Whitespace of every kind becomes a space; control characters, directional overrides, surrogates
    and other invisible characters are shown by their number: `\\x1b`, `\\u202e`.
    """
    return text if text.isprintable() else "".join(map(_show_letter, text))


def _show_letter(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS:
        return letter
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def is_text(text: str) -> bool:
    """Return whether `text` can be encoded in UTF-8; names of files may contain other bytes."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


MAX_NAME_LENGTH = 500  # of a name in data: of a class, a method, an arm
MAX_PATH_LENGTH = 4096  # of a name that may be a path: of a task, an ancestry model


def check_name(text: str, kind: str, most: int = MAX_NAME_LENGTH) -> None:
    """Raise `WrongCall` for a name that is too long for tables and messages."""
    if len(text) > most:
        raise WrongCall(
            f"the {kind} {text[:30]!r}... has {len(text):,} characters; expected at most {most}"
        )


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON in which every character that is not `printable` is escaped.

    Parsing it gives the same value as without the escapes.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isprintable() else "".join(map(_json_letter, text))


def _json_letter(letter: str) -> str:
    # A newline comes from `indent`: within strings, JSON escapes it.
    if letter.isprintable() or letter in _JOINERS or letter == "\n":
        return letter
    return json.dumps(letter)[1:-1]


def shell_word(text: str) -> str:
    """Return `text` as one word of a command line that the user may copy."""
    return shlex.quote(printable(text))


def html(text: str) -> str:
    """Return `text` escaped for HTML, also within the quotes of an attribute."""
    from html import escape

    return escape(printable(text))


def markdown(text: str) -> str:
    """Return `text` escaped for prose, a heading or a table's cell in Markdown.

    It cannot add tags, code, emphasis, links or columns.
    """
    return re.sub(r"[\\`*<>|&]|(?<=\])[(\[:]", r"\\\g<0>", printable(text))


def spreadsheet(value: Any) -> Any:
    """Return a value for a CSV file.

    Text that a spreadsheet would evaluate as a formula gets an apostrophe in front.
    """
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


COLUMN_GAP = "   "
MIN_TEXT_WIDTH = 40  # columns of sentences are not folded below this width
DEFAULT_LINE_WIDTH = 80  # characters of a line without a terminal


def text_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    title: str = "",
    width: int | None = None,
    drops: Sequence[str] = (),
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
    """
    chosen = choose_columns(columns, rows, right, width, drops)
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
    """
    remaining = list(range(len(columns)))
    if width is None:
        return remaining
    cells = list(zip(columns, *rows))
    wide = [_least_width(column, index, right) for index, column in enumerate(cells)]
    narrow = [_least_width(column, index, right, prose=1) for index, column in enumerate(cells)]
    named = [columns.index(name) for name in drops if name in columns]
    unnamed = [index for index in reversed(remaining) if index > 1 and index not in named]
    lost: list[int] = []
    for indices, least in ((named, wide), (unnamed, narrow)):
        for index in indices:
            if _line_width(least[i] for i in remaining) > width:
                remaining.remove(index)
                lost.append(index)
    for index in reversed(lost):  # a narrow column may fit after a wide one was left out
        if _line_width(wide[i] for i in [*remaining, index]) <= width:
            remaining.append(index)
    return sorted(remaining)


def _line_width(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)


def _least_width(
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
    least = [_least_width(column, index, right, prose=1) for index, column in enumerate(cells)]
    while width is not None and _line_width(widths) > width:
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


def terminal_width() -> int:
    """Return the characters of a line: $COLUMNS, else the width of the terminal, else 80."""
    return shutil.get_terminal_size((DEFAULT_LINE_WIDTH, 24)).columns


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun: "1 file", "2 files"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_SCALES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_count(text: str) -> int:
    """Parse a number: `20M` is 20,000,000; `3G` (or `3B`) is 3e9. Raises `WrongCall`."""
    number, unit = _split(text, "20M or 3G")
    if unit not in _SCALES:
        raise WrongCall(f"{text!r} has no known unit; write K, M, G or T, as in 20M")
    return round(number * _SCALES[unit])


def parse_seconds(text: str) -> float:
    """Parse a duration: `15ms` is 0.015; the unit (s, ms or us) is required.

    Raises `WrongCall`.
    """
    number, unit = _split(text, "15ms")
    if unit not in _SECONDS:
        raise WrongCall(f"{text!r} is not a duration; write s, ms or us, as in 15ms")
    return number * _SECONDS[unit]


def _split(text: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if not match or not math.isfinite(float(match[1])) or float(match[1]) <= 0:
        raise WrongCall(f"{text!r} is not a positive quantity; write it as {example}")
    return float(match[1]), match[2].lower()


def human_count(value: int) -> str:
    """Format a number for people: 1,234,567 is `1.23M`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= scale:
            return f"{value / scale:.2f}{unit}"
    return str(value)


def human_seconds(value: float) -> str:
    """Format a duration for people: 12ms, 3.4s, 5m 06s, 1h 02m."""
    if value < 1e-3:
        return f"{value * 1e6:.0f}us"
    if value < 1:
        return f"{value * 1e3:.0f}ms"
    if value < 60:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes}m {seconds:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def in_notebook() -> bool:
    """Return whether this process runs a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


# Parts of Markdown from arbitrary text, which can end neither the front matter of a page nor a
# block.


def make_printable(value: Any) -> Any:
    """Return data with `printable` applied to every string, as YAML and Markdown need it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {make_printable(str(key)): make_printable(item) for key, item in value.items()}
    return [make_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def plain(text: str) -> str:
    """Return one line of Markdown prose without any special characters."""
    return re.sub(r"[^\w .,:@/+-]", "", make_printable(text))


def prose(text: str) -> str:
    """Return a sentence without the characters of links, HTML, code and tables."""
    return re.sub(r"[\[\]<>`|*]", "", make_printable(text))


def code(text: Any) -> str:
    """Return any value as inline code."""
    return "`" + re.sub(r"[`|]", "", make_printable(str(text))) + "`"


def escape_fence(text: str) -> str:
    """Return text for a block of code, which it cannot end."""
    return text.replace("```", "'''")


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table with the header line `head`, or "" if there are no rows."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines]) if lines else ""
