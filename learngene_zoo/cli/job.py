"""The options that all commands share: where the result goes, how to compute, what to print."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from learngene_zoo.runs.run import MOST_THREADS, Run, check_device

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


def job_options(out: str | None, out_help: str = "Path of the result.") -> list[click.Option]:
    """The options that become a `Job`. `out` is the default path of the result; None: it is written only with `-o`."""
    return [
        click.Option(
            ["-o", "--out"], type=click.Path(path_type=Path), default=out, show_default=out is not None, help=out_help
        ),
        click.Option(["--force"], is_flag=True, help="Replace what already exists."),
        click.Option(["--resume"], is_flag=True, help="Continue an interrupted run."),
        click.Option(["--device"], default=Run.device, show_default=True, help="Device: cpu, cuda, cuda:1, mps."),
        click.Option(["--seed"], type=click.IntRange(0, MOST_SEED), default=0, show_default=True, help="Random seed."),
        click.Option(
            ["--precision"],
            type=click.Choice(["fp32", "bf16", "fp16"]),
            default="fp32",
            show_default=True,
            help="Floating-point precision (autocast).",
        ),
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
    values = {option.name: given.pop(option.name) for option in job_options(None) if option.name}
    how = {field.name: values[field.name] for field in fields(Run) if field.name in values}
    check_device(values["device"])
    progress = not values["quiet"] and sys.stderr.isatty()
    return Job(
        run=Run(**how, progress=progress),
        place=values["out"],
        force=values["force"],
        quiet=values["quiet"],
        as_json=values["as_json"],
    )
