"""HTML pages from the Jinja templates of this package.

Every text is escaped, and characters that are not printable are replaced: texts of artifacts, tasks
and plugins cannot add markup. An undefined name is an error.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.text import html, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render_page(template: str, **values: Any) -> str:
    """Return the page of a template, named by its path below `learngene_zoo`."""
    return open_templates().get_template(template).render(values)


@cache
def open_templates() -> Environment:
    """Return the environment of all templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def finalize(value: Any) -> Any:
        is_markup = hasattr(value, "__html__")
        return printable(value) if isinstance(value, str) and not is_markup else value

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["inline_markdown"] = mark_up
    return templates


def mark_up(text: str) -> Markup:
    """Return a sentence with emphasis and code for Markdown's stars and backticks."""
    from markupsafe import Markup

    escaped = html(text)
    emphasised = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", escaped)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", emphasised))
