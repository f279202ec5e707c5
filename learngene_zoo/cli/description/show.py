"""`lgzoo show NAME|FOLDER`: describe a method, a learngene, a model, a task or a suite of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import LearngeneConfig, read_config
from learngene_zoo.artifacts.records import CardRecord, find_package_of_method
from learngene_zoo.artifacts.shelf import read_kind
from learngene_zoo.cli.description.model import (
    describe_exported,
    describe_model,
    describe_pretrained,
    is_pretrained,
)
from learngene_zoo.cli.job import (
    MAX_ROWS,
    Row,
    make_all_option,
    make_choice_option,
    make_json_option,
    make_offline_option,
    print_note,
    print_row,
    print_rows,
)
from learngene_zoo.cli.listing import DROPS, make_task_row
from learngene_zoo.cli.options import check_tasks, complete_learngenes, find_typed
from learngene_zoo.cli.plan import list_sizes, make_convention_option, print_sizes
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import (
    BadFile,
    WrongCall,
    ZooError,
    find_nearest,
    refuse_unknown,
    suggest_path,
)
from learngene_zoo.families.family import Convention
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS, find_method
from learngene_zoo.method.sizes import Member
from learngene_zoo.pretrained.exported import is_exported_file
from learngene_zoo.pretrained.sources import find_local_weights
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import CONFIG, check_length
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.task import KIND_OF, SPLITS, Task
from learngene_zoo.text import quote_word

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MAX_CLASSES = 10  # that are named, except as JSON
OWN_DATA = ("folder:", "parquet:", "csv:", "jsonl:", "hf:", "wds:", "hf-stream:")


def show(
    name: str,
    sheet: Path | None,
    split: str,
    convention: Convention,
    force: bool,
    offline: bool,
    as_json: bool,
    show_all: bool = False,
) -> None:
    """Print a description of `name`, and draw the sheet of a task."""
    if name.startswith(OWN_DATA):
        check_tasks(name)
    METHODS.check_unused(name)
    if find_typed("split") and sheet is None:
        raise WrongCall("--split needs -o; add -o FILE, or leave out --split")
    if is_exported_file(name):
        _refuse_convention(name)
    if is_pretrained(name) or is_exported_file(name):
        if sheet is not None:
            raise _refuse_sheet(name)
        row = (
            describe_exported(Path(name))
            if is_exported_file(name)
            else describe_pretrained(name, convention, offline)
        )
        shown = row if as_json else _shorten_classes(row)
        print_row({key: shown[key] for key in shown if as_json or shown[key] is not None}, as_json)
        return
    folder = None if _is_named(name) else _find_folder(name, offline)
    if sheet is not None and (
        folder is not None or name in METHODS.references() or name in _list_suites()
    ):
        raise _refuse_sheet(name)
    if name in METHODS.references():
        _print_method(name, convention, show_all, as_json)
    elif folder is None and name in _list_suites():
        _refuse_convention(name)
        _print_suite(name, show_all, as_json)
    elif folder is None:
        _refuse_convention(name)
        row = _describe_task(name, sheet, split, force, offline)
        print_row(
            row if as_json else _shorten_classes(row),
            as_json,
            is_folded=True,
        )
    elif read_kind(folder) == "learngene":
        _print_learngene(folder, convention, show_all, as_json)
        _note_weights(folder)
    else:
        row = describe_model(folder, convention)
        is_text = row["image_size"] is None
        shown = row if as_json else _shorten_classes(row)
        print_row(
            {key: shown[key] for key in shown if as_json or key != "image_size" or not is_text},
            as_json,
        )
        _note_weights(folder)


def _note_weights(folder: Path) -> None:
    """Print a note if the weights of a folder are missing or incomplete."""
    try:
        check_length(find_local_weights(folder))
    except BadFile as error:
        print_note(f"this is the content of {CONFIG}; {error}")


def _refuse_sheet(name: str) -> WrongCall:
    return WrongCall(f"--sheet (-o) needs a task, and {name} is not one; see `lgzoo list tasks`")


def _refuse_convention(name: str) -> None:
    """Raise `WrongCall` if --convention was typed for what has no sizes."""
    if find_typed("convention"):
        raise WrongCall(
            f"--convention needs a method, a learngene or a model, and {name} is none of them; "
            "leave it out"
        )


def _is_named(name: str) -> bool:
    """Return whether a name cannot be a folder: a method, or the user's own data."""
    return name in METHODS.references() or name.startswith(OWN_DATA)


def _find_folder(name: str, offline: bool) -> Path | None:
    """Return the folder of a path or a name on the shelf; None for a task or a suite.

    Raises `WrongCall` if there is no such folder or name, and `BadFile` for a folder of other
    content.
    """
    task_names = {*_list_suites(), *(entry.name for entry in catalogue.list_entries())}
    try:
        folder = shelf.find(name, offline=offline)
        if (
            name not in task_names
            and not (folder / CONFIG).is_file()
            and catalogue.suggest_folder(name)
        ):
            raise BadFile(
                f"{name} is neither a learngene nor a model; {catalogue.suggest_folder(name)}"
            )
        return folder
    except ZooError:
        if name in task_names:
            return None
        if catalogue.suggest_file(name):
            raise WrongCall(f"{name} is a file; {catalogue.suggest_file(name)}") from None
        kind = KIND_OF.get(Path(name).suffix.lower())
        if kind:
            remedy = suggest_path(Path(name), f"give a file that exists, as {kind}:FILE")
            raise WrongCall(f"there is no file {name}; {remedy}") from None
        if "/" in name or Path(name).exists():
            raise
        catalogue.SUITES.check_unused(name)
        known_names = {*task_names, *METHODS.references(), *shelf.list_names()}
        kind = "method, learngene, task or suite"
        if find_nearest(name, known_names) is None:
            hint = f"see `lgzoo list`{catalogue.suggest_left_out_suites()}"
            raise WrongCall(f"no {kind} named {name!r}; {hint}") from None
        raise refuse_unknown(kind, name, known_names) from None


def _list_suites() -> dict[str, tuple[str, ...]]:
    """Return the tasks of every suite, by its name."""
    return {suite.name: suite.tasks for suite in catalogue.load_suites()[0]}


def _print_heading(as_json: bool, **facts: Json) -> None:
    """Print facts above a table of sizes, but not as JSON."""
    if not as_json:
        print_row(
            {name: value for name, value in facts.items() if value not in (None, "", [], {})},
            as_json=False,
            is_folded=True,
        )
        click.echo()


def _print_suite(name: str, show_all: bool, as_json: bool) -> None:
    entries = map(catalogue.find_entry, _list_suites()[name])
    rows = [make_task_row(entry) for entry in entries if entry]
    print_rows(rows, as_json, drops=DROPS["tasks"], most=None if show_all else MAX_ROWS)


def _print_method(name: str, convention: Convention, show_all: bool, as_json: bool) -> None:
    method = METHODS.load(name)
    members = lifecycle.plan(name, convention=convention, offline=True)
    _print_heading(
        as_json,
        method=name,
        title=method.title,
        paper=method.paper,
        families=list(method.families),
        presets=list(method.presets),
        tasks=method.tasks,
        sizes=f"{len(members)} from the bundled ancestry, "
        f"{_describe_convention(members, convention)}",
        more_sizes=_name_size_options(method, members[-1].spec, f"lgzoo plan {name}"),
    )
    print_sizes(list_sizes(members, convention), as_json, show_all)


def _print_learngene(folder: Path, convention: Convention, show_all: bool, as_json: bool) -> None:
    config = read_config(folder)
    facts: dict[str, Json] = {
        "learngene": shelf.make_reference(folder),
        "method": config.method,
        "control": config.control,
        "ancestry": [record.source for record in config.ancestries],
        "tasks": [task.name for task in config.tasks],
        "licence": config.licence,
        "seed": config.seed,
    }
    method = find_method(config, folder)
    facts["settings"] = _list_changed_settings(config, method)
    facts["version"] = _describe_other_version(config)
    members = lifecycle.plan(folder, convention=convention, offline=True)
    # A method's own records may have the same names; they come after ours and replace none of them.
    short = {
        name: value
        for name, value in {**_flatten(config.details), **_flatten(config.metrics)}.items()
        if _is_short(value)
    }
    listed: dict[str, Json] = {
        "sizes": _describe_convention(members, convention),
        "more_sizes": _name_size_options(method, config.spec, "lgzoo expand"),
    }
    _print_heading(as_json, **{**facts, **short, **facts, **listed})
    rows = _add_accuracy(list_sizes(members, convention), config.metrics)
    print_sizes([{**row, **_list_worth(row, config.card)} for row in rows], as_json, show_all)


def _list_changed_settings(config: LearngeneConfig, method: Method) -> list[str]:
    """Return the settings of an extraction that differ from the default preset's, as options.

    One that the installed version of the method does not have is among them.
    """
    usual = to_json(method.extractor)
    used = config.settings if isinstance(config.settings, dict) else {}
    return [
        _format_option(name, value)
        for name, value in _flatten(used).items()
        if value != usual.get(name) and _is_short(value)
    ]


def _format_option(name: str, value: Json) -> str:
    """Return the option of a setting, as it is typed."""
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{word}" if value else f"--no-{word}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"--{word} {'none' if value is None else quote_word(text)}"


def _describe_other_version(config: LearngeneConfig) -> str:
    """Return a note if another version of the method's package made a learngene; else ""."""
    recorded = find_package_of_method(config.versions)
    installed = METHODS.package_of(config.method)
    notes = [
        f"made by {package} {version}; {installed[package]} is installed"
        for package, version in recorded.items()
        if installed.get(package, version) != version
    ]
    return "; ".join(notes)


def _name_size_options(method: Method, spec: Spec, command: str) -> str:
    """Return the options of a command with which there are other sizes; "" if there are none."""
    names = method.expander.list_size_settings(spec)
    options = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    return f"with {options} of {command}" if options else ""


MAX_LETTERS = 60  # of numbers that are shown in one line; longer lists of them are in config.json


def _is_short(value: Json) -> bool:
    """Return whether a value is shown: lists of numbers only if they fit on a line."""
    if not isinstance(value, list) or any(isinstance(item, str) for item in value):
        return True
    return len(",".join(map(str, value))) <= MAX_LETTERS


def _describe_convention(members: Sequence[Member], convention: Convention) -> str:
    """Return which head the numbers of parameters and FLOPs include."""
    classes = sorted({member.spec.classes for member in members})
    if len(classes) != 1:
        return ""
    head = f"a head of {classes[0]:,} classes" if classes[0] else "no head"
    return (
        "params and FLOPs with "
        f"{head}{'' if convention == 'exact' else f', as {convention} counts'}"
    )


def _flatten(values: Json) -> dict[str, Json]:
    """Return the values that fit on a line.

    These are scalars, lists of scalars, and objects of scalars as `name value` pairs. A value of
    its own takes the place of a setting of the same name, as the images that were there.
    """
    short: dict[str, Json] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            if all(isinstance(item, (int, float, str)) for item in value.values()):
                short[name] = [
                    f"{key} {item:.3g}" if isinstance(item, float) else f"{key} {item}"
                    for key, item in value.items()
                    if values.get(key) is None
                ]
        elif not isinstance(value, list) or not any(
            isinstance(item, (list, dict)) for item in value
        ):
            short[name] = value
    return short


def _list_worth(row: Row, about: CardRecord | None) -> Row:
    """Return the accuracies on the card of a descendant of this size, after short training."""
    measured = about.worth.rows if about and about.worth else ()
    return {
        f"{measurement.task}_accuracy": next(iter(measurement.accuracy.values()), None)
        for measurement in measured
        if {"layers": measurement.layers, "width": measurement.width, **measurement.size}.items()
        <= row.items()
    }


def _add_accuracy(rows: list[Row], metrics: Json) -> list[Row]:
    """Return the rows with the accuracies in the metrics.

    Those of `descendants` are matched by layers, those of an extraction's `paths` by settings.
    """
    descendants, paths = (_select_objects(metrics.get(name)) for name in ("descendants", "paths"))
    by_layers = {
        item["layers"]: item for item in descendants if isinstance(item.get("layers"), int)
    }
    extra = [{**by_layers.get(row["layers"], {}), **_find_agreeing(row, paths)} for row in rows]
    return [
        {**row, **{k: v for k, v in more.items() if k not in row}} for row, more in zip(rows, extra)
    ]


def _find_agreeing(row: Row, measured: list[dict[str, Json]]) -> dict[str, Json]:
    """Return the first measurement that agrees with the row in all shared names, at least one."""
    for item in measured:
        common = item.keys() & row.keys()
        if common and all(item[name] == row[name] for name in common):
            return item
    return {}


def _select_objects(values: Json) -> list[dict[str, Json]]:
    """Return the objects in a list, with their scalars only."""
    objects = (
        [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []
    )
    return [
        {name: value for name, value in item.items() if not isinstance(value, (dict, list))}
        for item in objects
    ]


def _describe_task(name: str, sheet: Path | None, split: str, force: bool, offline: bool) -> Row:
    """Return the row of a task; open it if it is not in the catalogue, or is to be drawn."""
    entry = catalogue.find_entry(name)
    task: Task | None = None
    if entry is None or sheet is not None:
        from learngene_zoo.tasks.unlabelled.opening import open_with_or_without_labels

        task, reason = open_with_or_without_labels(name, offline=offline)
        if reason:
            print_note(_describe_unlabelled(reason))
    described = task or entry
    assert described is not None
    is_labelled = task is None or task.is_labelled
    row: dict[str, Json] = {
        "task": name,
        "title": described.title,
        "kind": described.kind,
        "classes": described.classes if is_labelled else 0,
        **(_describe_own(task) if task is not None and entry is None else {}),
        **{part: described.sizes.get(part) for part in SPLITS},
        **(
            {"metric": described.metric if is_labelled else None}
            if described.kind == "text"
            else {"image_size": described.image_size}
        ),
        "licence": described.licence,
        "source": described.source,
        "description": entry.description if entry else None,
        "notes": list(described.notes),
    }
    if sheet is not None and task is not None:
        from learngene_zoo.tasks.sheet import write_sheet

        row["path"] = str(write_sheet(task, sheet, split=split, force=force))
    return row


def _describe_unlabelled(reason: str) -> str:
    """Return a note on data without labels: why they have none, and what takes them."""
    return (
        f"{reason}; lgzoo heal, shrink --images and extract closed_form take data without labels, "
        "finetune and evaluate do not"
    )


def _describe_own(task: Task) -> Row:
    """Return the classes of the user's data, and the columns of texts in a table."""
    names: Row = {"class_names": list(task.class_names) if task.is_labelled else []}
    if not task.text_columns:
        return names
    return {
        **names,
        "text_columns": list(task.text_columns),
        "pairs": len(task.text_columns) > 1,
        "label_column": task.label_column,
    }


def _shorten_classes(row: Row) -> Row:
    """Return the row with the first of many classes, and without empty lists."""
    if "class_names" not in row:
        return {key: value for key, value in row.items() if value != []}
    names = row["class_names"]
    more = [f"... ({len(names) - MAX_CLASSES:,} more)"] if len(names) > MAX_CLASSES else []
    short = {**row, "class_names": [*names[:MAX_CLASSES], *more]}
    return {key: short[key] for key in row if short[key] != []}


def complete_names(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete methods, learngenes, tasks and suites by name, and folders."""
    names = [
        *METHODS.references(),
        *_list_suites(),
        *(entry.name for entry in catalogue.list_entries()),
    ]
    named = click.Choice(names).shell_complete(ctx, param, incomplete)
    return [*named, *complete_learngenes(ctx, param, incomplete)]


command = SettingsCommand(
    "show",
    callback=show,
    help="Show the sizes and costs of a method or a learngene, or describe a model, a task or a "
    "suite of tasks.\n\n"
    "NAME is a method, a learngene on the shelf, a task, a suite, your own data (folder:PATH), a "
    "pretrained model (timm:NAME), a folder, or an ONNX file. With -o, images of each class of a "
    "task are drawn.",
    epilog="\b\nExamples:\n"
    "  lgzoo show lsamd\n"
    "  lgzoo show ./learngene\n"
    "  lgzoo show digits --json\n"
    "  lgzoo show mini\n"
    "  lgzoo show objects --sheet objects.png\n"
    "  lgzoo show folder:photos -o photos.png",
    params=[
        click.Argument(["name"], shell_complete=complete_names),
        click.Option(
            ["-o", "--sheet"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Draw images of the task into this PNG, one row for each class (at most 20).",
        ),
        make_choice_option("--split", SPLITS, "train", "Split of the drawn images."),
        make_convention_option(),
        click.Option(["--force"], is_flag=True, help="Replace a sheet that already exists."),
        make_offline_option(),
        make_all_option(),
        make_json_option(),
    ],
)
