"""Sentences about the tables of a report: their columns, brackets and gaps."""

from __future__ import annotations

from learngene_zoo.bench.results.averages import MIN_COUNT, Average, Interval
from learngene_zoo.bench.results.rows import compute_chance_limit
from learngene_zoo.bench.results.summary import Line, Summary
from learngene_zoo.intervals import Z95
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
    "*Untrained*: the metric before any training. *Probe*: that of a ridge regression on "
    "the features before any training, fitted to plain images. The head starts from such a "
    "regression too (the default), so both are equal, except in arms that train with an "
    "augmentation: their heads are fitted to augmented images as well.",
    "Gains before training compare the probes (of mIoU: the untrained models). A rate or "
    "a budget that harms the weaker arms makes the gains after training larger than what is "
    "inherited.",
    "Every number of epochs is a separate training with a complete schedule.",
    "Methods against each other: differences under equal conditions, the better method first. The "
    "intervals are not corrected for the number of pairs: for equal methods, about one interval "
    "in twenty excludes 0 by chance.",
    "Brackets contain 95 % confidence intervals. Intervals of one task are over its test images, "
    "with seeds pooled (of mIoU and before training: over seeds). Intervals of average "
    f"gains are over tasks and seeds and need at least {MIN_COUNT} of each; intervals of average "
    "metrics are over seeds and need "
    f"at least {MIN_COUNT}. With fewer, parentheses contain the range from the lowest to the "
    "highest value.",
)
INTERVALS: dict[Interval, str] = {  # explanations of the numbers beside a mean
    "tasks_seeds": "[low, high] of averages: 95 % interval over tasks and seeds",
    "images": "[low, high] of one task: 95 % interval over its test images, seeds pooled "
    "(before training: over seeds, of two seeds their range)",
    "seeds": "[low, high]: 95 % interval over seeds",
    "range": "(low to high): range over seeds, of average gains also over tasks; an interval "
    f"needs {MIN_COUNT} of each",
}
FEW_TASKS = 3  # with at most this many tasks, gains are also shown task by task
SHOWN_ARMS = 3  # of those at chance


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


def list_gains(line: Line) -> dict[str, Average | None]:
    return {
        "over scratch": line.over_scratch,
        "over stem": line.over_stem,
        "inherited": line.inherited,
    }


def list_remarks(summary: Summary) -> list[str]:
    """Return the sentences to show below the tables of a summary."""
    unfinished = [f"unfinished: {describe_state(summary)}"] if summary.missing else []
    return [
        *unfinished,
        *summary.same,
        *list_explanations(summary),
        *describe_missing(summary),
        *_describe_others(summary),
    ]


def _describe_others(summary: Summary) -> list[str]:
    """Return a sentence on the cells of other grids in the folder, if there are any."""
    if not summary.others:
        return []
    return [
        f"{count_noun(summary.others, 'cell')} of other grids in this folder are in results.jsonl, "
        "and not in this report"
    ]


def describe_losses(summary: Summary) -> str:
    """Return a warning if arms end below their results before training, or ""."""
    largest = {
        (line.condition._replace(epochs=0), line.arm): line
        for line in sorted(summary.averages, key=lambda line: line.condition.epochs)
        if line.condition.epochs and line.untrained is not None
    }
    losses = sorted(
        (line for line in largest.values() if line.untrained and _lose(line) > 0),
        key=_lose,
        reverse=True,
    )
    if not losses:
        return ""
    worst = losses[0]
    assert worst.untrained is not None
    share = "all" if len(losses) == len(largest) else "most"
    start = f"this training harms {share} arms: " if 2 * len(losses) > len(largest) else ""
    return (
        f"{start}{len(losses)} of {count_noun(len(largest), 'average')} end below their result "
        f"before training ({worst.arm}: {100 * worst.untrained.value:.1f} to "
        f"{100 * worst.value.value:.1f}): gains over such arms are partly their loss; see the "
        "gains before training, or train with more --epochs or other rates (--tune)"
    )


def describe_arms_at_chance(summary: Summary) -> str:
    """Return a warning if results after training are no better than a constant answer, or "".

    Arms that are the same model, trained at the same rate, count once.
    """
    trained = [row for row in summary.rows if row.epochs and row.chance is not None]
    largest = max((row.epochs for row in trained), default=0)
    models = {
        (row.weights or row.key, row.task, row.seed, row.split, row.images, row.lr): row
        for row in reversed(trained)
        if row.epochs == largest
    }
    trained = [*reversed(models.values())]
    at_chance = [row for row in trained if (row.value or 0.0) <= compute_chance_limit(row, Z95)]
    if not at_chance:
        return ""
    arms = list(dict.fromkeys(row.arm for row in at_chance))
    more = f" and {len(arms) - SHOWN_ARMS} more" if len(arms) > SHOWN_ARMS else ""
    return (
        f"{len(at_chance)} of {count_noun(len(trained), 'result')} after training "
        f"{'is' if len(at_chance) == 1 else 'are'} no better "
        f"than a constant answer ({', '.join(arms[:SHOWN_ARMS])}{more}): a gain between two of "
        "them says nothing; train with more --epochs, more images or other rates (--tune)"
    )


def _lose(line: Line) -> float:
    """Return by how much the metric after training is below that before it."""
    return line.untrained.value - line.value.value if line.untrained else 0.0


def list_explanations(summary: Summary) -> list[str]:
    """Return the meaning of brackets, parentheses and some columns, one sentence for each."""
    shown_tasks = len(summary.tasks) <= FEW_TASKS
    averages = [gain for line in summary.averages for gain in list_gains(line).values() if gain]
    averages += [
        line.over_scratch
        for line in summary.lines
        if line.task and line.over_scratch and shown_tasks
    ]
    averages += [pair.difference for pair in summary.pairs if pair.task is None and not pair.same]
    kinds = {gain.interval for gain in averages}
    columns = [
        text
        for text, values in (
            ("real: on the real tasks alone", [line.real for line in summary.averages]),
            (
                "left out: on the generated tasks that look unlike those of `source`",
                [line.left_out for line in summary.averages],
            ),
        )
        if any(values)
    ]
    return [*(text for kind, text in INTERVALS.items() if kind in kinds), *columns]


def describe_state(summary: Summary) -> str:
    """Return how many cells are measured, failed or missing."""
    parts = [f"{count_noun(len(summary.rows), 'cell')} measured"]
    if summary.failures:
        parts.append(f"{len(summary.failures)} failed")
    if summary.missing:
        parts.append(f"{summary.missing} not measured yet")
    return ", ".join(parts)
