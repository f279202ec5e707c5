"""One call of a command: the options that all commands share, and what is printed.

Data goes to stdout as a table or as JSON, advice to stderr, and only the first process of a run prints. Whatever it is, it passes
`printable`: artifacts, tasks and file names cannot control the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from learngene_zoo.runs.progress import mark_printed, print_activities, report_activity
from learngene_zoo.runs.run import DEVICES, MOST_THREADS, Run, check_device, is_first
from learngene_zoo.settings import Json, to_json
from learngene_zoo.text import human_count, json_text, printable, shell_word, terminal_width, text_table

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Job:
    """The common options of one call."""

    run: Run
    place: Path | None  # None: the result is printed and not written
    force: bool
    quiet: bool
    as_json: bool

    @property
    def out(self) -> Path:
        """Where the result is written, by a command that always writes one."""
        assert self.place is not None
        return self.place


def json_option() -> click.Option:
    """`--json`, on every command that prints data."""
    return click.Option(["--json", "as_json"], is_flag=True, help="Print JSON (documented in docs/json.md).")


def offline_option() -> click.Option:
    """`--offline`, on every command that may access the network."""
    return click.Option(["--offline"], is_flag=True, help="Use what is on this machine; never access the network.")


def choice_option(name: str, choices: Sequence[str], default: str, help_text: str) -> click.Option:
    """An option with a closed list of values, one of them the default."""
    return click.Option([name], type=click.Choice(choices), default=default, show_default=True, help=help_text)


def job_options(out: str | None, out_help: str = "Path of the result.") -> list[click.Option]:
    """The options that become a `Job`. `out` is the default path of the result; None: it is written only with `-o`."""
    return [
        click.Option(
            ["-o", "--out"], type=click.Path(path_type=Path), default=out, show_default=out is not None, help=out_help
        ),
        click.Option(["--force"], is_flag=True, help="Replace what already exists."),
        click.Option(["--resume"], is_flag=True, help="Continue an interrupted run."),
        click.Option(
            ["--device"],
            default=Run.device,
            show_default=True,
            shell_complete=click.Choice(DEVICES).shell_complete,
            help="Device: cpu, cuda, cuda:1, mps; auto: a GPU if there is one.",
        ),
        click.Option(["--seed"], type=click.IntRange(0, MOST_SEED), default=0, show_default=True, help="Random seed."),
        choice_option("--precision", ["fp32", "bf16", "fp16"], "fp32", "Floating-point precision (autocast)."),
        click.Option(["--threads"], type=click.IntRange(1, MOST_THREADS), help="CPU threads.  [default: all cores]"),
        click.Option(
            ["--workers"],
            type=click.IntRange(0, MOST_THREADS),
            default=0,
            show_default=True,
            help="Worker processes that load images.",
        ),
        click.Option(["--tracker"], help="Also log to one of accelerate's trackers, e.g. tensorboard."),
        click.Option(["--quiet", "-q"], is_flag=True, help="Print no progress and no advice."),
        offline_option(),
        json_option(),
    ]


def job_of(given: dict[str, Any]) -> Job:
    """Takes the common options out of a command's parameters."""
    values = {option.name: given.pop(option.name) for option in job_options(None) if option.name in given}
    how = {field.name: values[field.name] for field in fields(Run) if field.name in values}
    check_device(values["device"])
    progress = not values["quiet"] and sys.stderr.isatty()
    print_progress(is_wanted=not values["quiet"])
    return Job(
        run=Run(**how, progress=progress, lines=not values["quiet"]),
        place=values.get("out"),
        force=values.get("force", False),
        quiet=values["quiet"],
        as_json=values["as_json"],
    )


def print_progress(is_wanted: bool = True) -> None:
    """Print lines about long steps until the command ends."""
    context = click.get_current_context(silent=True)
    if context is not None and is_wanted:
        context.with_resource(print_activities())
        context.with_resource(report_activity(context.command_path.removeprefix("lgzoo ")))


Row = Mapping[str, Json]


def print_rows(rows: Sequence[Row], as_json: bool, title: str = "", fold: int | None = None) -> None:
    """A list of flat objects: a table for people, in a pipe folded to `fold` characters, or bare JSON."""
    if not is_first():
        return
    if as_json:
        click.echo(json_text(to_json(list(rows)), indent=1))
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        numeric = [all(isinstance(row.get(name), (int, float, type(None))) for row in rows) for name in names]
        texts = [[_text(name, row.get(name)) for name in names] for row in rows]
        print_table([name.replace("_", " ") for name in names], texts, numeric, title, fold)


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


def on_task(task: str | None) -> str:
    """` --task TASK` for a command line that the user may copy; empty if there is none."""
    return f" --task {shell_word(task)}" if task else ""


def say(text: str, job: Job) -> None:
    """One line of progress on stderr."""
    if is_first() and not job.quiet:
        mark_printed()
        click.echo(printable(text), err=True)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    title: str = "",
    fold: int | None = None,
) -> None:
    """A table for people; `numeric` columns are aligned to the right. In a pipe lines are folded only where `fold` says at what width."""
    cells = [[printable(text) for text in row] for row in rows]
    right = [index for index, number in enumerate(numeric) if number]
    click.echo(text_table([*map(printable, columns)], cells, right, printable(title), terminal_width() or fold))


def _text(name: str, value: Json) -> str:
    if value is None:
        return "-"
    if name in ("params", "flops") and isinstance(value, int):
        return human_count(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
