"""The probes of `lgzoo recommend` on the grid of inheritance.py: every learngene's untrained
descendants.

They are fitted to the images that the fine-tuning of the cell sees, which are those that a user
with so many images has; so each seed has its own recommendation. Each probe is computed once and
kept in the folder of the rows.
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
from learngene_zoo.bench.grid.grid import family, select_members
from learngene_zoo.bench.results.rows import Row, pack_flags, unpack_flags
from learngene_zoo.bench.running.extraction import extract_once
from learngene_zoo.bench.running.trial import size_of
from learngene_zoo.lifecycle.recommendation import probe_descendant
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task

Option = tuple[str, Name]  # an arm and a size
PROBES = "probes.jsonl"


@dataclass(frozen=True, eq=False)
class Probe:
    """A descendant that `recommend` could name, and which of the user's images its probe names
    rightly, bool (N,).
    """

    option: Option
    member: Member
    right_N: np.ndarray  # noqa: N815  a dimension, not a hump


Probes = Mapping[tuple[str, int, int], Sequence[Probe]]  # by task, images and seed


def probes_of(
    found: Iterable[tuple[Cell, Row]], names: Mapping[tuple[int, int], Name], out: Path, run: Run
) -> dict[tuple[str, int, int], list[Probe]]:
    """The probes of all learngenes with rows; those that `out` lacks are made now."""
    kept, made = _kept(out / PROBES), dict[tuple[str, int, int], list[Probe]]()
    for cell, row in found:
        if row.error is None and cell.arm.control is None and cell.arm.method != "scratch":
            key = _key(cell)
            if key not in kept:
                print(
                    f"probing {cell.arm.name}, {cell.at}, for {cell.task}, seed {cell.seed}",
                    file=sys.stderr,
                )
                kept[key] = _probed(cell, out, run)
                _keep(out / PROBES, key, kept[key])
            option = (cell.arm.name, names[cell.layers, cell.width or row.width])
            at = (cell.task, cell.recipe.images or 0, cell.seed)
            made.setdefault(at, []).append(Probe(option, _member(cell), np.array(kept[key])))
    return made


def _key(cell: Cell) -> str:
    """What a probe depends on: everything but how the descendant is trained afterwards."""
    return replace(cell, recipe=Recipe(epochs=0, images=cell.recipe.images)).key


def _kept(path: Path) -> dict[str, tuple[bool, ...]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = map(
        json.loads, (line for line in lines if line.endswith("}"))
    )  # the last one may have been cut short
    return {one["key"]: unpack_flags(one["right"], one["images"]) for one in found}


def _keep(path: Path, key: str, right: tuple[bool, ...]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(
            "\n" + json.dumps({"key": key, "images": len(right), "right": pack_flags(right)})
        )


def _member(cell: Cell) -> Member:
    wanted = {"layers": cell.layers, **({"width": cell.width} if cell.width else {})}
    return max(select_members(family(cell.arm), wanted), key=lambda member: member.cost())


def _probed(cell: Cell, out: Path, run: Run) -> tuple[bool, ...]:
    learngene, _ = extract_once(cell.extraction, out, run)
    task, own = open_task(cell.task, offline=True), replace(run, seed=cell.draws)
    target, expander = size_of(cell, learngene, task)
    descendant = lifecycle.expand(learngene, target=target, expander=expander, run=own)
    return tuple(map(bool, probe_descendant(descendant, task, cell.recipe.images, own)))
