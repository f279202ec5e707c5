"""Functions for programs that run grids: compute and keep rows, choose learning rates, use bundled
learngenes, and summarise gains.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.records import Measured
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.claims.contrasts import compute_gains_over_images
from learngene_zoo.bench.grid.cell import Arm, Cell, Extraction
from learngene_zoo.bench.results.rows import Row, read_rows
from learngene_zoo.bench.results.summary import STEMS
from learngene_zoo.bench.running.executors import Executor, Workers
from learngene_zoo.bench.running.extraction import ExtractionCost
from learngene_zoo.bench.running.runner import claim_workspace, run_grid
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import to_json
from learngene_zoo.storage import write_json
from learngene_zoo.tasks.catalogue import find_entry

DESCENDANT, SHUFFLED = "descendant", "shuffled"  # names of arms on a card


def run_cells(
    cells: Sequence[Cell], out: Path, run: Run | None = None, executor: Executor | None = None
) -> list[Row]:
    """Return the rows of the cells, computed by two workers unless they exist. Exits with the error
    of a cell that failed.
    """
    rows = run_grid(
        cells,
        out,
        run or Run(threads=1),
        executor or Workers(2),
        say=lambda text: print(text, file=sys.stderr),
    )
    failed = [row for row in rows if row.error]
    if failed:
        raise SystemExit(f"{failed[0].arm} on {failed[0].task}: {failed[0].error}")
    return rows


def keep_rows(source: Path, archive: Path, without: Path | None = None) -> None:
    """Append to `archive` the rows without an error that it lacks, and that `without` lacks.

    Rows of earlier protocols stay, so that their results can be judged again. Exits with an error
    if a cell has another result there, which a file with one row per cell cannot keep.
    """
    rows = [row for row in read_rows(source) if row.error is None]
    archived_keys = set[str]()
    for path in [archive] if without is None else [archive, without]:
        archived = {row.key: row for row in read_rows(path) if row.error is None}
        check_same_results(rows, archived, source, path)
        archived_keys |= set(archived)
    new = [row for row in rows if row.key not in archived_keys]
    if new:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with archive.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(to_json(row), ensure_ascii=False) + "\n" for row in new)


def check_same_results(
    rows: Sequence[Row], archived: Mapping[str, Row], source: Path, archive: Path
) -> None:
    """Exit with an error if rows have other results than archived rows of the same cells.

    The key of a cell does not name the version of its method, nor the machine.
    """
    changed = [
        (row, other)
        for row in rows
        if (other := archived.get(row.key)) is not None
        and (row.value, row.correct) != (other.value, other.correct)
    ]
    if changed:
        (row, other), *_ = changed
        raise SystemExit(
            f"{len(changed)} cells of {source} have other results in {archive}, such as {row.arm}"
            f" on {row.task}: {row.value} on {row.finished[:10]}, {other.value} on"
            f" {other.finished[:10]}; a method or the machine has changed between them. Nothing was"
            f" copied: keep the results of {source.parent} in an archive that has no others"
        )


def choose_rates(
    arms: Iterable[Arm], rates: Sequence[float], rows_at: Callable[[float], list[Row]]
) -> dict[str, float]:
    """Return, for each arm, the rate with the best mean over the rows that `rows_at` returns for
    it.
    """
    by_rate = {rate: rows_at(rate) for rate in rates}
    sums_of_arms = {
        arm.name: {
            rate: sum(row.value or 0 for row in rows if row.arm == arm.name)
            for rate, rows in by_rate.items()
        }
        for arm in arms
    }
    return {name: max(sums, key=lambda rate: sums[rate]) for name, sums in sums_of_arms.items()}


def describe_gain(row: Mapping[str, Any], rival: str) -> str:
    """Return the gain over a rival in points, with its interval."""
    value, low, high = (100 * row[f"over_{rival}{end}"] for end in ("", "_low", "_high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def place_learngene(extraction: Extraction, card: Path, out: Path) -> None:
    """Copy a bundled learngene to the folder in which a grid looks for an extraction."""
    claim_workspace(out, anew=False)
    folder = extraction.folder(out)
    if not folder.exists():
        shutil.copytree(card, folder)
        with new_file(extraction.record(out), force=True) as draft:
            write_json(draft, to_json(ExtractionCost(finished=True)))


def summarise_gains(member: Member, size: dict[str, object], rows: Sequence[Row]) -> Measured:
    """Return a row of a card's table: accuracies by arm, and the gains of the descendant over the
    others.

    The descendant is the first row. Intervals are over the images.
    """
    ours, *other_rows = rows
    names = {ours.arm: DESCENDANT, **{row.arm: row.control or row.arm for row in other_rows}}
    scratch = [row.arm for row in other_rows if row.control is None]
    stems = [row.arm for row in other_rows if row.control in STEMS]
    rivals = {
        SHUFFLED: [row.arm for row in other_rows if row.control == SHUFFLED],
        "stem": stems,
        "scratch": scratch,
    }
    gains = compute_gains_over_images(rows, ours.arm, rivals)
    ends = ("", "_low", "_high")
    return Measured(
        task=ours.task,
        layers=ours.layers,
        width=member.spec.width,
        size=size,
        params=ours.params,
        flops=ours.flops,
        images=ours.evaluated,
        accuracy={name: round(gains[arm], 4) for arm, name in names.items()},
        gains={
            name: tuple(round(gains[f"over_{name}{end}"], 4) for end in ends) for name in rivals
        },  # type: ignore[misc]
    )


def find_source(task: str) -> str:
    """Return the source of a task's images."""
    entry = find_entry(task)
    assert entry is not None
    return entry.source
