"""The front matter of a card: the metadata of the Hub's model cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import HUB_ID, AncestryRecord, TaskRecord, dataset_of
from learngene_zoo.families.spec import Spec, TextSpec
from learngene_zoo.text import make_printable, printable

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

# The Hub's identifiers of the licences that this zoo's models and data sets have; any other is its
# "other", with a name.
_HUB_LICENCES = {
    "apache-2.0",
    "mit",
    "cc-by-4.0",
    "cc-by-sa-4.0",
    "cc-by-nc-4.0",
    "cc0-1.0",
    "bsd-3-clause",
    "unknown",
}


def render_front_matter(licence: str, **metadata: Any) -> str:
    """Render the Hub's metadata as YAML; empty values are left out."""
    from huggingface_hub import ModelCardData

    identifier = licence.lower()
    licence_fields = (
        {"license": identifier}
        if identifier in _HUB_LICENCES
        else {"license": "other", "license_name": make_printable(licence)}
    )
    fields = {
        key: value if key == "eval_results" else make_printable(value)
        for key, value in metadata.items()
        if value
    }
    return ModelCardData(**licence_fields, **fields).to_yaml()


def build_model_index(name: str, results: list[EvalResult]) -> dict[str, Any]:
    """Return the model index and its metrics; empty without results."""
    metrics = sorted({result.metric_type for result in results})
    return (
        {"metrics": metrics, "model_name": make_printable(name), "eval_results": results}
        if results
        else {}
    )


def list_results(
    spec: Spec, metrics: Mapping[str, Any], tasks: Sequence[TaskRecord]
) -> list[EvalResult]:
    """Return accuracy or mIoU on validation and test images for the Hub's model index."""
    from huggingface_hub import EvalResult

    name = printable(tasks[0].name if tasks else str(metrics.get("task") or ""))
    metric, word = ("mIoU", "mean_iou") if spec.dense else ("accuracy", "accuracy")
    return [
        EvalResult(
            task_type=name_pipeline(spec),
            dataset_type=(list_datasets(tasks) or [name])[0],
            dataset_name=name,
            dataset_split=split,
            metric_type=word,
            metric_name=f"{split} {metric}",
            metric_value=metrics[f"{split}_{metric}"],
        )
        for split in ("validation", "test")
        if name and f"{split}_{metric}" in metrics
    ]


def list_base_models(records: Iterable[AncestryRecord]) -> list[str]:
    """Return the Hub's names of the ancestry models that are on the Hub."""
    models = []
    for record in records:
        scheme, _, name = record.source.partition(":")
        name = f"timm/{name}" if scheme == "timm" else name.split("@")[0]
        if scheme in ("timm", "hf-hub") and re.fullmatch(HUB_ID, name):
            models.append(name)
    return sorted(set(models))


def list_datasets(records: Iterable[TaskRecord]) -> list[str]:
    """Return the Hub's names of the data sets that are on the Hub."""
    return sorted(
        {name for name in (dataset_of(record.source) for record in records) if name is not None}
    )


def name_pipeline(spec: Spec) -> str:
    """Return the Hub's name of a model's task."""
    if isinstance(spec, TextSpec):
        return "text-classification" if spec.classes else "feature-extraction"
    return "image-segmentation" if spec.dense else "image-classification"


def name_library(spec: Spec) -> str:
    """Return the package that opens a model's folder: transformers, timm or this one."""
    if isinstance(spec, TextSpec):
        return "transformers"
    return "timm" if spec.plain and not spec.dense else "learngene_zoo"


def tag_of(spec: Spec) -> str:
    """Return the tag of a model's family."""
    return spec.family if isinstance(spec, TextSpec) else "vision-transformer"
