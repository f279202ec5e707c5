"""How many rooms a reader must open: modules that run for two commands, sizes of files and functions, import circles.

    python benchmarks/rooms.py            about a minute on one core; exits with 1 if a target is missed
    python benchmarks/rooms.py --list     the modules too

A module runs if at least one function that it defines is called; its body, and what that calls, does not count. The commands are
`lgzoo extract lsamd --preset smoke` and `lgzoo expand` to a folder, each traced in a process of its own.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pages import ROOT

SOURCES = (ROOT / "learngene_zoo", *sorted((ROOT / "plugins").glob("lgzoo_*")))
COMMANDS = {"extract": ["extract", "lsamd", "--preset", "smoke", "-q"], "expand": ["expand", "--layers", "7", "-q"]}
MOST_RUN = {"extract": 45, "expand": 25}
MOST_FILES, MOST_SHORT, MOST_LINES, SHORT = 220, 40, 29_000, 60


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the modules that run")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    given, words = parser.parse_known_args()
    if given.trace:
        given.trace.write_text(json.dumps(modules_run(words)))
        return
    found = {**measured_sizes(), "circles": len(in_circles())}
    for name, modules in traced().items():
        found[f"modules that {name} runs"] = len(modules)
        if given.list:
            print("\n".join([f"{name}:", *(f"  {module}" for module in modules)]))
    targets = {f"modules that {name} runs": most for name, most in MOST_RUN.items()}
    targets |= {"files": MOST_FILES, f"files under {SHORT} lines": MOST_SHORT, "lines": MOST_LINES, "circles": 0}
    for name, value in found.items():
        print(f"{name:28} {value:7}" + (f"   at most {targets[name]}" if name in targets else ""))
    missed = [name for name, most in targets.items() if found[name] > most]
    sys.exit(f"above the target: {', '.join(missed)}" if missed else 0)


def traced() -> dict[str, list[str]]:
    """The modules that run for each command, one command after the other in an empty folder."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            place = Path(folder) / f"{name}.json"
            subprocess.run([sys.executable, __file__, "--trace", place, *words], cwd=folder, check=True)
            found[name] = json.loads(place.read_text())
    return found


def modules_run(words: list[str]) -> list[str]:
    """Run one `lgzoo` command in this process; the modules of ours of which functions were called."""
    from learngene_zoo.cli.main import main as lgzoo

    called: set[CodeType] = set()
    importing = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal importing
        if frame.f_code.co_name == "<module>":
            importing += (event == "call") - (event == "return")
        elif event == "call" and not importing:
            called.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        lgzoo(words, standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    files = {Path(code.co_filename) for code in called if _is_function(code)}
    return sorted(_name(file) for file in files if any(file.is_relative_to(source) for source in SOURCES))


def _is_function(code: CodeType) -> bool:
    """Not the body of a module or a class, nor a comprehension."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and (code.co_name[0] != "<" or code.co_name == "<lambda>")


def _name(file: Path) -> str:
    top = next(source.parent for source in SOURCES if file.is_relative_to(source))
    return ".".join(file.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def measured_sizes() -> dict[str, int]:
    """Files and lines of the package and the plugins, and the lengths of their functions."""
    texts = [file.read_text(encoding="utf-8") for source in SOURCES for file in source.rglob("*.py")]
    lines = [text.count("\n") for text in texts]
    functions = sorted(length for text in texts for length in _lengths(text))
    return {
        "files": len(lines),
        f"files under {SHORT} lines": sum(count < SHORT for count in lines),
        "lines": sum(lines),
        "lines of a function, median": round(statistics.median(functions)),
        "lines of a function, p90": functions[int(0.9 * len(functions))],
        "lines of a function, most": functions[-1],
    }


def _lengths(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def in_circles() -> list[str]:
    """The modules in import circles of any kind, or on the way from one to another: see tests/core/test_architecture.py."""
    sys.path.insert(0, str(ROOT / "tests" / "core"))
    import test_architecture as architecture

    modules, facades = {*architecture.SOURCES}, ("learngene_zoo", "learngene_zoo.plugin")
    imports = {name: {*architecture.imports(name, everywhere=True)} & modules for name in modules}
    graph = {name: set() if name in facades else used for name, used in imports.items()}
    while ends := [name for name in graph if not graph[name] & graph.keys() or not _imported(name, graph)]:
        for name in ends:
            graph.pop(name)
    return sorted(graph)


def _imported(name: str, graph: Mapping[str, set[str]]) -> bool:
    return any(name in used for used in graph.values())


if __name__ == "__main__":
    main()
