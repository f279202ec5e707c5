"""What `lgzoo show` prints of a model: one of this package, a pretrained or an exported one."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.card import name_library
from learngene_zoo.artifacts.records import Provenance, is_model_config, read_provenance
from learngene_zoo.cli.job import Row
from learngene_zoo.cli.plan import format_front
from learngene_zoo.errors import BadFile
from learngene_zoo.families.family import Convention, count_cost
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.sizes import AXES
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, read_json
from learngene_zoo.tasks.task import MetricName

# What opens the folder of a model, by `name_library`.
OPENERS = {
    "timm": "timm",
    "transformers": "transformers",
    "sentence-transformers": "sentence-transformers, transformers",
    "learngene_zoo": "timm after `import learngene_zoo.timm`",
}


def is_pretrained(name: str) -> bool:
    """Return whether a name is that of a pretrained model: of timm's, or a folder of other origin
    or in the layout of another package.

    Raises `BadFile` for a folder with a config.json that cannot be read.
    """
    if name.startswith("timm:"):
        return True
    path = Path(name) / CONFIG
    if not path.is_file():
        return False
    config = read_json(path)
    ours = config.get("learngene")
    is_converted = isinstance(ours, dict) and "layout" in ours
    is_ours = bool(config.keys() & {"learngene", "format"}) and not is_converted
    return is_model_config(config) and not is_ours


def describe_pretrained(source: str, convention: Convention, offline: bool) -> Row:
    """Return the row of a pretrained model: its sizes, without reading its weights.

    Raises as `read_spec_at`.
    """
    from learngene_zoo.pretrained.sources import read_spec_at

    spec = read_spec_at(source, offline=offline)
    model_cost = count_cost(spec, convention)
    return {
        "model": source,
        "kind": "pretrained",
        "family": spec.family,
        **{name: getattr(spec, name) for name in AXES},
        **_list_text_sizes(spec),
        "params": model_cost.params,
        "flops": model_cost.flops,
    }


def describe_exported(path: Path) -> Row:
    """Return the row of an ONNX file: what its metadata say, and its size.

    Raises as `open_exported`.
    """
    from learngene_zoo.pretrained.exported import open_exported

    model = open_exported(path)
    output = model.session.get_outputs()[0]
    return {
        "model": str(path),
        "kind": "exported",
        "classes": model.classes,
        "class_names": list(model.class_names),
        **_list_input_sizes(model.input_format),
        "output": f"{output.name} ({', '.join(map(str, output.shape))})",
        "dtype": model.dtype,
        "megabytes": path.stat().st_size / 1e6,
        "method": model.provenance.get("method") or None,
        "task": model.task,
        "licence": model.provenance.get("licence"),
    }


def _list_input_sizes(form: InputFormat | TextFormat) -> Row:
    """Return how images are presented to an exported file, or the maximal number of tokens."""
    if isinstance(form, TextFormat):
        return {"tokens": form.tokens}
    return {
        "image_size": form.image_size,
        "channels": form.channels,
        "mean": list(form.mean),
        "std": list(form.std),
    }


def _list_text_sizes(spec: Spec) -> Row:
    """Return the sizes that only text models have."""
    if not isinstance(spec, TextSpec):
        return {}
    return {"vocabulary": spec.vocabulary, "positions": spec.positions}


def _describe_classifier(folder: Path, config: dict[str, Json]) -> Row:
    """Return the row of a classifier of timm that was trained here, without its sizes."""
    metrics = read_provenance(config["learngene"], f"{folder / CONFIG}: learngene").metrics
    images = config.get("pretrained_cfg")
    size = images.get("input_size", [None])[-1] if isinstance(images, dict) else None
    facts = {
        "model": shelf.make_reference(folder),
        "architecture": config.get("architecture"),
        "classes": config.get("num_classes"),
    }
    task = config["learngene"].get("task")
    return {
        **facts,
        "image_size": size,
        "method": "timm",
        "task": task,
        "validation_accuracy": metrics.get("validation_accuracy"),
    }


def describe_model(folder: Path, convention: Convention) -> Row:
    """Return the row of a model of this package: its sizes, and what it was trained on."""
    from learngene_zoo.pretrained.sources import read_spec_at

    config = read_json(folder / CONFIG)
    if isinstance(config.get("learngene"), dict) and config["learngene"].get("method") == "timm":
        return _describe_classifier(folder, config)
    spec = read_spec_at(str(folder), offline=True)
    model_cost = count_cost(spec, convention)
    where, ours = f"{folder / CONFIG}: learngene", config.get("learngene", {})
    if not isinstance(ours, dict):
        raise BadFile(f"{where}: expected an object, got {type(ours).__name__}")
    record = read_provenance(ours, where)
    metric = _name_validation(record, spec)
    return {
        "model": shelf.make_reference(folder),
        **{name: getattr(spec, name) for name in AXES},
        **_list_text_sizes(spec),
        "class_names": _list_class_names(config),
        **({"front": format_front(spec)} if len(spec.sizes) > 1 else {}),
        "params": model_cost.params,
        "flops": model_cost.flops,
        "opens_with": OPENERS[name_library(spec)],
        "method": ours.get("method"),
        **({"control": ours["control"]} if "control" in ours else {}),
        "task": ours.get("task"),
        **_list_healing(ours),
        metric: record.metrics.get(metric),
        **_list_test(record),
        **_list_loss(record),
        "licence": record.inherited_licence,
    }


def _list_class_names(config: dict[str, Json]) -> list[Json]:
    """Return the names of a model's classes, as timm or transformers record them."""
    labels = config.get("id2label")
    names = list(labels.values()) if isinstance(labels, dict) else config.get("label_names")
    return names if isinstance(names, list) else []


def _name_validation(record: Provenance, spec: Spec) -> str:
    """Return the name of a model's result on validation images or texts in its metrics."""
    names = [f"validation_{metric}" for metric in get_args(MetricName)]
    usual = "validation_mIoU" if spec.dense else names[0]
    return next((name for name in names if name in record.metrics), usual)


def _list_test(record: Provenance) -> Row:
    """Return the result on test images of a trained model; {} for other models."""
    names = [name for name in record.metrics if name.startswith("test_")]
    values = {name: record.metrics[name] for name in names if name != "test_images"}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _list_healing(ours: dict[str, Json]) -> Row:
    """Return the data and the kept epoch of a model that was healed; {} for others."""
    healed = ours.get("healed")
    if not isinstance(healed, dict):
        return {}
    images, metrics = healed.get("images"), healed.get("metrics")
    name = images.get("name") if isinstance(images, dict) else None
    epoch = metrics.get("kept_epoch") if isinstance(metrics, dict) else None
    return {"healed_on": name, "healed_epoch": epoch}


def _list_loss(record: Provenance) -> Row:
    """Return the validation loss of a language model; {} for other models."""
    loss = record.metrics.get("validation_loss")
    return {"validation_loss": loss} if isinstance(loss, (int, float)) else {}
