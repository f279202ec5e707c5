"""`lgzoo doctor`: report the installed packages, and the methods, learngenes and tasks that work.

The network is only accessed with `--hub`. Of a Hub token, only its existence is checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from learngene_zoo.cli.diagnosis.findings import IMPORT, check_installation, make_row
from learngene_zoo.cli.diagnosis.self_test import run_self_test
from learngene_zoo.cli.job import (
    Row,
    WholeNumber,
    advise,
    format_task_option,
    make_all_option,
    make_json_option,
    make_offline_option,
    print_progress,
    print_row,
    print_rows,
)
from learngene_zoo.cli.options import check_tasks, complete_tasks, find_typed
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import WrongCall
from learngene_zoo.method.installed import METHODS
from learngene_zoo.registry import CHOICE
from learngene_zoo.runs.run import MAX_THREADS
from learngene_zoo.tasks import catalogue

# Rows that are printed without --all besides bad ones: they explain most reports.
MATTER = (
    "learngene_zoo", "python", "torch", "torchvision", "timm", "onnxruntime", "cpu cores",
    "threads", "devices", IMPORT, "working folder", "cache of the Hub", "hub", CHOICE,
)  # fmt: skip
MAX_READERS = 16  # processes, unless more are asked for


def doctor(
    task: str | None,
    check_images: bool,
    sheet: Path | None,
    workers: int | None,
    force: bool,
    hub: bool,
    self_test: bool,
    show_all: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Print the findings; exit with 1 if one of them is bad."""
    print_progress()
    check_tasks(task)
    _refuse_ignored(hub, self_test, check_images)
    if hub and offline:
        raise WrongCall("--hub asks the Hub, which --offline forbids; leave out one of them")
    if check_images:
        if task is None:
            raise WrongCall("--check-images needs the task with the images: add --task folder:PATH")
        rows = _check_images(task, sheet, workers, force, offline)
        _advise_on(task, rows, f"lgzoo extract closed_form{format_task_option(task)}", as_json)
        _print(rows, as_json, task)
        return
    if sheet is not None:
        raise WrongCall(
            "-o needs --check-images, which reads the images to draw; add it, or use lgzoo show "
            "TASK -o FILE"
        )
    if task is not None:
        _check_task(task, offline, as_json)
        return
    rows = list(run_self_test() if self_test else check_installation(hub))
    if as_json or show_all or self_test:
        _print(rows, as_json)
        return
    shown = {*MATTER, *_list_foreign_plugins()}
    matter = [row for row in rows if row["status"] == "bad" or row["what"] in shown]
    _print([*matter, *_count_rows(rows)], as_json=False)
    left_out = len(rows) - len(matter)
    click.echo(
        f"{left_out} of {len(rows)} rows left out, none of them bad; show them with --all", err=True
    )


def _refuse_ignored(hub: bool, self_test: bool, check_images: bool) -> None:
    """Raise `WrongCall` for an option that a call with these would ignore."""
    of_checks = ("task", "check_images", "sheet", "workers")
    other = find_typed(*of_checks, *(["hub"] if self_test else []))
    if other is not None and (hub or self_test):
        first = "--self-test" if self_test else "--hub"
        raise WrongCall(f"{first} and {other} exclude each other; choose one")
    if find_typed("workers") and not check_images:
        raise WrongCall("--workers needs --check-images; add it, or leave out --workers")


def _check_task(task: str, offline: bool, as_json: bool) -> None:
    """Print the problems of a task's folder, or its first row; exit with 1 if columns are missing.

    Args:
        task: reference to the task.
        offline: whether nothing may be downloaded.
        as_json: print JSON instead of text.
    """
    from learngene_zoo.tasks.findings import open_with_problems
    from learngene_zoo.tasks.first_row import read_first_row

    problems = open_with_problems(task, offline)[1] if task.startswith("folder:") else []
    if any(row["status"] == "bad" for row in problems):
        _advise_on(task, problems, "", as_json)
        _print(problems, as_json, task)
        return
    row = read_first_row(task, offline)
    if not row["missing"]:
        check = f"lgzoo doctor{format_task_option(task)} --check-images"
        # The bundled ancestry model of `extract` is one of images.
        ancestry = " --ancestry MODEL" if "first_text" in row else ""
        extract = f"lgzoo extract closed_form{ancestry}{format_task_option(task)}"
        can_check = _is_readable(task) and "first_text" not in row
        _advise_on(task, [], check if can_check else extract, as_json)
    print_row(
        row if as_json else {name: value for name, value in row.items() if value != []}, as_json
    )
    if row["missing"]:
        click.get_current_context().exit(1)


def _is_readable(task: str) -> bool:
    """Return whether --check-images can read the data, which it cannot for streams."""
    return not task.startswith(("wds:", "hf-stream:"))


def _advise_on(task: str, rows: list[Row], following: str, as_json: bool) -> None:
    """Print the next command after all other output: correct the bad rows, else `following`."""
    is_bad = any(row["status"] == "bad" for row in rows)
    again = (
        "correct the bad rows, then lgzoo "
        f"doctor{format_task_option(task)}{' --check-images' if _is_readable(task) else ''}"
    )
    context = click.get_current_context()
    context.call_on_close(lambda: advise(again if is_bad else following, quiet=as_json))


def _print(rows: list[Row], as_json: bool, task: str = "") -> None:
    """Print findings, with paths relative to the folder of the user's own data."""
    from learngene_zoo.tasks.layout import split_reference

    top = (
        f"{split_reference(task.removeprefix('folder:'))[0]}{os.sep}"
        if task.startswith("folder:")
        else ""
    )
    if top and not as_json:
        rows = [{key: str(value).replace(top, "") for key, value in row.items()} for row in rows]
    print_rows(rows, as_json, keeps=["found"])
    if any(row["status"] == "bad" for row in rows):
        click.get_current_context().exit(1)


def _check_images(
    task: str, sheet: Path | None, workers: int | None, force: bool, offline: bool
) -> list[Row]:
    """Read every image of a task and return the findings; draw those readable into `sheet`."""
    from learngene_zoo.tasks.findings import check_task, open_with_problems
    from learngene_zoo.tasks.sheet import check_sheet, write_sheet

    if sheet is not None:
        check_sheet(sheet, force)
    cores = min(os.cpu_count() or 1, MAX_READERS)
    opened, problems = open_with_problems(task, offline)
    if opened is None:
        return problems
    rows, readable = check_task(opened, cores if workers is None else workers)
    sheet_rows = (
        []
        if sheet is None
        else [make_row("sheet", "ok", write_sheet(readable, sheet, force=force))]
    )
    return [*problems, *rows, *sheet_rows]


def _list_foreign_plugins() -> set[str]:
    """Return the names of the rows of plugins that other packages have installed."""
    return {
        f"{plugins.word} {point.name}"
        for plugins in (METHODS, catalogue.SUITES)
        for point in plugins.find_all()
        if not point.in_tree
    }


def _count_rows(rows: list[Row]) -> Iterator[Row]:
    """Yield for methods, learngenes and tasks how many of their rows are ok."""
    for word in ("method", "learngene", "task"):
        states = [row["status"] for row in rows if row["what"].startswith(f"{word} ")]
        ending = " offline" if word == "task" else ""
        value = f"{states.count('ok')} of {len(states)} work{ending}"
        yield make_row(f"{word}s", "info", value)


command = SettingsCommand(
    "doctor",
    callback=doctor,
    help="Report the installed packages, and which methods, learngenes and tasks work. The exit "
    "code is 1 if something is broken.",
    epilog="\b\nExamples:\n"
    "  lgzoo doctor\n"
    "  lgzoo doctor --task folder:photos\n"
    "  lgzoo doctor --task folder:photos --check-images -o photos.png\n"
    "  lgzoo doctor --hub\n"
    "  lgzoo doctor --self-test",
    params=[
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Check only this task: fetch one row and print columns, sizes and missing parts.",
        ),
        click.Option(
            ["--check-images"],
            is_flag=True,
            help="Read every image of the task; list images that are broken, too large or in two "
            "splits, and classes with few images.",
        ),
        click.Option(
            ["-o", "--sheet"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="With --check-images, draw images of each class into this PNG.",
        ),
        click.Option(
            ["--workers"],
            type=WholeNumber(0, MAX_THREADS),
            help=f"Worker processes that read the images.  [default: all cores, at most "
            f"{MAX_READERS}]",
        ),
        click.Option(["--force"], is_flag=True, help="Replace a sheet that already exists."),
        click.Option(
            ["--self-test"],
            is_flag=True,
            help="Run a self-test instead: extract, expand, train and evaluate a small model, in "
            "under a minute.",
        ),
        click.Option(["--hub"], is_flag=True, help="Also check whether the Hub can be reached."),
        make_all_option(),
        make_offline_option(),
        make_json_option(),
    ],
)
