"""Open the folder of a model that is not in timm's layout: for a conversion, or as a model.

It is a model of transformers, of open_clip or in DINOv2's own names, which others made or
`lgzoo convert` wrote. Our record in its config.json, if there is one, holds for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.records import FORMAT, is_of_transformers, read_provenance
from learngene_zoo.pretrained import from_open_clip
from learngene_zoo.pretrained.formats.layout import OPEN_CLIP, TRANSFORMERS, Convertible
from learngene_zoo.pretrained.sources import find_format
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.storage import CONFIG, read_json

CLIP = f"{TRANSFORMERS}:clip"


def open_source(source: str, *, offline: bool = False) -> Convertible:
    """Open a model that others made, as an ancestry model is opened."""
    from learngene_zoo.pretrained.ancestry import open_ancestry

    ancestry = open_ancestry(source, offline=offline)
    record = ancestry.record
    return Convertible(
        spec=ancestry.spec,
        state=ancestry.state,
        images=ancestry.input_format,
        class_names=ancestry.class_names,
        licence=record.licence,
        record={
            "format": FORMAT,
            "method": "timm",
            "task": None,
            "licence": record.licence,
            "ancestries": to_json([record]),
            **_read_record(source),
        },
        name=source,
    )


def _read_record(source: str) -> Mapping[str, Json]:
    """Return our record in the config of a folder; empty if there is none."""
    configs = (Path(source) / name for name in (CONFIG, from_open_clip.CONFIG))
    config = next((path for path in configs if path.is_file()), None)
    content = read_json(config) if config is not None else {}
    ours = content.get("learngene")
    return ours if isinstance(ours, dict) and not is_of_transformers(content) else {}


@dataclass(frozen=True, kw_only=True)
class _OwnRecord:
    """The fields of our record that are not provenance."""

    inherited: tuple[str, ...] | None = None
    task: str | None = None


def assemble_model(model: Convertible, folder: Path | None = None) -> Descendant:
    """Return the model as one of this package, which is in timm's layout.

    Args:
        model: the model, as `open_source` returns it.
        folder: where it was opened, if it is not to be written.

    Raises:
        BadFile: for a record with values of another type.
    """
    given, where = dict(model.record), f"{model.name}: learngene"
    fields = {key: given[key] for key in _OwnRecord.__dataclass_fields__ if key in given}
    record = from_json(_OwnRecord, fields, where)
    read_provenance(given, where)
    names = model.state if record.inherited is None else record.inherited
    others = ("format", "spec", "layout", *_OwnRecord.__dataclass_fields__)
    return Descendant(
        spec=model.spec,
        state=model.state,
        inherited=frozenset(names) & set(model.state),
        provenance={key: given[key] for key in given if key not in others},
        task=record.task,
        class_names=model.class_names,
        mean=model.images.mean,
        std=model.images.std,
        view=model.images.view,
        folder=folder,
    )


def open_transformers_model(
    source: str, *, offline: bool = False, folder: Path | None = None
) -> Descendant:
    """Open a model of transformers as one of this package.

    The projection of a CLIP, which gives no classes, is left out.

    Args:
        source: a folder, or `hf-hub:organisation/name`.
        offline: do not use the network.
        folder: the folder, if it is one.

    Raises:
        BadFile, WrongCall: as `open_ancestry` and `assemble_model` do.
    """
    model = open_source(source, offline=offline)
    # The head of a CLIP is its projection; in open_clip's layout, a head with names of classes is
    # one that `convert` wrote.
    format = find_format(source)
    has_projection = format == CLIP or (format == OPEN_CLIP and not model.class_names)
    return assemble_model(model.without_head() if has_projection else model, folder)
