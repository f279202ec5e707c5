"""Foreign text is shown unchanged if it is harmless, and escaped otherwise."""

from __future__ import annotations

import json
import shlex
import unicodedata

import pytest

from learngene_zoo.text import (
    escape_controls,
    escape_formula,
    escape_markdown,
    format_json,
    quote_path,
    quote_word,
)

ORDINARY = [
    "a b",
    "déjà vu",
    "小さな葉",
    "ورقة",
    "क्ष",
    "می‌خواهم",
    "👩‍🌾",
    "x̄ ± 2σ",
    "a/b\\c",
    "[red]x[/red]",
    "$1 & <b>",
]
HOSTILE = {
    "\x1b[31mred": "\\x1b[31mred",
    "\x1b]8;;http://x\x07link": "\\x1b]8;;http://x\\x07link",
    "a\nerror: b": "a error: b",
    "a\r\tb": "a  b",
    "\x9b2J": "\\x9b2J",
    "abc\u202etxt.exe": "abc\\u202etxt.exe",
    "\u2066a\u2069": "\\u2066a\\u2069",
    "a\u2028b": "a b",
    "\ufeffa": "\\ufeffa",
    "caf\udce9": "caf\\udce9",
    "\U000e0041": "\\U000e0041",
}


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape_controls(text) == text
    assert format_json([text]) == json.dumps([text], ensure_ascii=False)
    assert shlex.split(quote_word(text)) == [text]
    assert quote_path(f"-{text}") == quote_word(f"./-{text}")


@pytest.mark.parametrize("text", HOSTILE)
def test_what_controls_a_terminal_is_shown_by_its_number(text: str) -> None:
    assert escape_controls(text) == HOSTILE[text]
    assert shlex.split(quote_word(text)) == [HOSTILE[text]]


@pytest.mark.slow
def test_no_character_of_unicode_passes_that_could_control_anything() -> None:
    kept = {letter for letter in map(chr, range(0x110000)) if escape_controls(letter) == letter}
    assert {unicodedata.category(letter) for letter in kept - {"\u200c", "\u200d"}}.isdisjoint(
        {"Cc", "Cf", "Cs", "Zl", "Zp"}
    )


@pytest.mark.parametrize("text", [*HOSTILE, *ORDINARY])
@pytest.mark.parametrize("indent", [None, 1])
def test_json_says_the_same_and_holds_nothing_that_controls(text: str, indent: int | None) -> None:
    written = format_json({"a": [text]}, indent)
    assert json.loads(written) == {"a": [text]}
    assert escape_controls(written.replace("\n", "")) == written.replace("\n", "")


def test_markdown_has_no_tags_links_code_or_columns() -> None:
    assert escape_markdown("<img src=x>|`a`\\ [a](javascript:x)\n# b") == (
        "\\<img src=x\\>\\|\\`a\\`\\\\ [a]\\(javascript:x) # b"
    )
    assert escape_markdown("61.0 [60.1, 62.3]") == "61.0 [60.1, 62.3]"


def test_a_spreadsheet_computes_no_text() -> None:
    assert [escape_formula(v) for v in ("=1+1", "@x", "-a", "a=b", -1.5, None)] == [
        "'=1+1",
        "'@x",
        "'-a",
        "a=b",
        -1.5,
        None,
    ]
