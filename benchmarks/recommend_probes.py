"""The probes of `lgzoo recommend` on the grid of inheritance.py: every learngene's untrained
descendants.

They are fitted to the images that the fine-tuning of the cell sees, which are those that a user
with so many images has; so each seed has its own recommendation. Each probe is computed once and
stored in the folder of the rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inheritance_page import Name
from learngene_zoo import lifecycle
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.grid import list_members, select_members
from learngene_zoo.bench.results.rows import Row, pack_flags, unpack_flags
from learngene_zoo.bench.running.extraction import extract_once
from learngene_zoo.bench.running.trial import find_size
from learngene_zoo.lifecycle.recommendation import probe_descendant
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task

Option = tuple[str, Name]  # an arm and a size
PROBES = "probes.jsonl"


@dataclass(frozen=True, eq=False)
class Probe:
    """A descendant that `recommend` could name, and whether its probe classifies each of the user's
    images correctly, bool (N,).
    """

    option: Option
    member: Member
    right_N: np.ndarray  # noqa: N815  N is a dimension


Probes = Mapping[tuple[str, int, int], Sequence[Probe]]  # by task, images and seed


def collect_probes(
    grid_rows: Iterable[tuple[Cell, Row]],
    names: Mapping[tuple[int, int], Name],
    out: Path,
    run: Run,
) -> dict[tuple[str, int, int], list[Probe]]:
    """Return the probes of all learngenes with rows. Those that `out` lacks are computed."""
    flags, probes = _read_flags(out / PROBES), dict[tuple[str, int, int], list[Probe]]()
    for cell, row in grid_rows:
        if row.error is None and cell.arm.control is None and cell.arm.method != "scratch":
            key = _make_key(cell)
            if key not in flags:
                print(
                    f"probing {cell.arm.name}, {cell.at}, for {cell.task}, seed {cell.seed}",
                    file=sys.stderr,
                )
                flags[key] = _compute_flags(cell, out, run)
                _append_flags(out / PROBES, key, flags[key])
            option = (cell.arm.name, names[cell.layers, cell.width or row.width])
            request = (cell.task, cell.recipe.images or 0, cell.seed)
            probes.setdefault(request, []).append(
                Probe(option, _find_member(cell), np.array(flags[key]))
            )
    return probes


def _make_key(cell: Cell) -> str:
    """Return a key of all that a probe depends on, which is the cell without its training."""
    return replace(cell, recipe=Recipe(epochs=0, images=cell.recipe.images)).key


def _read_flags(path: Path) -> dict[str, tuple[bool, ...]]:
    """Return, by key, whether each probe classifies the images correctly."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = map(
        json.loads, (line for line in lines if line.endswith("}"))
    )  # an interrupted run may have cut the last one short
    return {row["key"]: unpack_flags(row["right"], row["images"]) for row in rows}


def _append_flags(path: Path, key: str, flags: tuple[bool, ...]) -> None:
    """Append the flags of a probe to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(
            "\n" + json.dumps({"key": key, "images": len(flags), "right": pack_flags(flags)})
        )


def _find_member(cell: Cell) -> Member:
    """Return the most expensive member of a cell's size."""
    size = {"layers": cell.layers, **({"width": cell.width} if cell.width else {})}
    return max(select_members(list_members(cell.arm), size), key=lambda member: member.cost())


def _compute_flags(cell: Cell, out: Path, run: Run) -> tuple[bool, ...]:
    """Return whether the probe of an untrained descendant classifies each image correctly."""
    learngene, _ = extract_once(cell.extraction, out, run)
    task, seeded_run = open_task(cell.task, offline=True), replace(run, seed=cell.draws)
    target, expander = find_size(cell, learngene.config, task.classes)
    descendant = lifecycle.expand(learngene, target=target, expander=expander, run=seeded_run)
    return tuple(map(bool, probe_descendant(descendant, task, cell.recipe.images, seeded_run)))
