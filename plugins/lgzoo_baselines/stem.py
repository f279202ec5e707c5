"""Stem: another learngene's descendant that keeps only patch embedding, positions, tokens and the last norm. A control. Cold.

The blocks are drawn anew. What remains of a method's gain here comes from the image's first linear layer, not from blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import Expander, Extractor, Learngene, LearngeneConfig, Member, Method, Target, ViTSpec
from lgzoo_baselines.control import expand_held, family_of, hold, outline_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Task


@dataclass(frozen=True, kw_only=True)
class Hold(Extractor):
    """Hold another learngene as it is."""

    of: Annotated[str, "the learngene to control for: a folder, or a name of the shelf"] = "lsamd"

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The other learngene's shape, and its config in `details`."""
        return outline_of(STEM.name, self.of)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Copy it; what is dropped is the expansion's choice."""
        return hold(STEM.name, self.of)


@dataclass(frozen=True, kw_only=True)
class KeepStem(Expander):
    """Expand as the other method does, then draw all but the stem and the last norm anew."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    base: Annotated[tuple[str, ...], "settings of the other method's expander, as expansion=cyclic"] = ()

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The other learngene's family."""
        return family_of(config, self.base)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The blocks are a function of the run's seed."""
        from learngene_zoo.plugin import stem_only

        return stem_only(expand_held(learngene, target, self.base, run), run.seed)


STEM = Method(
    name="stem",
    title="control: another learngene without its blocks",
    paper="",
    expander=KeepStem(),
    presets={"mini": Hold(), "paper": Hold(), "smoke": Hold()},
    ancestries=(0, 0),
    tasks="none",
)
