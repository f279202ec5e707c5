"""The README.md of a learngene and of a descendant: what it is, how it was made, how to use it. Cold.

The front matter is the Hub's model card metadata. Its scalars are JSON strings, which YAML reads unchanged, so that
nothing a user typed can end a line or open a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig, TaskRecord
from learngene_zoo.families.cost import cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.settings import from_json, to_json

# The Hub's identifiers that models and data sets of this zoo have; any other licence is its "other", with a name.
_HUB_LICENCES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc0-1.0", "bsd-3-clause", "unknown"}
_HUB_ID = r"[\w-][\w.-]*/[\w-][\w.-]*"


def learngene_card(config: LearngeneConfig) -> str:
    """The README.md of a learngene folder."""
    front = {
        **_licence(config.licence),
        "library_name": "timm",
        "pipeline_tag": "image-classification",
        "tags": ["learngene", "learngene_zoo", config.method, "vision-transformer"],
        "base_model": _base_models(config.ancestries),
        "datasets": _datasets(config.tasks),
    }
    made = {"method": config.method, "seed": config.seed, "settings": config.settings, "versions": config.versions}
    return _page(
        front,
        f"# A learngene of {_plain(config.method)}",
        "A part condensed from a large Vision Transformer, from which Vision Transformers of many sizes are built. It is "
        "no model by itself.",
        "## Use it",
        _fence(
            "pip install learngene-zoo\n"
            "lgzoo show FOLDER                # every size it builds\n"
            f"lgzoo expand FOLDER --layers {config.spec.layers}"
        ),
        "`FOLDER` is this folder. A descendant is a folder that timm opens; its own card says how.",
        "## How it was made",
        _ancestries(config.ancestries),
        _tasks(config.tasks),
        f"Shape that descendants take what they are not told from: {_shape(config.spec)}.",
        _json(made),
        *(["## Metrics", _json(config.metrics)] if config.metrics else []),
        *(["## What the method recorded", _json(config.details)] if config.details else []),
        _licence_section(config.licence, "the ancestry models"),
    )


def descendant_card(config: Mapping[str, Any]) -> str:
    """The README.md of a model's folder, from its config.json: timm's layout with our record under `learngene`."""
    ours: Mapping[str, Any] = config["learngene"]
    spec = from_json(Spec, to_json(ours["spec"]), "learngene: spec")
    ancestries = [from_json(AncestryRecord, item, "ancestry") for item in to_json(ours.get("ancestries", ()))]
    trained_on = ours.get("trained_on")
    tasks = [from_json(TaskRecord, to_json(trained_on), "trained_on")] if trained_on else []
    inherited = LearngeneConfig(method="", spec=spec, ancestries=tuple(ancestries)).licence
    licence = inherited if ancestries else str(ours.get("licence", "unknown"))
    method = str(ours.get("method", "unknown"))
    control = f"-{ours['control']}" if "control" in ours else ""
    name = f"vit-{spec.layers}-layers-{'-'.join(str(part.width) for part in spec.sizes)}-wide-{method}{control}"
    metrics = ours.get("metrics") or {}
    front = {
        **_licence(licence),
        "library_name": "timm",
        "pipeline_tag": _kind(spec),
        "tags": ["learngene", "learngene_zoo", method, "timm", "vision-transformer"],
        "base_model": _base_models(ancestries),
        "datasets": _datasets(tasks),
        "model-index": _model_index(name, _kind(spec), metrics, tasks),
    }
    made = {
        key: ours[key]
        for key in ("method", "control", "learngene", "seed", "settings", "recipe", "training_seed")
        if key in ours
    }
    origin = {"train": "trained from scratch"}.get(method, f"built from a learngene of {_plain(method)}")
    if control:
        origin += f", under the control {_code(ours['control'])}"
    return _page(
        front,
        f"# {_plain(name)}",
        f"A Vision Transformer {origin}: {_shape(spec)}; {len(ours.get('inherited', ()))} tensors inherited.",
        "## Use it",
        _use(spec),
        "## How it was made",
        _ancestries(ancestries),
        _tasks(tasks),
        _json({**made, "versions": ours.get("versions", {})}),
        *(["## Metrics", _json(metrics)] if metrics else []),
        _licence_section(licence, "the ancestry models" if ancestries else "these weights"),
    )


def _page(front: Mapping[str, Any], *parts: str) -> str:
    matter = "\n".join(f"{key}: {_scalar(value)}" for key, value in front.items() if value not in (None, [], ()))
    return f"---\n{matter}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def _scalar(value: Any) -> str:
    """JSON on one line: a YAML flow value."""
    return json.dumps(_printable(to_json(value)), ensure_ascii=False)


def _printable(value: Any) -> Any:
    """Without the characters that YAML and Markdown do not carry."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else " " for letter in value)
    if isinstance(value, Mapping):
        return {_printable(str(key)): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain(text: str) -> str:
    """One line of Markdown prose out of anything."""
    return re.sub(r"[^\w .,:@/+-]", "", _printable(text))


def _code(text: Any) -> str:
    return "`" + re.sub(r"[`|]", "", _printable(str(text))) + "`"


def _fence(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def _json(data: Any) -> str:
    text = json.dumps(_printable(to_json(data)), indent=2, ensure_ascii=False)
    return _fence(text.replace("```", "'''"), "json")


def _shape(spec: Spec) -> str:
    price = cost(spec)
    first, *rest = spec.sizes
    blocks = [f"{first.layers} layers of width {first.width} with {first.heads} heads"]
    blocks += [f"then {part.layers} of width {part.width} with {part.heads} heads" for part in rest]
    return (
        f"{', '.join(blocks)}, {spec.image_size}-pixel images in patches of "
        f"{spec.patch_size}, {spec.classes} classes; {price.params:,} parameters, {price.flops:,} FLOPs (multiply-adds)"
    )


def _ancestries(records: Iterable[AncestryRecord]) -> str:
    rows = [
        f"| {_code(r.source)} | {_code(r.revision or 'none')} | {_code(r.sha256 or 'unknown')} | {_code(r.licence)} |"
        for r in records
    ]
    return "\n".join(["| ancestry model | revision | sha256 | licence |", "|---|---|---|---|", *rows]) if rows else ""


def _tasks(records: Iterable[TaskRecord]) -> str:
    rows = [
        f"| {_code(r.name)} | {_code(r.source)} | {_code(r.revision or 'none')} | {r.classes} | {r.images} | "
        f"{_code(r.licence)} |"
        for r in records
    ]
    head = ["| task | source | revision | classes | images | licence |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else ""


def _licence(licence: str) -> dict[str, str]:
    known = licence.lower()
    return {"license": known} if known in _HUB_LICENCES else {"license": "other", "license_name": licence}


def _licence_section(licence: str, of: str) -> str:
    if licence == "unknown":
        return f"## Licence\n\nunknown: that of {of} is not known, so neither is this one's."
    return f"## Licence\n\n{_code(licence)}, that of {of}."


def _base_models(records: Iterable[AncestryRecord]) -> list[str]:
    """The Hub's names of the ancestry models that are there."""
    found = []
    for record in records:
        scheme, _, name = record.source.partition(":")
        name = f"timm/{name}" if scheme == "timm" else name.split("@")[0]
        if scheme in ("timm", "hf-hub") and re.fullmatch(_HUB_ID, name):
            found.append(name)
    return sorted(set(found))


def _datasets(records: Iterable[TaskRecord]) -> list[str]:
    """The Hub's names of the data sets that are there."""
    matches = (re.fullmatch(rf"hf:({_HUB_ID})([:@].*)?", record.source) for record in records)
    return sorted({match[1] for match in matches if match})


def _kind(spec: Spec) -> str:
    """The Hub's word for what a model does."""
    return "image-segmentation" if spec.dense else "image-classification"


def _use(spec: Spec) -> str:
    """How to open a model."""
    opened = 'model = timm.create_model("local-dir:FOLDER", pretrained=True)'
    if not (spec.dense or spec.stitched):
        return "\n\n".join(
            [_fence(f"import timm\n\n{opened}", "python"), "`FOLDER` is this folder; nothing but timm is needed."]
        )
    known = " and ".join(["the stitches"] * spec.stitched + ["the dense head"] * spec.dense)
    ours = f"import learngene_zoo.timm  # makes {known} known to timm"
    told = ["The model gives logits for every pixel."] * spec.dense
    told += ["A linear layer, the stitch, leads from each width to the next."] * spec.stitched
    return "\n\n".join(
        [
            _fence(f"import timm\n\n{ours}\n\n{opened}", "python"),
            f"`FOLDER` is this folder. {' '.join(told)} That is no part of timm, so that the line "
            "`import learngene_zoo.timm` is needed (`pip install learngene-zoo`).",
        ]
    )


def _model_index(name: str, kind: str, metrics: Mapping[str, Any], tasks: Sequence[TaskRecord]) -> list[Any]:
    """Accuracy, or mIoU, on validation and test images, as the Hub shows them."""
    metric, word = ("mIoU", "mean_iou") if kind == "image-segmentation" else ("accuracy", "accuracy")
    results = [
        {
            "task": {"type": kind},
            "dataset": {
                "name": tasks[0].name if tasks else metrics["task"],
                "type": (_datasets(tasks) or ["other"])[0],
                "split": split,
            },
            "metrics": [{"type": word, "name": f"{split} {metric}", "value": metrics[f"{split}_{metric}"]}],
        }
        for split in ("validation", "test")
        if f"{split}_{metric}" in metrics and (tasks or "task" in metrics)
    ]
    return [{"name": name, "results": results}] if results else []
