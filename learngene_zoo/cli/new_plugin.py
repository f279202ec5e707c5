"""`lgzoo new-plugin NAME`: create a package with an example method or suite of tasks."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template
from typing import Literal

import click

from learngene_zoo.atomic import new_folder
from learngene_zoo.cli.job import advise, make_json_option, print_lines, print_row
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import Exists, WrongCall
from learngene_zoo.method.installed import METHODS
from learngene_zoo.tasks import catalogue
from learngene_zoo.text import quote_path

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


def new_plugin(
    name: str, kind: Literal["method", "suite"], out: Path | None, as_json: bool
) -> None:
    """Write the package and print how to install and test it."""
    check_name(name)
    folder = out or Path(f"lgzoo-{name.replace('_', '-')}")
    if folder.exists():
        raise Exists(folder, can_replace=False)
    with new_folder(folder) as draft:
        for file, text in render_package(name, kind).items():
            (draft / file).parent.mkdir(exist_ok=True)
            (draft / file).write_text(text, encoding="utf-8")
    if as_json:
        print_row({"path": str(folder)}, as_json=True)
        return
    print_lines([str(folder)])
    advise(f"cd {quote_path(folder)} && pip install -e '.[test]' && pytest")


def render_package(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin: paths within it, and their texts."""
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "constant": name.upper(),
        "class_name": "".join(word.capitalize() for word in name.split("_")),
        "title": name.replace("_", " ").capitalize(),
    }
    files = {
        file.name.removesuffix(".txt"): file.read_text("utf-8")
        for file in (TEMPLATES / kind).glob("*.txt")
    }
    texts = {
        file.replace("NAME", name): Template(text).substitute(words) for file, text in files.items()
    }
    return {
        f"tests/{file}" if file.startswith("test_") else file: text for file, text in texts.items()
    }


def check_name(name: str) -> None:
    """Raise `WrongCall` if a name is invalid for a method or a suite, or already in use."""
    if not (
        name.isascii() and name.isidentifier() and name == name.lower() and not name.startswith("_")
    ):
        raise WrongCall(
            f"{name!r} cannot name a plugin; expected lower-case letters, digits and underscores, "
            "the first a letter: my_method"
        )
    if keyword.iskeyword(name) or name == "learngene_zoo" or name.startswith("lgzoo_"):
        raise WrongCall(f"{name} cannot name a plugin, whose package is lgzoo_NAME; choose another")
    suites = {suite.name for suite in catalogue.load_suites()[0]}
    if METHODS.is_installed(name) or name in suites:
        raise WrongCall(
            f"the name {name} is already used by an installed plugin; choose another name"
        )
    if catalogue.find_entry(name) is not None:
        raise WrongCall(f"{name} is the name of a task; choose another name")


command = SettingsCommand(
    "new-plugin",
    callback=new_plugin,
    help="Create a package with an example method or suite of tasks to edit. The package can be "
    "installed and passes its contract test.",
    epilog="\b\nExamples:\n"
    "  lgzoo new-plugin my_method\n"
    "  lgzoo new-plugin my_tasks --kind suite -o plugins/my-tasks",
    params=[
        click.Argument(["name"]),
        click.Option(
            ["--kind"],
            type=click.Choice(["method", "suite"]),
            default="method",
            show_default=True,
            help="Kind of plugin: a method, or a suite of tasks.",
        ),
        click.Option(
            ["-o", "--out"],
            type=click.Path(path_type=Path),
            help="Folder of the package.  [default: lgzoo-NAME]",
        ),
        make_json_option(),
    ],
)
