"""Shuffled: another learngene's descendant with the entries of each inherited tensor permuted. A control. Cold.

A permutation keeps every tensor's mean, scale and distribution and destroys what it knows. A method's gain over its
`shuffled` control is inherited knowledge; the control's gain over `scratch` is scale.
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
        return outline_of(SHUFFLED.name, self.of)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Copy it; the shuffling is the expansion's."""
        return hold(SHUFFLED.name, self.of)


@dataclass(frozen=True, kw_only=True)
class Shuffle(Expander):
    """Expand as the other method does, then permute."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    base: Annotated[tuple[str, ...], "settings of the other method's expander, as expansion=cyclic"] = ()

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The other learngene's family."""
        return family_of(config, self.base)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Entries move within their tensor only; what was not inherited stays as it was drawn."""
        from learngene_zoo.plugin import shuffled

        return shuffled(expand_held(learngene, target, self.base, run), run.seed)


SHUFFLED = Method(
    name="shuffled",
    title="control: another learngene with the entries of each tensor permuted",
    paper="",
    expander=Shuffle(),
    presets={"mini": Hold(), "paper": Hold(), "smoke": Hold()},
    ancestries=(0, 0),
    tasks="none",
)
