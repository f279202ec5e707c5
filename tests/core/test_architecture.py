"""Imports go down only, and cold modules stay cold. Read from the source; one subprocess sees what is really imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import learngene_zoo
from learngene_zoo import registry

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
}

# The first part of a module's name below learngene_zoo, and its ring.
RINGS = {
    0: "budget card cost errors folder intervals learngene method processes provenance recipe registry run settings shared_parts "
    "shelf sizes spec units version view workplace",
    1: "ancestry arena axes dense descendant hub_file initial spec_reading stitched surgery timm_config vit",
    2: "artifact latency tasks training",
    3: "bench demo demo_report inputs lifecycle torch_hub",
    4: "__main__ cli testing timm",
}
RING_OF = {name: ring for ring, names in RINGS.items() for name in names.split()}
COLD = ["inputs", "lifecycle", "tasks.task", "tasks.catalogue", *RINGS[0].split()]
COLD_NAMES = [f"learngene_zoo.{name}" for name in COLD]


def sources() -> dict[str, Path]:
    """Every module of the package and of the plugins in tree, by its full name."""
    found = {}
    for root in (PACKAGE.parent, PLUGINS):
        for package in [PACKAGE] if root == PACKAGE.parent else sorted(root.glob("lgzoo_*")):
            for file in sorted(package.rglob("*.py")):
                parts = file.relative_to(root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


SOURCES = sources()


def imports(name: str, *, everywhere: bool) -> Iterator[str]:
    """Full names of the modules that a module imports: at its top, or everywhere; not what only type checkers see."""
    file = SOURCES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    yield from _in(ast.parse(file.read_text(encoding="utf-8")).body, package, everywhere)


def _in(body: list[ast.stmt], package: str, everywhere: bool) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], node.module or ""]).strip(
                "."
            )
            base = base if node.level else node.module or ""
            yield from (f"{base}.{a.name}" if f"{base}.{a.name}" in SOURCES else base for a in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _in(node.orelse, package, everywhere)
        elif everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _in(getattr(node, field, []), package, everywhere)
            for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                yield from _in(handler.body, package, everywhere)


def ring(name: str) -> int | None:
    """The ring of one of our modules; None for the package itself (its names are fetched later) and for what RINGS lacks."""
    parts = name.split(".")
    return RING_OF.get(parts[1]) if len(parts) > 1 else None


def test_every_module_has_a_ring() -> None:
    top = {name.split(".")[1] for name in SOURCES if name.startswith("learngene_zoo.")}
    assert not top - set(RING_OF), "put the new module into RINGS"


def test_imports_go_down_only() -> None:
    wrong = []
    for name in SOURCES:
        own = ring(name) if name.startswith("learngene_zoo.") else None
        if own is None:
            continue
        for used in imports(name, everywhere=True):
            theirs = ring(used) if used.split(".")[0] == "learngene_zoo" else None
            if theirs is not None and theirs > own:
                wrong.append(f"{name} (ring {own}) imports {used} (ring {theirs})")
            if used.startswith("lgzoo_"):
                wrong.append(f"{name} imports the plugin {used}; the core reaches plugins through the registry only")
    assert not wrong, "\n".join(wrong)


def test_plugins_use_rings_0_to_2_and_their_own_package() -> None:
    wrong = []
    for name in (name for name in SOURCES if name.startswith("lgzoo_")):
        for used in imports(name, everywhere=True):
            root = used.split(".")[0]
            if root.startswith("lgzoo_") and root != name.split(".")[0]:
                wrong.append(f"{name} imports another plugin, {used}")
            if root == "learngene_zoo" and (ring(used) or 0) > 2:
                wrong.append(f"{name} imports {used}, of ring {ring(used)}")
    assert not wrong, "\n".join(wrong)


def test_cold_modules_import_nothing_hot_at_their_top() -> None:
    methods = [reference.partition(":")[0] for reference in registry.references().values()]
    waiting = [
        *COLD_NAMES,
        *(n for n in SOURCES if n.startswith("learngene_zoo.cli")),
        *(m for m in methods if m in SOURCES),
    ]
    waiting += [
        name for name, file in SOURCES.items() if "Cold" in (ast.get_docstring(ast.parse(file.read_text())) or "")
    ]
    seen: dict[str, str] = dict.fromkeys(waiting, "")
    wrong = []
    while waiting:
        name = waiting.pop()
        for used in imports(name, everywhere=False):
            if used.split(".")[0] in HOT:
                wrong.append(f"{name} imports {used} at its top{seen[name]}")
            elif used in SOURCES and used not in seen:
                seen[used] = f", and {name} imports {name and used} at its own"
                waiting.append(used)
    assert not wrong, "\n".join(wrong)


QUICK = """
import sys
from click.testing import CliRunner
from learngene_zoo import shelf
from learngene_zoo.cli.main import main

empty = "lsamd-mini" not in shelf.names()  # a fresh checkout before the shelf is built
calls = [
    ["--help"], ["list"], ["list", "--json"], ["show", "lsamd", "--json"], ["extract", "--help"], ["expand", "--help"],
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
    done = subprocess.run([sys.executable, "-c", QUICK], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def environment() -> dict[str, str]:
    """This process's, with its import path, so that the same packages are found."""
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
