"""The README.md of a learngene and of a descendant: description, results, provenance, usage.

`card_learngene.md.jinja`, `card_descendant.md.jinja` and `card_timm.md.jinja` beside this file are
the templates of the cards. The front matter is the metadata of the Hub's model cards. A card is
rendered from the artifact, except the title of another package's method, and one section: text
between `<!-- notes -->` and `<!-- /notes -->` is kept when a card is rendered again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import (
    HUB_ID,
    AncestryRecord,
    CardRecord,
    LearngeneConfig,
    TaskRecord,
    find_dataset,
    find_package_of_method,
    join_licences,
)
from learngene_zoo.artifacts.worth import (
    METRICS,
    list_evaluations,
    list_worth_results,
    render_worth,
)
from learngene_zoo.errors import BadFile
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.text import escape_controls, make_printable, render_markdown

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
NOTES, END = "<!-- notes -->", "<!-- /notes -->"


@dataclass(frozen=True, kw_only=True)
class ArtifactLocation:
    """The location of an artifact as its card shows it; by default a folder on disk."""

    reference: str = "FOLDER"  # for commands
    timm: str = "local-dir:FOLDER"  # for `timm.create_model`
    transformers: str = "FOLDER"  # for `AutoModel.from_pretrained`
    note: str = "`FOLDER` is this folder."
    licence: str = "unknown"  # if nothing else tells it
    learngene: str = ""  # the repository of the learngene that a model was built from
    members: tuple[tuple[str, Spec], ...] = ()  # the descendants in the same repository, by folder


def render_learngene_card(
    config: LearngeneConfig, location: ArtifactLocation = ArtifactLocation()
) -> str:
    """Render the README.md of a learngene folder."""
    licence = location.licence if config.licence == "unknown" else config.licence
    about = config.card or CardRecord()
    pipeline = name_pipeline(config.spec)
    results = list_worth_results(about.worth, pipeline) if about.worth else []
    package = find_package_of_method(config.versions)
    front = render_front_matter(
        licence,
        library_name="learngene_zoo",
        pipeline_tag=pipeline,
        tags=["learngene", "learngene_zoo", config.method, tag_of(config.spec)],
        base_model=list_base_models(config.ancestries),
        datasets=list_datasets(config.tasks),
        **build_model_index(f"learngene-{config.method}", results),
    )
    facts = {
        "method": config.method,
        "seed": config.seed,
        "settings": config.settings,
        "versions": config.versions,
    }
    return render_markdown(
        "artifacts/card_learngene.md.jinja",
        front=front,
        config=config,
        title=config.method_title,
        location=location,
        about=about,
        licence=licence,
        kind=_name_kind(config.spec),
        is_of_texts=config.spec.image_size is None,
        price=count_cost(config.spec),
        members=[(folder, spec, count_cost(spec)) for folder, spec in location.members],
        evaluation=render_worth(about.worth) if about.worth and about.worth.rows else [],
        facts=to_json(facts),
        metrics=to_json(config.metrics),
        details=to_json(config.details),
        packages=list_packages(package),
        version=str(config.versions.get("learngene_zoo", "")),
    )


# The fields of a descendant's record that its card shows as they are.
FACTS = (
    *("method", "control", "learngene", "seed", "settings", "healed", "corpus"),
    *("recipe", "training_seed"),
)


def render_descendant_card(
    config: Mapping[str, Any], location: ArtifactLocation = ArtifactLocation()
) -> str:
    """Render the README.md of a model's folder from its config.json.

    The config has timm's or transformers' layout, with our record under `learngene`.
    """
    ours: Mapping[str, Any] = config["learngene"]
    spec = from_json(Spec, to_json(ours["spec"]), "learngene: spec")
    ancestries = [
        from_json(AncestryRecord, item, "ancestry") for item in to_json(ours.get("ancestries", ()))
    ]
    tasks = _list_tasks(ours)
    inherited_licence = join_licences(record.licence for record in ancestries)
    licence = inherited_licence if ancestries else str(ours.get("licence", "unknown"))
    if licence == "unknown":
        licence = location.licence
    method, control = str(ours.get("method", "unknown")), ours.get("control")
    name = _name_descendant(spec, method, control)
    host = name_library(spec)
    of_texts, of_sentences = isinstance(spec, TextSpec), host == "sentence-transformers"
    layout = "transformers" if of_texts else "timm"
    metrics = ours.get("metrics")
    results = list_results(spec, metrics or {}, tasks)
    front = render_front_matter(
        licence,
        library_name=host,
        pipeline_tag="sentence-similarity" if of_sentences else name_pipeline(spec),
        tags=list(
            dict.fromkeys(["learngene", "learngene_zoo", method, layout, tag_of(spec), host])
        ),
        base_model=[location.learngene] if location.learngene else list_base_models(ancestries),
        datasets=list_datasets(tasks),
        **build_model_index(name, results),
    )
    facts = {key: ours[key] for key in FACTS if key in ours}
    return render_markdown(
        "artifacts/card_descendant.md.jinja",
        front=front,
        name=name,
        spec=spec,
        price=count_cost(spec),
        kind=_name_kind(spec),
        is_of_timm=host == "timm",
        is_of_texts=of_texts,
        is_of_sentences=of_sentences,
        pairs=ours.get("pairs"),
        method=method,
        title=str(ours.get("method_title", "")),
        packages=list_packages(ours.get("method_package", {})),
        control=control,
        inherited=len(ours.get("inherited", ())),
        location=location,
        about=from_json(CardRecord, to_json(ours.get("card", {})), "learngene: card"),
        ancestries=ancestries,
        tasks=tasks,
        task=ours.get("task"),
        facts=to_json({**facts, "versions": ours.get("versions", {})}),
        metrics=to_json(metrics),
        evaluation=list_evaluations(metrics, tasks) if metrics else [],
        is_evaluated=bool(results),
        version=str(ours.get("versions", {}).get("learngene_zoo", "")),
        licence=licence,
    )


def render_timm_card(config: Mapping[str, Any]) -> str:
    """Render the README.md of a folder with a classifier of timm's that was trained here."""
    ours: Mapping[str, Any] = config["learngene"]
    licence, tasks = str(ours.get("licence", "unknown")), _list_tasks(ours)
    metrics = ours.get("metrics")
    front = render_front_matter(
        licence,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["timm"],
        datasets=list_datasets(tasks),
    )
    keys = ("origin", "recipe", "training_seed", "versions")
    return render_markdown(
        "artifacts/card_timm.md.jinja",
        front=front,
        name=config["architecture"],
        classes=config["num_classes"],
        tasks=tasks,
        facts=to_json({key: ours[key] for key in keys if key in ours}),
        metrics=to_json(metrics),
        evaluation=list_evaluations(metrics, tasks) if metrics else [],
        licence=licence,
    )


def read_notes(old: Path) -> str:
    """Return the section of a card that is kept when the card is rendered again.

    Raises `BadFile` if the card cannot be read.
    """
    try:
        match = re.search(f"{NOTES}.*?{END}", old.read_text(encoding="utf-8"), re.DOTALL)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise BadFile(
            f"{old} cannot be read: {error}; remove it, and it is written again"
        ) from error
    return f"\n{match[0]}\n" if match else ""


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
    """Return the metric of the task on validation and test data for the Hub's model index."""
    from huggingface_hub import EvalResult

    name = escape_controls(tasks[0].name if tasks else str(metrics.get("task") or ""))
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
        for metric, word in METRICS.items()
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


def list_packages(versions: Mapping[str, str]) -> list[tuple[str, str, bool]]:
    """Return packages with their versions, and whether `pip install` takes the name."""
    name_of_package = re.compile("[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE | re.ASCII)
    return [
        (name, number, name_of_package.fullmatch(name) is not None)
        for name, number in versions.items()
    ]


def list_datasets(records: Iterable[TaskRecord]) -> list[str]:
    """Return the Hub's names of the data sets that are on the Hub."""
    return sorted(
        {name for name in (find_dataset(record.source) for record in records) if name is not None}
    )


def name_pipeline(spec: Spec) -> str:
    """Return the Hub's name of a model's task."""
    if isinstance(spec, TextSpec):
        return "text-classification" if spec.classes else "feature-extraction"
    return "image-segmentation" if spec.dense else "image-classification"


def name_library(spec: Spec) -> str:
    """Return the package that opens a model's folder: sentence-transformers, transformers, timm or
    this one.
    """
    if isinstance(spec, TextSpec):
        from learngene_zoo.families.sentence_transformers import write_sentence_files

        return "sentence-transformers" if write_sentence_files(spec) else "transformers"
    return "timm" if spec.plain and not spec.dense else "learngene_zoo"


def tag_of(spec: Spec) -> str:
    """Return the tag of a model's family."""
    return spec.family if isinstance(spec, TextSpec) else "vision-transformer"


def _list_tasks(ours: Mapping[str, Any]) -> list[TaskRecord]:
    """Return the task on which a model was trained, if there is one."""
    trained_on = ours.get("trained_on")
    return [from_json(TaskRecord, to_json(trained_on), "trained_on")] if trained_on else []


def _name_descendant(spec: Spec, method: str, control: str | None) -> str:
    """Return the title of a descendant's card: family, sizes, method and control."""
    family = spec.family if isinstance(spec, TextSpec) else "vit"
    widths = "-".join(str(part.width) for part in spec.sizes)
    name = f"{family}-{spec.layers}-layers-{widths}-wide-{method}"
    return f"{name}-{control}" if control else name


def _name_kind(spec: Spec) -> str:
    return "segmentation" if spec.dense else "classification"
