"""Which sizes are asked for: by name, as Python and torch.hub give them, and out of a family. Cold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from learngene_zoo.budget import Budget
from learngene_zoo.method import Expander, Member, Target
from learngene_zoo.settings import settings_of

# timm's words, understood wherever sizes are given from Python or torch.hub.
SYNONYMS = {
    "depth": "layers",
    "embed_dim": "width",
    "num_heads": "heads",
    "num_classes": "classes",
    "img_size": "image_size",
}


def named_sizes(target: Target, budget: Budget, sizes: dict[str, Any]) -> tuple[Target, Budget, dict[str, Any]]:
    """Target, budget and the expander's settings out of sizes given by name: in our words or timm's."""
    sizes = {SYNONYMS.get(name, name): value for name, value in sizes.items() if value is not None}
    ours = {name: sizes.pop(name) for name in list(sizes) if hasattr(target, name) and name != "apply"}
    bounds = {name: sizes.pop(name) for name in list(sizes) if name in ("max_params", "max_flops", "max_latency")}
    return replace(target, **ours), replace(budget, **bounds), sizes


def narrowed(members: Iterable[Member], target: Target, expander: Expander) -> list[Member]:
    """Those with the layers, width and heads of `target`, and with the optional settings that `expander` was told already."""
    shape = {name: getattr(target, name) for name in ("layers", "width", "heads")}
    wanted = {name: value for name, value in shape.items() if value is not None}
    told = {s.name: s.default for s in settings_of(expander) if s.optional and s.default is not None}
    return [
        member
        for member in members
        if all(getattr(member.spec, name) == value for name, value in wanted.items())
        and all(member.settings.get(name, value) == value for name, value in told.items())
    ]
