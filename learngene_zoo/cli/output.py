"""What is printed: data on stdout as a table or as JSON, advice on stderr. Only the first process of a run prints.

Whatever it is, it passes `printable`: artifacts, tasks and file names cannot control the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import Json, to_json
from learngene_zoo.text import json_text, printable
from learngene_zoo.text_table import terminal_width, text_table
from learngene_zoo.units import human_count

if TYPE_CHECKING:
    from learngene_zoo.cli.job import Job

Row = Mapping[str, Json]
_FORMATS: dict[str, Callable[[Any], str]] = {"params": human_count, "flops": human_count}


def print_rows(rows: Sequence[Row], as_json: bool, title: str = "") -> None:
    """A list of flat objects: a table for people, or bare JSON."""
    if not is_first():
        return
    if as_json:
        click.echo(json_text(to_json(list(rows)), indent=1))
    elif rows:
        _print_table(rows, title)


def print_row(row: Row, as_json: bool) -> None:
    """One flat object: `name  value` lines for people, or bare JSON."""
    if not is_first():
        return
    if as_json:
        click.echo(json_text(to_json(dict(row))))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        click.echo(printable(f"{name:<{width}}  {_text(name, value)}"))


def print_lines(lines: Sequence[str]) -> None:
    """Sentences that are data."""
    if is_first():
        for line in lines:
            click.echo(printable(line))


def print_made(path: Path, job: Job, advice: str, **facts: Json) -> None:
    """How every command that writes ends: `{"path": ...}`, or the path, and on stderr what to do next."""
    if not is_first():
        return
    if job.as_json:
        print_row({**facts, "path": str(path)}, as_json=True)
        return
    click.echo(printable(str(path)))
    advise(advice, job.quiet)


def advise(text: str, quiet: bool = False) -> None:
    """One line on stderr that says what to do next."""
    if is_first() and not quiet:
        click.echo(f"next: {printable(text)}", err=True)


def say(text: str, job: Job) -> None:
    """One line of progress on stderr."""
    if is_first() and not job.quiet:
        click.echo(printable(text), err=True)


def _print_table(rows: Sequence[Row], title: str) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [all(isinstance(row.get(name), (int, float, type(None))) for row in rows) for name in names]
    texts = [[_text(name, row.get(name)) for name in names] for row in rows]
    print_table([name.replace("_", " ") for name in names], texts, numeric, title)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], title: str = ""
) -> None:
    """A table for people; `numeric` columns are aligned to the right. In a pipe nothing is cut or wrapped."""
    cells = [[printable(text) for text in row] for row in rows]
    right = [index for index, number in enumerate(numeric) if number]
    click.echo(text_table([*map(printable, columns)], cells, right, printable(title), terminal_width()))


def _text(name: str, value: Json) -> str:
    if value is None:
        return "-"
    if name in _FORMATS and isinstance(value, int):
        return _FORMATS[name](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
