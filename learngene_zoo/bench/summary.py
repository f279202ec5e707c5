"""From the rows of a bench to its summary: per arm, size and budget, for each task and averaged over tasks.

Two gains stand beside every metric. *Over scratch* is the difference to the stronger of the scratch arms: the one with the
higher mean over seeds, chosen separately for each task, size and budget, on the very numbers that are compared, so the choice
favours scratch. *Inherited knowledge* is the difference to the arm's own control `shuffled`. Both are paired: equal task, seed,
images and head.

The intervals of average gains generalise over tasks and seeds. Those of metrics generalise over seeds only: tasks differ far more
from each other than arms do, and an interval over tasks would say nothing about the arms.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from learngene_zoo.bench.contrasts import Values, stronger
from learngene_zoo.bench.results import Row
from learngene_zoo.bench.statistics import Average, average, complete
from learngene_zoo.settings import Json

SCRATCH = "scratch"  # the method of the baseline arms
CONTROL = "shuffled"  # the suffix of the arm that is a method's own control
FRACTION = (0.0, 1.0)  # the range of a metric


class Condition(NamedTuple):
    """What is equal in all arms that are compared."""

    layers: int
    width: int
    size: str  # "" if layers and width name it
    epochs: int
    split: str
    metric: str

    @property
    def named(self) -> str:
        """The size, for a column called `layers`."""
        return f"{self.layers} ({self.size})" if self.size else f"{self.layers}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm at one size with one budget, on one task or averaged over tasks. Metrics are fractions."""

    arm: str
    method: str
    control: str | None
    task: str | None  # None: the average over tasks
    condition: Condition
    value: Average
    untrained: Average | None  # the metric before any training
    probe: Average | None  # nearest class mean of the features before any training
    over_scratch: Average | None  # None for scratch itself, and if a scratch arm has no number
    scratch: str | None  # the stronger arm, in a line of one task
    inherited: Average | None  # None for an arm without a control of its own
    params: int
    flops: int
    stored_params: int
    extraction_images: int
    extraction_seconds: float
    seconds: float  # of one fine-tuning
    images: int | None  # training images; None if the tasks have different numbers of them
    lacks: tuple[str, ...] = ()  # tasks missing from an average, because a cell failed or is not measured yet


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All lines of a bench, and what is missing from it."""

    lines: tuple[Line, ...]
    failures: tuple[Row, ...]
    missing: int  # cells of the grid without a row
    rows: tuple[Row, ...]  # those with numbers
    read: tuple[Row, ...]  # all, failed ones too, in the order of the grid

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
        return sorted({line.condition.epochs for line in self.lines})


def summarise(rows: Iterable[Row], missing: int = 0) -> Summary:
    """The summary of the rows of a grid. Of two rows of one arm, task, size, budget and seed the newer one counts."""
    rows = _newest(rows)
    good = tuple(row for row in rows if row.error is None and row.value is not None)
    conditions: dict[Condition, dict[str, list[Row]]] = {}
    for row in good:
        condition = Condition(row.layers, row.width, row.size, row.epochs, row.split, row.metric)
        conditions.setdefault(condition, {}).setdefault(row.arm, []).append(row)
    order = list(dict.fromkeys(row.arm for row in rows))
    lines = [line for condition in sorted(conditions) for line in _lines(condition, conditions[condition], order)]
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


def _lines(condition: Condition, arms: Mapping[str, Sequence[Row]], order: Sequence[str]) -> list[Line]:
    """The lines of one size and budget: for each arm its tasks, then their average."""
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
            line = _line(condition, seen, task, over, chosen.get(task) if over else None, knows)
            absent = sorted(usual - set(line.value.tasks)) if task is None else ()
            found.append(replace(line, lacks=tuple(absent)))
    return found


def _usual_tasks(arms: Mapping[str, Sequence[Row]]) -> frozenset[str]:
    """The tasks that most arms have. Averages are over these, so that an unfinished last task does not count."""
    found = Counter(
        frozenset(complete({(row.task, row.seed): row.value for row in rows if row.value is not None}))
        for rows in arms.values()
    )
    return max(found, key=lambda tasks: (found[tasks], len(tasks)))


def _strongest(scratch: Mapping[str, Values]) -> tuple[Values, dict[str | None, str]]:
    """The values of the stronger scratch arm per task, where all scratch arms have a number, and its name."""
    if not scratch:
        return {}, {}
    shared = set.intersection(*(set(values) for values in scratch.values()))
    if not shared:
        return {}, {}
    found, chosen = stronger({arm: {unit: values[unit] for unit in shared} for arm, values in scratch.items()})
    return found, {task: arm for (task, _), arm in chosen.items()}


def _gain(ours: Values, theirs: Values, task: str | None) -> Average | None:
    shared = [unit for unit in ours if unit in theirs and task in (unit[0], None)]
    return average({(unit[0], unit[2]): ours[unit] - theirs[unit] for unit in shared})


def _line(
    condition: Condition,
    rows: Sequence[Row],
    task: str | None,
    over: Average | None,
    scratch: str | None,
    inherited: Average | None,
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
        condition=condition,
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


def _level(values: Mapping[tuple[str, int], float]) -> Average | None:
    return average(values, "seeds", FRACTION)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def flat(line: Line) -> dict[str, Json]:
    """A line as one flat object of raw numbers, for CSV and JSON. docs/bench.md explains the keys."""
    return {
        "arm": line.arm,
        "method": line.method,
        "control": line.control,
        "task": line.task,
        "tasks": len(line.value.tasks),
        "seeds": line.value.seeds,
        "lacks": list(line.lacks),
        **line.condition._asdict(),
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


def _flat(name: str, found: Average | None) -> dict[str, Json]:
    """The mean, its interval, and the lowest and highest mean without one task."""
    keys = ("low", "high", "least", "most")
    return {name: found and found.value, **{f"{name}_{key}": found and getattr(found, key) for key in keys}}
