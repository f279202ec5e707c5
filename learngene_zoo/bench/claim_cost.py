"""What claims will cost, before they are run: seconds of one core, cells and extractions that they share counted once. Cold.

An estimate for models of width 96 and images of 32 x 32; `RATE` was measured, the rest follows from the numbers of images and
layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from learngene_zoo import registry
from learngene_zoo.artifacts.ancestry import ancestry_spec
from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.claim_cells import cells_of, tuning_cells
from learngene_zoo.bench.claim_file import Claim
from learngene_zoo.bench.grid import member_at
from learngene_zoo.lifecycle import preset_of, references_for, sources_for
from learngene_zoo.method import Method, Work
from learngene_zoo.settings import fingerprint, settings_of, to_json, with_settings
from learngene_zoo.tasks import catalogue

RATE = 4200.0  # layers times training images per second, one thread of two busy ones: 350 images/s with 12 layers
FORWARD = 2.8  # a forward pass alone is so many times faster
DRAWN = 0.0005  # seconds until an image of the source task is drawn; those of other tasks are drawn beforehand
FIXED = 0.7  # seconds of a cell that are neither


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a claim adds to those before it."""

    cells: int
    extractions: int
    seconds: float  # of one core


def prices(claims: Iterable[Claim], layers: int = 12) -> Mapping[str, Price]:
    """By claim, in their order, what it adds. `layers` are the ancestry model's."""
    cells_seen: set[str] = set()
    extractions_seen: set[str] = set()
    parts_seen: set[str] = set()
    found = {}
    for claim in claims:
        cells = {cell.key: cell for cell in [*tuning_cells(claim), *cells_of(claim)]}
        fresh = {key: cell for key, cell in cells.items() if key not in cells_seen}
        extractions = {repr((cell.extraction, cell.seed)): cell for cell in fresh.values()}
        added = [parts_of(cell, layers) for key, cell in extractions.items() if key not in extractions_seen]
        parts = {key: seconds for of_one in added for key, seconds in of_one.items()}
        total = sum(map(cell_seconds, fresh.values()))
        total += sum(seconds for key, seconds in parts.items() if key not in parts_seen)
        found[claim.name] = Price(cells=len(fresh), extractions=sum(map(bool, added)), seconds=total)
        cells_seen |= set(cells)
        extractions_seen |= set(extractions)
        parts_seen |= set(parts)
    return found


def cell_seconds(cell: Cell) -> float:
    """Training, and after it one pass over the validation images and one over the judged ones."""
    judged = _images(cell.task, cell.split) + _images(cell.task, "validation")
    images = min(cell.recipe.images or sys.maxsize, _images(cell.task, "train"))
    return FIXED + _layers(cell) * (images * cell.recipe.epochs + judged / FORWARD) / RATE


def _layers(cell: Cell) -> float:
    """Of a descendant, in those of the ancestry's width: a narrower one counts for its share of the width."""
    if not cell.size:
        wide = ancestry_spec(sources_for(_method(cell.arm.method), cell.arm.ancestries)[0]).width
        return cell.layers * (cell.width or wide) / wide
    spec = member_at(replace(cell.arm, name=""), cell.size).spec
    return sum(segment.layers * segment.width / spec.width for segment in spec.segments)


def parts_of(cell: Cell, layers: int) -> dict[str, float]:
    """The parts of a cell's extraction, by what tells them from others, and their seconds; none for one that needs no data.

    A method that does not say what it does trains the ancestry model on each of its tasks, as its recipe says, with a pass over
    their validation images.
    """
    arm, method = cell.extraction, _method(cell.arm.method)
    extractor = with_settings(preset_of(method, arm.preset), arm.settings)
    if method.tasks == "none" or not method.uses_tasks(extractor):
        return {}
    tasks = references_for(method, arm.tasks)
    specs = [ancestry_spec(source) for source in sources_for(method, arm.ancestries)]
    counts = [_images(task, "train") for task in tasks]
    works = list(method.work(extractor, specs, counts) if method.work else extractor.work(specs, counts))
    if works:
        judged = sum(_images(task, "validation") for task in tasks)
        return {fingerprint([work.depends, tasks, arm.ancestries, cell.seed]): _seconds(work, judged) for work in works}
    leaves = {setting.name: setting.default for setting in settings_of(extractor)}
    images = [min(leaves.get("images") or sys.maxsize, _images(task, "train")) for task in tasks]
    judged = sum(_images(task, "validation") for task in tasks)
    seconds = layers * (sum(images) * leaves.get("epochs", 0) + judged / FORWARD) / RATE
    return {fingerprint([to_json(arm), cell.seed]): seconds} if seconds else {}


def _seconds(work: Work, judged: int) -> float:
    """Training, and after it one pass over the validation images."""
    training = work.images * (DRAWN + (work.trained + work.asked / FORWARD) / RATE)
    return training + judged * (DRAWN + work.trained / FORWARD / RATE)


def _images(task: str, split: str) -> int:
    entry = catalogue.find_entry(task)
    return entry.sizes.get(split, 0) if entry else 0


def markdown(found: Mapping[str, Price]) -> str:
    """One line per claim, and their sum, in minutes of two cores."""
    lines = ["| claim | cells | extractions | minutes of two cores |", "|---|---:|---:|---:|"]
    rows = [*found.items(), ("together", _sum(found.values()))]
    for name, price in rows:
        shown = f"`{name}`" if name in found else name
        lines.append(f"| {shown} | {price.cells} | {price.extractions} | {price.seconds / 120:.1f} |")
    return "\n".join(lines)


def _sum(parts: Iterable[Price]) -> Price:
    parts = list(parts)
    return Price(
        cells=sum(part.cells for part in parts),
        extractions=sum(part.extractions for part in parts),
        seconds=sum(part.seconds for part in parts),
    )


@cache
def _method(name: str) -> Method:
    return registry.load(name)
