"""Move modules and rewrite everything that names them: imports, dotted names and paths of files.

    python tools/move.py MAPPING     lines `old.module new.module`, below learngene_zoo and plugins

Folders that become packages get an `__init__.py` that only names them: describe them in it. Imports
are not sorted: run `ruff check --fix --select I .` and `ruff format .` afterwards, and the tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = {".py", ".pyi", ".md", ".toml", ".jinja", ".html", ".yml", ".txt"}
MARK = "\0"
IMPORT = re.compile(r"^(\s*)from ([\w.]+) import (\([^)]*\)|[^\n(]+)$", re.MULTILINE)
IMPORT_IN_TEXT = re.compile(r"from ([\w.]+) import (\w+)(?= *(?:;|\\n|\"))")


def main() -> None:
    """Move the modules of a mapping, and rewrite the files that name them."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    moves = dict(line.split() for line in lines if line.strip() and not line.startswith("#"))
    for old, new in moves.items():
        source, target = find_file(old), find_file(new)
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in target.parents:
            if folder in (ROOT, ROOT / "plugins"):
                break
            if not (folder / "__init__.py").exists() and source != folder / "__init__.py":
                (folder / "__init__.py").write_text(f'"""{folder.name}."""\n', encoding="utf-8")
                subprocess.run(["git", "add", "-N", folder / "__init__.py"], cwd=ROOT, check=True)
        subprocess.run(["git", "mv", source, target], cwd=ROOT, check=True)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    for name in tracked.stdout.decode().splitlines():
        path = ROOT / name
        if path.suffix not in TEXT or not path.is_file() or name == "CHANGELOG.md":
            continue
        before = path.read_text(encoding="utf-8")
        after = rewrite(before, moves)
        if after != before:
            path.write_text(after, encoding="utf-8")


def find_file(module: str) -> Path:
    """Return the path of a module of the package or of a plugin."""
    top = ROOT if module.startswith("learngene_zoo") else ROOT / "plugins"
    return top / Path(*module.split(".")).with_suffix(".py")


def rewrite(text: str, moves: Mapping[str, str]) -> str:
    """Return a file's text with the new names of modules."""
    # A new name may begin like an old one; it is marked, so that it is not taken for that.
    marked = {old: MARK + new for old, new in moves.items()}
    text = IMPORT.sub(lambda match: rewrite_import(match, marked), text)
    text = IMPORT_IN_TEXT.sub(lambda match: rewrite_import_in_text(match, marked), text)
    names = "|".join(re.escape(name) for name in sorted(moves, key=len, reverse=True))
    dotted = re.compile(rf"(?<![\w./{MARK}])({names})(?![\w/])")
    text = dotted.sub(lambda match: moves[match[1]], text).replace(MARK, "")
    paths = {shorten_path(old): shorten_path(new) for old, new in moves.items()}
    files = "|".join(re.escape(name) for name in sorted(paths, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])({files})(?!\w)", lambda match: paths[match[1]], text)


def shorten_path(module: str) -> str:
    """Return a module's path below `learngene_zoo` or `plugins`, as comments and tests name it."""
    return f"{module.replace('.', '/')}.py"


def rewrite_import(match: re.Match[str], moves: Mapping[str, str]) -> str:
    """Return a `from package import names` with the names that are moved modules on their own
    lines.
    """
    indent, package, names = match.groups()
    if not any(f"{package}.{name}" in moves for name in re.findall(r"\w+", names)):
        return match[0]
    unmoved, lines = [], []
    for name in (part.strip() for part in names.strip("()").split(",")):
        original, _, alias = name.partition(" as ")
        new = moves.get(f"{package}.{original}")
        if new is None:
            unmoved += [name] if name else []
            continue
        folder, _, base = new.rpartition(".")
        local_name = alias or original
        lines.append(
            f"from {folder} import {base}" + (f" as {local_name}" if local_name != base else "")
        )
    if unmoved:
        lines.insert(0, f"from {package} import {', '.join(unmoved)}")
    return "\n".join(f"{indent}{line}" for line in lines)


def rewrite_import_in_text(match: re.Match[str], moves: Mapping[str, str]) -> str:
    """Return an import inside a string."""
    new = moves.get(f"{match[1]}.{match[2]}")
    if new is None:
        return match[0]
    folder, _, base = new.rpartition(".")
    return f"from {folder} import {base}" + (f" as {match[2]}" if match[2] != base else "")


if __name__ == "__main__":
    main()
