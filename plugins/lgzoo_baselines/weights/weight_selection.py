"""Weight selection: initialise a smaller model from a subset of a larger one's weights.

Xu, Chen, Vishniakov, Yin, Shen, Darrell, Liu, Liu. Initializing Models with Larger Ones. ICLR 2024,
section 3:

    1  layer selection      block i of the smaller model comes from block i of the larger one:
                            the first n
    2  component mapping    each tensor comes from the tensor of the same name; the head is new
    3  element selection    in each dimension of each tensor, s of t entries at equal steps:
                            0, t/s, 2 t/s, ...  if s divides t,
                            else round(i (t - 1) / (s - 1)) for i = 0, ..., s - 1

Since the rule is the same everywhere, a channel of the residual stream comes from the same channel
in every tensor. Rows of queries, keys and values are one dimension, so the selection ignores heads;
`--whole-heads` selects complete ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import Expander, LearngeneConfig, Member, Method, Spec, Target, WrongCall
from lgzoo_baselines.blocks.block_choice import (
    BlockChoiceExtractor,
    build_descendant,
    list_smaller_members,
    read_blocks,
    resize_like,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, Run

Elements = Literal["uniform", "consecutive"]


@dataclass(frozen=True, kw_only=True)
class WeightSelectionExpander(Expander):
    """Select blocks, and the elements of every tensor."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    blocks: Annotated[
        Literal["first", "uniform"], "blocks to select: the first, or evenly spaced ones"
    ] = "first"
    elements: Annotated[
        Elements, "entries to select along each dimension: evenly spaced ones, or the first"
    ] = "uniform"
    whole_heads: Annotated[
        bool, "select complete attention heads; by default their rows are selected like all others"
    ] = False

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and every width in whole heads up to the ancestry model's.

        Other sizes can be built by name.
        """
        return list_smaller_members(config)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for more blocks than the ancestry model has, and for parts of heads."""
        apply_target(config.spec, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of selected weights, with resized positions and a new head.

        Raises `WrongCall` for a size beyond the ancestry model's.
        """
        from learngene_zoo.plugin import map_axes

        larger = learngene.config.spec
        spec = apply_target(larger, target)
        smaller = resize_like(larger, spec)
        rule: Elements = "consecutive" if self.blocks == "first" else "uniform"
        blocks = select_entries(larger.layers, smaller.layers, rule)
        indices = select_elements(larger, smaller, self.elements, whole_heads=self.whole_heads)
        weights = read_blocks(learngene, blocks, run)
        selected = map_axes(weights, larger, {"layers": blocks, **indices})
        return build_descendant(learngene, spec, selected, run, {"blocks": list(blocks)})


def apply_target(larger: Spec, target: Target) -> Spec:
    """Return the shape of a target.

    Raises `WrongCall` for more blocks than `larger` has, and for a width that is not of whole
    heads.
    """
    spec = target.whole_heads(larger).apply(larger)
    if spec.layers > larger.layers:
        raise WrongCall(
            f"layers is {spec.layers}; the ancestry model has {larger.layers}, and none is made up"
        )
    return spec


def select_elements(
    larger: Spec, smaller: Spec, elements: Elements, *, whole_heads: bool
) -> dict[str, list[int]]:
    """Return the selected entries along every dimension that shrinks, step 3.

    Args:
        larger: the shape of the ancestry model.
        smaller: the shape to select.
        elements: the rule of selection.
        whole_heads: whether heads and the channels of a head are dimensions, or their product.

    Raises:
        WrongCall: for a dimension that would grow.
    """
    from learngene_zoo.plugin import list_axes, list_dimensions

    sizes_of = list_axes if whole_heads else list_dimensions
    before, after = sizes_of(larger), sizes_of(smaller)
    sizes = {axis: (size, after[axis]) for axis, size in before.items() if axis != "layers"}
    if whole_heads:  # the factors of a product of axes are selected one by one
        sizes = {axis: pair for axis, pair in sizes.items() if " " not in axis}
    for axis, (old, new) in sizes.items():
        if new > old:
            raise WrongCall(
                f"{axis} would be {new}, but is {old} in the ancestry model: choose a smaller size"
            )
    return {
        axis: select_entries(old, new, elements) for axis, (old, new) in sizes.items() if old != new
    }


def select_entries(larger: int, smaller: int, rule: Elements) -> list[int]:
    """Return the indices of `smaller` of `larger` entries of a dimension."""
    if rule == "consecutive":
        return list(range(smaller))
    if larger % smaller == 0:
        return list(range(0, larger, larger // smaller))
    import torch  # its rounding is that of the released code

    return torch.linspace(0, larger - 1, smaller).round().long().tolist()


_EXTRACTOR = BlockChoiceExtractor()
WEIGHT_SELECTION = Method(
    name="weight_selection",
    title="smaller models from selected blocks and elements of the ancestry model's tensors",
    paper=(
        "Xu, Chen, Vishniakov, Yin, Shen, Darrell, Liu, Liu. Initializing Models with Larger Ones. "
        "ICLR 2024"
    ),
    expander=WeightSelectionExpander(),
    presets={"mini": _EXTRACTOR, "paper": _EXTRACTOR, "smoke": _EXTRACTOR},
    families=("vit", "eva", "gpt2", "bert"),
    tasks="none",
)
