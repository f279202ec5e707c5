"""`lgzoo list [methods|learngenes|tasks|ancestries]`."""

from collections.abc import Callable

import click

from learngene_zoo.cli.job import MOST_ROWS, Row, advise, all_option, json_option, print_rows
from learngene_zoo.cli.main import note
from learngene_zoo.errors import ZooError, unknown
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.task import Entry


def method_rows() -> list[Row]:
    """Every method that can be used; a note on stderr for each one that cannot."""
    from learngene_zoo.method import METHODS

    good, broken = METHODS.load_all()
    for plugin in broken:
        note(f"method {plugin.name} of {plugin.reference} cannot be used; see lgzoo doctor")
    return [
        {
            "name": m.name,
            "title": m.title,
            "families": list(m.families),
            "tasks": m.tasks,
            "presets": list(m.presets),
            "paper": m.paper or None,
        }
        for m in good
    ]


def learngene_rows() -> list[Row]:
    """Every learngene of the shelf."""
    from learngene_zoo.artifacts import shelf

    rows: list[Row] = []
    for name in shelf.names():
        try:
            found = shelf.entry(shelf.cards_folder() / name)
        except ZooError as error:
            note(str(error))
            continue
        if found is not None:
            rows.append(vars(found))
    return rows


def task_rows() -> list[Row]:
    """Every task of the catalogue; a note on stderr for each suite that cannot be used."""
    for plugin in catalogue.suites()[1]:
        note(f"suite {plugin.name} of {plugin.reference} cannot be used; see lgzoo doctor")
    return [task_row(entry) for entry in catalogue.entries()]


def task_row(entry: Entry) -> Row:
    """One task of the catalogue, and the suites that run it."""
    return {
        "name": entry.name,
        "title": entry.title,
        "classes": entry.classes,
        **{part: entry.sizes.get(part) for part in ("train", "validation", "test")},
        "licence": entry.licence,
        "suites": catalogue.suites_of(entry.name),
    }


def ancestry_rows() -> list[Row]:
    """The bundled ancestry model, and well-known ones of timm."""
    from learngene_zoo.artifacts.known import known

    return [vars(found) for found in known()]


NOUNS: dict[str, Callable[[], list[Row]]] = {
    "methods": method_rows,
    "learngenes": learngene_rows,
    "tasks": task_rows,
    "ancestries": ancestry_rows,
}
# The columns of each table that are left out first where the terminal is narrow.
DROPS = {
    "methods": ("presets", "families", "tasks"),
    "learngenes": ("licence", "image_size", "width", "tasks"),
    "tasks": ("suites", "licence", "validation", "title"),
    "ancestries": ("licence", "group", "image_size"),
}
KINDS = {"methods": "method", "learngenes": "learngene", "tasks": "task", "ancestries": "ancestry"}


def listing(noun: str | None, as_json: bool, show_all: bool = False) -> None:
    """Print one table, or all of them; as JSON all of them form one list whose rows name their kind."""
    if noun is not None and noun not in NOUNS:
        raise unknown("list", noun, NOUNS)
    if as_json:
        rows = NOUNS[noun]() if noun else [{"kind": KINDS[kind], **row} for kind in NOUNS for row in NOUNS[kind]()]
        print_rows(rows, as_json=True)
        return
    most = None if show_all else MOST_ROWS
    if noun is not None:
        print_rows([_short(row) for row in NOUNS[noun]()], False, drops=DROPS[noun], most=most)
        return
    for kind, rows_of in NOUNS.items():
        rows = [_short(row) for row in rows_of()]
        print_rows(rows, False, f"{kind}: {len(rows)}", drops=DROPS[kind], most=most, quiet=True)
        click.echo()
    if not show_all:
        advise("lgzoo list methods --all   (or learngenes, tasks, ancestries)")


def _short(row: Row) -> Row:
    """Without what is too long for a table."""
    return {name: value for name, value in row.items() if name != "paper"}


command = click.Command(
    "list",
    callback=listing,
    help="List methods, learngenes, tasks and well-known ancestry models, with the family that each opens to.",
    epilog="\b\nExamples:\n  lgzoo list\n  lgzoo list methods --all\n  lgzoo list tasks --json",
    params=[
        click.Argument(
            ["noun"],
            required=False,
            metavar="[methods|learngenes|tasks|ancestries]",
            shell_complete=click.Choice(list(NOUNS)).shell_complete,
        ),
        all_option(),
        json_option(),
    ],
)
