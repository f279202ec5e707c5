"""The README.md of a learngene and of a descendant: description, results, provenance, usage.

Its front matter is the Hub's model card metadata. All of it is rendered from the artifact, except
one section: text between `<!-- notes -->` and `<!-- /notes -->` is kept when a card is rendered
again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import (
    HUB_ID,
    AncestryRecord,
    CardCost,
    CardRecord,
    LearngeneConfig,
    TaskRecord,
    dataset_of,
    joint_licence,
)
from learngene_zoo.artifacts.worth import worth_results, worth_section
from learngene_zoo.errors import BadFile
from learngene_zoo.families.family import cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.text import (
    code,
    fence,
    human_seconds,
    make_printable,
    page,
    plain,
    printable,
    prose,
    table,
)

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

TRANSPARENT = (
    "learngene_zoo composites images with transparency on white; do the same before timm's "
    "transforms, which drop the transparency."
)


@dataclass(frozen=True, kw_only=True)
class ArtifactLocation:
    """The location of an artifact as its card shows it; by default a folder on disk."""

    reference: str = "FOLDER"  # for commands
    timm: str = "local-dir:FOLDER"  # for `timm.create_model`
    note: str = "`FOLDER` is this folder."
    licence: str = "unknown"  # if nothing else tells it
    learngene: str = ""  # the repository of the learngene that a model was built from
    members: tuple[tuple[str, Spec], ...] = ()  # the descendants in the same repository, by folder


def learngene_card(config: LearngeneConfig, location: ArtifactLocation = ArtifactLocation()) -> str:
    """Render the README.md of a learngene folder."""
    licence = location.licence if config.licence == "unknown" else config.licence
    facts = {
        "method": config.method,
        "seed": config.seed,
        "settings": config.settings,
        "versions": config.versions,
    }
    about = config.card or CardRecord()
    results = worth_results(about.worth, _pipeline(config.spec)) if about.worth else []
    front = _front(
        licence,
        library_name="learngene_zoo",
        pipeline_tag=_pipeline(config.spec),
        tags=["learngene", "learngene_zoo", config.method, "vision-transformer"],
        base_model=_base_models(config.ancestries),
        datasets=_datasets(config.tasks),
        **_index(f"learngene-{config.method}", results),
    )
    return page(
        front,
        f"# A learngene of {plain(config.method)}",
        "A learngene is a small part of a large Vision Transformer, from which Vision "
        "Transformers of many sizes are initialised. It is not a complete model.",
        "## Intended use",
        "Initialise models of a size that fits a device or a budget. Fine-tune each descendant on "
        f"its task: {_kind(config.spec)} at {config.spec.image_size} pixels or another size.",
        "## Usage",
        fence(
            "pip install learngene-zoo\n"
            f"lgzoo show {location.reference}   # every size that it can build\n"
            f"lgzoo expand {location.reference} --layers {config.spec.layers}"
        ),
        (
            f"{location.note} Each descendant is a folder that timm opens; the card in the folder "
            "shows how."
        ).strip(),
        f"Descendants are built under the control {code(config.control)}."
        if config.control
        else "",
        *(
            ["## Descendants in this repository", _members(location.members)]
            if location.members
            else []
        ),
        *(worth_section(about.worth) if about.worth and about.worth.rows else []),
        "## How it was made",
        _command(about),
        _cost(about.cost),
        _ancestries(config.ancestries),
        _tasks(config.tasks),
        f"Descendants have this shape by default: {_shape(config.spec)}.",
        _json_block(facts),
        *(["## Metrics", _json_block(config.metrics)] if config.metrics else []),
        *(
            ["## Details recorded by the method", _json_block(config.details)]
            if config.details
            else []
        ),
        "## Limits",
        _limits(config, about),
        "## Citation",
        _citation(about, config.versions),
        _licence(licence, config.ancestries),
    )


def descendant_card(
    config: Mapping[str, Any], location: ArtifactLocation = ArtifactLocation()
) -> str:
    """Render the README.md of a model's folder from its config.json.

    The config has timm's layout, with our record under `learngene`.
    """
    ours: Mapping[str, Any] = config["learngene"]
    spec = from_json(Spec, to_json(ours["spec"]), "learngene: spec")
    ancestries = [
        from_json(AncestryRecord, item, "ancestry") for item in to_json(ours.get("ancestries", ()))
    ]
    trained_on = ours.get("trained_on")
    tasks = [from_json(TaskRecord, to_json(trained_on), "trained_on")] if trained_on else []
    inherited = joint_licence(record.licence for record in ancestries)
    licence = inherited if ancestries else str(ours.get("licence", "unknown"))
    licence = location.licence if licence == "unknown" else licence
    method = str(ours.get("method", "unknown"))
    widths, control = "-".join(str(part.width) for part in spec.sizes), ours.get("control")
    name = f"vit-{spec.layers}-layers-{widths}-wide-{method}" + (f"-{control}" if control else "")
    about = from_json(CardRecord, to_json(ours.get("card", {})), "learngene: card")
    results = _results(spec, ours.get("metrics") or {}, tasks)
    front = _front(
        licence,
        library_name="timm" if spec.plain and not spec.dense else "learngene_zoo",
        pipeline_tag=_pipeline(spec),
        tags=["learngene", "learngene_zoo", method, "timm", "vision-transformer"],
        base_model=[location.learngene] if location.learngene else _base_models(ancestries),
        datasets=_datasets(tasks),
        **_index(name, results),
    )
    count = len(ours.get("inherited", ()))
    keys = (
        *("method", "control", "learngene", "seed", "settings", "healed"),
        *("recipe", "training_seed"),
    )
    facts = {key: ours[key] for key in keys if key in ours}
    origin = (
        "trained from scratch"
        if method == "train"
        else f"built from a learngene of {plain(method)}"
    )
    origin += f", under the control {code(control)}" if control else ""
    origin += (
        f", [{location.learngene}](https://huggingface.co/{location.learngene})"
        if location.learngene
        else ""
    )
    return page(
        front,
        f"# {plain(name)}",
        f"A Vision Transformer {origin}: "
        f"{_shape(spec)}{f'; {count} tensors inherited' if count else ''}.",
        "## Intended use",
        f"{_use(spec, ours)} The input is images of {spec.image_size} pixels, normalised as in "
        "`config.json`.",
        "## Usage",
        _usage(spec, location),
        "## How it was made",
        _command(about),
        _ancestries(ancestries),
        _tasks(tasks),
        _json_block({**facts, "versions": ours.get("versions", {})}),
        *(["## Metrics", _json_block(ours["metrics"])] if ours.get("metrics") else []),
        "## Limits",
        f"{_write_results(results)} It may have errors and biases of its training data or of its "
        "ancestry models.",
        "## Citation",
        _citation(about, ours.get("versions", {})),
        _licence(licence, ancestries),
    )


def timm_card(config: Mapping[str, Any]) -> str:
    """Render the README.md of a folder with a classifier of timm's that was trained here."""
    ours: Mapping[str, Any] = config["learngene"]
    trained_on = ours.get("trained_on")
    tasks = [from_json(TaskRecord, to_json(trained_on), "trained_on")] if trained_on else []
    name, licence = plain(config["architecture"]), str(ours.get("licence", "unknown"))
    keys = ("origin", "recipe", "training_seed", "versions")
    return page(
        _front(
            licence,
            library_name="timm",
            pipeline_tag="image-classification",
            tags=["timm"],
            datasets=_datasets(tasks),
        ),
        f"# {name}",
        f"timm's `{name}` with {config['num_classes']} classes.",
        "## Usage",
        fence(
            'import timm\n\nmodel = timm.create_model("local-dir:FOLDER", pretrained=True)',
            "python",
        ),
        f"`FOLDER` is this folder. Only timm is needed. {TRANSPARENT}",
        "## How it was made",
        _tasks(tasks),
        _json_block({key: ours[key] for key in keys if key in ours}),
        *(["## Metrics", _json_block(ours["metrics"])] if ours.get("metrics") else []),
        _licence(licence, ()),
    )


def notes_of(old: Path) -> str:
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


# The front matter


def _front(licence: str, **metadata: Any) -> str:
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


def _index(name: str, results: list[EvalResult]) -> dict[str, Any]:
    """Return the model index and its metrics; empty without results."""
    metrics = sorted({result.metric_type for result in results})
    return (
        {"metrics": metrics, "model_name": make_printable(name), "eval_results": results}
        if results
        else {}
    )


def _results(
    spec: Spec, metrics: Mapping[str, Any], tasks: Sequence[TaskRecord]
) -> list[EvalResult]:
    """Return accuracy or mIoU on validation and test images for the Hub's model index."""
    from huggingface_hub import EvalResult

    name = printable(tasks[0].name if tasks else str(metrics.get("task") or ""))
    metric, word = ("mIoU", "mean_iou") if spec.dense else ("accuracy", "accuracy")
    return [
        EvalResult(
            task_type=_pipeline(spec),
            dataset_type=(_datasets(tasks) or [name])[0],
            dataset_name=name,
            dataset_split=split,
            metric_type=word,
            metric_name=f"{split} {metric}",
            metric_value=metrics[f"{split}_{metric}"],
        )
        for split in ("validation", "test")
        if name and f"{split}_{metric}" in metrics
    ]


def _base_models(records: Iterable[AncestryRecord]) -> list[str]:
    """Return the Hub's names of the ancestry models that are on the Hub."""
    models = []
    for record in records:
        scheme, _, name = record.source.partition(":")
        name = f"timm/{name}" if scheme == "timm" else name.split("@")[0]
        if scheme in ("timm", "hf-hub") and re.fullmatch(HUB_ID, name):
            models.append(name)
    return sorted(set(models))


def _datasets(records: Iterable[TaskRecord]) -> list[str]:
    """Return the Hub's names of the data sets that are on the Hub."""
    return sorted(
        {name for name in (dataset_of(record.source) for record in records) if name is not None}
    )


def _pipeline(spec: Spec) -> str:
    """Return the Hub's name of a model's task."""
    return "image-segmentation" if spec.dense else "image-classification"


# The page


def _json_block(data: Any) -> str:
    """Render data as a block of JSON."""
    return fence(json.dumps(make_printable(to_json(data)), indent=2, ensure_ascii=False), "json")


def _kind(spec: Spec) -> str:
    return "segmentation" if spec.dense else "classification"


def _command(about: CardRecord) -> str:
    return fence(make_printable(about.command)) if about.command else ""


def _cost(cost: CardCost | None) -> str:
    if cost is None:
        return ""
    images = f"{cost.images:,} images (every pass counted)" if cost.images else "no images"
    return (
        f"The extraction saw {images} and took {human_seconds(cost.seconds)} of one core. "
        f"Building descendants needs {cost.params:,} stored parameters."
    )


def _limits(config: LearngeneConfig, about: CardRecord) -> str:
    """List the conclusions that a learngene's card does not support."""
    task_names = ", ".join(code(task.name) for task in config.tasks)
    parts = [
        "- A descendant must be fine-tuned before use. It also inherits errors and biases of the "
        "ancestry model.",
        f"- The extraction used the training images of {task_names}; results on these tasks say "
        "little about other tasks."
        if task_names
        else "",
        "- The results hold for these sizes, these tasks and a short training; gains may be "
        "smaller after longer training."
        if about.worth
        else "- Its descendants were not evaluated.",
    ]
    return "\n".join(part for part in parts if part)


def _use(spec: Spec, ours: Mapping[str, Any]) -> str:
    """Describe the use of a model: its task if it was trained on one, else fine-tuning."""
    task = ours.get("task")
    if not ours.get("trained_on"):
        return f"Fine-tuning for {_kind(spec)}; the model has not been trained on a task."
    return f"{_kind(spec).capitalize()} on the task {code(task)}, and fine-tuning on others."


def _write_results(results: Sequence[EvalResult]) -> str:
    if not results:
        return "The model was not evaluated."
    return "The results above are on held-out images of the task on which it was trained."


def _citation(about: CardRecord, versions: Mapping[str, Any]) -> str:
    """Cite the paper of the method, where the artifact names it, and this package."""
    paper = f"- {prose(about.paper)}\n" if about.paper else ""
    return f"{paper}- learngene_zoo {plain(str(versions.get('learngene_zoo', '')))}".rstrip()


def _shape(spec: Spec) -> str:
    price = cost(spec)
    first, *rest = spec.sizes
    blocks = [f"{first.layers} layers of width {first.width} with {first.heads} heads"]
    blocks += [f"then {part.layers} of width {part.width} with {part.heads} heads" for part in rest]
    return (
        f"{', '.join(blocks)}, {spec.image_size}-pixel images in patches of {spec.patch_size}, "
        f"{spec.classes} classes; {price.params:,} parameters, {price.flops:,} FLOPs "
        "(multiply-adds)"
    )


def _ancestries(records: Iterable[AncestryRecord]) -> str:
    rows = [
        [code(cell) for cell in (r.source, r.revision or "none", r.sha256 or "unknown", r.licence)]
        for r in records
    ]
    return table("| ancestry model | revision | sha256 | licence |", rows)


def _tasks(records: Iterable[TaskRecord]) -> str:
    rows = [
        (
            code(r.name),
            code(r.source),
            code(r.revision or "none"),
            r.classes,
            r.images,
            code(r.licence),
        )
        for r in records
    ]
    return table("| task | source | revision | classes | images | licence |", rows)


def _licence(licence: str, ancestries: Sequence[AncestryRecord]) -> str:
    if licence == "unknown":
        reason = ", because that of an ancestry model is unknown" if ancestries else ""
        return f"## Licence\n\nUnknown{reason}."
    origin = ", the licence of the ancestry models" if ancestries else ""
    return f"## Licence\n\n{code(licence)}{origin}."


def _members(members: Iterable[tuple[str, Spec]]) -> str:
    rows = []
    for folder, spec in members:
        price, widths = cost(spec), "-".join(str(part.width) for part in spec.sizes)
        rows.append(
            (
                f"[{folder}]({folder})",
                spec.layers,
                widths,
                spec.classes,
                f"{price.params:,}",
                f"{price.flops:,}",
            )
        )
    return table("| folder | layers | width | classes | parameters | FLOPs |", rows)


def _usage(spec: Spec, location: ArtifactLocation) -> str:
    """Describe how to open a model."""
    opening_line = f'model = timm.create_model("{location.timm}", pretrained=True)'
    if spec.plain and not spec.dense:
        needs = f"{location.note} Only timm is needed. {TRANSPARENT}".strip()
        return fence(f"import timm\n\n{opening_line}", "python") + f"\n\n{needs}"
    parts = [location.note] if location.note else []
    parts += ["The model gives logits for every pixel."] * spec.dense
    parts += ["A linear layer, the stitch, leads from each width to the next."] * spec.stitched
    parts += ["The numbers of heads and hidden channels differ between its blocks."] * (
        not spec.plain and not spec.stitched
    )
    return (
        fence(
            "import timm\n\nimport learngene_zoo.timm  # registers "
            f"the model with timm\n\n{opening_line}",
            "python",
        )
        + "\n\n"
        f"{' '.join(parts)} timm has no such model, so `import learngene_zoo.timm` is needed "
        "(`pip install learngene-zoo`)."
    )
