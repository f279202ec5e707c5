"""`lgzoo doctor`: report the installed packages, and the methods, learngenes and tasks that work.

The network is only accessed with `--hub`. Of a Hub token, only its existence is checked.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
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
from learngene_zoo.cli.options import check_tasks, complete_tasks
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import WrongCall, ZooError
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.registry import CHOICE, read_choice
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import MAX_THREADS, Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks import catalogue
from learngene_zoo.text import escape_controls, format_count
from learngene_zoo.version import __version__

PACKAGES = (
    "torch", "torchvision", "timm", "accelerate", "datasets", "huggingface-hub", "safetensors",
    "matplotlib", "click", "rich",
)  # fmt: skip
OPTIONAL = {
    "onnx": "'learngene-zoo[onnx]'",
    "onnxruntime": "'learngene-zoo[onnx]'",
    "onnxscript": "'learngene-zoo[onnx]'",
    "ray": "'learngene-zoo[ray]'",
    "tokenizers": "'learngene-zoo[text]'",
    "transformers": "'learngene-zoo[text]'",
}
IMPORT = "import"
MIN_FREE = 10**9  # bytes: a few models with their checkpoints
HUB_SECONDS = 5.0
# Rows that are printed without --all besides bad ones: they explain most reports.
MATTER = (
    "learngene_zoo", "python", "torch", "torchvision", "timm", "onnxruntime", "cpu cores",
    "threads", "devices", IMPORT, "working folder", "cache of the Hub", "hub", CHOICE,
)  # fmt: skip
MAX_READERS = 16  # processes, unless more are asked for
SELF_TEST = Recipe(epochs=2, images=200, batch_size=50, lr=1e-3, augment="none")
Status = Literal["ok", "bad", "info"]


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
            "-o draws the images that --check-images read; add it, or use lgzoo show TASK -o"
        )
    if task is not None:
        _check_task(task, offline, as_json)
        return
    rows = list(_run_self_test() if self_test else _check_all(hub))
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
        else [_make_row("sheet", "ok", write_sheet(readable, sheet, force=force))]
    )
    return [*problems, *rows, *sheet_rows]


def _make_row(name: str, status: Status, value: Any) -> Row:
    return {"what": name, "status": status, "found": str(value)}


def _check_all(hub: bool) -> Iterator[Row]:
    yield _make_row("learngene_zoo", "ok", __version__)
    yield _make_row(
        "python", "ok" if sys.version_info >= (3, 11) else "bad", platform.python_version()
    )
    yield from map(_check_package, [*PACKAGES, *OPTIONAL])
    for title, check in (
        ("importing torch", _compute),
        ("folders", _check_places),
        ("plugins", _check_plugins),
        ("learngenes", _check_shelf),
        ("tasks", _check_tasks),
    ):
        with report_activity(title):
            yield from check()
    if hub:
        yield _check_hub()


def _check_package(name: str) -> Row:
    try:
        return _make_row(name, "ok", version(name))
    except PackageNotFoundError:
        return _make_row(
            name,
            "info" if name in OPTIONAL else "bad",
            f"not installed; pip install {OPTIONAL.get(name, name)}",
        )


def _compute() -> Iterator[Row]:
    """Yield the numbers of cores and threads and the devices; imports torch."""
    yield _make_row("cpu cores", "info", os.cpu_count())
    try:
        import torch
    except ImportError as error:
        yield _make_row("devices", "bad", f"torch cannot be imported: {error}")
        return
    yield _make_row("threads", "info", torch.get_num_threads())
    devices = [
        "cpu",
        *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())),
    ]
    if torch.backends.mps.is_available():
        devices.append("mps")
    yield _make_row("devices", "info", ", ".join(devices))
    try:
        import timm  # noqa: F401  # imports torchvision
    except Exception as error:  # such as a RuntimeError, for a torchvision of another torch
        yield _make_row(IMPORT, "bad", f"timm cannot be imported: {error}")


def _check_places() -> Iterator[Row]:
    """Yield the folders for data with their free space, and the Hub's endpoint and login."""
    from huggingface_hub import constants, get_token

    for name, folder in {
        "working folder": Path.cwd(),
        "cache of the Hub": Path(constants.HF_HUB_CACHE),
    }.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        status: Status = "ok" if free >= MIN_FREE and os.access(existing, os.W_OK) else "bad"
        writable = "" if os.access(existing, os.W_OK) else "; not writable"
        yield _make_row(name, status, f"{folder}, {format_count(free)}B free{writable}")
    yield _make_row(
        "endpoint",
        "info",
        constants.ENDPOINT + (" (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""),
    )
    yield _make_row(
        "login", "info", "logged in" if get_token() else "not logged in; to publish: hf auth login"
    )


def _check_plugins() -> Iterator[Row]:
    if read_choice():
        yield _make_row(
            CHOICE, "info", f"only {', '.join(read_choice())}; other plugins are not used"
        )
    groups = (METHODS, *METHODS.load_all()), (catalogue.SUITES, *catalogue.load_suites())
    for plugins, good, broken in groups:
        for plugin in good:
            name = f"{plugins.word} {plugin.name}"
            try:
                if isinstance(plugin, Method):
                    _check_options(plugin)
            except ZooError as error:
                yield _make_row(name, "bad", error)
            else:
                yield _make_row(name, "ok", plugins.references()[plugin.name])
        for refused in broken:
            yield _make_row(f"{plugins.word} {refused.name}", "bad", refused.reason)


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
        yield _make_row(f"{word}s", "info", value)


def _check_options(method: Method) -> None:
    """Raise `BadPlugin` if settings of a method have options that its commands already have."""
    from learngene_zoo.cli import expand, extract, plan

    extract.build(method)
    plan.build(method)
    for command in (expand.command, expand.plot_command):
        expand.add_expander(method, command.params)


def _check_shelf() -> Iterator[Row]:
    yield _make_row("shelf", "info", shelf.find_cards_folder())
    for name in shelf.list_names():
        try:
            shelf.load(name)
            yield _make_row(f"learngene {name}", "ok", shelf.find(name))
        except ZooError as error:
            yield _make_row(f"learngene {name}", "bad", error)


def _check_tasks() -> Iterator[Row]:
    """Yield the tasks of the catalogue that open offline; others are no fault."""
    for entry in catalogue.list_entries():
        try:
            catalogue.open_task(entry.name, offline=True)
        except ZooError as error:
            yield _make_row(f"task {entry.name}", "info", f"not offline: {error}")
        else:
            yield _make_row(f"task {entry.name}", "ok", "opens offline")


def _check_hub() -> Row:
    """Check whether the Hub can be reached. No other check accesses the network."""
    from urllib.error import URLError
    from urllib.request import urlopen

    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urlopen(address, timeout=HUB_SECONDS):
            return _make_row("hub", "ok", address)
    except (URLError, OSError, ValueError) as error:
        return _make_row("hub", "bad", f"{address} cannot be reached: {error}")


# The self-test: from the bundled ancestry model to an evaluated model, in under a minute.


def _run_self_test() -> Iterator[Row]:
    """Run every step, and yield its duration or its error; stop at the first that fails.

    Results are written to a temporary folder, and the network is not accessed.
    """
    with tempfile.TemporaryDirectory(prefix="lgzoo-self-test-") as folder:
        for name, step in _list_steps(Path(folder)):
            started, failed = time.perf_counter(), ""
            try:
                step()
            except Exception as error:  # any error is the result of the step
                failed = f"{type(error).__name__}: {error}"
            result = failed or f"{time.perf_counter() - started:.1f} s"
            if sys.stderr.isatty():
                click.echo(escape_controls(f"{name}: {result}"), err=True)
            yield _make_row(name, "bad" if failed else "ok", result)
            if failed:
                return


def _list_steps(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    run = Run(offline=True)
    gene, model, tuned = (folder / name for name in ("learngene", "model", "tuned"))
    yield "extract", lambda: lifecycle.extract("closed_form", preset="smoke", out=gene, run=run)
    yield "expand", lambda: lifecycle.expand(gene, layers=3, task="digits", out=model, run=run)
    yield (
        "finetune",
        lambda: lifecycle.finetune(model, task="digits", recipe=SELF_TEST, out=tuned, run=run),
    )
    yield "evaluate", lambda: lifecycle.evaluate(tuned, task="digits", split="validation", run=run)
    yield "open with timm", lambda: _check_timm_agrees(tuned)
    if all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        yield "export", lambda: lifecycle.export(tuned, folder / "model.onnx", run=run)


def _check_timm_agrees(folder: Path) -> None:
    """Check that timm opens the folder and computes bit-equal logits."""
    import timm
    import torch

    ours = shelf.open_descendant(folder)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    size, channels = ours.input_format.image_size, ours.input_format.channels
    images_BCHW = torch.linspace(-1, 1, channels * size * size).reshape(1, -1, size, size)
    with torch.no_grad():
        if not torch.equal(theirs(images_BCHW), ours.model()(images_BCHW)):
            raise AssertionError(
                "the logits of timm's model of the folder differ from those of learngene_zoo"
            )


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
            help="Worker processes that read the images.  [default: all cores]",
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
