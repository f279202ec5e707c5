"""A table of texts, in the words and numbers of a report: per cent, points, intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from learngene_zoo.bench.results.averages import Average
from learngene_zoo.terminal import COLUMN_GAP
from learngene_zoo.text import escape_markdown as escaped
from learngene_zoo.text import format_seconds

NONE = "-"
AVERAGE = "average"
PROBE = "probe"  # the column of the ridge regression of the features before any training


@dataclass(frozen=True)
class TextTable:
    """A title, and rows of texts by column.

    The first `texts` columns are words, the others numbers. The lines of the note are shown below
    the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    note: str = ""

    @property
    def width(self) -> int:
        """Return the number of characters of the longest line in a terminal."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows)]
        return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)

    def without(self, name: str) -> TextTable:
        """Return the table without a column."""
        indices = [index for index, column in enumerate(self.columns) if column != name]
        columns, *rows = (
            tuple(row[index] for index in indices) for row in (self.columns, *self.rows)
        )
        return replace(self, columns=columns, rows=tuple(rows))


def drop_constant_columns(table: TextTable) -> TextTable:
    """Return the table without columns that are empty, and without a width that all rows share."""
    values = [set(column) for column in zip(*table.rows)]
    indices = [
        index
        for index, name in enumerate(table.columns)
        if values[index] != {NONE} and (name != "width" or len(values[index]) > 1)
    ]
    columns, *rows = (
        tuple(row[index] for index in indices) for row in (table.columns, *table.rows)
    )
    return replace(table, columns=columns, rows=tuple(rows))


def format_percent(value: float) -> str:
    """Return a fraction in per cent."""
    return f"{100 * value:.1f}"


def format_fraction(average: Average | None, form: str = ".1f") -> str:
    """Return a fraction in per cent, with [its interval] or (its range).

    With the form `+.1f` it is a difference in points.
    """
    if average is None:
        return NONE
    value, *ends = (
        f"{100 * number:{form}}"
        for number in (average.value, average.low, average.high)
        if number is not None
    )
    if not ends:
        return value
    return (
        f"{value} ({' to '.join(ends)})"
        if average.interval == "range"
        else f"{value} [{', '.join(ends)}]"
    )


def format_duration(seconds: float) -> str:
    """Return seconds in words."""
    return format_seconds(seconds) if seconds else NONE


def render_markdown(tables: Iterable[TextTable]) -> str:
    """Return tables one below the other, each with its title."""
    return (
        "\n\n".join(
            f"### {escaped(table.title)}\n\n{render_table(table)}"
            + "".join(f"\n\n{escaped(line)}" for line in table.note.splitlines())
            for table in tables
        )
        + "\n"
    )


def render_table(table: TextTable) -> str:
    """Return a table without its title."""
    rule = tuple(":---" if index < table.texts else "---:" for index in range(len(table.columns)))
    columns, *rows = (tuple(map(escaped, row)) for row in (table.columns, *table.rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))
