"""`lgzoo new-plugin NAME`: a package to start from, whose contract test passes as it is written."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Literal

import click

from learngene_zoo.atomic import new_folder
from learngene_zoo.cli.job import advise, json_option, print_lines, print_row
from learngene_zoo.errors import Exists, WrongCall
from learngene_zoo.method import METHODS
from learngene_zoo.tasks import catalogue
from learngene_zoo.text import shell_word

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


def new_plugin(name: str, kind: Literal["method", "suite"], out: Path | None, as_json: bool) -> None:
    """Write the package and say how it is installed and tested."""
    check_name(name)
    place = out or Path(f"lgzoo-{name.replace('_', '-')}")
    if place.exists():
        raise Exists(place)
    with new_folder(place) as draft:
        for file, text in package(name, kind).items():
            (draft / file).parent.mkdir(exist_ok=True)
            (draft / file).write_text(text, encoding="utf-8")
    if as_json:
        print_row({"path": str(place)}, as_json=True)
        return
    print_lines([str(place)])
    advise(f"cd {shell_word(str(place))} && pip install -e '.[test]' && pytest")


def package(name: str, kind: str) -> dict[str, str]:
    """The files of a new plugin: their paths in it, and their texts."""
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "constant": name.upper(),
        "title": name.replace("_", " ").capitalize(),
    }
    files = {file.name.removesuffix(".txt"): file.read_text("utf-8") for file in (TEMPLATES / kind).glob("*.txt")}
    texts = {file.replace("NAME", name): Template(text).substitute(words) for file, text in files.items()}
    return {f"tests/{file}" if file.startswith("test_") else file: text for file, text in texts.items()}


def check_name(name: str) -> None:
    """Raises `WrongCall` for what cannot name a method or a suite, or does already."""
    if not (name.isascii() and name.isidentifier() and name == name.lower() and not name.startswith("_")):
        raise WrongCall(
            f"{name!r} cannot name a plugin; expected lower-case letters, digits and underscores: my_method"
        )
    taken = {*METHODS.references(), *(suite.name for suite in catalogue.suites()[0])}
    if name in taken:
        raise WrongCall(f"the name {name} is taken by what is installed; choose another")


command = click.Command(
    "new-plugin",
    callback=new_plugin,
    help="Write a package with a method or a suite of tasks to start from: it installs, works and passes its contract test.",
    epilog="\b\nExamples:\n  lgzoo new-plugin my_method\n  lgzoo new-plugin my_tasks --kind suite -o plugins/my-tasks",
    params=[
        click.Argument(["name"]),
        click.Option(
            ["--kind"],
            type=click.Choice(["method", "suite"]),
            default="method",
            show_default=True,
            help="What it brings: a method, or a suite of tasks.",
        ),
        click.Option(
            ["-o", "--out"], type=click.Path(path_type=Path), help="Folder of the package.  [default: lgzoo-NAME]"
        ),
        json_option(),
    ],
)
