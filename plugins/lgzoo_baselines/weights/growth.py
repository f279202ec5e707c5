"""Growth: initialise a larger model from a smaller one, without training or data.

Chen, Yin, Shang, Jiang, Qin, Wang, Wang, Chen, Liu, Liu. bert2BERT: Towards Reusable Pretrained
Language Models. ACL 2022. Along every axis that grows from s to t entries (channels, complete
heads, hidden neurons) entry i is a copy of entry g(i), and entry j has c(j) copies:

    1  width, FPI    U[i, j] = W[g_out(i), g_in(j)] / c_in(g_in(j))
                     outputs are copied; copies of an input divide its weight
    2  width, AKI    the same, but rows i >= s_out are of the next block
    3  depth         the stack of grown blocks as often as it fits, then its last blocks:
                     0 1 2 0 1 2 1 2

with g(i) = i for i < s. Further entries are copied in turn, g(i) = i mod s, or drawn, as in the
paper. FPI preserves the function where LayerNorm does: if every channel of the residual stream has
as many copies, because mean and variance are then the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    Expander,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    WrongCall,
    get_table,
)
from lgzoo_baselines.blocks.block_choice import (
    BlockChoiceExtractor,
    build_descendant,
    read_blocks,
    resize_like,
)

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Along, Descendant, Learngene, Run, StateDict

Copies = Literal["even", "drawn"]
GROWING = ("width", "heads", "hidden")


@dataclass(frozen=True, kw_only=True)
class GrowthExpander(Expander):
    """Copy channels, heads, hidden neurons and blocks."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    knowledge: Annotated[
        Literal["own", "advanced"],
        "source of the new rows of a block: the same block (FPI), or the next block (AKI)",
    ] = "own"
    copies: Annotated[
        Copies, "entries to copy: all in turn, or drawn at random as in the paper"
    ] = "even"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and width in whole heads, from the ancestry model's to twice as much.

        Larger ones can be built by name.
        """
        return list_larger_members(config.spec)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for a size below the ancestry model's."""
        apply_target(config, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the grown blocks, with resized positions and a new head.

        Raises `WrongCall` for a size below the ancestry model's.
        """
        config, small = learngene.config, learngene.config.spec
        spec, large = apply_target(config, target)
        maps = choose_copies(small, large, self.copies, run.seed)
        sources = stack_blocks(small.layers, large.layers)
        state = read_blocks(learngene, range(small.layers), run)
        parts = grow_tensors(state, small, maps, sources, advanced=self.knowledge == "advanced")
        return build_descendant(learngene, spec, parts, run, {"blocks": sources})


def list_larger_members(spec: Spec) -> list[Member]:
    """Return every depth, and every width in whole heads, from those of `spec` to twice as much."""
    sizes = product(range(spec.layers, 2 * spec.layers + 1), range(spec.heads, 2 * spec.heads + 1))
    return [
        Member(spec=spec.with_(layers=layers, width=heads * spec.head_width, heads=heads))
        for layers, heads in sizes
    ]


def apply_target(config: LearngeneConfig, target: Target) -> tuple[Spec, Spec]:
    """Return the shape of a target, and the ancestry model's with the blocks of the target.

    Raises `WrongCall` for a size below the ancestry model's.
    """
    small = config.spec
    spec = (target.whole_heads(small) if target.heads is None else target).apply(small)
    large = resize_like(small, spec)
    check_larger(large, small, config.method)
    return spec, large


def check_larger(large: Spec, small: Spec, method: str) -> None:
    """Raise `WrongCall` if an axis would shrink or if heads would change their width."""
    for axis in ("layers", *GROWING):
        size, least = getattr(large, axis), getattr(small, axis)
        if size < least:
            raise WrongCall(
                f"{axis} is {size}; the ancestry model has {least}, and {method} builds larger "
                "ones only"
            )
    if large.head_width != small.head_width:
        raise WrongCall(
            f"width is {large.width} with {large.heads} heads; {method} copies whole heads of "
            f"{small.head_width} channels: name the width alone, a multiple of that"
        )


def choose_copies(small: Spec, large: Spec, copies: Copies, seed: int) -> dict[str, list[int]]:
    """Return g for each axis of `GROWING`."""
    from learngene_zoo.plugin import derive_seed

    return {
        axis: choose_entries(
            getattr(small, axis), getattr(large, axis), copies, derive_seed(seed, "copies", axis)
        )
        for axis in GROWING
    }


def choose_entries(small: int, large: int, copies: Copies, seed: int) -> list[int]:
    """Return g: for each of `large` entries of a grown axis the entry below `small` it copies."""
    if copies == "even":
        return [i % small for i in range(large)]
    import torch

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(small, (large - small,), generator=generator)
    return [*range(small), *drawn.tolist()]


def stack_blocks(small: int, large: int) -> list[int]:
    """Return the index of the block that each of `large` layers copies, step 3."""
    return [*range(small)] * (large // small) + [*range(small - large % small, small)]


def grow_tensors(
    state: StateDict,
    spec: Spec,
    maps: dict[str, list[int]],
    sources: list[int],
    *,
    advanced: bool = False,
) -> StateDict:
    """Return the tensors of a larger model, steps 1 to 3.

    Args:
        state: tensors of a model of shape `spec`.
        spec: the shape of the ancestry model.
        maps: g for each axis of `GROWING`.
        sources: the index of the block that each layer copies.
        advanced: whether new rows are of the block above, step 2.
    """
    from learngene_zoo.plugin import map_axes

    rows = {axis: len(g) for axis, g in maps.items()}
    copied = {axis: _copy_rows(g, 0, rows[axis]) for axis, g in maps.items()}
    grown = map_axes(state, spec, {**copied, "layers": sources})
    if not advanced:
        return grown
    old_rows = {axis: getattr(spec, axis) for axis in maps}
    lower = {axis: _copy_rows(g, 0, old_rows[axis]) for axis, g in maps.items()}
    upper = {axis: _copy_rows(g, old_rows[axis], rows[axis]) for axis, g in maps.items()}
    above = [min(source + 1, spec.layers - 1) for source in sources]
    lower_state = map_axes(state, spec, {**lower, "layers": sources})
    upper_state = map_axes(state, spec, {**upper, "layers": above})
    return {
        name: lower_state[name] + upper_state[name]
        if _has_growing_axis(spec, name)
        else grown[name]
        for name in grown
    }


def _copy_rows(g: list[int], start: int, stop: int) -> Along:
    """Return a map that writes copies to the entries in [start, stop), zeros to all others.

    Inputs are shared by all their copies.
    """
    import torch

    from learngene_zoo.plugin import Along

    copies: Tensor = torch.nn.functional.one_hot(torch.tensor(g)).double()
    inside = torch.zeros(len(g), 1, dtype=torch.float64)
    inside[start:stop] = 1
    return Along(write=copies * inside, read=copies / copies.sum(dim=0), scale=copies * inside)


def _has_growing_axis(spec: Spec, name: str) -> bool:
    """Return whether a tensor has an axis that grows; a norm within heads has none."""
    kind = get_table(spec).find(name)
    return kind is not None and any(part in GROWING for axis in kind.axes for part in axis)


_EXTRACTOR = BlockChoiceExtractor()
GROWTH = Method(
    name="growth",
    title="larger models from copies of the ancestry model's neurons, heads and blocks",
    paper=(
        "Chen, Yin, Shang, Jiang, Qin, Wang, Wang, Chen, Liu, Liu. bert2BERT: Towards Reusable "
        "Pretrained Language Models. ACL 2022"
    ),
    expander=GrowthExpander(),
    presets={"mini": _EXTRACTOR, "paper": _EXTRACTOR, "smoke": _EXTRACTOR},
    families=("vit", "eva", "gpt2", "bert"),
    tasks="none",
)
