"""The command line of a study whose results are rows: which cells are measured, and of what."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

DINOV2 = "the folder of DINOv2-S"


def read_arguments(
    doc: str | None,
    *,
    ancestry: str | None = DINOV2,
    default: str | None = None,
    workers: bool = True,
    tasks: Sequence[str] = (),
) -> argparse.Namespace:
    """Read --ancestry, --workers, --only and --table of the program that runs.

    Args:
        doc: the docstring of the program.
        ancestry: the help of --ancestry; None: there is no such option.
        default: what is measured without --ancestry, for its help; None: --ancestry must be given,
            unless nothing is measured.
        workers: whether there is --workers.
        tasks: if given, --only takes some of these tasks, and is all of them by default. Otherwise
            it takes words.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if ancestry is not None:
        parser.add_argument("--ancestry", help=f"{ancestry} ({default})" if default else ancestry)
    if workers:
        parser.add_argument("--workers", type=int, default=1, help="cells at once")
    if tasks:
        parser.add_argument("--only", nargs="*", default=list(tasks), help="tasks (default: all)")
    else:
        parser.add_argument(
            "--only", nargs="*", default=[], help="cells whose names contain all of these words"
        )
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if ancestry is not None and not default and not args.table and not args.ancestry:
        parser.error(f"name {ancestry}: --ancestry FOLDER")
    return args
