"""Laws for every function, setting, command and preset of the tree."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import shlex
import typing
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import learngene_zoo
from learngene_zoo.cli.main import TABLE, main
from learngene_zoo.method.installed import METHODS
from learngene_zoo.settings import to_json
from learngene_zoo.testing import make_tiny_ancestry

ROOT = Path(learngene_zoo.__file__).resolve().parents[1]
FILES = [
    file
    for folder in ("learngene_zoo", "plugins")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
OPTIONS = json.loads((ROOT / "tests" / "data" / "options.json").read_text())


# Contracts of plugins are checked without a network unless it is asked for.
CAREFUL = {"check_suite"}
# Here it is known that the run is not offline.
ONLINE = {"translate_hub_errors(pinned, f'{pinned} cannot be fetched', progress=progress)"}


@cache
def parse_nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(file.read_text())))


def functions(file: Path) -> list[ast.FunctionDef]:
    return [node for node in parse_nodes(file) if isinstance(node, ast.FunctionDef)]


def parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    return [item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


@pytest.mark.slow
def test_nothing_is_offline_unless_it_is_asked_to_be() -> None:
    for file in FILES:
        for function in functions(file):
            names = [item.arg for item in function.args.args]
            defaults = dict(zip(reversed(names), reversed(function.args.defaults)))
            defaults |= dict(
                zip([item.arg for item in function.args.kwonlyargs], function.args.kw_defaults)
            )
            default = defaults.get("offline")
            if default is not None:
                assert isinstance(default, ast.Constant), f"{file}:{function.lineno}"
                is_contract = function.name in CAREFUL
                assert default.value is is_contract, f"{file}:{function.lineno}"


@pytest.mark.slow
def test_offline_reaches_every_call_that_could_go_to_the_network() -> None:
    """A function that has `offline` or a run passes it to the functions it calls."""
    defined: dict[tuple[str, str], bool] = {}  # by module and function, whether it asks
    for file in FILES:
        for function in functions(file):
            defined[file.stem, function.name] = "offline" in parameters(function)
    by_name: dict[str, list[bool]] = defaultdict(list)
    for (_, name), asking in defined.items():
        by_name[name].append(asking)
    forgotten = []
    for file in FILES:
        origins = imports(file)
        for function in functions(file):
            known = {"offline", "run"} & set(parameters(function))
            for call in ast.walk(function) if known else []:
                if isinstance(call, ast.Call) and asks(call, origins, file.stem, defined, by_name):
                    text = ast.unparse(call)
                    is_told = "offline" in text or any(
                        isinstance(getattr(arg, "value", 0), bool) for arg in call.args
                    )
                    if not is_told and text not in ONLINE:
                        forgotten.append(f"{file.relative_to(ROOT)}:{call.lineno}: {text[:80]}")
    assert forgotten == []


def imports(file: Path) -> dict[str, str]:
    """Return the last part of the module that each name of a file is imported from."""
    nodes = [node for node in parse_nodes(file) if isinstance(node, ast.ImportFrom)]
    return {
        name.asname or name.name: (node.module or "").rpartition(".")[2]
        for node in nodes
        for name in node.names
    }


def asks(
    call: ast.Call,
    origins: dict[str, str],
    own: str,
    defined: dict[tuple[str, str], bool],
    by_name: dict[str, list[bool]],
) -> bool:
    """Return whether a called function has a parameter `offline`.

    If its module is unknown, all functions of that name must have it.
    """
    if isinstance(call.func, ast.Attribute):
        name, module = call.func.attr, getattr(call.func.value, "id", "")
    else:
        name = getattr(call.func, "id", "")
        module = origins.get(name, own)
    if (module, name) in defined:
        return defined[module, name]
    every = by_name.get(name, [])
    return bool(every) and all(every)


def modules() -> Iterator[ModuleType]:
    for package in (
        "learngene_zoo",
        *sorted(item.name for item in (ROOT / "plugins").glob("lgzoo_*")),
    ):
        root = importlib.import_module(package)
        yield root
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not info.name.endswith("__main__"):
                yield importlib.import_module(info.name)


def literals(hint: typing.Any) -> tuple[typing.Any, ...] | None:
    """Return the words of a Literal annotation; None for another annotation."""
    if typing.get_origin(hint) is typing.Annotated:
        return literals(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return None


def test_defaults_are_among_the_words_that_are_allowed() -> None:
    wrong, seen = [], 0
    for module in modules():
        for _, cls in inspect.getmembers(module, dataclasses.is_dataclass):
            if not isinstance(cls, type) or cls.__module__ != module.__name__:
                continue
            try:
                hints = typing.get_type_hints(cls, include_extras=True)
            except NameError:  # of a class that is imported for type checkers only
                continue
            for field in dataclasses.fields(cls):
                words = literals(hints.get(field.name))
                if words is not None and field.default is not dataclasses.MISSING:
                    seen += 1
                    if field.default not in words:
                        wrong.append(
                            f"{cls.__module__}.{cls.__qualname__}.{field.name} = {field.default!r}"
                        )
    assert wrong == []
    assert seen > 30


@pytest.mark.parametrize("name", sorted(METHODS.references()))
def test_a_smoke_preset_looks_at_a_few_images(name: str) -> None:
    method = METHODS.load(name)
    if "smoke" not in method.presets:
        pytest.skip("this method has none")
    spec = make_tiny_ancestry().spec
    specs = (
        [spec, spec.with_(width=2 * spec.width, heads=2 * spec.heads)]
        if name == "snnet"
        else [spec]
    )
    works = method.presets["smoke"].work(specs, [10**6])
    most = 300 if name == "elastic" else 64  # elastic: 12 images for each of 24 pruned models
    assert all(work.images <= most for work in works), to_json(method.presets["smoke"])


# The command line.


def commands() -> dict[str, click.Command]:
    context = click.Context(main)
    return {name: main.get_command(context, name) for name in TABLE}  # type: ignore[attr-defined]


def lines_of_options(name: str) -> list[str]:
    """Return each option of a command with aliases and metavar, as in the help."""
    text = CliRunner().invoke(main, [name, "--help"], terminal_width=200).stdout
    matches = re.findall(r"^  (-\S.*?)(?:  |$)", text, flags=re.M)
    lines = [re.sub(r"\[.*\]", "", line).strip() for line in matches]
    return [*lines, *(alone for line in lines for alone in split_aliases(line))]


def split_aliases(line: str) -> list[str]:
    """Return each alias of an option alone: "--layers, --depth INTEGER" is two options with one
    metavar.
    """
    aliases, _, metavar = line.replace(", ", ",").partition(" ")
    return [f"{alias} {metavar}".strip() for alias in aliases.split(",")]


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_no_option_that_was_published_goes_or_changes_its_name(name: str) -> None:
    """Users' scripts depend on them. New ones may be added to tests/data/options.json."""
    assert set(OPTIONS[name]) <= set(lines_of_options(name))


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_examples_of_a_commands_help_are_calls_of_it(name: str) -> None:
    text = CliRunner().invoke(main, [name, "--help"]).stdout
    after = re.split(r"\n *Examples?:\n", text)[-1]
    calls = [line.strip() for line in after.splitlines() if line.strip().startswith("lgzoo ")]
    assert any(line.startswith(f"lgzoo {name}") for line in calls), f"{name} has no examples"
    for line in calls:
        words = shlex.split(line, comments=True)
        command = commands()[words[1]]
        if not isinstance(command, click.Group) and not command.ignore_unknown_options:
            command.make_context(
                words[1], words[2:], parent=click.Context(main), resilient_parsing=True
            )
