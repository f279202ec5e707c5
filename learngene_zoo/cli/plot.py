"""`lgzoo plot [LEARNGENE]`: the picture that its method draws of a learngene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.expand import FOUND, ExpandCommand
from learngene_zoo.cli.job import json_option
from learngene_zoo.cli.options import chosen
from learngene_zoo.cli.output import print_lines, print_row


def plot(learngene: str | None, out: Path, force: bool, as_json: bool, **given: Any) -> None:
    """Draw it and print its path."""
    folder, method = click.get_current_context().meta[FOUND]
    path = lifecycle.plot(folder, out, expander=chosen(method.expander), force=force)
    if as_json:
        print_row({"path": str(path)}, as_json=True)
    else:
        print_lines([str(path)])


command = ExpandCommand(
    "plot",
    callback=plot,
    help="Draw a learngene as its method does: for LSAMD, which blocks each data set chose; for a pool, its blocks and "
    "stitches, with the path that its expander's options name; for TAL, its encoder's embedding of every size for every "
    "task, and how similar the tasks are.\n\n"
    "LEARNGENE is a folder or a name on the shelf (default: ./learngene). lgzoo plot LEARNGENE --help also shows the options "
    "of its method.",
    epilog="\b\nExamples:\n  lgzoo plot\n  lgzoo plot lsamd -o paths.svg\n  lgzoo plot learngene --low 3 --high 3 -o pool.png",
    params=[
        click.Argument(["learngene"], required=False),
        click.Option(
            ["-o", "--out"],
            type=click.Path(path_type=Path, dir_okay=False),
            default="learngene.png",
            show_default=True,
            help="Path of the picture, which ends in .png or .svg.",
        ),
        click.Option(["--force"], is_flag=True, help="Replace what already exists."),
        json_option(),
    ],
)
