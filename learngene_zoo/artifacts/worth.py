"""Results of a learngene or a model for its card: a table, and the Hub's model index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import CardResults, Measured, TaskRecord, dataset_of
from learngene_zoo.text import code, count_noun, printable, prose, table

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


# The Hub's name of each metric.
METRICS = {
    "accuracy": "accuracy",
    "mIoU": "mean_iou",
    "matthews": "matthews_correlation",
    "F1": "f1",
}


def worth_section(worth: CardResults) -> list[str]:
    """Return the section of a card with the results."""
    arms = list(dict.fromkeys(arm for row in worth.rows for arm in row.accuracy))
    rivals = list(dict.fromkeys(rival for row in worth.rows for rival in row.gains))
    sized = any(row.size for row in worth.rows)
    heads = ["task", "layers", "width", *(["size"] if sized else []), "parameters", "FLOPs", *arms]
    heads += [f"gain over {rival}" for rival in rivals]
    rows = [_cells(row, arms, rivals, sized) for row in worth.rows]
    return [
        "## Evaluation results",
        table(f"| {' | '.join(map(prose, heads))} |", rows),
        f"Accuracy on {prose(worth.split)} images in per cent. "
        f"{prose(worth.how)} Measured by {code(worth.command)}.",
    ]


def _cells(row: Measured, arms: list[str], rivals: list[str], sized: bool) -> list[str]:
    shares = [f"{100 * row.accuracy[arm]:.1f}" if arm in row.accuracy else "" for arm in arms]
    gains = [_gain(row.gains[rival]) if rival in row.gains else "" for rival in rivals]
    named = [prose(size_text(row.size))] if sized else []
    return [
        code(row.task),
        str(row.layers),
        str(row.width),
        *named,
        f"{row.params:,}",
        f"{row.flops:,}",
        *shares,
        *gains,
    ]


def _gain(gain: tuple[float, float, float]) -> str:
    value, low, high = (100 * number for number in gain)
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def size_text(size: Mapping[str, object]) -> str:
    """Describe a size by its settings: `low 3, high 3`."""
    return ", ".join(f"{name} {value}" for name, value in size.items())


def worth_results(worth: CardResults, pipeline: str) -> list[EvalResult]:
    """Return the accuracy of descendants of every size on every task.

    The Hub shows them in its model index.
    """
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=pipeline,
            dataset_type=dataset_of(worth.datasets.get(row.task, "")) or printable(row.task),
            dataset_name=printable(row.task),
            dataset_split=printable(worth.split),
            metric_type="accuracy",
            metric_name=printable(f"accuracy of {_model_text(row)}, fine-tuned"),
            metric_value=next(iter(row.accuracy.values())),
        )
        for row in worth.rows
        if row.accuracy
    ]


def _model_text(row: Measured) -> str:
    named = f" ({size_text(row.size)})" if row.size else ""
    return f"{count_noun(row.layers, 'layer')} of width {row.width}{named}"


def list_evaluations(
    metrics: Mapping[str, Any], tasks: Sequence[TaskRecord]
) -> list[dict[str, str]]:
    """Return the rows of a card's table of results, on validation and test data.

    Values and intervals are in per cent. Those that are not numbers are left out.
    """
    task = tasks[0].name if tasks else str(metrics.get("task") or "")
    return [
        {
            "task": task,
            "images": f"{_count(metrics.get(f'{split}_images'))} {split}".strip(),
            "metric": metric,
            "value": _per_cent(metrics.get(f"{split}_{metric}")),
            "interval": " to ".join(filter(None, map(_per_cent, _bounds(metrics, split)))),
        }
        for split in ("validation", "test")
        for metric in METRICS
        if task and _per_cent(metrics.get(f"{split}_{metric}"))
    ]


def _per_cent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, float | int) else ""


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _bounds(metrics: Mapping[str, Any], split: str) -> Sequence[object]:
    bounds = metrics.get(f"{split}_interval")
    return bounds if isinstance(bounds, list | tuple) and len(bounds) == 2 else ()
