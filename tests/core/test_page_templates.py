"""Pages from templates: text adds no markup, and a missing value is an error."""

from __future__ import annotations

import json

import pytest
from jinja2 import UndefinedError

from learngene_zoo.text import mark_up, open_markdown_templates, open_templates


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


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("", r"\`\|\<b\>\*[a]\(b)\`\`\`"),
        ("| code", "`<b>*[a](b)`"),
        ("| prose", "ba(b)"),
        ("| plain", "bab"),
        ("| fenced", "`|<b>*[a](b)'''"),
    ],
)
def test_text_on_a_markdown_page_adds_no_markup(filters: str, expected: str) -> None:
    template = open_markdown_templates().from_string(f"{{{{ text {filters} }}}}")
    assert template.render(text="`|<b>*[a](b)```") == expected


def test_data_on_a_markdown_page_cannot_end_its_block() -> None:
    template = open_markdown_templates().from_string("{{ data | fenced_json }}")
    page = template.render(data={"```\x1b": ["```\u202e"]})
    assert json.loads(page) == {"'''\\x1b": ["'''\\u202e"]}
