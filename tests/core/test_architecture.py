"""Imports go downwards only, and cold modules stay cold. Read from the source; a subprocess checks
the real imports.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import learngene_zoo
from learngene_zoo import plugin
from learngene_zoo.method.installed import METHODS
from learngene_zoo.tasks import catalogue

PACKAGE = Path(learngene_zoo.__file__).resolve().parent
PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
HOT = {
    "torch",
    "timm",
    "numpy",
    "datasets",
    "rich",
    "torchvision",
    "accelerate",
    "sklearn",
    "matplotlib",
    "safetensors",
    "jinja2",
    "markupsafe",
    "tokenizers",
    "transformers",
}

# The folders and modules directly below learngene_zoo, from the lowest ring to the highest. Imports
# go down, or stay in a folder.
RINGS = (
    (
        "atomic colours errors intervals ownership plotting registry seeds settings storage"
        " terminal text version"
    ),
    "families",
    "runs",
    "hub",
    "artifacts",
    "pretrained",
    "publishing tasks",
    "training",
    "method",
    "lifecycle",
    "plugin",
    "bench",
    "cli testing timm torch_hub __main__",
)
RING_OF = {name: ring for ring, names in enumerate(RINGS) for name in names.split()}


def sources() -> dict[str, Path]:
    """Return every module of the package and of the plugins in tree, by its full name."""
    results = {}
    for root in (PACKAGE.parent, PLUGINS):
        for package in [PACKAGE] if root == PACKAGE.parent else sorted(root.glob("lgzoo_*")):
            for file in sorted(package.rglob("*.py")):
                parts = file.relative_to(root).with_suffix("").parts
                results[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return results


SOURCES = sources()
FACADE = {
    name: f"{home}.{original}" if home == "learngene_zoo" else home
    for name, (home, original) in plugin._HOME_OF.items()
}


def imports(name: str, *, everywhere: bool) -> Iterator[str]:
    """Return the modules that a module imports: at its top, or everywhere, including for type
    checkers.
    """
    file = SOURCES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    yield from _in(ast.parse(file.read_text(encoding="utf-8")).body, package, everywhere)


def _in(body: list[ast.stmt], package: str, everywhere: bool) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"a relative import in {package}"
            base = node.module or ""
            yield from (_home(base, a.name) for a in node.names)
        elif (
            isinstance(node, ast.If)
            and "TYPE_CHECKING" in ast.unparse(node.test)
            and not everywhere
        ):
            yield from _in(node.orelse, package, everywhere)
        elif everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _in(getattr(node, field, []), package, everywhere)
            for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                yield from _in(handler.body, package, everywhere)


def _home(base: str, name: str) -> str:
    """Return the module that `from base import name` imports; facades are resolved."""
    if base == "learngene_zoo.plugin":
        return FACADE[name]
    return f"{base}.{name}" if f"{base}.{name}" in SOURCES else base


def ring_of(name: str) -> int | None:
    """Return the ring of one of our modules.

    None for the package itself, whose names are imported lazily.
    """
    parts = name.split(".")
    return RING_OF[parts[1]] if len(parts) > 1 else None


def test_every_folder_and_module_has_a_ring() -> None:
    top = {name.split(".")[1] for name in SOURCES if name.startswith("learngene_zoo.")}
    assert top == set(RING_OF)


def test_imports_go_down_only() -> None:
    wrong = []
    for name in (name for name in SOURCES if name.startswith("learngene_zoo.")):
        for used in imports(name, everywhere=True):
            if used.startswith("learngene_zoo.") and ring_of(used) > ring_of(name):
                wrong.append(f"{name} imports {used}, of a higher ring")
            if used.startswith("lgzoo_"):
                wrong.append(
                    f"{name} imports the plugin {used}; the core reaches plugins through entry"
                    " points only"
                )
    assert not wrong, "\n".join(wrong)


def test_there_are_no_circles() -> None:
    """Imports at the top, inside functions and for type checkers are included."""
    graph = {
        name: {used for used in imports(name, everywhere=True) if used in SOURCES}
        for name in SOURCES
    }
    for name in (
        "learngene_zoo",
        "learngene_zoo.plugin",
    ):  # facades: what lies behind them they fetch later
        graph[name] = set()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from error


# What people name when they build a model themselves; everything else asks the family of a spec.
NAME_A_FAMILY = {
    "learngene_zoo",
    "learngene_zoo.plugin",
    "learngene_zoo.timm",
    "learngene_zoo.cli.train",
}


def test_generic_modules_name_no_family() -> None:
    wrong = []
    for name in (
        name for name in SOURCES if name.startswith("learngene_zoo") and name not in NAME_A_FAMILY
    ):
        package = ".".join(name.split(".")[:3])
        named = {
            used
            for used in imports(name, everywhere=True)
            if re.match(r"learngene_zoo\.families\.\w+(\.|$)", used)
        }
        others = {
            used
            for used in named
            if (PACKAGE / "families" / used.split(".")[2]).is_dir() and not used.startswith(package)
        }
        wrong += [f"{name} imports {used}; ask the spec's family" for used in sorted(others)]
    assert not wrong, "\n".join(wrong)


def test_plugins_use_the_facade_and_their_own_package() -> None:
    wrong = []
    for name in (name for name in SOURCES if name.startswith("lgzoo_")):
        for used in imports(name, everywhere=True):
            root = used.split(".")[0]
            if root.startswith("lgzoo_") and root != name.split(".")[0]:
                wrong.append(f"{name} imports another plugin, {used}")
        text = SOURCES[name].read_text(encoding="utf-8")
        past = set(re.findall(r"^\s*(?:from|import) (learngene_zoo\S*)", text, re.MULTILINE)) - {
            "learngene_zoo.plugin"
        }
        wrong += [f"{name} imports {used}, not learngene_zoo.plugin" for used in sorted(past)]
    assert not wrong, "\n".join(wrong)


# What only reads imports nothing hot: these modules, and every plugin's module that an entry point
# names.
COLD = (
    "atomic colours errors intervals ownership plotting registry seeds settings storage terminal"
    " text version method lifecycle plugin torch_hub families.family families.spec"
    " families.picture_format families.picture_spec families.text_spec"
    " families.timm_config families.vit runs hub artifacts pretrained publishing tasks.task tasks.catalogue bench cli"
)
HOT_OF_OURS = {
    "learngene_zoo.artifacts.descendant",
    "learngene_zoo.families.vit.host",
    "learngene_zoo.families.vit.modules",
    "learngene_zoo.lifecycle.comparison",
    "learngene_zoo.lifecycle.interface",
    "learngene_zoo.lifecycle.runtime_checks",
    "learngene_zoo.lifecycle.runtimes",
    "learngene_zoo.lifecycle.recommendation",
    "learngene_zoo.lifecycle.shrinking.ranking",
    "learngene_zoo.pretrained.formats.check",
    "learngene_zoo.pretrained.formats.opening",
    "learngene_zoo.pretrained.formats.renames",
    "learngene_zoo.pretrained.formats.to_dinov2",
    "learngene_zoo.pretrained.formats.to_open_clip",
    "learngene_zoo.pretrained.formats.to_transformers",
}


def cold() -> list[str]:
    """Return the modules that must not import heavy packages at their top."""
    places = [f"learngene_zoo.{name}" for name in COLD.split()]
    ours = [
        name
        for name in SOURCES
        if any(name == package or name.startswith(f"{package}.") for package in places)
    ]
    plugins = {**METHODS.references(), **catalogue.SUITES.references()}
    plugged = [reference.partition(":")[0] for reference in plugins.values()]
    return [name for name in [*ours, *plugged] if name in SOURCES and name not in HOT_OF_OURS]


def test_cold_modules_import_nothing_hot_at_their_top() -> None:
    waiting = cold()
    seen: dict[str, str] = dict.fromkeys(waiting, "")
    wrong = []
    while waiting:
        name = waiting.pop()
        for used in imports(name, everywhere=False):
            if used.split(".")[0] in HOT:
                wrong.append(f"{name} imports {used} at its top{seen[name]}")
            elif used in SOURCES and used not in seen:
                seen[used] = f", and {name} imports it at its own"
                waiting.append(used)
    assert not wrong, "\n".join(wrong)


def test_torch_code_of_method_plugins_lies_in_modules() -> None:
    """Plots import matplotlib and numpy at their top, but no module imports plots at its top."""
    methods = {reference.partition(".")[0] for reference in METHODS.references().values()}
    wrong = []
    for name in (name for name in SOURCES if name.partition(".")[0] in methods):
        uses_torch = any(used.split(".")[0] in HOT for used in imports(name, everywhere=False))
        if uses_torch != (".modules." in name) and ".plot" not in name:
            wrong.append(name)
    assert not wrong


QUICK = """
import sys
from click.testing import CliRunner
from learngene_zoo.artifacts import shelf
from learngene_zoo.cli.main import main

empty = "lsamd-mini" not in shelf.list_names()  # a fresh checkout before the shelf is built
calls = [
    ["--help"], ["list"], ["list", "--json"], ["show", "lsamd", "--json"], ["show", "mini"], ["show", "food101"], ["extract", "--help"], ["expand", "--help"],
    ["plan", "lsamd", "--ancestry", "timm:deit_base_patch16_224", "--json"],
    ["plan", "scratch", "--ancestry", "timm:deit_base_patch16_224", "--json"],
]
for call in calls:
    result = CliRunner().invoke(main, call)
    assert (empty and call[0] == "show") or result.exit_code == 0, (call, result.output, result.exception)
    hot = {"torch", "timm", "datasets", "numpy"} & set(sys.modules)
    assert not hot, f"{call} imported {sorted(hot)}"
"""


def test_commands_that_only_read_import_no_machinery() -> None:
    process = subprocess.run(
        [sys.executable, "-c", QUICK],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr


def environment() -> dict[str, str]:
    """Return the environment of this process, with its import path."""
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
