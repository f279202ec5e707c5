"""Scratch: random weights of any size, the baseline without inheritance.

There are two initialisations, because the papers' is a confounder: timm's (normal with standard
deviation 0.02) is weak for narrow models, so a method may be better only by the scale of its
weights. `fan_in` has a standard deviation of 1/sqrt(fan_in). Compare a method with the stronger of
the two, and with its control `shuffled`.

The learngene has no tensors, only the shape of the ancestry model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Task


@dataclass(frozen=True, kw_only=True)
class ScratchExtractor(Extractor):
    """Keep the ancestry model's shape and none of its weights."""

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        return LearngeneConfig(spec=ancestries[0])

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the learngene; nothing is computed."""
        return Learngene(config=self.outline([ancestries[0].spec]), state={})


@dataclass(frozen=True, kw_only=True)
class ScratchExpander(Expander):
    """Draw every tensor."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    init: Annotated[
        Literal["timm", "fan_in"],
        "timm's initialisation, or standard deviation 1/sqrt(fan_in)",
    ] = "timm"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to 5/4 of the ancestry model's, at its width."""
        return list_depths(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant whose tensors are functions of the run's seed and their names.

        Raises `WrongCall` for an impossible shape.
        """
        from learngene_zoo.plugin import assemble

        spec = target.apply(learngene.config.spec)
        return assemble(
            spec,
            {},
            seed=run.seed,
            scheme=self.init,
            provenance={"init": self.init},
        )


def list_depths(config: LearngeneConfig) -> list[Member]:
    """Return every depth up to 5/4 of the ancestry model's, at its width.

    Any other size can be built by name.
    """
    most = math.ceil(1.25 * config.spec.layers)
    return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, most + 1)]


SCRATCH = Method(
    name="scratch",
    title="random weights: timm's initialisation, or standard deviation 1/sqrt(fan_in)",
    paper="",
    expander=ScratchExpander(),
    presets={
        "mini": ScratchExtractor(),
        "paper": ScratchExtractor(),
        "smoke": ScratchExtractor(),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="none",
    inherits=False,
)
