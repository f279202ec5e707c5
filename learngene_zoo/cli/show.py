"""`lgzoo show NAME|FOLDER`: a method, a learngene, a model or a task."""

from __future__ import annotations

from pathlib import Path

import click

from learngene_zoo import lifecycle, registry, shelf
from learngene_zoo.artifact import kind_of
from learngene_zoo.cli.job import json_option
from learngene_zoo.cli.output import Row, print_row, print_rows
from learngene_zoo.cli.plan import convention_option, size_rows
from learngene_zoo.cost import Convention, cost
from learngene_zoo.errors import ZooError, unknown
from learngene_zoo.folder import CONFIG, read_json
from learngene_zoo.learngene import read_config
from learngene_zoo.settings import Json


def show(name: str, convention: Convention, as_json: bool) -> None:
    """Print what `name` is."""
    if name in registry.references():
        _method(name, convention, as_json)
        return
    folder = _folder(name)
    if folder is None:
        print_row(_task(name), as_json)
    elif kind_of(folder) == "learngene":
        _learngene(folder, convention, as_json)
    else:
        print_row(_model(folder, convention), as_json)


def _folder(name: str) -> Path | None:
    """The folder that a path or a name of the shelf means; None for the name of a task. Raises `WrongCall`."""
    tasks = _task_names()
    try:
        return shelf.find(name)
    except ZooError:
        if name in tasks:
            return None
        if "/" in name or Path(name).exists():
            raise
        raise unknown("method, learngene or task", name, {*tasks, *registry.references(), *shelf.names()}) from None


def _task_names() -> set[str]:
    from learngene_zoo.tasks.catalogue import names

    return {task.name for task in names()}


def _heading(as_json: bool, **facts: Json) -> None:
    """What a table of sizes cannot say; people read it above the table."""
    if not as_json:
        print_row({name: value for name, value in facts.items() if value not in (None, "", [], {})}, as_json=False)
        click.echo()


def _method(name: str, convention: Convention, as_json: bool) -> None:
    method = registry.load(name)
    members = lifecycle.plan(name, convention=convention, offline=True)
    _heading(
        as_json,
        method=name,
        title=method.title,
        paper=method.paper,
        presets=list(method.presets),
        tasks=method.tasks,
        sizes=f"{len(members)} from the bundled ancestry",
    )
    print_rows(size_rows(members, convention), as_json)


def _learngene(folder: Path, convention: Convention, as_json: bool) -> None:
    config = read_config(folder)
    members = lifecycle.plan(folder, convention=convention, offline=True)
    _heading(
        as_json,
        learngene=str(folder),
        method=config.method,
        ancestry=[record.source for record in config.ancestries],
        tasks=[task.name for task in config.tasks],
        licence=config.licence,
        seed=config.seed,
        **_flat(config.details),
        **_flat(config.metrics),
    )
    print_rows(_with_accuracy(size_rows(members, convention), config.metrics), as_json)


def _flat(values: Json) -> dict[str, Json]:
    """What fits on a line: scalars, lists of scalars, and objects of scalars as `name value` pairs."""
    shown: dict[str, Json] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            if all(isinstance(item, (int, float, str)) for item in value.values()):
                shown[name] = [
                    f"{key} {item:.3g}" if isinstance(item, float) else f"{key} {item}" for key, item in value.items()
                ]
        elif not isinstance(value, list) or not any(isinstance(item, (list, dict)) for item in value):
            shown[name] = value
    return shown


def _with_accuracy(rows: list[Row], metrics: Json) -> list[Row]:
    """Rows with the accuracies that the shelf measured of descendants of that many layers, where it did."""
    measured = metrics.get("descendants", [])
    if not isinstance(measured, list):
        return rows
    by_layers = {item["layers"]: item for item in measured if isinstance(item, dict) and "layers" in item}
    extra = [{k: v for k, v in by_layers.get(row["layers"], {}).items() if k not in row} for row in rows]
    return [{**row, **more} for row, more in zip(rows, extra)]


def _model(folder: Path, convention: Convention) -> Row:
    from learngene_zoo.ancestry import ancestry_spec

    spec = ancestry_spec(str(folder), offline=True)
    found = cost(spec, convention)
    ours = read_json(folder / CONFIG).get("learngene", {})
    metrics = ours.get("metrics") or {}
    return {
        "model": str(folder),
        "layers": spec.layers,
        "width": spec.width,
        "heads": spec.heads,
        "classes": spec.classes,
        "image_size": spec.image_size,
        "params": found.params,
        "flops": found.flops,
        "method": ours.get("method"),
        "task": ours.get("task"),
        "validation_accuracy": metrics.get("validation_accuracy"),
    }


def _task(name: str) -> Row:
    from learngene_zoo.tasks.catalogue import names

    task = next(task for task in names() if task.name == name)
    parts = {part: task.sizes.get(part) for part in ("train", "validation", "test")}
    return {
        "task": name,
        "title": task.title,
        "classes": task.classes,
        **parts,
        "licence": task.licence,
        "description": task.description,
    }


command = click.Command(
    "show",
    callback=show,
    help="What a method or a learngene can build and what it costs; what a model or a task is.\n\n"
    "NAME is a method, a learngene of the shelf, a task, or a folder.",
    epilog="\b\nExamples:\n  lgzoo show lsamd\n  lgzoo show ./learngene\n  lgzoo show digits --json",
    params=[click.Argument(["name"]), convention_option(), json_option()],
)
