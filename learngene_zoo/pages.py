"""Pages in HTML and Markdown from the Jinja templates of this package.

Every text is escaped, and characters that are not printable are replaced: texts of artifacts, tasks
and plugins cannot add markup. An undefined name is an error.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo import text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render_page(template: str, **values: Any) -> str:
    """Return the HTML page of a template, named by its path below `learngene_zoo`."""
    return open_templates().get_template(template).render(values)


def render_markdown(template: str, **values: Any) -> str:
    """Return the Markdown page of a template, named by its path below `learngene_zoo`."""
    return open_markdown_templates().get_template(template).render(values)


@cache
def open_templates() -> Environment:
    """Return the environment of the HTML templates."""
    templates = _build_environment(text.printable)
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

    templates = _build_environment(lambda value: Markup(text.markdown(value)))
    filters: dict[str, Callable[[Any], str]] = {
        "code": text.code,
        "plain": text.plain,
        "prose": text.prose,
        "fenced": lambda value: text.escape_fence(text.printable(value)),
        "fenced_json": lambda data: text.escape_fence(
            json.dumps(text.make_printable(data), indent=2, ensure_ascii=False)
        ),
    }
    for name, function in filters.items():
        templates.filters[name] = lambda value, function=function: Markup(function(value))
    templates.filters["seconds"] = text.human_seconds
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
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def mark_up(sentence: str) -> Markup:
    """Return a sentence with emphasis and code for Markdown's stars and backticks."""
    from markupsafe import Markup

    escaped = text.html(sentence)
    emphasised = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", escaped)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", emphasised))
