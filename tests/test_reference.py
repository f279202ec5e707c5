"""The pages of docs/api list every public name, with a sentence and a link to its source."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import learngene_zoo as lg
from learngene_zoo import plugin, testing

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "api"
pytestmark = pytest.mark.skipif(not PAGES.is_dir(), reason="not a checkout")


def entry(name: str, documented: Any, module: ModuleType) -> str:
    """Return the line of a name or a module: the first sentence of its docstring, and a link."""
    path = Path(str(module.__file__)).relative_to(ROOT).as_posix()
    paragraph = " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) ", paragraph)[0].rstrip(".")
    return f"[`{name}`](../../{path}): {sentence}."


def entries(page: str) -> list[str]:
    """Return the items of the lists of a page, each in one line."""
    text = (PAGES / page).read_text(encoding="utf-8")
    items = re.findall(r"^- (\[`.*(?:\n  .*)*)", text, re.MULTILINE)
    return [" ".join(item.split()) for item in items]


def test_the_reference_lists_the_names_of_the_package() -> None:
    values = {name: getattr(lg, name) for name in lg.__all__ if name != "__version__"}
    expected = []
    for name, value in values.items():
        module = inspect.getmodule(value)
        assert module is not None
        expected.append(entry(name, value, module))
    assert sorted(entries("index.md")) == sorted(expected)


def test_the_reference_of_plugins_lists_the_names_of_the_facade() -> None:
    homes: dict[str, list[str]] = {}
    for name in plugin.__all__:
        home, original = plugin._HOME_OF[name]
        homes.setdefault(home if home != "learngene_zoo" else f"{home}.{original}", []).append(name)
    homes["learngene_zoo.testing"] = testing.__all__
    modules = {home: import_module(home) for home in homes}
    expected = []
    for home, module in modules.items():
        names = ", ".join(f"`{name}`" for name in homes[home])
        expected.append(f"{entry(home.partition('.')[2], module, module)} Names: {names}.")
    assert sorted(entries("plugin.md")) == sorted(expected)


def test_every_directive_follows_its_entry() -> None:
    for page in ("index.md", "plugin.md"):
        text = (PAGES / page).read_text(encoding="utf-8")
        before = {
            match[1]: text[: match.start()]
            for match in re.finditer(r"^::: (\S+)", text, re.MULTILINE)
        }
        assert before
        for directive, above in before.items():
            listed = re.findall(r"^- \[`.*\]\(\.\./\.\./(.*)\.py\)", above, re.MULTILINE)
            module = directive.replace(".", "/")
            package = f"{Path(module).parent}/__init__"
            assert {module, str(Path(module).parent), package} & set(listed), directive


def test_the_names_of_version_1_0_0_still_work_with_a_warning() -> None:
    assert not plugin.FORMER_NAMES.keys() & set(plugin.__all__)
    for former, name in plugin.FORMER_NAMES.items():
        with pytest.warns(DeprecationWarning, match=f"{former} of .* is now called {name}"):
            assert getattr(plugin, former) is getattr(plugin, name)
    with pytest.warns(DeprecationWarning, match="tiny_task of .* is now called make_tiny_task"):
        from learngene_zoo.testing import tiny_task  # type: ignore[attr-defined]
    assert tiny_task is testing.make_tiny_task
