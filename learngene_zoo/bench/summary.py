"""From the rows of a bench to what it found: per arm, size and budget, for each task and averaged over tasks. Cold.

Two gains stand beside every metric. *Over scratch* is the difference to the stronger of the scratch arms: the one with the
higher mean over seeds, chosen for each task, size and budget by itself, and on the very numbers that are compared, so that the
choice favours scratch. *Inherited knowledge* is the difference to the arm's own control `shuffled`. Both are paired: equal
task, seed, images and head.

The intervals of gains speak of other tasks and other seeds. Those of metrics speak of other seeds on these tasks: tasks differ
far more from each other than arms do, and an interval over them would say nothing of the arms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from learngene_zoo.bench.cell import Row
from learngene_zoo.bench.contrasts import Values, stronger
from learngene_zoo.bench.statistics import Spread, complete, spread
from learngene_zoo.settings import Json

SCRATCH = "scratch"  # the method of the arms that everything is judged against
CONTROL = "shuffled"  # what a method's own control is called, after the arm's name
FRACTION = (0.0, 1.0)  # no accuracy lies outside


class Place(NamedTuple):
    """Where arms meet: what is equal in all that is compared."""

    layers: int
    width: int
    size: str  # "" where layers and width name it
    epochs: int
    split: str
    metric: str

    @property
    def named(self) -> str:
        """The size where a column says `layers`."""
        return f"{self.layers} ({self.size})" if self.size else f"{self.layers}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm at one size with one budget, on one task or averaged over tasks. Metrics are fractions."""

    arm: str
    method: str
    control: str | None
    task: str | None  # None: the average over tasks
    place: Place
    value: Spread
    untrained: Spread | None  # the metric before any training
    probe: Spread | None  # nearest class mean of the features before any training
    over_scratch: Spread | None  # None for scratch itself, and where a scratch arm has no number
    scratch: str | None  # which arm that was: of a task's line
    inherited: Spread | None  # None for an arm without a control of its own
    params: int
    flops: int
    stored_params: int
    extraction_images: int
    extraction_seconds: float
    seconds: float  # of one fine-tuning
    images: int | None  # training images; None where tasks have different numbers of them
    lacks: tuple[str, ...] = ()  # of an average: tasks that it leaves out, because a cell failed or is not measured yet


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a bench found, and what is missing from it."""

    lines: tuple[Line, ...]
    failures: tuple[Row, ...]
    missing: int  # cells of the grid without a row
    rows: tuple[Row, ...]  # those that have numbers
    read: tuple[Row, ...]  # all of them, failed or not, in the order of the grid

    @property
    def averages(self) -> list[Line]:
        """The lines that average over tasks."""
        return [line for line in self.lines if line.task is None]

    @property
    def arms(self) -> list[str]:
        """The arms, in the order of the grid."""
        return list(dict.fromkeys(line.arm for line in self.lines))

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order of the grid."""
        return list(dict.fromkeys(line.task for line in self.lines if line.task is not None))

    @property
    def budgets(self) -> list[int]:
        """The numbers of epochs, ascending."""
        return sorted({line.place.epochs for line in self.lines})


def summarise(rows: Iterable[Row], missing: int = 0) -> Summary:
    """Everything that the rows of a grid say. Of two rows of one arm, task, size, budget and seed the newer counts."""
    rows = _newest(rows)
    good = tuple(row for row in rows if row.error is None and row.value is not None)
    places: dict[Place, dict[str, list[Row]]] = {}
    for row in good:
        place = Place(row.layers, row.width, row.size, row.epochs, row.split, row.metric)
        places.setdefault(place, {}).setdefault(row.arm, []).append(row)
    order = list(dict.fromkeys(row.arm for row in rows))
    lines = [line for place in sorted(places) for line in _lines(place, places[place], order)]
    failures = tuple(row for row in rows if row.error is not None)
    return Summary(lines=tuple(lines), failures=failures, missing=missing, rows=good, read=tuple(rows))


def _newest(rows: Iterable[Row]) -> list[Row]:
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        size = (row.layers, row.size, row.width if row.error is None else 0)
        key = (row.arm, row.task, *size, row.epochs, row.seed, row.split)
        if key not in found or row.finished >= found[key].finished:
            found[key] = row
    return list(found.values())


def _lines(place: Place, arms: Mapping[str, Sequence[Row]], order: Sequence[str]) -> list[Line]:
    """The lines of one size and budget: by arm its tasks, then their average if there are several."""
    values: dict[str, Values] = {
        arm: {(row.task, row.layers, row.seed): row.value or 0.0 for row in rows} for arm, rows in arms.items()
    }
    scratch, chosen = _strongest({arm: values[arm] for arm, rows in arms.items() if rows[0].method == SCRATCH})
    usual = _usual_tasks(arms)
    found = []
    for arm in (arm for arm in order if arm in arms):
        rows = arms[arm]
        rivals = {} if rows[0].method == SCRATCH else scratch
        for task in [*dict.fromkeys(row.task for row in rows), None]:
            seen = [row for row in rows if row.task == task or (task is None and row.task in usual)] or list(rows)
            over = _gain(values[arm], rivals, task)
            knows = _gain(values[arm], values.get(f"{arm} {CONTROL}", {}), task)
            line = _line(place, seen, task, over, chosen.get(task) if over else None, knows)
            absent = sorted(usual - set(line.value.tasks)) if task is None else ()
            found.append(replace(line, lacks=tuple(absent)))
    return found


def _usual_tasks(arms: Mapping[str, Sequence[Row]]) -> frozenset[str]:
    """The tasks that most arms have: averages are over these, and of a bench that was interrupted not over its last task."""
    found = Counter(
        frozenset(complete({(row.task, row.seed): row.value for row in rows if row.value is not None}))
        for rows in arms.values()
    )
    return max(found, key=lambda tasks: (found[tasks], len(tasks)))


def _strongest(scratch: Mapping[str, Values]) -> tuple[Values, dict[str | None, str]]:
    """The stronger scratch arm per task, where all of them have a number, and its name."""
    if not scratch:
        return {}, {}
    shared = set.intersection(*(set(values) for values in scratch.values()))
    if not shared:
        return {}, {}
    found, chosen = stronger({arm: {unit: values[unit] for unit in shared} for arm, values in scratch.items()})
    return found, {task: arm for (task, _), arm in chosen.items()}


def _gain(ours: Values, theirs: Values, task: str | None) -> Spread | None:
    shared = [unit for unit in ours if unit in theirs and task in (unit[0], None)]
    return spread({(unit[0], unit[2]): ours[unit] - theirs[unit] for unit in shared})


def _line(
    place: Place,
    rows: Sequence[Row],
    task: str | None,
    over: Spread | None,
    scratch: str | None,
    inherited: Spread | None,
) -> Line:
    first = rows[0]
    value = _level({(row.task, row.seed): row.value for row in rows if row.value is not None})
    assert value is not None, "only rows with a value come here"
    sizes = {row.images for row in rows}
    return Line(
        arm=first.arm,
        method=first.method,
        control=first.control,
        task=task,
        place=place,
        value=value,
        untrained=_level({(r.task, r.seed): r.untrained for r in rows if r.untrained is not None}),
        probe=_level({(r.task, r.seed): r.probe for r in rows if r.probe is not None}),
        over_scratch=over,
        scratch=scratch,
        inherited=inherited,
        params=round(_mean([row.params for row in rows])),
        flops=round(_mean([row.flops for row in rows])),
        stored_params=max(row.stored_params for row in rows),
        extraction_images=round(_mean([row.extraction_images for row in rows])),
        extraction_seconds=_mean([row.extraction_seconds for row in rows]),
        seconds=_mean([row.seconds for row in rows]),
        images=sizes.pop() if len(sizes) == 1 else None,
    )


def _level(values: Mapping[tuple[str, int], float]) -> Spread | None:
    return spread(values, "seeds", FRACTION)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def flat(line: Line) -> dict[str, Json]:
    """A line as one flat object of raw numbers: what CSV and JSON hold. docs/json.md explains the keys."""
    return {
        "arm": line.arm,
        "method": line.method,
        "control": line.control,
        "task": line.task,
        "tasks": len(line.value.tasks),
        "seeds": line.value.seeds,
        "lacks": list(line.lacks),
        **line.place._asdict(),
        "images": line.images,
        **_flat("value", line.value),
        **_flat("untrained", line.untrained),
        **_flat("probe", line.probe),
        **_flat("over_scratch", line.over_scratch),
        "scratch": line.scratch,
        **_flat("inherited", line.inherited),
        "params": line.params,
        "flops": line.flops,
        "stored_params": line.stored_params,
        "extraction_images": line.extraction_images,
        "extraction_seconds": line.extraction_seconds,
        "seconds": line.seconds,
    }


def _flat(name: str, found: Spread | None) -> dict[str, Json]:
    """The mean, its interval, and the least and most that is left of it without one task."""
    keys = ("low", "high", "least", "most")
    return {name: found and found.value, **{f"{name}_{key}": found and getattr(found, key) for key in keys}}
