"""From the rows of a bench to its summary: per arm, size and budget, by task and averaged.

There are three gains for every metric. *Over scratch* is the difference to the stronger of the
scratch arms: the one with the higher mean over seeds, chosen separately for each task, size and
budget, on the very numbers that are compared, so the choice favours scratch. *Over stem* is the
difference to the stronger of the arm's own controls `stem` and `stem_fan_in`, chosen likewise: the
contribution of the blocks. *Inherited knowledge* is the difference to its control `shuffled`. All
are paired: equal task, seed, images and head.

The interval of a number depends on the averaged numbers: see `averages.py`. The gains of methods
over each other are in `pairs.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from learngene_zoo.bench.claims.contrasts import Values, choose_stronger
from learngene_zoo.bench.results.averages import (
    Average,
    Key,
    average,
    average_gain,
    average_metric,
    drop_incomplete,
    find_bounds,
)
from learngene_zoo.bench.results.condition import SCRATCH, Condition
from learngene_zoo.bench.results.pairs import Pair, compare_methods, describe_same_models
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.settings import Json
from learngene_zoo.tasks.catalogue import Origin, get_origin

CONTROL = "shuffled"  # the suffix of the arm that is a method's own control
STEMS = ("stem", "stem_fan_in")  # the suffixes of those without its blocks


class Gains(NamedTuple):
    """The gains of an arm over its rivals, as the fields of a `Line`."""

    over_scratch: Average | None
    scratch: str | None
    over_stem: Average | None
    stem: str | None
    inherited: Average | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm at one size with one budget, on one task or averaged over tasks.

    Metrics are fractions.
    """

    arm: str
    method: str
    control: str | None
    task: str | None  # None: the average over tasks
    # tasks missing from an average, because a cell failed or is not measured yet
    lacks: tuple[str, ...] = ()
    condition: Condition
    images: int | None  # training images; None if the tasks have different numbers of them
    value: Average
    untrained: Average | None  # the metric before any training
    probe: Average | None  # ridge regression of the features before any training
    over_scratch: Average | None  # None for scratch itself, and if a scratch arm has no number
    scratch: str | None  # the stronger arm, in a line of one task
    # None for an arm without both controls, and if one of them has no number
    over_stem: Average | None
    stem: str | None  # the stronger one, in a line of one task
    inherited: Average | None  # None for an arm without a control of its own
    real: Average | None  # in an average: the metric on the real tasks alone
    # in an average: on the generated tasks whose families pretraining leaves out
    left_out: Average | None
    params: int
    flops: int
    stored_params: int
    extraction_images: int
    extraction_seconds: float
    seconds: float  # of one fine-tuning


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All lines of a bench, and its failed and missing cells."""

    lines: tuple[Line, ...]
    failures: tuple[Row, ...]
    missing: int  # cells of the grid without a row
    rows: tuple[Row, ...]  # those with numbers
    read: tuple[Row, ...]  # all, failed ones too, in the order of the grid
    pairs: tuple[Pair, ...] = ()  # methods against each other
    same: tuple[str, ...] = ()  # a sentence for each group of arms that are one model
    others: int = 0  # finished cells of other grids in the folder

    @property
    def averages(self) -> list[Line]:
        """Return the lines that average over tasks."""
        return [line for line in self.lines if line.task is None]

    @property
    def arms(self) -> list[str]:
        """Return the arms, in the order of the grid."""
        return list(dict.fromkeys(line.arm for line in self.lines))

    @property
    def tasks(self) -> list[str]:
        """Return the tasks, in the order of the grid."""
        return list(dict.fromkeys(line.task for line in self.lines if line.task is not None))


def summarise(rows: Iterable[Row], missing: int = 0, others: int = 0) -> Summary:
    """Return the summary of the rows of a grid.

    `missing` cells have no row, and `others` are finished cells of other grids.

    Of two rows of one arm, task, size, budget and seed the newer one counts. Of a task whose test
    images exist in several versions only the newest one is in the summary.
    """
    rows = _select_newest_rows(_select_newest_version(list(rows)))
    good = tuple(row for row in rows if row.error is None and row.value is not None)
    conditions: dict[Condition, dict[str, list[Row]]] = {}
    for row in good:
        condition = Condition(row.layers, row.width, row.size, row.epochs, row.split, row.metric)
        conditions.setdefault(condition, {}).setdefault(row.arm, []).append(row)
    order = list(dict.fromkeys(row.arm for row in rows))
    usual = {condition: _find_usual_tasks(arms) for condition, arms in conditions.items()}
    groups = (
        _build_lines(condition, conditions[condition], usual[condition], order)
        for condition in sorted(conditions)
    )
    lines = [_add_missing_tasks(line, usual) for lines in groups for line in lines]
    failures = tuple(row for row in rows if row.error is not None)
    return Summary(
        lines=tuple(lines),
        failures=failures,
        missing=missing,
        others=others,
        rows=good,
        read=tuple(rows),
        pairs=tuple(
            compare_methods(
                {condition: _select_usual_rows(arms) for condition, arms in conditions.items()}
            )
        ),
        same=tuple(describe_same_models(conditions)),
    )


def _select_usual_rows(arms: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the rows of each arm on the tasks that most arms have.

    An arm that has none of these tasks keeps all its rows.
    """
    usual = _find_usual_tasks(arms)
    return {
        arm: [row for row in rows if row.task in usual] or list(rows) for arm, rows in arms.items()
    }


def _select_newest_version(rows: Sequence[Row]) -> list[Row]:
    newest: dict[str, int] = {}
    for row in rows:
        newest[row.task] = max(row.version, newest.get(row.task, 0))
    return [row for row in rows if row.version == newest[row.task]]


def _select_newest_rows(rows: Iterable[Row]) -> list[Row]:
    newest: dict[tuple[object, ...], Row] = {}
    for row in rows:
        size = (row.layers, row.width, row.size)
        key = (row.arm, row.task, *size, row.epochs, row.seed, row.split)
        if key not in newest or row.finished >= newest[key].finished:
            newest[key] = row
    return list(newest.values())


def _add_missing_tasks(line: Line, usual: Mapping[Condition, frozenset[str]]) -> Line:
    """Return an average with the tasks that it lacks.

    They are those of the same split and metric that are in the averages of some size and budget. A
    bench that is not finished has not reached all sizes and budgets of its last task.
    """
    if line.task is not None:
        return line
    kind = (line.condition.split, line.condition.metric)
    tasks = max(
        (
            usual[condition]
            for condition in sorted(usual)
            if (condition.split, condition.metric) == kind
        ),
        key=len,
    )
    return replace(line, lacks=tuple(sorted(tasks - set(line.value.tasks))))


def _build_lines(
    condition: Condition,
    arms: Mapping[str, Sequence[Row]],
    usual: frozenset[str],
    order: Sequence[str],
) -> list[Line]:
    """Return the lines of one size and budget: for each arm its tasks, then their average."""
    by_arm = {arm: {(row.task, row.seed): row for row in rows} for arm, rows in arms.items()}
    scratch, chosen = _select_strongest(
        {arm: by_arm[arm] for arm, rows in arms.items() if rows[0].method == SCRATCH}
    )
    lines = []
    for arm in (arm for arm in order if arm in arms):
        rivals = {} if arms[arm][0].method == SCRATCH else scratch
        stems, stem = _select_strongest(
            {name: by_arm.get(name, {}) for name in (f"{arm} {control}" for control in STEMS)}
        )
        for task in [*dict.fromkeys(row.task for row in arms[arm]), None]:
            rows = [
                row for row in arms[arm] if row.task == task or (task is None and row.task in usual)
            ]
            rows = rows or list(arms[arm])
            ours = {(row.task, row.seed): row for row in rows}
            gains = Gains(
                over_scratch=(over := _average_gain_on(ours, rivals, task)),
                scratch=chosen.get(task) if over else None,
                over_stem=_average_gain_on(ours, stems, task),
                stem=stem.get(task),
                inherited=_average_gain_on(ours, by_arm.get(f"{arm} {CONTROL}", {}), task),
            )
            lines.append(_build_line(condition, rows, task, gains))
    return lines


def _find_usual_tasks(arms: Mapping[str, Sequence[Row]]) -> frozenset[str]:
    """Return the tasks that most arms have.

    Averages are over these, so that an unfinished last task does not count.
    """
    counts = Counter(
        frozenset(
            drop_incomplete(
                {(row.task, row.seed): row.value for row in rows if row.value is not None}
            )
        )
        for rows in arms.values()
    )
    return max(counts, key=lambda tasks: (counts[tasks], len(tasks)))


Rows = Mapping[Key, Row]  # of one arm


def _select_strongest(arms: Mapping[str, Rows]) -> tuple[Rows, dict[str | None, str]]:
    """Return the rows of the stronger arm per task, where all arms have a number, and its name."""
    shared = set.intersection(*(set(rows) for rows in arms.values())) if arms else set()
    if not shared:
        return {}, {}
    values: dict[str, Values] = {
        arm: {(task, 0, seed): rows[task, seed].value or 0.0 for task, seed in sorted(shared)}
        for arm, rows in arms.items()
    }
    chosen: dict[str | None, str] = {
        task: arm for (task, _), arm in choose_stronger(values)[1].items()
    }
    return {key: arms[chosen[key[0]]][key] for key in sorted(shared)}, chosen


def _average_gain_on(ours: Rows, theirs: Rows, task: str | None) -> Average | None:
    return average_gain(
        *(
            {key: row for key, row in rows.items() if task in (key[0], None)}
            for rows in (ours, theirs)
        )
    )


def _build_line(condition: Condition, rows: Sequence[Row], task: str | None, gains: Gains) -> Line:
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
        untrained=_average_level(rows, "untrained"),
        probe=_average_level(rows, "probe"),
        **gains._asdict(),
        real=_average_level_on(rows, task, "real"),
        left_out=_average_level_on(rows, task, "left out"),
        params=round(_average([row.params for row in rows])),
        flops=round(_average([row.flops for row in rows])),
        stored_params=max(row.stored_params for row in rows),
        extraction_images=round(_average([row.extraction_images for row in rows])),
        extraction_seconds=_average([row.extraction_seconds for row in rows]),
        seconds=_average([row.seconds for row in rows]),
        images=sizes.pop() if len(sizes) == 1 else None,
    )


def _average_level_on(rows: Sequence[Row], task: str | None, origin: Origin) -> Average | None:
    """Return the metric on the tasks of this origin.

    It is None in a line of one task, and where none or all of the tasks are of this origin.
    """
    selected = [row for row in rows if get_origin(row.task) == origin]
    return None if task or len(selected) == len(rows) else average_metric(selected)


def _average_level(rows: Iterable[Row], name: Literal["untrained", "probe"]) -> Average | None:
    """Return the mean of a field without flags per image, over the rows that have it."""
    having = [row for row in rows if getattr(row, name) is not None]
    values = {(row.task, row.seed): getattr(row, name) for row in having}
    return average(values, "seeds", find_bounds(row.metric for row in having))


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_WITH_INTERVAL = (
    "value",
    "untrained",
    "probe",
    "over_scratch",
    "over_stem",
    "inherited",
    "real",
    "left_out",
)


def flatten_line(line: Line) -> dict[str, Json]:
    """Return a line as one flat object of raw numbers, for CSV and JSON.

    docs/bench.md explains the keys.
    """
    data: dict[str, Json] = {}
    for name, value in vars(line).items():
        if name == "condition":
            data |= line.condition._asdict()
        # the mean, its interval, and the lowest and highest mean without one task
        elif name in _WITH_INTERVAL:
            keys = ("low", "high", "interval", "least", "most")
            data |= {
                name: value and value.value,
                **{f"{name}_{key}": value and getattr(value, key) for key in keys},
            }
        else:
            data[name] = list(value) if isinstance(value, tuple) else value
        if name == "task":
            data |= {"tasks": len(line.value.tasks), "seeds": line.value.seeds}
    return data
