"""Sizes by name, as Python and torch.hub give them: ours and timm's words, budgets, and an expander's settings. Cold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learngene_zoo.budget import Budget
from learngene_zoo.method import Target

# timm's words, understood wherever sizes are given from Python or torch.hub.
SYNONYMS = {
    "depth": "layers",
    "embed_dim": "width",
    "num_heads": "heads",
    "num_classes": "classes",
    "img_size": "image_size",
}


def named_sizes(target: Target, budget: Budget, sizes: dict[str, Any]) -> tuple[Target, Budget, dict[str, Any]]:
    """Target, budget and the expander's settings out of sizes given by name."""
    sizes = {SYNONYMS.get(name, name): value for name, value in sizes.items() if value is not None}
    ours = {name: sizes.pop(name) for name in list(sizes) if hasattr(target, name) and name != "apply"}
    bounds = {name: sizes.pop(name) for name in list(sizes) if name in ("max_params", "max_flops", "max_latency")}
    return replace(target, **ours), replace(budget, **bounds), sizes
