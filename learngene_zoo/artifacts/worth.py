"""Results of a learngene or a model for its card: a table, and the Hub's model index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import CardResults, Measured, TaskRecord, find_dataset
from learngene_zoo.text import count_noun, escape_controls, escape_prose, format_code, format_table

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


# The Hub's name of each metric.
METRICS = {
    "accuracy": "accuracy",
    "mIoU": "mean_iou",
    "matthews": "matthews_correlation",
    "F1": "f1",
}


def render_worth(worth: CardResults) -> list[str]:
    """Return the section of a card with the results."""
    arms = list(dict.fromkeys(arm for row in worth.rows for arm in row.accuracy))
    rivals = list(dict.fromkeys(rival for row in worth.rows for rival in row.gains))
    sized = any(row.size for row in worth.rows)
    heads = ["task", "layers", "width", *(["size"] if sized else []), "parameters", "FLOPs", *arms]
    heads += [f"gain over {rival}" for rival in rivals]
    rows = [_list_cells(row, arms, rivals, sized) for row in worth.rows]
    return [
        "## Evaluation results",
        format_table(f"| {' | '.join(map(escape_prose, heads))} |", rows),
        f"Accuracy on {escape_prose(worth.split)} images in per cent. "
        f"{escape_prose(worth.how)} Measured by {format_code(worth.command)}.",
    ]


def _list_cells(row: Measured, arms: list[str], rivals: list[str], sized: bool) -> list[str]:
    shares = [f"{100 * row.accuracy[arm]:.1f}" if arm in row.accuracy else "" for arm in arms]
    gains = [_format_gain(row.gains[rival]) if rival in row.gains else "" for rival in rivals]
    named = [escape_prose(describe_size(row.size))] if sized else []
    return [
        format_code(row.task),
        str(row.layers),
        str(row.width),
        *named,
        f"{row.params:,}",
        f"{row.flops:,}",
        *shares,
        *gains,
    ]


def _format_gain(gain: tuple[float, float, float]) -> str:
    value, low, high = (100 * number for number in gain)
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def describe_size(size: Mapping[str, object]) -> str:
    """Describe a size by its settings: `low 3, high 3`."""
    return ", ".join(f"{name} {value}" for name, value in size.items())


def list_worth_results(worth: CardResults, pipeline: str) -> list[EvalResult]:
    """Return the accuracy of descendants of every size on every task.

    The Hub shows them in its model index.
    """
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=pipeline,
            dataset_type=find_dataset(worth.datasets.get(row.task, ""))
            or escape_controls(row.task),
            dataset_name=escape_controls(row.task),
            dataset_split=escape_controls(worth.split),
            metric_type="accuracy",
            metric_name=escape_controls(f"accuracy of {_describe_model(row)}, fine-tuned"),
            metric_value=next(iter(row.accuracy.values())),
        )
        for row in worth.rows
        if row.accuracy
    ]


def _describe_model(row: Measured) -> str:
    named = f" ({describe_size(row.size)})" if row.size else ""
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
            "value": _format_per_cent(metrics.get(f"{split}_{metric}")),
            "interval": " to ".join(
                filter(None, map(_format_per_cent, _list_bounds(metrics, split)))
            ),
        }
        for split in ("validation", "test")
        for metric in METRICS
        if task and _format_per_cent(metrics.get(f"{split}_{metric}"))
    ]


def _format_per_cent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, float | int) else ""


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _list_bounds(metrics: Mapping[str, Any], split: str) -> Sequence[object]:
    bounds = metrics.get(f"{split}_interval")
    return bounds if isinstance(bounds, list | tuple) and len(bounds) == 2 else ()
