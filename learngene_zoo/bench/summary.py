"""From the rows of a bench to its summary: per arm, size and budget, for each task and averaged over tasks.

Three gains stand beside every metric. *Over scratch* is the difference to the stronger of the scratch arms: the one with the
higher mean over seeds, chosen separately for each task, size and budget, on the very numbers that are compared, so the choice
favours scratch. *Over stem* is the difference to the stronger of the arm's own controls `stem` and `stem_fan_in`, chosen likewise:
what the blocks bring. *Inherited knowledge* is the difference to its control `shuffled`. All are paired: equal task, seed, images
and head.

Which interval a number has depends on what was averaged: see `averages.py`. What methods gain over each other is in `pairs.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from learngene_zoo.bench.averages import Average, Key, average, average_gain, average_metric, complete
from learngene_zoo.bench.condition import SCRATCH, Condition
from learngene_zoo.bench.contrasts import Values, stronger
from learngene_zoo.bench.pairs import Pair, compare_methods, same_models
from learngene_zoo.bench.results import Row
from learngene_zoo.settings import Json
from learngene_zoo.tasks.catalogue import Origin, origin_of

CONTROL = "shuffled"  # the suffix of the arm that is a method's own control
STEMS = ("stem", "stem_fan_in")  # the suffixes of those without its blocks


class Gains(NamedTuple):
    """What an arm gains over its rivals, as the fields of a `Line`."""

    over_scratch: Average | None
    scratch: str | None
    over_stem: Average | None
    stem: str | None
    inherited: Average | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm at one size with one budget, on one task or averaged over tasks. Metrics are fractions."""

    arm: str
    method: str
    control: str | None
    task: str | None  # None: the average over tasks
    lacks: tuple[str, ...] = ()  # tasks missing from an average, because a cell failed or is not measured yet
    condition: Condition
    images: int | None  # training images; None if the tasks have different numbers of them
    value: Average
    untrained: Average | None  # the metric before any training
    probe: Average | None  # nearest class mean of the features before any training
    over_scratch: Average | None  # None for scratch itself, and if a scratch arm has no number
    scratch: str | None  # the stronger arm, in a line of one task
    over_stem: Average | None  # None for an arm without both controls, and if one of them has no number
    stem: str | None  # the stronger one, in a line of one task
    inherited: Average | None  # None for an arm without a control of its own
    real: Average | None  # in an average: the metric on the real tasks alone
    left_out: Average | None  # in an average: on the generated tasks whose families pretraining leaves out
    params: int
    flops: int
    stored_params: int
    extraction_images: int
    extraction_seconds: float
    seconds: float  # of one fine-tuning


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All lines of a bench, and what is missing from it."""

    lines: tuple[Line, ...]
    failures: tuple[Row, ...]
    missing: int  # cells of the grid without a row
    rows: tuple[Row, ...]  # those with numbers
    read: tuple[Row, ...]  # all, failed ones too, in the order of the grid
    pairs: tuple[Pair, ...] = ()  # methods against each other
    same: tuple[str, ...] = ()  # a sentence for each group of arms that are one model

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


def summarise(rows: Iterable[Row], missing: int = 0) -> Summary:
    """The summary of the rows of a grid. Of two rows of one arm, task, size, budget and seed the newer one counts.

    Of a task whose test images exist in several versions only the newest one is in the summary.
    """
    rows = _newest(_of_newest_version(list(rows)))
    good = tuple(row for row in rows if row.error is None and row.value is not None)
    conditions: dict[Condition, dict[str, list[Row]]] = {}
    for row in good:
        condition = Condition(row.layers, row.width, row.size, row.epochs, row.split, row.metric)
        conditions.setdefault(condition, {}).setdefault(row.arm, []).append(row)
    order = list(dict.fromkeys(row.arm for row in rows))
    usual = {condition: _usual_tasks(arms) for condition, arms in conditions.items()}
    found = (_lines(condition, conditions[condition], usual[condition], order) for condition in sorted(conditions))
    lines = [_with_gaps(line, usual) for lines in found for line in lines]
    failures = tuple(row for row in rows if row.error is not None)
    return Summary(
        lines=tuple(lines),
        failures=failures,
        missing=missing,
        rows=good,
        read=tuple(rows),
        pairs=tuple(compare_methods({condition: _usual_rows(arms) for condition, arms in conditions.items()})),
        same=tuple(same_models(conditions)),
    )


def _usual_rows(arms: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """The rows of each arm on the tasks that most arms have; of an arm that has none of these, all."""
    usual = _usual_tasks(arms)
    return {arm: [row for row in rows if row.task in usual] or list(rows) for arm, rows in arms.items()}


def _of_newest_version(rows: Sequence[Row]) -> list[Row]:
    newest: dict[str, int] = {}
    for row in rows:
        newest[row.task] = max(row.version, newest.get(row.task, 0))
    return [row for row in rows if row.version == newest[row.task]]


def _newest(rows: Iterable[Row]) -> list[Row]:
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        size = (row.layers, row.size, row.width if row.error is None else 0)
        key = (row.arm, row.task, *size, row.epochs, row.seed, row.split)
        if key not in found or row.finished >= found[key].finished:
            found[key] = row
    return list(found.values())


def _with_gaps(line: Line, usual: Mapping[Condition, frozenset[str]]) -> Line:
    """An average with the tasks that it lacks: those of the same split and metric that are in the averages of some size and budget.

    A bench that is not finished has not reached all sizes and budgets of its last task.
    """
    if line.task is not None:
        return line
    kind = (line.condition.split, line.condition.metric)
    tasks = max((usual[one] for one in sorted(usual) if (one.split, one.metric) == kind), key=len)
    return replace(line, lacks=tuple(sorted(tasks - set(line.value.tasks))))


def _lines(
    condition: Condition, arms: Mapping[str, Sequence[Row]], usual: frozenset[str], order: Sequence[str]
) -> list[Line]:
    """The lines of one size and budget: for each arm its tasks, then their average."""
    of = {arm: {(row.task, row.seed): row for row in rows} for arm, rows in arms.items()}
    scratch, chosen = _strongest({arm: of[arm] for arm, rows in arms.items() if rows[0].method == SCRATCH})
    found = []
    for arm in (arm for arm in order if arm in arms):
        rivals = {} if arms[arm][0].method == SCRATCH else scratch
        stems, stem = _strongest({name: of.get(name, {}) for name in (f"{arm} {control}" for control in STEMS)})
        for task in [*dict.fromkeys(row.task for row in arms[arm]), None]:
            rows = [row for row in arms[arm] if row.task == task or (task is None and row.task in usual)]
            gains = Gains(
                over_scratch=(over := _gain(of[arm], rivals, task)),
                scratch=chosen.get(task) if over else None,
                over_stem=_gain(of[arm], stems, task),
                stem=stem.get(task),
                inherited=_gain(of[arm], of.get(f"{arm} {CONTROL}", {}), task),
            )
            found.append(_line(condition, rows or arms[arm], task, gains))
    return found


def _usual_tasks(arms: Mapping[str, Sequence[Row]]) -> frozenset[str]:
    """The tasks that most arms have. Averages are over these, so that an unfinished last task does not count."""
    found = Counter(
        frozenset(complete({(row.task, row.seed): row.value for row in rows if row.value is not None}))
        for rows in arms.values()
    )
    return max(found, key=lambda tasks: (found[tasks], len(tasks)))


Rows = Mapping[Key, Row]  # of one arm


def _strongest(arms: Mapping[str, Rows]) -> tuple[Rows, dict[str | None, str]]:
    """The rows of the stronger arm per task, where all of them have a number, and its name."""
    shared = set.intersection(*(set(rows) for rows in arms.values())) if arms else set()
    if not shared:
        return {}, {}
    values: dict[str, Values] = {
        arm: {(task, 0, seed): rows[task, seed].value or 0.0 for task, seed in sorted(shared)}
        for arm, rows in arms.items()
    }
    chosen: dict[str | None, str] = {task: arm for (task, _), arm in stronger(values)[1].items()}
    return {key: arms[chosen[key[0]]][key] for key in sorted(shared)}, chosen


def _gain(ours: Rows, theirs: Rows, task: str | None) -> Average | None:
    return average_gain(*({key: row for key, row in of.items() if task in (key[0], None)} for of in (ours, theirs)))


def _line(condition: Condition, rows: Sequence[Row], task: str | None, gains: Gains) -> Line:
    first = rows[0]
    value = average_metric(rows)
    assert value is not None, "only rows with a value come here"
    sizes = {row.images for row in rows}
    return Line(
        arm=first.arm,
        method=first.method,
        control=first.control,
        task=task,
        condition=condition,
        value=value,
        untrained=_level({(row.task, row.seed): row.untrained for row in rows}),
        probe=_level({(row.task, row.seed): row.probe for row in rows}),
        **gains._asdict(),
        real=_level_on(rows, task, "real"),
        left_out=_level_on(rows, task, "left out"),
        params=round(_mean([row.params for row in rows])),
        flops=round(_mean([row.flops for row in rows])),
        stored_params=max(row.stored_params for row in rows),
        extraction_images=round(_mean([row.extraction_images for row in rows])),
        extraction_seconds=_mean([row.extraction_seconds for row in rows]),
        seconds=_mean([row.seconds for row in rows]),
        images=sizes.pop() if len(sizes) == 1 else None,
    )


def _level_on(rows: Sequence[Row], task: str | None, origin: Origin) -> Average | None:
    """The metric on the tasks of this origin; None in a line of one task, and where none or all of them are."""
    own = [row for row in rows if origin_of(row.task) == origin]
    return None if task or len(own) == len(rows) else average_metric(own)


def _level(values: Mapping[Key, float | None]) -> Average | None:
    """The mean, over the rows that have it, of what has no flag per image."""
    return average({key: value for key, value in values.items() if value is not None}, "seeds", (0.0, 1.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_WITH_INTERVAL = ("value", "untrained", "probe", "over_scratch", "over_stem", "inherited", "real", "left_out")


def flat(line: Line) -> dict[str, Json]:
    """A line as one flat object of raw numbers, for CSV and JSON. docs/bench.md explains the keys."""
    found: dict[str, Json] = {}
    for name, value in vars(line).items():
        if name == "condition":
            found |= line.condition._asdict()
        elif name in _WITH_INTERVAL:  # the mean, its interval, and the lowest and highest mean without one task
            keys = ("low", "high", "interval", "least", "most")
            found |= {name: value and value.value, **{f"{name}_{key}": value and getattr(value, key) for key in keys}}
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
        if name == "task":
            found |= {"tasks": len(line.value.tasks), "seeds": line.value.seeds}
    return found
