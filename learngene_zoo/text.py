"""Text that others wrote (artifacts, tasks, file names, errors), made safe for the place where it is shown.

One function for each place: a terminal, JSON, a shell's command line, HTML, Markdown, a cell of a spreadsheet. None of them
changes what ordinary text of any language says.
"""

import json
import re
import shlex
from html import escape
from typing import Any

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
    return " " if letter.isspace() else _escaped(letter)


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def is_text(text: str) -> bool:
    """Whether UTF-8 can say it: names of files may hold bytes that no letter has."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


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
