"""Count timm's pretrained ViTs that open as ancestry models, and list why the others do not.

    python tools/ancestry_tags.py   about two minutes

Every pretrained tag of timm's registry is built on the meta device and read as a spec; it opens if
the config.json that its descendants would have leads back to that spec. No weights and no network
are needed. Results: benchmarks/results/ancestry_tags.json. Page: docs/ancestries.md.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import families
from learngene_zoo.families.timm_config import (
    UNSUPPORTED_MODULES,
    architecture_of_timm,
    spec_in,
    timm_config,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from machine import write
from pages import DOCS, replace_between

# What people look for, by words in the names.
KNOWN = {
    "CLIP, EVA-CLIP": ("clip",),
    "SigLIP, SigLIP 2": ("siglip",),
    "DINOv3": ("dinov3",),
    "DINOv2": ("dinov2",),
    "DINO": ("dino",),
    "DeiT, DeiT-III": ("deit",),
    "EVA02": ("eva02",),
    "Perception Encoder": ("vit_pe_",),
    "AIMv2": ("aimv2",),
    "BEiT-3": ("beit3",),
    "MAE": (".mae",),
    "AugReg": (".augreg",),
}


def main() -> None:
    """Count, keep the numbers, write the tables."""
    numbers = {"modules": {module: counted(module) for module in [*served(), *UNSUPPORTED_MODULES]}}
    tables(numbers)
    print(write("ancestry_tags", numbers))


def served() -> list[str]:
    """The modules of timm whose models may open."""
    return sorted({module for kind in families() for module in kind.timm_modules}, reverse=True)


def counted(module: str) -> dict[str, Any]:
    """The pretrained tags of a module, those that open, and for each reason the tags
    that do not.
    """
    names = [
        name
        for name in timm.list_models()
        if timm.models.model_entrypoint(name).__module__ == module
    ]
    tags = [
        tag
        for name in names
        for tag in timm.list_pretrained(f"{name}.*")
        if tag.partition(".")[0] == name
    ]
    refused: dict[str, list[str]] = defaultdict(list)
    for tag in tags:
        reason = UNSUPPORTED_MODULES.get(module) or obstacle(tag)
        if reason:
            refused[reason].append(tag)
    closed = {tag for found in refused.values() for tag in found}
    return {
        "tags": len(tags),
        "open": [tag for tag in tags if tag not in closed],
        "refused": dict(refused),
    }


def obstacle(tag: str) -> str | None:
    """Why a tag does not open; None if it does."""
    try:
        spec = architecture_of_timm(tag)
        config = timm_config(spec, mean=(0.5,), std=(0.5,), class_names=(), licence="unknown")
        return (
            None if spec_in(config, tag) == spec else "a config.json that does not lead back to it"
        )
    except WrongCall as error:
        return shortened(str(error), tag)


def shortened(message: str, tag: str) -> str:
    """What stands in the way, of the message that refuses a model."""
    found = (
        message.removeprefix(f"{tag}: ")
        .removeprefix("this ViT has ")
        .removeprefix("this model has ")
    )
    return found.partition(", which is not supported")[0].partition("; ")[0]


def tables(numbers: Mapping[str, Any]) -> None:
    """Write the tables into the page."""
    page = DOCS / "ancestries.md"
    modules = numbers["modules"]
    replace_between(
        page,
        "modules",
        table(("module", "tags", "open", "not, because of"), rows_of_modules(modules)),
    )
    replace_between(page, "known", table(("models", "tags", "open"), rows_of_known(modules)))


def rows_of_modules(modules: Mapping[str, Any]) -> list[list[str]]:
    """A row for each module."""
    rows = []
    for module, found in modules.items():
        reasons = "; ".join(f"{reason}: {len(tags)}" for reason, tags in found["refused"].items())
        rows.append([f"`{module}`", str(found["tags"]), str(len(found["open"])), reasons])
    every = [modules[module] for module in served()]
    total = [
        str(sum(found["tags"] for found in every)),
        str(sum(len(found["open"]) for found in every)),
    ]
    return [*rows[: len(every)], ["**these together**", *total, ""], *rows[len(every) :]]


def rows_of_known(modules: Mapping[str, Any]) -> list[list[str]]:
    """A row for each group of models that people look for; a tag belongs to the first whose words
    its name has.
    """
    tags, opened = Counter[str](), Counter[str]()
    for module in served():
        closed = [tag for found in modules[module]["refused"].values() for tag in found]
        for tag in [*modules[module]["open"], *closed]:
            group = next(
                (name for name, words in KNOWN.items() if any(word in tag for word in words)),
                "others",
            )
            tags[group] += 1
            opened[group] += tag not in closed
    return [[group, str(tags[group]), str(opened[group])] for group in [*KNOWN, "others"]]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose second and third columns are numbers."""
    marks = ["---:" if 0 < place < 3 else "---" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rows))


if __name__ == "__main__":
    main()
