"""Format text for people: escaping, quantities such as 20M or 15ms, pages from templates.

Text from others (artifacts, tasks, file names, errors) passes the function for its output: a
terminal, JSON, a shell's command line, HTML, Markdown, a cell of a spreadsheet. None of these
functions changes the meaning of ordinary text in any language.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import WrongCall

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_JOINERS = "\u200c\u200d"  # parts of words in some scripts and of emoji; invisible, but harmless


def escape_controls(text: str) -> str:
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


def format_json(value: Any, indent: int | None = None) -> str:
    """Return JSON in which every character that is not `escape_controls` is escaped.

    Parsing it gives the same value as without the escapes.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isprintable() else "".join(map(_escape_letter, text))


def _escape_letter(letter: str) -> str:
    # A newline comes from `indent`: within strings, JSON escapes it.
    if letter.isprintable() or letter in _JOINERS or letter == "\n":
        return letter
    return json.dumps(letter)[1:-1]


def quote_word(text: str) -> str:
    """Return `text` as one word of a command line that the user may copy."""
    return shlex.quote(escape_controls(text))


def quote_path(path: str | Path) -> str:
    """Return a path as `quote_word` does; no command takes it for an option."""
    text = str(path)
    return quote_word(f"./{text}" if text.startswith("-") else text)


_ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)
# Options that are not called as the arguments of Python.
_OPTIONS = {
    "ancestries": "ancestry",
    "descendants": "descendant",
    "licence": "license",
    "tasks": "task",
    "tries": "try",
}


@contextmanager
def use_option_names() -> Iterator[None]:
    """Make messages name options of the command line, and not arguments of Python, within this."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def name_option(name: str, value: object = None, *, of_run: bool = False) -> str:
    """Return an argument as the user writes it: `task="folder:mine"`, or `--task folder:mine`.

    Args:
        name: of the argument in Python.
        value: its value. None: the argument is only named.
        of_run: whether it is a field of `Run` in Python: `Run(device="cpu")`.
    """
    if _ON_COMMAND_LINE.get():
        option = _OPTIONS.get(name, name).replace("_", "-")
        if isinstance(value, bool):
            return f"--{option}" if value else f"--no-{option}"
        return f"--{option}" if value is None else f"--{option} {quote_word(str(value))}"
    if value is None:
        return name
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    return f"Run({name}={text})" if of_run else f"{name}={text}"


def escape_html(text: str) -> str:
    """Return `text` escaped for HTML, also within the quotes of an attribute."""
    from html import escape

    return escape(escape_controls(text))


def escape_markdown(text: str) -> str:
    """Return `text` escaped for prose, a heading or a table's cell in Markdown.

    It cannot add tags, code, emphasis, links or columns.
    """
    return re.sub(r"[\\`*<>|&]|(?<=\])[(\[:]", r"\\\g<0>", escape_controls(text))


def escape_formula(value: Any) -> Any:
    """Return a value for a CSV file.

    Text that a spreadsheet would evaluate as a formula gets an apostrophe in front.
    """
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


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


def format_count(value: int) -> str:
    """Format a number for people: 1,234,567 is `1.23M`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= scale * (1 - 5e-6):  # just below a unit it would be 1000.00
            return f"{value / scale:.2f}{unit}"
    return str(value)


def format_round_count(value: int) -> str:
    """Format a number that is often round: 500,000 is `500K`, 2,500,000 is `2.5M`."""
    return re.sub(r"\.?0+(?=[A-Z]$)", "", format_count(value))


def format_seconds(value: float) -> str:
    """Format a duration for people: 12ms, 3.4s, 5m 06s, 1h 02m."""
    if value < 999.5e-6:
        return f"{value * 1e6:.0f}us"
    if value < 0.9995:
        return f"{value * 1e3:.0f}ms"
    if value < 59.95:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes}m {seconds:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def is_in_notebook() -> bool:
    """Return whether this process runs a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


# Parts of Markdown from arbitrary text, which can end neither the front matter of a page nor a
# block.


def make_printable(value: Any) -> Any:
    """Return data with `escape_controls` applied to every string, as YAML and Markdown need it."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, Mapping):
        return {make_printable(str(key)): make_printable(item) for key, item in value.items()}
    return [make_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def strip_markdown(text: str) -> str:
    """Return one line of Markdown prose without any special characters."""
    return re.sub(r"[^\w .,:@/+-]", "", make_printable(text))


def escape_prose(text: str) -> str:
    """Return a sentence without the characters of links, HTML, code and tables."""
    return re.sub(r"[\[\]<>`|*]", "", make_printable(text))


def format_code(text: Any) -> str:
    """Return any value as inline code."""
    return "`" + re.sub(r"[`|]", "", make_printable(str(text))) + "`"


def escape_fence(text: str) -> str:
    """Return text for a block of code, which it cannot end."""
    return text.replace("```", "'''")


def format_table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table with the header line `head`, or "" if there are no rows."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines]) if lines else ""


# Pages in HTML and Markdown from the Jinja templates of this package. Every text is escaped, and
# characters that are not printable are replaced: texts of artifacts, tasks and plugins cannot add
# markup. An undefined name is an error.


def render_page(template: str, **values: Any) -> str:
    """Return the HTML page of a template, named by its path below `learngene_zoo`."""
    return open_templates().get_template(template).render(values)


def render_markdown(template: str, **values: Any) -> str:
    """Return the Markdown page of a template, named by its path below `learngene_zoo`."""
    return open_markdown_templates().get_template(template).render(values)


@cache
def open_templates() -> Environment:
    """Return the environment of the HTML templates."""
    templates = _build_environment(escape_controls)
    templates.filters["inline_markdown"] = mark_up
    return templates


@cache
def open_markdown_templates() -> Environment:
    """Return the environment of the Markdown templates.

    A value is escaped for Markdown unless it passes one of these filters, which leave nothing to
    escape: `code` (inline code), `plain` and `prose` (without special characters), `fenced` (a line
    within a block of code), `fenced_json` (lines within a block of code), or Jinja's `safe`.
    """
    from markupsafe import Markup

    templates = _build_environment(lambda value: Markup(escape_markdown(value)))
    filters: dict[str, Callable[[Any], str]] = {
        "code": format_code,
        "plain": strip_markdown,
        "prose": escape_prose,
        "fenced": lambda value: escape_fence(escape_controls(value)),
        "fenced_json": lambda data: escape_fence(
            json.dumps(make_printable(data), indent=2, ensure_ascii=False)
        ),
    }
    for name, function in filters.items():
        templates.filters[name] = lambda value, function=function: Markup(function(value))
    templates.filters["seconds"] = format_seconds
    templates.filters["thousands"] = lambda number: f"{number:,}"
    return templates


def _build_environment(escape: Callable[[str], str]) -> Environment:
    """Return an environment that applies `escape` to every string that is not `Markup`.

    Jinja then escapes for HTML every result of `escape` that is not `Markup`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def finalize(value: Any) -> Any:
        is_markup = hasattr(value, "__html__")
        return escape(value) if isinstance(value, str) and not is_markup else value

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def hash_script(script: str) -> str:
    """Return the source by which a content security policy allows this script and no other."""
    import base64
    import hashlib

    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def mark_up(sentence: str) -> Markup:
    """Return a sentence with emphasis and code for Markdown's stars and backticks."""
    from markupsafe import Markup

    escaped = escape_html(sentence)
    emphasised = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", escaped)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", emphasised))
