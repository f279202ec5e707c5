"""Growth: a larger model that starts from a smaller one; nothing is trained, no image is seen.

Chen, Yin, Shang, Jiang, Qin, Wang, Wang, Chen, Liu, Liu. bert2BERT: Towards Reusable Pretrained Language Models. ACL 2022. Along
every axis that grows from s to t entries (channels, whole heads, hidden neurons) entry i is a copy of entry g(i), c(j) of them of j:

    1  width, FPI    U[i, j] = W[g_out(i), g_in(j)] / c_in(g_in(j))    outputs are copied, and inputs share their weight
    2  width, AKI    the same, but rows i >= s_out are of the block above
    3  depth         the grown blocks as a whole as often as they fit, then the last of them:  0 1 2 0 1 2 1 2

with g(i) = i for i < s. Further entries are copied in turn, g(i) = i mod s, or drawn, as in the paper. FPI preserves the function
where LayerNorm does: if every channel of the residual stream has as many copies, for mean and variance are then the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import Expander, LearngeneConfig, Member, Method, Spec, Target, WrongCall, table_of
from lgzoo_baselines.block_choice import Keep, body_of, completed, inherited_blocks

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Along, Descendant, Learngene, Run, StateDict

Copies = Literal["even", "drawn"]
GROWING = ("width", "heads", "hidden")


class KeepForGrowth(Keep):
    """Keep the ancestry model for `growth`."""

    method = "growth"


@dataclass(frozen=True, kw_only=True)
class Grow(Expander):
    """Copy channels, heads, hidden neurons and blocks."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    knowledge: Annotated[
        Literal["own", "advanced"], "new rows of a block's own weights (FPI), or of the block above (AKI)"
    ] = "own"
    copies: Annotated[Copies, "which entries are copied: all in turn, or drawn from them as in the paper"] = "even"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth, and every width in whole heads, from the ancestry model's to twice as much. Larger ones can be built by name."""
        return larger(config.spec)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The grown blocks, positions resized, a new head. Raises `WrongCall` for a size below the ancestry model's."""
        config, small = learngene.config, learngene.config.spec
        spec, large = asked(config, target)
        places, maps = stacked_on_top(small.layers, large.layers), copies_of(small, large, self.copies, run.seed)
        state = inherited_blocks(learngene, range(small.layers), run)
        made = grown(state, small, maps, places, advanced=self.knowledge == "advanced")
        return completed(config, spec, made, run, {"blocks": places})


def larger(spec: Spec) -> list[Member]:
    """Every depth, and every width in whole heads, from this one's to twice as much."""
    sizes = product(range(spec.layers, 2 * spec.layers + 1), range(spec.heads, 2 * spec.heads + 1))
    return [
        Member(spec=spec.with_(layers=layers, width=heads * spec.head_width, heads=heads)) for layers, heads in sizes
    ]


def asked(config: LearngeneConfig, target: Target) -> tuple[Spec, Spec]:
    """The shape of a target, and the ancestry model's with its blocks. Raises `WrongCall` for a size below the ancestry model's."""
    small = config.spec
    spec = (target.whole_heads(small) if target.heads is None else target).apply(small)
    large = body_of(spec, small)
    _check_larger(large, small, config.method)
    return spec, large


def copies_of(small: Spec, large: Spec, copies: Copies, seed: int) -> dict[str, list[int]]:
    """g for each axis that may grow."""
    from learngene_zoo.plugin import derive_seed

    return {
        axis: copied(getattr(small, axis), getattr(large, axis), copies, derive_seed(seed, "copies", axis))
        for axis in GROWING
    }


def stacked_on_top(small: int, large: int) -> list[int]:
    """The block, counted from 0, that each layer copies, step 3."""
    return [*range(small)] * (large // small) + [*range(small - large % small, small)]


def copied(small: int, large: int, copies: Copies, seed: int) -> list[int]:
    """g: the entry that each entry of a grown axis copies."""
    if copies == "even":
        return [i % small for i in range(large)]
    import torch

    draw = torch.Generator().manual_seed(seed)
    return [*range(small), *torch.randint(small, (large - small,), generator=draw).tolist()]


def grown(
    state: StateDict, spec: Spec, maps: dict[str, list[int]], places: list[int], *, advanced: bool = False
) -> StateDict:
    """The tensors of a larger model, steps 1 to 3, from those of a model of shape `spec`.

    `maps` has g for each of `GROWING`, `places` the block that each layer copies.
    """
    from learngene_zoo.plugin import mapped

    rows = {axis: len(g) for axis, g in maps.items()}
    own = mapped(state, spec, {**{axis: _along(g, 0, rows[axis]) for axis, g in maps.items()}, "layers": places})
    if not advanced:
        return own
    sizes = {axis: getattr(spec, axis) for axis in maps}
    first = {axis: _along(g, 0, sizes[axis]) for axis, g in maps.items()}
    further = {axis: _along(g, sizes[axis], rows[axis]) for axis, g in maps.items()}
    above = [min(place + 1, spec.layers - 1) for place in places]
    lower, upper = (
        mapped(state, spec, {**how, "layers": blocks}) for how, blocks in ((first, places), (further, above))
    )
    return {name: lower[name] + upper[name] if _grows(spec, name) else own[name] for name in own}


def _along(g: list[int], start: int, stop: int) -> Along:
    """Copies of outputs, for the entries from `start` to before `stop`, and shares of all inputs."""
    import torch

    from learngene_zoo.plugin import Along

    copies: Tensor = torch.nn.functional.one_hot(torch.tensor(g)).double()
    inside = torch.zeros(len(g), 1, dtype=torch.float64)
    inside[start:stop] = 1
    return Along(write=copies * inside, read=copies / copies.sum(dim=0), scale=copies * inside)


def _grows(spec: Spec, name: str) -> bool:
    """Whether a tensor has an axis that grows; a norm within heads has none."""
    kind = table_of(spec).find(name)
    return kind is not None and any(part in GROWING for axis in kind.axes for part in axis)


def _check_larger(large: Spec, small: Spec, method: str) -> None:
    for axis in ("layers", *GROWING):
        size, least = getattr(large, axis), getattr(small, axis)
        if size < least:
            raise WrongCall(f"{axis} is {size}; the ancestry model has {least}, and {method} builds larger ones only")
    if large.head_width != small.head_width:
        raise WrongCall(
            f"width is {large.width} with {large.heads} heads; {method} copies whole heads of {small.head_width} channels: name the "
            "width alone, a multiple of that"
        )


GROWTH = Method(
    name="growth",
    title="larger models of copies of the ancestry model's neurons, heads and blocks",
    paper=(
        "Chen, Yin, Shang, Jiang, Qin, Wang, Wang, Chen, Liu, Liu. bert2BERT: Towards Reusable Pretrained Language Models. ACL 2022"
    ),
    expander=Grow(),
    presets={"mini": KeepForGrowth(), "paper": KeepForGrowth(), "smoke": KeepForGrowth()},
    families=("vit", "eva"),
    tasks="none",
)
