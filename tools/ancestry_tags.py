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
from learngene_zoo.families.family import iterate_families
from learngene_zoo.families.timm_config import (
    UNSUPPORTED_MODULES,
    read_architecture,
    read_spec,
    write_timm_config,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from machine import write
from pages import DOCS, replace_between

# Well-known models, by words in their names.
GROUPS = {
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
    """Count, write the numbers and the tables."""
    numbers = {
        "modules": {
            module: count_tags(module) for module in [*list_modules(), *UNSUPPORTED_MODULES]
        }
    }
    write_tables(numbers)
    print(write("ancestry_tags", numbers))


def list_modules() -> list[str]:
    """Return the modules of timm whose models may open."""
    return sorted(
        {module for kind in iterate_families() for module in kind.timm_modules}, reverse=True
    )


def count_tags(module: str) -> dict[str, Any]:
    """Return the pretrained tags of a module, those that open, and for each reason the tags that do
    not.
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
        reason = UNSUPPORTED_MODULES.get(module) or find_obstacle(tag)
        if reason:
            refused[reason].append(tag)
    closed = {tag for tags_of_reason in refused.values() for tag in tags_of_reason}
    return {
        "tags": len(tags),
        "open": [tag for tag in tags if tag not in closed],
        "refused": dict(refused),
    }


def find_obstacle(tag: str) -> str | None:
    """Return the reason why a tag does not open; None if it does."""
    try:
        spec = read_architecture(tag)
        config = write_timm_config(spec, mean=(0.5,), std=(0.5,), class_names=(), licence="unknown")
        return (
            None
            if read_spec(config, tag) == spec
            else "a config.json that does not lead back to it"
        )
    except WrongCall as error:
        return shorten_message(str(error), tag)


def shorten_message(message: str, tag: str) -> str:
    """Return the reason in the message of an error."""
    reason = (
        message.removeprefix(f"{tag}: ")
        .removeprefix("this ViT has ")
        .removeprefix("this model has ")
    )
    return reason.partition(", which is not supported")[0].partition("; ")[0]


def write_tables(numbers: Mapping[str, Any]) -> None:
    """Write the tables into the page."""
    page = DOCS / "ancestries.md"
    modules = numbers["modules"]
    replace_between(
        page,
        "modules",
        make_table(("module", "tags", "open", "not, because of"), make_module_rows(modules)),
    )
    replace_between(page, "known", make_table(("models", "tags", "open"), make_group_rows(modules)))


def make_module_rows(modules: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each module."""
    rows = []
    for module, counts in modules.items():
        reasons = "; ".join(f"{reason}: {len(tags)}" for reason, tags in counts["refused"].items())
        rows.append([f"`{module}`", str(counts["tags"]), str(len(counts["open"])), reasons])
    open_modules = [modules[module] for module in list_modules()]
    total = [
        str(sum(counts["tags"] for counts in open_modules)),
        str(sum(len(counts["open"]) for counts in open_modules)),
    ]
    return [
        *rows[: len(open_modules)],
        ["**these together**", *total, ""],
        *rows[len(open_modules) :],
    ]


def make_group_rows(modules: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each group of `GROUPS`.

    A tag belongs to the first group whose words its name has.
    """
    num_tags, num_open = Counter[str](), Counter[str]()
    for module in list_modules():
        closed = [tag for refused in modules[module]["refused"].values() for tag in refused]
        for tag in [*modules[module]["open"], *closed]:
            group = next(
                (name for name, words in GROUPS.items() if any(word in tag for word in words)),
                "others",
            )
            num_tags[group] += 1
            num_open[group] += tag not in closed
    return [[group, str(num_tags[group]), str(num_open[group])] for group in [*GROUPS, "others"]]


def make_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose second and third columns are numbers."""
    marks = ["---:" if 0 < column < 3 else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rows))


if __name__ == "__main__":
    main()
