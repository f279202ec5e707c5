"""What people read and write: text made safe for where it is shown, tables, quantities such as 20M or 15ms, blocks of Markdown.

Text that others wrote (artifacts, tasks, file names, errors) passes the function of its place: a terminal, JSON, a shell's command
line, HTML, Markdown, a cell of a spreadsheet. None of them changes what ordinary text of any language says.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from learngene_zoo.errors import WrongCall

_JOINERS = "\u200c\u200d"  # within words of some scripts and within emoji; invisible, but harmless


def printable(text: str) -> str:
    """`text` on one line, without characters that control a terminal or reorder what is around them.

    Whitespace of every kind becomes a space; control characters, directional overrides, surrogates and other invisible
    characters are shown by their number: `\\x1b`, `\\u202e`.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS:
        return letter
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def is_text(text: str) -> bool:
    """Whether UTF-8 can say it: names of files may hold bytes that no letter has."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


MOST_LETTERS = 500  # of a name that data chooses: of a class, a method, an arm
MOST_OF_PATH = 4096  # of one that may be a path: of a task, an ancestry model


def check_name(text: str, kind: str, most: int = MOST_LETTERS) -> None:
    """Check that a name is short enough to be laid out. Raises `WrongCall`."""
    if len(text) > most:
        raise WrongCall(f"the {kind} {text[:30]!r}... has {len(text):,} characters; expected at most {most}")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which every character that is not `printable` is escaped; what it says is unchanged."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isprintable() else "".join(map(_json_letter, text))


def _json_letter(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS or letter == "\n":  # strings hold none: it is that of `indent`
        return letter
    return json.dumps(letter)[1:-1]


def shell_word(text: str) -> str:
    """`text` as one word of a command line that the user may copy."""
    return shlex.quote(printable(text))


def html(text: str) -> str:
    """`text` as a text of a page, or as the value of an attribute in quotes."""
    return escape(printable(text))


def markdown(text: str) -> str:
    """`text` as prose, a heading or a table's cell in Markdown: no tags, code, emphasis, links or columns of its own."""
    return re.sub(r"[\\`*<>|&]|(?<=\])[(\[:]", r"\\\g<0>", printable(text))


def spreadsheet(value: Any) -> Any:
    """A value of a CSV file; text that a spreadsheet would compute begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


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
    characters, as far as that is possible; None: never, and columns are as wide as their widest cell.
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


def counted(count: int, noun: str) -> str:
    """A number of things: "1 file", "2 files"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_SCALES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_count(text: str) -> int:
    """`20M` is 20,000,000; `3G` (or `3B`) is 3e9; a bare number is itself. Raises `WrongCall`."""
    number, unit = _split(text, "20M or 3G")
    if unit not in _SCALES:
        raise WrongCall(f"{text!r} has no known unit; write K, M, G or T, as in 20M")
    return round(number * _SCALES[unit])


def parse_seconds(text: str) -> float:
    """`15ms` is 0.015; the unit (s, ms or us) is required. Raises `WrongCall`."""
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
    """1,234,567 as `1.23M`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= scale:
            return f"{value / scale:.2f}{unit}"
    return str(value)


def human_seconds(value: float) -> str:
    """Durations for people: 12ms, 3.4s, 5m 06s, 1h 02m."""
    if value < 1e-3:
        return f"{value * 1e6:.0f}us"
    if value < 1:
        return f"{value * 1e3:.0f}ms"
    if value < 60:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes}m {seconds:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def in_notebook() -> bool:
    """Whether this runs in a cell of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


# Blocks of Markdown out of anything, so that it can end neither the front matter of a page nor a block.


def page(front: str, *parts: str) -> str:
    """A page with its front matter; empty parts are left out."""
    return f"---\n{front}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def printed(value: Any) -> Any:
    """Every text of it as `printable` shows it: YAML and Markdown carry no others."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printed(str(key)): printed(item) for key, item in value.items()}
    return [printed(item) for item in value] if isinstance(value, (list, tuple)) else value


def plain(text: str) -> str:
    """One line of Markdown prose out of anything."""
    return re.sub(r"[^\w .,:@/+-]", "", printed(text))


def prose(text: str) -> str:
    """A sentence as it was written, without links, HTML, code and the bars of tables."""
    return re.sub(r"[\[\]<>`|*]", "", printed(text))


def code(text: Any) -> str:
    """Inline code out of anything."""
    return "`" + re.sub(r"[`|]", "", printed(str(text))) + "`"


def fence(text: str, language: str = "") -> str:
    """A block of code, which the text cannot end."""
    return f"```{language}\n{text.replace('```', chr(39) * 3)}\n```"


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """A table, or nothing if it has no rows; `head` is its first line."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines]) if lines else ""
