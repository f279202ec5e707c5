"""The blocks of a card: Markdown out of anything that a record may hold.

Whatever a user typed is reduced to printable characters, so that it can neither end the front matter nor a block of the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from learngene_zoo.settings import to_json
from learngene_zoo.text import printable


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


def json_block(data: Any) -> str:
    """Data as a block of JSON."""
    return fence(json.dumps(printed(to_json(data)), indent=2, ensure_ascii=False), "json")


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """A table, or nothing if it has no rows; `head` is its first line."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines]) if lines else ""
