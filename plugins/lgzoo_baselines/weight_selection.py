"""Weight selection: a smaller model starts from a subset of a larger one's weights; nothing is trained, no image is seen.

Xu, Chen, Vishniakov, Yin, Shen, Darrell, Liu, Liu. Initializing Models with Larger Ones. ICLR 2024, section 3:

    1  layer selection      block i of the smaller model comes from block i of the larger one: the first n
    2  component mapping    each tensor comes from the tensor of the same name; the head is new
    3  element selection    in each dimension of each tensor, s of t entries at equal steps:
                            0, t/s, 2 t/s, ...  if s divides t, else round(i (t - 1) / (s - 1)) for i = 0, ..., s - 1

The same rule everywhere makes neurons keep their neighbours: a channel of the residual stream comes from the same channel in every
tensor. Rows of queries, keys and values are one dimension, so that heads are not kept apart; `--whole-heads` takes whole ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import Expander, LearngeneConfig, Member, Method, Spec, Target, WrongCall
from lgzoo_baselines.block_choice import Keep, body_of, completed, inherited_blocks, narrower

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, Run

Elements = Literal["uniform", "consecutive"]


class KeepForSelection(Keep):
    """Keep the ancestry model for `weight_selection`."""

    method = "weight_selection"


@dataclass(frozen=True, kw_only=True)
class Select(Expander):
    """Select blocks, and the elements of every tensor."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    blocks: Annotated[Literal["first", "uniform"], "which blocks: the first, or blocks at equal steps"] = "first"
    elements: Annotated[Elements, "which entries along each dimension: at equal steps, or the first"] = "uniform"
    whole_heads: Annotated[bool, "take whole attention heads; by default their rows are selected as all others"] = False

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth and every width in whole heads up to the ancestry model's. Other sizes can be built by name."""
        return narrower(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The selected weights, positions resized, a new head. Raises `WrongCall` for a size beyond the ancestry model's."""
        from learngene_zoo.plugin import mapped

        config, whole = learngene.config, learngene.config.spec
        spec = target.whole_heads(whole).apply(whole)
        small = body_of(spec, whole)
        if small.layers > whole.layers:
            raise WrongCall(f"layers is {small.layers}; the ancestry model has {whole.layers}, and none is made up")
        rule: Elements = "consecutive" if self.blocks == "first" else "uniform"
        blocks = chosen(whole.layers, small.layers, rule)
        indices = {"layers": blocks, **self.indices(whole, small)}
        selected = mapped(inherited_blocks(learngene, blocks, run), whole, indices)
        return completed(config, spec, selected, run, {"blocks": list(blocks)})

    def indices(self, whole: Spec, small: Spec) -> dict[str, list[int]]:
        """Which entries are selected along every dimension that shrinks. Raises `WrongCall` for one that would grow."""
        from learngene_zoo.plugin import axes_of, dimensions_of

        known = axes_of if self.whole_heads else dimensions_of
        sizes = {axis: (size, known(small)[axis]) for axis, size in known(whole).items() if axis != "layers"}
        if self.whole_heads:  # factor by factor
            sizes = {axis: pair for axis, pair in sizes.items() if " " not in axis}
        for axis, (larger, smaller) in sizes.items():
            if smaller > larger:
                raise WrongCall(
                    f"{axis} would be {smaller}, but is {larger} in the ancestry model: choose a smaller size"
                )
        return {axis: chosen(*pair, self.elements) for axis, pair in sizes.items() if pair[0] != pair[1]}


def chosen(larger: int, smaller: int, rule: Elements) -> list[int]:
    """The entries of a dimension that are selected."""
    if rule == "consecutive":
        return list(range(smaller))
    if larger % smaller == 0:
        return list(range(0, larger, larger // smaller))
    import torch  # whose rounding is the released code's

    return torch.linspace(0, larger - 1, smaller).round().long().tolist()


WEIGHT_SELECTION = Method(
    name="weight_selection",
    title="smaller models by selecting blocks and elements of the ancestry model's tensors",
    paper="Xu, Chen, Vishniakov, Yin, Shen, Darrell, Liu, Liu. Initializing Models with Larger Ones. ICLR 2024",
    expander=Select(),
    presets={"mini": KeepForSelection(), "paper": KeepForSelection(), "smoke": KeepForSelection()},
    families=("vit", "eva"),
    tasks="none",
)
