"""Vanilla-LG: the last blocks of the ancestry model are kept, and a descendant's other blocks start at random.

Wang, Geng, Lin, Xia, Qi and Xu, Learngene: From Open-World to Your Learning Task, AAAI 2022, in the form that learngene papers give it for
Vision Transformers. Of the ancestry model's L blocks, counted from 1, n are kept:

    kept           L - n + 1, ..., L        n = 3
    descendant     k - n random blocks, then the kept ones        of k layers

Stem and final norm are the ancestry model's, the head is fresh. Expansion and `Details` serve every learngene that is some whole blocks:
`heur_lg` and `auto_lg` choose them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    BadFile,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    WrongCall,
    details_of,
    table_of,
    to_json,
)
from lgzoo_baselines.block_choice import completed, inherited_blocks, last

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Target, Task


@dataclass(frozen=True, kw_only=True)
class Details:
    """What `details` of a learngene hold."""

    kept: tuple[int, ...] = ()  # blocks of the ancestry model, counted from 1, ascending; () before the extraction

    def json(self) -> dict[str, Json]:
        """As they are written."""
        return to_json(self) if self.kept else {}


def kept_blocks(config: LearngeneConfig) -> tuple[int, ...]:
    """The kept blocks. Raises `BadFile` for those that the ancestry model does not have."""
    kept, layers = details_of(config, Details).kept, config.spec.layers
    if not kept or list(kept) != sorted({*kept} & {*range(1, layers + 1)}):
        raise BadFile(
            f"the {config.method} learngene says kept {str(list(kept))[:60]}; expected ascending numbers from 1 to {layers}"
        )
    return kept


def check_count(count: int, spec: Spec) -> None:
    """Raises `WrongCall` for more blocks to keep than there are."""
    if count > spec.layers:
        raise WrongCall(f"count is {count}; the ancestry model has {spec.layers} blocks")


def of_blocks(state: StateDict, spec: Spec, kept: Sequence[int]) -> StateDict:
    """What such a learngene holds, under the names in the ancestry model: stem, final norm, and the kept blocks."""
    from learngene_zoo.plugin import only, without_head

    table, read = table_of(spec), {None, *(block - 1 for block in kept)}
    return only(without_head(state, spec), lambda name: table.block_of(name) in read)


@dataclass(frozen=True, kw_only=True)
class KeepLast(Extractor):
    """Keep the last blocks."""

    count: Annotated[int, "blocks to keep", Bounds(least=1)] = 3

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape, and which blocks are kept. Raises `WrongCall` for more than there are."""
        spec = ancestries[0]
        check_count(self.count, spec)
        kept = tuple(block + 1 for block in last(spec.layers, self.count))
        return LearngeneConfig(method="vanilla_lg", spec=spec, details=Details(kept=kept).json())

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Nothing is computed."""
        config = self.outline([ancestries[0].spec])
        return Learngene(config=config, state=of_blocks(ancestries[0].state, config.spec, kept_blocks(config)))


@dataclass(frozen=True, kw_only=True)
class Complete(Expander):
    """Add random blocks to the kept ones."""

    place: Annotated[Literal["first", "last"], "whether the kept blocks come before the random ones, or after them"] = (
        "last"
    )
    init: Annotated[Literal["timm", "fan_in"], "the weights of the random blocks, and of the head"] = "timm"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the ancestry model's. Deeper ones can be built by name."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, config.spec.layers + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The kept blocks at their end of the model, positions resized. Of fewer layers than are kept, those at that end."""
        from learngene_zoo.plugin import shapes, take_blocks

        config, spec = learngene.config, target.apply(learngene.config.spec)
        kept = kept_blocks(config)
        chosen = kept[: spec.layers] if self.place == "first" else kept[-spec.layers :]
        sources = [block - 1 for block in chosen]
        taken = take_blocks(inherited_blocks(learngene, sources, run), config.spec, sources)
        shift = 0 if self.place == "first" else spec.layers - len(chosen)
        # Numbers for all blocks in one tensor (learned rotary frequencies) are inherited only where all blocks are.
        alike = shapes(config.spec.with_(layers=spec.layers))
        parts = {
            name: tensor for name, tensor in shifted(taken, config.spec, shift).items() if alike[name] == tensor.shape
        }
        places: list[Json] = [None] * shift + list(chosen) + [None] * (spec.layers - shift - len(chosen))
        return completed(config, spec, parts, run, {"blocks": places}, self.init)


def shifted(state: StateDict, spec: Spec, by: int) -> StateDict:
    """The same tensors with every block further back."""
    table = table_of(spec)
    blocks = {name: table.block_of(name) for name in state}
    return {
        name if block is None else table.block_name(block + by, table.inner_name(name)): state[name]
        for name, block in blocks.items()
    }


VANILLA_LG = Method(
    name="vanilla_lg",
    title="the last blocks of the ancestry model, behind random ones",
    paper="Wang, Geng, Lin, Xia, Qi, Xu. Learngene: From Open-World to Your Learning Task. AAAI 2022",
    expander=Complete(),
    presets={"mini": KeepLast(), "paper": KeepLast(), "smoke": KeepLast(count=1)},
    families=("vit", "eva"),
    tasks="none",
    details=Details,
)
