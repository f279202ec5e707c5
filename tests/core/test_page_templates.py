"""Pages from templates: text adds no markup, and a missing value is an error."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from learngene_zoo.pages import mark_up, open_templates


def render(source: str, **values: object) -> str:
    return open_templates().from_string(source).render(values)


def test_text_cannot_add_markup_or_control_characters() -> None:
    page = render('<p title="{{ text }}">{{ text }}</p>', text='"<script>\x1b[2J\u202e')
    assert page.count("<") == 2
    assert page.count('"') == 2
    assert page.isprintable()


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="absent"):
        render("{{ absent }}")


def test_emphasis_and_code_are_the_only_markup_of_a_sentence() -> None:
    assert mark_up("*<b>* and `a & b`") == "<em>&lt;b&gt;</em> and <code>a &amp; b</code>"
