"""`lgzoo list learngenes --html`: one page of the shelf, which loads nothing."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import CardRecord, CardResults, Measured
from learngene_zoo.cli.main import main
from learngene_zoo.families.family import count_cost
from learngene_zoo.lifecycle.shelf_page import (
    _has_overlap,
    _place_label,
    build_shelf_page,
    list_sizes,
)
from learngene_zoo.text import hash_script

HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b"


class Reader(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page() -> str:
    return build_shelf_page()


def read_commands(page: str) -> list[str]:
    codes = re.findall(r"<code>(.*?)</code>", page)
    return [unescape(re.sub(r"</?span>", "", text)) for text in codes]


def test_every_learngene_has_rows_with_its_results(page: str) -> None:
    rows = re.findall(r"<tr data-method=.*?</tr>", page, re.S)
    for name in shelf.list_learngenes():
        config = read_config(shelf.find_cards_folder() / name)
        sizes = list_sizes(name, config)
        shown = [row for row in rows if f"<td>{name}</td>" in row]
        assert len(shown) == len(sizes) >= 1
        assert all(f'data-family="{config.spec.family}"' in row for row in shown)
        for size in sizes:
            for accuracy in size.accuracy.values():
                assert any(f">{100 * accuracy:.1f}</td>" in row for row in shown)


def test_the_filters_offer_what_the_rows_have(page: str) -> None:
    for name, column in (("method", "method"), ("family", "family"), ("task", "task")):
        offered = re.search(rf'<select name="{name}">(.*?)</select>', page, re.S)
        assert offered is not None
        values = set(re.findall(r"<option>(.*?)</option>", offered[1]))
        assert values == set(re.findall(rf' data-{column}="([^"]+)"', page))


@pytest.mark.slow
def test_every_command_builds_the_size_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    def expand(folder: Path, *, target: Any, expander: Any, **_: Any) -> Any:
        config = read_config(folder)
        member = replace(target, classes=10)
        built.extend([lifecycle.plan(folder, expander=expander, target=member), config])
        raise SystemExit(0)

    monkeypatch.setattr(lifecycle, "expand", expand)
    for name in shelf.list_learngenes():
        for size in list_sizes(name, read_config(shelf.find_cards_folder() / name)):
            built.clear()
            result = CliRunner().invoke(main, shlex.split(size.command)[1:])
            assert result.exit_code == 0, (size.command, result.stderr)
            members = [
                member
                for member in built[0]
                if (member.spec.layers, member.spec.width) == (size.layers, size.width)
            ]
            assert size.params in {count_cost(member.spec).params for member in members}, (
                size.command
            )


def test_the_page_loads_nothing_and_is_small(page: str) -> None:
    assert len(page.encode()) < 300_000
    tags = Reader(page).tags
    assert not [tag for tag, attrs in tags if {"src", "href", "action"} & attrs.keys()]
    assert not re.search(r"https?://", page)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.S)
    [policy] = [attrs["content"] for tag, attrs in tags if "http-equiv" in attrs]
    assert f"script-src '{hash_script(script)}'" in str(policy)
    assert "default-src 'none'" in str(policy)


def test_text_of_cards_adds_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Measured(
        task=HOSTILE, layers=2, width=96, params=10, flops=1, images=1, accuracy={"descendant": 0.5}
    )
    worth = CardResults(command=HOSTILE, split=HOSTILE, how=HOSTILE, rows=(row,))

    def read_hostile(folder: Path) -> Any:
        return replace(read_config(folder), method=HOSTILE, card=CardRecord(worth=worth))

    monkeypatch.setattr("learngene_zoo.lifecycle.shelf_page.read_config", read_hostile)
    monkeypatch.setattr(shelf, "list_learngenes", lambda: ["lsamd-mini"])
    page = build_shelf_page()
    assert "<img" not in page
    assert "\x1b" not in page
    assert {tag for tag, _ in Reader(page).tags} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "p", "form", "label", "select"),
        *("option", "button", "output", "figure", "svg", "line", "text", "circle", "figcaption"),
        *("div", "table", "thead", "tbody", "tr", "th", "td", "code", "span", "script"),
    }


def test_a_learngene_without_results_has_a_row_and_no_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read_bare(folder: Path) -> Any:
        return replace(read_config(folder), card=None)

    monkeypatch.setattr("learngene_zoo.lifecycle.shelf_page.read_config", read_bare)
    page = build_shelf_page()
    assert "lgzoo expand lsamd-mini" in read_commands(page)
    assert "<circle" not in page


def test_the_option_writes_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["list", "learngenes", "--html", "page.html"]
    result = CliRunner().invoke(main, line)
    assert (result.exit_code, result.stdout) == (0, "page.html\n")
    assert CliRunner().invoke(main, line).exit_code == 1
    result = CliRunner().invoke(main, [*line, "--force", "--json"])
    assert json.loads(result.stdout) == {"path": "page.html"}
    for words in (["list", "--html", "x.html"], ["list", "tasks", "--html", "x.html"]):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, "lgzoo list learngenes --html FILE" in result.stderr) == (2, True)
    assert not Path("x.html").exists()


def test_labels_of_a_picture_touch_neither_points_nor_each_other() -> None:
    taken = [(96.0, 96.0, 104.0, 104.0), (300.0, 50.0, 308.0, 58.0)]
    for count in range(6):  # left, right, and four diagonals
        assert _place_label("abc", 100, 100, taken) is not None, count
    assert _place_label("abc", 100, 100, taken) is None
    for number, box in enumerate(taken):
        assert not any(_has_overlap(box, other) for other in taken[number + 1 :])
