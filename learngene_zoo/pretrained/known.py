"""The ancestry models that are listed: the bundled ones, and widely used pretrained ViTs of timm.

`known.json` beside this file holds timm's facts about each (`tools/ancestries.py` writes it),
so that `lgzoo list ancestries` imports nothing. Any other source opens as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from learngene_zoo.errors import ZooError
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, parse_json, read_json

TABLE = Path(__file__).with_name("known.json")
# By whom or how they were trained, and timm's tags of them (regular expressions, whole).
GROUPS = {
    "DeiT": r"deit_(tiny|small|base)(_distilled)?_patch16_224\.fb_in1k",
    "DeiT-III": r"deit3_(small|medium|base|large)_patch16_224\.fb_in(1k|22k_ft_in1k)",
    "AugReg": r"vit_(tiny|small|base|large)_patch(16|32)_224\.augreg_in21k(_ft_in1k)?",
    "MAE": r"vit_(base|large|huge)_patch1[46]_224\.mae",
    "DINO": r"vit_(small|base)_patch(8|16)_224\.dino",
    "DINOv2": r"vit_(small|base|large|giant)_patch14_(reg4_)?dinov2\.lvd142m",
    "DINOv3": r"vit_(small|small_plus|base|large|huge_plus)_patch16_dinov3\.lvd1689m",
    "CLIP": r"vit_(base|large|huge)_patch(14|16|32)_clip_(quickgelu_)?224\.(openai|laion2b)",
    "SigLIP": r"vit_(base_patch16|large_patch16|so400m_patch14)_siglip_(gap_)?"
    r"(224|256|384)\.(v2_)?webli",
    "EVA02": r"eva02_(tiny|small|base|large)_patch14_(224|336)\.mim_in22k(_ft_in1k)?",
    "EVA02-CLIP": r"eva02_(base|large)_patch1[46]_clip_224\.merged2b",
    "PE": r"vit_pe_core_(tiny|small|base|large)_patch1[46]_\d+\.fb",
}


@dataclass(frozen=True, kw_only=True)
class KnownAncestry:
    """A listed ancestry model."""

    name: str  # for `--ancestry`
    group: str
    family: str | None  # that it opens to; None: it does not open
    params: int  # with its head, if it has one
    image_size: int | None  # None for a text model
    licence: str


def list_known() -> list[KnownAncestry]:
    """Return the bundled ancestry models that are installed, and those of the table."""
    return [*_iterate_bundled(), *_read_table()]


@cache
def _read_table() -> tuple[KnownAncestry, ...]:
    return tuple(KnownAncestry(**row) for row in parse_json(TABLE.read_bytes()))


def _iterate_bundled() -> Iterator[KnownAncestry]:
    """Yield the ancestry models on the shelf, the default one first."""
    from learngene_zoo.artifacts.shelf import (
        BUNDLED,
        BUNDLED_CARD,
        find_cards_folder,
        list_learngenes,
        list_names,
    )

    models = sorted(
        set(list_names()) - set(list_learngenes()), key=lambda name: (name != BUNDLED_CARD, name)
    )
    for name in models:
        shown = BUNDLED if name == BUNDLED_CARD else name
        yield _describe_card(shown, read_json(find_cards_folder() / name / CONFIG), name)


def _describe_card(name: str, config: dict[str, Json], where: str) -> KnownAncestry:
    # Not by `read_ancestry_spec`: its imports take longer than everything else here.
    from learngene_zoo.families import timm_config, transformers_config
    from learngene_zoo.families.family import count_cost
    from learngene_zoo.families.picture_spec import PictureSpec

    of_texts = "model_type" in config
    record: Any = config.get("learngene" if of_texts else "pretrained_cfg")
    spec = (transformers_config if of_texts else timm_config).read_spec(config, where)
    size = spec.image_size if isinstance(spec, PictureSpec) else None
    licence = record.get("license") or record.get("licence") or "unknown"
    return _make_row(name, "bundled", spec.family, count_cost(spec).params, size, licence)


def list_tags() -> list[tuple[str, str]]:
    """Return every tag of timm's that belongs into the table, with its group."""
    import timm

    every = timm.list_pretrained()
    return [
        (group, tag) for group, kind in GROUPS.items() for tag in every if re.fullmatch(kind, tag)
    ]


def describe_tag(group: str, tag: str) -> KnownAncestry:
    """Describe a tag by timm and the families, without reading its weights."""
    import timm
    import torch

    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    cfg = timm.models.get_pretrained_cfg(tag)
    assert cfg is not None, tag
    with torch.device("meta"):
        params = sum(tensor.numel() for tensor in timm.create_model(tag).parameters())
    try:
        family = read_ancestry_spec(f"timm:{tag}").family
    except ZooError:
        family = None
    return _make_row(
        f"timm:{tag}", group, family, params, cfg.input_size[-1], cfg.license or "unknown"
    )


def _make_row(
    name: str, group: str, family: str | None, params: int, image_size: int | None, licence: str
) -> KnownAncestry:
    return KnownAncestry(
        name=name, group=group, family=family, params=params, image_size=image_size, licence=licence
    )
