"""Vanilla-LG: keep the last blocks of the ancestry model; initialise other blocks at random.

Wang, Geng, Lin, Xia, Qi and Xu, Learngene: From Open-World to Your Learning Task, AAAI 2022, in the
form that later learngene papers use for Vision Transformers. Of the ancestry model's L blocks,
counted from 1, n are kept:

    kept           L - n + 1, ..., L        n = 3
    descendant     k - n random blocks, then the kept ones        of k layers

Stem and final norm are the ancestry model's, the head is new. `VanillaLgExpander` and
`VanillaLgDetails` are shared with `heur_lg` and `auto_lg`, which differ in their choice of blocks.
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
    get_table,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import (
    build_descendant,
    choose_last,
    list_shallower_members,
    read_blocks,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Target, Task


@dataclass(frozen=True, kw_only=True)
class VanillaLgDetails:
    """The method's own record in a learngene of whole blocks."""

    # Blocks of the ancestry model, counted from 1, ascending; () before the extraction.
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VanillaLgExtractor(Extractor):
    """Keep the last blocks."""

    count: Annotated[int, "number of last blocks to keep", Bounds(least=1)] = 3

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape and the kept blocks.

        Raises `WrongCall` for more blocks than there are.
        """
        spec = ancestries[0]
        check_count(self.count, spec)
        blocks = tuple(index + 1 for index in choose_last(spec.layers, self.count))
        return LearngeneConfig(spec=spec).with_details(VanillaLgDetails(kept=blocks))

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the learngene; nothing is computed."""
        config = self.outline([ancestries[0].spec])
        state = select_blocks(ancestries[0].state, config.spec, read_kept_blocks(config))
        return Learngene(config=config, state=state)


def check_count(count: int, spec: Spec) -> None:
    """Raise `WrongCall` for more blocks to keep than there are."""
    if count > spec.layers:
        raise WrongCall(f"count is {count}; the ancestry model has {spec.layers} blocks")


def select_blocks(state: StateDict, spec: Spec, blocks: Sequence[int]) -> StateDict:
    """Return stem, final norm and these blocks, counted from 1, under the ancestry model's names.

    Args:
        state: tensors of the ancestry model.
        spec: the shape of the ancestry model.
        blocks: the blocks to keep, counted from 1.
    """
    from learngene_zoo.plugin import remove_head, select_tensors

    table, indices = get_table(spec), {None, *(block - 1 for block in blocks)}
    return select_tensors(remove_head(state, spec), lambda name: table.block_of(name) in indices)


def read_kept_blocks(config: LearngeneConfig) -> tuple[int, ...]:
    """Return the kept blocks, counted from 1.

    Raises `BadFile` for those that the ancestry model does not have.
    """
    blocks, layers = parse_details(config, VanillaLgDetails).kept, config.spec.layers
    if not blocks or list(blocks) != sorted({*blocks} & {*range(1, layers + 1)}):
        raise BadFile(
            f"the {config.method} learngene says kept {str(list(blocks))[:60]}; expected ascending "
            f"numbers from 1 to {layers}"
        )
    return blocks


@dataclass(frozen=True, kw_only=True)
class VanillaLgExpander(Expander):
    """Add random blocks to the kept ones."""

    place: Annotated[
        Literal["first", "last"],
        "position of the kept blocks: before or after the random ones",
    ] = "last"
    init: Annotated[
        Literal["timm", "fan_in"],
        "initialisation of the random blocks and the head: timm's, or standard "
        "deviation 1/sqrt(fan_in)",
    ] = "timm"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's. Deeper ones can be built by name."""
        return list_shallower_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant with the kept blocks at their end of the model.

        Of a descendant with fewer layers than are kept, the blocks are those at that end. Positions
        are resized and the head is new.
        """
        from learngene_zoo.plugin import get_shapes, take_blocks

        config, spec = learngene.config, target.apply(learngene.config.spec)
        is_first, blocks = self.place == "first", read_kept_blocks(config)
        blocks = blocks[: spec.layers] if is_first else blocks[-spec.layers :]
        sources = [block - 1 for block in blocks]
        weights = take_blocks(read_blocks(learngene, sources, run), config.spec, sources)
        offset = 0 if is_first else spec.layers - len(blocks)
        # A tensor with numbers for all blocks (learned rotary frequencies) has another shape in a
        # descendant of more blocks, and is then not inherited.
        expected = get_shapes(config.spec.with_(layers=spec.layers))
        parts = {
            name: tensor
            for name, tensor in shift_blocks(weights, config.spec, offset).items()
            if expected[name] == tensor.shape
        }
        layers: list[Json] = [None] * offset + list(blocks)
        layers += [None] * (spec.layers - len(layers))
        return build_descendant(learngene, spec, parts, run, {"blocks": layers}, self.init)


def shift_blocks(state: StateDict, spec: Spec, offset: int) -> StateDict:
    """Return the tensors with `offset` added to the index of every block.

    Args:
        state: tensors of a model.
        spec: a shape of the family of the model.
        offset: the number of blocks to put before.
    """
    table = get_table(spec)
    blocks = {name: table.block_of(name) for name in state}
    return {
        name if block is None else table.block_name(block + offset, table.inner_name(name)): state[
            name
        ]
        for name, block in blocks.items()
    }


VANILLA_LG = Method(
    name="vanilla_lg",
    title="random blocks followed by the last blocks of the ancestry model",
    paper=(
        "Wang, Geng, Lin, Xia, Qi, Xu. Learngene: From Open-World to Your Learning Task. AAAI 2022"
    ),
    expander=VanillaLgExpander(),
    presets={
        "mini": VanillaLgExtractor(),
        "paper": VanillaLgExtractor(),
        "smoke": VanillaLgExtractor(count=1),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="none",
    details=VanillaLgDetails,
)
