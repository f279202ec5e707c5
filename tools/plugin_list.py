"""Write docs/plugin_list.md, the list of plugins, from the entry points of the checkout.

    python tools/plugin_list.py           write the page
    python tools/plugin_list.py --check   exit with 1 if the page is out of date

Packages of others are in the table `OTHERS`.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "plugin_list.md"
# Packages of others: name on PyPI, address, a sentence.
OTHERS: tuple[tuple[str, str, str], ...] = ()
TEXT = """\
# Plugins

`python tools/plugin_list.py` writes this page from the entry points of the package.
[Writing a plugin](plugins.md) describes how to add one.

## In learngene_zoo

These packages are installed with learngene_zoo. `LGZOO_PLUGINS=NAME,NAME` restricts a process to
the named packages, methods and suites.

| package | content | methods | suites of tasks |
|---|---|---|---|
{rows}

## Packages of others

{others}

A package is added to this list by a pull request that adds a line to `OTHERS` in
`tools/plugin_list.py`. Its tests call `check_method` or `check_suite`.
"""


def main() -> None:
    """Write or check the page."""
    text = build_page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE.name} is out of date; run python tools/plugin_list.py")


def build_page() -> str:
    """Return the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tables = project["entry-points"]
    methods = group_by_package(tables["learngene_zoo.methods"])
    suites = group_by_package(tables["learngene_zoo.suites"])
    rows = [
        f"| `{package}` | {describe_package(package)} | {format_names(methods.get(package, ()))} "
        f"| {format_names(suites.get(package, ()))} |"
        for package in sorted({*methods, *suites})
    ]
    other_lines = [f"- [{name}]({address}): {sentence}" for name, address, sentence in OTHERS]
    return TEXT.format(rows="\n".join(rows), others="\n".join(other_lines) or "None is listed yet.")


def group_by_package(references: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the entry points of each package."""
    groups: dict[str, list[str]] = {}
    for name, reference in sorted(references.items()):
        groups.setdefault(reference.partition(":")[0].partition(".")[0], []).append(name)
    return groups


def describe_package(package: str) -> str:
    """Return the first sentence of a package's docstring, without its full stop."""
    source = (ROOT / "plugins" / package / "__init__.py").read_text(encoding="utf-8")
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    return text.partition(". ")[0].removesuffix(".")


def format_names(names: list[str] | tuple[()]) -> str:
    """Return the names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    main()
