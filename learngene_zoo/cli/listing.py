"""`lgzoo list [methods|learngenes|tasks|ancestries]`."""

from collections.abc import Callable
from pathlib import Path

import click

from learngene_zoo.atomic import check_file, new_file
from learngene_zoo.cli.job import (
    MAX_ROWS,
    Row,
    advise,
    make_all_option,
    make_json_option,
    print_lines,
    print_row,
    print_rows,
)
from learngene_zoo.cli.main import pause_garbage_collection
from learngene_zoo.cli.process.messages import print_note
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import WrongCall, ZooError, refuse_unknown
from learngene_zoo.families.spec import FAMILIES
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.task import Entry
from learngene_zoo.text import count_noun


def list_methods() -> list[Row]:
    """Return a row for every method, those of other packages first.

    A note on stderr names each one that is broken.
    """
    with pause_garbage_collection():
        from learngene_zoo.method.installed import METHODS

        good, broken = METHODS.load_all()
        ours = METHODS.list_in_tree()
    for plugin in broken:
        print_note(f"method {plugin.name} of {plugin.reference} cannot be used; see lgzoo doctor")
    return [
        {
            "name": m.name,
            "title": m.title,
            "families": list(m.families),
            "tasks": m.tasks,
            "presets": list(m.presets),
            "paper": m.paper or None,
        }
        for m in sorted(good, key=lambda method: method.name in ours)
    ]


def list_learngenes() -> list[Row]:
    """Return a row for every learngene of the shelf."""
    from learngene_zoo.artifacts import shelf

    rows: list[Row] = []
    for name in shelf.list_names():
        try:
            learngene = shelf.read_entry(shelf.find_cards_folder() / name)
        except ZooError as error:
            print_note(str(error))
            continue
        if learngene is not None:
            rows.append(vars(learngene))
    return rows


def list_tasks() -> list[Row]:
    """Return a row for every task of the catalogue; print a note for each broken suite."""
    for plugin in catalogue.load_suites()[1]:
        print_note(f"suite {plugin.name} of {plugin.reference} cannot be used; see lgzoo doctor")
    return [make_task_row(entry) for entry in catalogue.list_entries()]


def make_task_row(entry: Entry) -> Row:
    """Return the row of one task of the catalogue, with the suites that contain it."""
    return {
        "name": entry.name,
        "title": entry.title,
        "input": "text" if entry.kind == "text" else "image",
        "classes": entry.classes,
        **{part: entry.sizes.get(part) for part in ("train", "validation", "test")},
        "licence": entry.licence,
        "suites": catalogue.list_suites_of(entry.name),
    }


def list_ancestries() -> list[Row]:
    """Return rows of the bundled ancestry models and of well-known ones of timm."""
    from learngene_zoo.pretrained.known import list_known

    return [vars(ancestry) for ancestry in list_known()]


NOUNS: dict[str, Callable[[], list[Row]]] = {
    "methods": list_methods,
    "learngenes": list_learngenes,
    "tasks": list_tasks,
    "ancestries": list_ancestries,
}
# The columns of each table that are left out first where the terminal is narrow.
DROPS = {
    "methods": ("presets", "families", "tasks"),
    "learngenes": ("licence", "image_size", "width", "tasks"),
    "tasks": ("suites", "licence", "validation", "title"),
    "ancestries": ("group", "image_size", "params", "licence"),
}
KINDS = {"methods": "method", "learngenes": "learngene", "tasks": "task", "ancestries": "ancestry"}


def print_listing(
    noun: str | None,
    as_json: bool,
    show_all: bool = False,
    html: Path | None = None,
    force: bool = False,
    family: str | None = None,
) -> None:
    """Print one table, or all of them; as JSON, all are one list whose rows have a `kind`.

    With `html`, a page of the learngenes is written instead. `family` selects the methods that take
    models of this family.
    """
    if noun is not None and noun not in NOUNS:
        raise refuse_unknown("list", noun, NOUNS)
    most = None if show_all else MAX_ROWS
    if family is not None and html is not None:
        raise WrongCall("--family and --html exclude each other; choose one")
    if family is not None:
        _print_methods_of(family, noun, as_json, most)
        return
    if html is not None:
        _write_page(noun, html, force, as_json)
        return
    if as_json:
        rows = (
            NOUNS[noun]()
            if noun
            else [{"kind": KINDS[kind], **row} for kind in NOUNS for row in NOUNS[kind]()]
        )
        print_rows(rows, as_json=True)
        return
    if noun is not None:
        print_rows([_shorten(row) for row in NOUNS[noun]()], False, drops=DROPS[noun], most=most)
        if noun == "tasks" and not show_all:
            advise(_name_suites())
        return
    for kind, rows_of in NOUNS.items():
        rows = [_shorten(row) for row in rows_of()]
        print_rows(rows, False, f"{kind}: {len(rows)}", drops=DROPS[kind], most=most, quiet=True)
        click.echo()
    if not show_all:
        advise("lgzoo list methods --all   (or learngenes, tasks, ancestries)")


def _print_methods_of(family: str, noun: str | None, as_json: bool, most: int | None) -> None:
    """Print the methods that take models of a family, at most `most` in a table."""
    if noun != "methods":
        raise WrongCall("--family selects methods: lgzoo list methods --family NAME")
    rows = list_methods()
    served = {name for row in rows for name in row["families"]}
    if family not in served:
        raise refuse_unknown("family", family, served)
    chosen = [row for row in rows if family in row["families"]]
    shown = chosen if as_json else [_shorten(row) for row in chosen]
    print_rows(shown, as_json, drops=DROPS["methods"], most=most)


def _write_page(noun: str | None, path: Path, force: bool, as_json: bool) -> None:
    """Write the page of the learngenes on the shelf and print its path."""
    if noun != "learngenes":
        raise WrongCall("--html writes a page of the learngenes: lgzoo list learngenes --html FILE")
    check_file(path, force)
    from learngene_zoo.lifecycle.shelf_page import build_shelf_page

    with new_file(path, force) as draft:
        draft.write_text(build_shelf_page(), encoding="utf-8")
    if as_json:
        print_row({"path": str(path)}, as_json=True)
    else:
        print_lines([str(path)])


def _name_suites() -> str:
    """Return the commands that list the tasks of each suite, with their numbers of tasks."""
    counts = {suite.name: len(suite.tasks) for suite in catalogue.load_suites()[0]}
    names = ", ".join(f"{name} ({count_noun(count, 'task')})" for name, count in counts.items())
    return f"lgzoo show SUITE   (suites: {names})"


def _shorten(row: Row) -> Row:
    """Return the row without values that are too long for a table."""
    return {name: value for name, value in row.items() if name != "paper"}


command = SettingsCommand(
    "list",
    callback=print_listing,
    help="List methods, learngenes, tasks, and well-known ancestry models with their model family.",
    epilog="\b\nExamples:\n  lgzoo list\n  lgzoo list methods --all\n"
    "  lgzoo list methods --family vit\n  lgzoo list tasks --json\n"
    "  lgzoo list learngenes --html learngenes.html",
    params=[
        click.Argument(
            ["noun"],
            required=False,
            metavar="[methods|learngenes|tasks|ancestries]",
            shell_complete=click.Choice(list(NOUNS)).shell_complete,
        ),
        make_all_option(),
        click.Option(
            ["--html"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write the learngenes as an HTML page with filters to this file.",
        ),
        click.Option(
            ["--family"], help=f"List only methods for models of a family: {', '.join(FAMILIES)}."
        ),
        click.Option(["--force"], is_flag=True, help="Replace what already exists."),
        make_json_option(),
    ],
)
