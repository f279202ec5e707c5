"""The README.md of a folder in the layout of another package."""

from __future__ import annotations

from typing import Any

from learngene_zoo.artifacts.card import list_base_models, render_front_matter
from learngene_zoo.artifacts.records import read_provenance
from learngene_zoo.families.family import count_cost
from learngene_zoo.pretrained.formats.layout import Convertible, LayoutFiles
from learngene_zoo.settings import to_json
from learngene_zoo.text import render_markdown

_FACTS = (
    *("method", "method_package", "control", "learngene", "seed", "settings", "healed"),
    "versions",
)


def render_converted_card(model: Convertible, files: LayoutFiles, layout: str) -> str:
    """Render the README.md of a written folder."""
    record: Any = model.record
    ancestries = read_provenance(record, model.name).ancestries
    front = render_front_matter(
        model.licence,
        library_name=files.library,
        pipeline_tag="image-classification" if model.class_names else "image-feature-extraction",
        tags=["learngene", "learngene_zoo", "vision-transformer"],
        base_model=list_base_models(ancestries),
    )
    return render_markdown(
        "pretrained/formats/card.md.jinja",
        front=front,
        spec=model.spec,
        price=count_cost(model.spec),
        method=str(record.get("method", "unknown")),
        layout=layout,
        usage=files.usage.splitlines(),
        changes=files.changes,
        ancestries=ancestries,
        facts=to_json({key: record[key] for key in _FACTS if key in record}),
        licence=model.licence,
    )
