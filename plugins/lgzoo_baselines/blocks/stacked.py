"""Stacked: initialise deeper models by repeating the ancestry model's blocks, without training.

From the ancestry model's first b blocks (all L unless `--base` names fewer) a descendant of k
layers has, for i = 0, ..., k - 1,

    stack         block i mod b            0 1 2 0 1 2    (Gong et al., 2019)
    interlace     block floor(i b / k)     0 0 1 1 2 2    (each block followed by its copies)

The paper trains before and after each doubling; here the repeated blocks are only the
initialisation of the larger model. Descendants of up to b layers are `first_k` and, interlaced,
approximately `evenly_spaced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    Bounds,
    Expander,
    LearngeneConfig,
    Member,
    Method,
    Target,
    WrongCall,
)
from lgzoo_baselines.blocks.block_choice import BlockChoiceExtractor, build_from_blocks

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, Run

Order = Literal["stack", "interlace"]


def repeat_blocks(base: int, layers: int, order: Order) -> list[int]:
    """Return the index of the block, below `base`, that each of `layers` layers copies."""
    return [i % base if order == "stack" else i * base // layers for i in range(layers)]


@dataclass(frozen=True, kw_only=True)
class StackedExpander(Expander):
    """Repeat the ancestry model's blocks."""

    order: Annotated[
        Order,
        "stack: repeat the sequence of blocks (0 1 0 1); interlace: repeat each block (0 0 1 1)",
    ] = "stack"
    base: Annotated[
        int | None, "repeat the first N blocks only (default: all)", Bounds(least=1)
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to twice the ancestry model's; deeper ones can be built by name."""
        spec = config.spec
        return [Member(spec=spec.with_(layers=layers)) for layers in range(1, 2 * spec.layers + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the repeated blocks, with resized positions and a new head.

        Raises `WrongCall` for more blocks to repeat than there are.
        """
        ancestry_spec = learngene.config.spec
        spec, base = target.apply(ancestry_spec), self.base or ancestry_spec.layers
        if base > ancestry_spec.layers:
            raise WrongCall(f"base is {base}; the ancestry model has {ancestry_spec.layers} blocks")
        sources = repeat_blocks(base, spec.layers, self.order)
        return build_from_blocks(learngene, spec, sources, run)


_EXTRACTOR = BlockChoiceExtractor()
STACKED = Method(
    name="stacked",
    title="deeper models that repeat the ancestry model's blocks",
    paper=(
        "Gong, He, Li, Qin, Wang, Liu. Efficient Training of BERT by Progressively Stacking. "
        "ICML 2019"
    ),
    expander=StackedExpander(),
    presets={"mini": _EXTRACTOR, "paper": _EXTRACTOR, "smoke": _EXTRACTOR},
    families=("vit", "eva", "gpt2", "bert"),
    tasks="none",
)
