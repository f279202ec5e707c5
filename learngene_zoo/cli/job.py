"""The options that all commands share, and functions that print results.

Data goes to stdout as a table or as JSON, hints go to stderr, and only the first process of a run
prints. All text passes `escape_controls`, so that artifacts, tasks and file names cannot control
the terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from learngene_zoo.cli.sections import RunningOption
from learngene_zoo.runs.progress import SILENT, mark_printed, print_activities, report_activity
from learngene_zoo.runs.run import DEVICES, MAX_SEED, MAX_THREADS, Run, check_device, is_first
from learngene_zoo.settings import Bounds, Json, to_json
from learngene_zoo.terminal import choose_columns, format_table, measure_terminal, wrap_words
from learngene_zoo.text import escape_controls, format_count, format_json, quote_word

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant

# In a command that the user completes, for an image model and a text model
ANY_TASK, ANY_TEXTS = "folder:PATH", "csv:PATH"
MAX_ROWS = 10  # of a table, unless --all is given
MAX_FURTHER_ROWS = 5  # a table with at most so many more rows is printed with all of them


@dataclass(frozen=True, kw_only=True)
class Job:
    """The common options of one call."""

    run: Run
    path: Path | None  # None: the result is printed and not written
    force: bool
    quiet: bool
    as_json: bool

    @property
    def out(self) -> Path:
        """Path of the result, for commands that always write one."""
        assert self.path is not None
        return self.path


def make_json_option() -> click.Option:
    """Return `--json`, of every command that prints data."""
    return RunningOption(
        ["--json", "as_json"], is_flag=True, help="Print JSON (documented in docs/json.md)."
    )


def make_all_option() -> click.Option:
    """Return `--all`, of every command that prints a long table."""
    return click.Option(
        ["--all", "show_all"], is_flag=True, help=f"Print every row, not only {MAX_ROWS}."
    )


def make_offline_option() -> click.Option:
    """Return `--offline`, of every command that may access the network."""
    return RunningOption(
        ["--offline"],
        is_flag=True,
        help="Never access the network; use only files on this machine.",
    )


def make_choice_option(
    name: str, choices: Sequence[str], default: str, help_text: str
) -> click.Option:
    """Return an option with a closed list of values, one of them the default."""
    return click.Option(
        [name], type=click.Choice(choices), default=default, show_default=True, help=help_text
    )


def make_job_options(
    out: str | None,
    out_help: str = "Path of the result.",
    without: Container[str] = (),
    *,
    force_help: str = "Replace an existing result, or start an interrupted run over.",
    resume_help: str = "Continue an interrupted run, with the same settings.",
) -> list[click.Option]:
    """Return the options that become a `Job`, except those in `without`.

    Args:
        out: default path of the result; None: it is only written with `-o`.
        out_help: help text of `-o`.
        without: names of options that do not apply to the command.
        force_help: help text of `--force`; the default is that of commands that keep a run.
        resume_help: help text of `--resume`, the same.
    """
    options = [
        click.Option(
            ["-o", "--out"],
            type=click.Path(path_type=Path),
            default=out,
            show_default=out is not None,
            help=out_help,
        ),
        click.Option(["--force"], is_flag=True, help=force_help),
        click.Option(["--resume"], is_flag=True, help=resume_help),
        RunningOption(
            ["--device"],
            default=Run.device,
            show_default=True,
            shell_complete=click.Choice(DEVICES).shell_complete,
            help="Device: cpu, cuda, cuda:1, mps; auto: a GPU if there is one.",
        ),
        RunningOption(
            ["--seed"],
            type=WholeNumber(0, MAX_SEED),
            default=0,
            show_default=True,
            help="Random seed.",
        ),
        RunningOption(
            ["--precision"],
            type=click.Choice(["fp32", "bf16", "fp16"]),
            default="fp32",
            show_default=True,
            help="Floating-point precision (autocast).",
        ),
        RunningOption(
            ["--threads"],
            type=WholeNumber(1, MAX_THREADS),
            help="CPU threads.  [default: all cores]",
        ),
        RunningOption(
            ["--workers"],
            type=WholeNumber(0, MAX_THREADS),
            default=0,
            show_default=True,
            help="Worker processes that load images.",
        ),
        RunningOption(["--tracker"], help="Also log to a tracker of accelerate, e.g. tensorboard."),
        RunningOption(["--quiet", "-q"], is_flag=True, help="Print no progress and no hints."),
        make_offline_option(),
        make_json_option(),
    ]
    return [option for option in options if option.name not in without]


def take_job(options: dict[str, Any]) -> Job:
    """Remove the common options from a command's parameters and return them as a `Job`."""
    values = {
        option.name: options.pop(option.name)
        for option in make_job_options(None)
        if option.name in options
    }
    run_settings = {field.name: values[field.name] for field in fields(Run) if field.name in values}
    check_device(values["device"])
    progress = not values["quiet"] and sys.stderr.isatty()
    print_progress(is_wanted=not values["quiet"])
    return Job(
        run=Run(**run_settings, progress=progress, lines=not values["quiet"]),
        path=values.get("out"),
        force=values.get("force", False),
        quiet=values["quiet"],
        as_json=values["as_json"],
    )


class Number(click.ParamType):
    """A number within bounds; the error names the bounds, the help does not."""

    name, expected = "number", "a number"
    kind: type[float] = float

    def __init__(self, least: float | None = None, most: float | None = None) -> None:
        self.bounds = Bounds(least=least, most=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises click's usage error, which names the option."""
        try:
            number = self.kind(value)
        except ValueError:
            self.fail(f"{value!r} is not {self.expected}", param, ctx)
        if number not in self.bounds:
            self.fail(f"{value} is out of range; it must be {self.bounds}", param, ctx)
        return number


class WholeNumber(Number):
    """An integer within bounds."""

    name, expected = "integer", "an integer"
    kind = int


def print_progress(is_wanted: bool = True) -> None:
    """Print lines about long steps until the command ends, or none if they are not wanted."""
    context = click.get_current_context(silent=True)
    if context is not None and not is_wanted:
        SILENT.set()
        context.call_on_close(SILENT.clear)
    if context is not None and is_wanted:
        context.with_resource(print_activities(is_command=True))
        context.with_resource(report_activity(context.command_path.removeprefix("lgzoo ")))


Row = Mapping[str, Json]


def print_rows(
    rows: Sequence[Row],
    as_json: bool,
    title: str = "",
    *,
    drops: Sequence[str] = (),
    keeps: Collection[str] = (),
    most: int | None = None,
    spread: bool = False,
    quiet: bool = False,
) -> None:
    """Print a list of flat objects: a table for people, or bare JSON with every row and key.

    Args:
        rows: the objects.
        as_json: print JSON instead of a table.
        title: title of the table.
        drops: keys that the table may omit in a narrow terminal, the least important first.
        keeps: keys that the table never omits.
        most: print at most this many rows, and on stderr the number of the others.
        spread: choose these rows evenly from the first to the last.
        quiet: print neither the number of other rows nor the omitted columns.
    """
    if not is_first():
        return
    if as_json:
        click.echo(format_json(to_json(list(rows)), indent=1))
    elif rows:
        chosen = choose_rows(rows, most, spread)
        names = list(dict.fromkeys(name for row in chosen for name in row))
        numeric = [all(is_number(row.get(name)) for row in chosen) for name in names]
        texts = [[_format_value(name, row.get(name)) for name in names] for row in chosen]
        heads = [name.replace("_", " ") for name in names]
        print_table(
            heads,
            texts,
            numeric,
            title,
            drops=[name.replace("_", " ") for name in drops],
            keeps=[name.replace("_", " ") for name in keeps],
            quiet=quiet,
        )
        if len(chosen) < len(rows) and not quiet:
            left_out = len(rows) - len(chosen)
            click.echo(f"{left_out} of {len(rows)} rows left out; show them with --all", err=True)


T = TypeVar("T")


def choose_rows(rows: Sequence[T], most: int | None, spread: bool = False) -> list[T]:
    """Return the first `most` rows, or as many spread evenly from the first to the last.

    At most `MAX_FURTHER_ROWS` further rows are printed, too: a call with --all takes longer than
    reading them.
    """
    if most is None or len(rows) <= most + MAX_FURTHER_ROWS:
        return list(rows)
    if not spread or most < 2:
        return list(rows[:most])
    return [rows[round(step * (len(rows) - 1) / (most - 1))] for step in range(most)]


def format_interval(value: float, low: float, high: float) -> str:
    """Return "0.913 [0.902, 0.924]", for a column whose heading says "(95 %)"."""
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


_NUMBERS = re.compile(r"[+-]?\d[\d.,]*( \[.*\])?")


def is_number(value: Json) -> bool:
    """Return whether a value is right-aligned: a number, perhaps with its interval, or None."""
    if isinstance(value, str):
        return _NUMBERS.fullmatch(value) is not None
    return isinstance(value, (int, float, type(None)))


def print_row(row: Row, as_json: bool, *, is_folded: bool = False) -> None:
    """Print one flat object: `name  value` lines for people, or bare JSON.

    With `is_folded`, long values continue on lines below, within the terminal's width.
    """
    if not is_first():
        return
    if as_json:
        click.echo(format_json(to_json(dict(row))))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        text = escape_controls(_format_value(name, value))
        lines = wrap_words(text, measure_terminal() - width - 2) if is_folded else [text]
        for head, line in zip_longest([escape_controls(name)], lines, fillvalue=""):
            click.echo(f"{head:<{width}}  {line}")


def print_lines(lines: Sequence[str]) -> None:
    """Print lines of data to stdout."""
    if is_first():
        for line in lines:
            click.echo(escape_controls(line))


def print_made(path: Path, job: Job, advice: str, **facts: Json) -> None:
    """Print the path of a result, or `{"path": ...}`, and the next command on stderr."""
    if not is_first():
        return
    if job.as_json:
        print_row({**facts, "path": str(path)}, as_json=True)
        return
    click.echo(escape_controls(str(path)))
    advise(advice, job.quiet)


def advise(text: str, quiet: bool = False) -> None:
    """Print one line with the next command on stderr."""
    if is_first() and not quiet:
        click.echo(f"next: {escape_controls(text)}", err=True)


def format_task_option(task: str | None) -> str:
    """Return ` --task TASK` for a command line that the user may copy, or "" without a task."""
    return f" --task {quote_word(task)}" if task else ""


def choose_task(model: Descendant) -> str | None:
    """Return the task of the next command for a model: its own, or a placeholder where that command
    needs one.
    """
    from learngene_zoo.artifacts import shelf
    from learngene_zoo.families.text_spec import TextSpec

    if not shelf.needs_task(model.task, model.provenance):
        return model.task
    return ANY_TEXTS if isinstance(model.spec, TextSpec) else ANY_TASK


def print_note(text: str) -> None:
    """Print one line on stderr about a part of the call that is not done, also with --quiet."""
    if is_first():
        mark_printed()
        click.echo(f"note: {escape_controls(text)}", err=True)


def say(text: str, job: Job) -> None:
    """Print one line of progress on stderr."""
    if is_first() and not job.quiet:
        mark_printed()
        click.echo(escape_controls(text), err=True)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    title: str | Callable[[Collection[str]], str] = "",
    *,
    drops: Sequence[str] = (),
    keeps: Collection[str] = (),
    quiet: bool = False,
) -> None:
    """Print a table for people, within the terminal's width.

    Args:
        columns: headings.
        rows: texts of the cells.
        numeric: for each column, whether it is aligned to the right.
        title: title of the table, or a function that returns it for the headings that are shown.
        drops: headings of columns that may be omitted, the least important first.
        keeps: headings of columns that are never omitted.
        quiet: do not list the omitted columns on stderr.
    """
    cells = [[escape_controls(text) for text in row] for row in rows]
    heads = [escape_controls(name) for name in columns]
    right = [index for index, number in enumerate(numeric) if number]
    width = measure_terminal()
    shown_columns = choose_columns(heads, cells, right, width, drops, keeps)
    shown = [heads[index] for index in shown_columns]
    title = escape_controls(title if isinstance(title, str) else title(shown))
    heading = "\n".join(wrap_words(title, width))
    click.echo(format_table(heads, cells, right, heading, width, drops, keeps))
    lost = [name for index, name in enumerate(heads) if index not in shown_columns]
    if lost and not quiet:
        click.echo(f"not shown in {width} columns: {', '.join(lost)}", err=True)


def _format_value(name: str, value: Json) -> str:
    if value is None:
        return "-"
    if name in ("params", "flops") and isinstance(value, int):
        return format_count(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        parts = [str(part) for part in value]
        has_spaces = any(" " in part and not part.startswith("...") for part in parts)
        return ("; " if has_spaces else ",").join(parts)
    return str(value)
