"""Which ancestry models a results file speaks of: `ancestries.json` beside it, so that two are never mixed. Cold."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from learngene_zoo import registry
from learngene_zoo.bench.cell import Cell
from learngene_zoo.errors import Refused
from learngene_zoo.folder import new_file, read_json, write_json
from learngene_zoo.inputs import sources_for
from learngene_zoo.run import Run

ANCESTRIES = "ancestries.json"


def check_same_ancestries(cells: Iterable[Cell], out: Path, run: Run) -> None:
    """Note the checksum of every ancestry model of a grid. Raises `Refused` if one changed since the results began."""
    from learngene_zoo.ancestry import open_ancestry

    arms = {cell.arm.name: cell.arm for cell in cells}.values()
    sources = sorted({source for arm in arms for source in sources_for(registry.load(arm.method), arm.ancestries)})
    path = out / ANCESTRIES
    before = read_json(path) if path.is_file() else {}
    found = {source: open_ancestry(source, offline=run.offline).record.sha256 for source in sources}
    for source, checksum in found.items():
        if before.get(source, checksum) != checksum:
            raise Refused(
                f"the results in {out} are of another ancestry model {source}; choose another place with -o, "
                "or measure all again with --force"
            )
    if found.items() - before.items():
        with new_file(path, force=True) as draft:
            write_json(draft, {**before, **found})
