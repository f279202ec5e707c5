"""Sentences about the tables of a report: their columns, brackets and gaps."""

from __future__ import annotations

from learngene_zoo.bench.results.averages import MIN_COUNT, Average, Interval
from learngene_zoo.bench.results.summary import Line, Summary
from learngene_zoo.text import count_noun

# Explanations of the tables: printed in the Markdown and on the page.
NOTES = (
    "*Over scratch*: the difference to the stronger scratch arm, which has the higher mean over "
    "seeds; it is chosen separately for each task, size and budget.",
    "*Inherited*: the difference to the arm's control `shuffled`, in which the entries of each "
    "inherited tensor are permuted.",
    "*Over stem*: the difference to the stronger of the arm's controls `stem` and `stem_fan_in`, "
    "chosen in the same way. These controls inherit only the parts before and after the blocks; "
    "their blocks are initialised as in the two scratch arms.",
    "*Real*, *left out*: the metric after the largest budget on the real tasks alone, and on the "
    "generated tasks whose families are not in the source task `forms` (an ancestry model trained "
    "on `source` has seen similar images).",
    "*Untrained*: the metric before any training, with a new head. *Class means*: the accuracy of "
    "the nearest class mean in the space of the features before any training.",
    "Every number of epochs is a separate training with a complete schedule.",
    "Methods against each other: differences under equal conditions, the better method first. The "
    "intervals are not corrected for the number of pairs: for equal methods, about one interval "
    "in twenty excludes 0 by chance.",
    "Brackets contain 95 % confidence intervals. Intervals of one task are over its test images, "
    "with seeds pooled (of mIoU: over seeds). Intervals of average gains are over tasks and seeds "
    f"and need at least {MIN_COUNT} of each; intervals of average metrics are over seeds and need "
    f"at least {MIN_COUNT}. With fewer, parentheses contain the range from the lowest to the "
    "highest value.",
)
INTERVALS: dict[Interval, str] = {  # explanations of the numbers beside a mean
    "tasks_seeds": "[low, high] of averages: 95 % interval over tasks and seeds",
    "images": "[low, high] of one task: 95 % interval over its test images, seeds pooled",
    "seeds": "[low, high]: 95 % interval over seeds",
    "range": f"(low to high): range over tasks and seeds; an interval over them needs {MIN_COUNT} "
    "of each",
}
FEW_TASKS = 3  # with at most this many tasks, gains are also shown task by task


def describe_missing(summary: Summary) -> list[str]:
    """Return one sentence per arm whose averages lack tasks.

    They cannot be compared with the averages of other arms.
    """
    lacks: dict[str, dict[str, None]] = {}
    for line in summary.averages:
        if line.lacks:
            lacks.setdefault(line.arm, {}).update(dict.fromkeys(line.lacks))
    return [
        f"* averages of {arm} lack {', '.join(tasks)}; its gains are over equal cells"
        for arm, tasks in lacks.items()
    ]


def gains_of(line: Line) -> dict[str, Average | None]:
    return {
        "over scratch": line.over_scratch,
        "over stem": line.over_stem,
        "inherited": line.inherited,
    }


def explanations(summary: Summary) -> list[str]:
    """Return the meaning of brackets and parentheses in the tables, one sentence for each kind."""
    shown_tasks = len(summary.tasks) <= FEW_TASKS
    averages = [gain for line in summary.averages for gain in gains_of(line).values() if gain]
    averages += [
        line.over_scratch
        for line in summary.lines
        if line.task and line.over_scratch and shown_tasks
    ]
    averages += [pair.difference for pair in summary.pairs if pair.task is None and not pair.same]
    kinds = {gain.interval for gain in averages}
    return [text for kind, text in INTERVALS.items() if kind in kinds]


def state(summary: Summary) -> str:
    """Return how many cells are measured, failed or missing."""
    parts = [f"{count_noun(len(summary.rows), 'cell')} measured"]
    if summary.failures:
        parts.append(f"{len(summary.failures)} failed")
    if summary.missing:
        parts.append(f"{summary.missing} not measured yet")
    return ", ".join(parts)
