"""Weight subcloning: the most important neurons of a larger model, its weights rescaled, its middle blocks left out.

Samragh, Farajtabar, Mehta, Vemulapalli, Faghri, Naik, Tuzel, Rastegari. Weight Subcloning: Direct Initialization of Transformers Using
Larger Pretrained Ones. arXiv 2312.09299, 2023.

    1  rank       a neuron is as important as its mean absolute value over images and tokens: a channel of the residual stream
                  over all blocks at once, since it is the same neuron in each; hidden neurons and heads within their block
    2  reorder    all neurons from most to least important, which does not change what the model computes
    3  cut        the first d of D channels, the first heads, the first hidden neurons; of the blocks as many as are left out
                  in the middle, where a block changes the stream least
    4  rescale    W <- sqrt(inputs before / inputs after) W for every linear layer that lost inputs, so that its outputs keep
                  their standard deviation

The learngene is the ancestry model, or its name, with the importances of its neurons; every size is a cut of the same reordered model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.plugin import (
    FLAT,
    BadFile,
    Bounds,
    Expander,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    Work,
    WrongCall,
    check_bounds,
    once,
    table_of,
)
from lgzoo_baselines.block_choice import Keep, body_of, completed, inherited_blocks, narrower

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Ancestry, Descendant, Json, Learngene, Run, StateDict, Task

IMPORTANCE = "importance."  # tensors: `importance.width` (D,), `importance.heads` (L, H), `importance.hidden` (L, M)
AT_ONCE = 16  # images that go through the model together


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Which images the neurons are ranked on."""

    images: Annotated[int, "training images that the neurons are ranked on, without their labels", Bounds(least=1)] = (
        256
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Rank(Keep):
    """Rank the neurons of the ancestry model; keep it, or only its name."""

    method = "weight_subcloning"

    each: Ranking = field(default=Ranking(), metadata=FLAT)

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One pass forward over the images."""
        return [Work(images=min(self.each.images, images[0]), trained=0, frozen=ancestries[0].layers)]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The ranking is a part of the run."""
        kept = super().__call__(ancestries, tasks, run)
        found = once(
            run.part("ranking"), "weight_subcloning.ranking", ranking, self.each, [ancestries[0], tasks[0]]
        ).state
        return replace(kept, state={**kept.state, **{name: found[name] for name in found}})


def ranking(settings: Ranking, ancestry: Ancestry, task: Task, run: Run) -> tuple[StateDict, Json]:
    """How important the neurons of stream, heads and hidden layers are: in the mean over neurons 1."""
    import torch

    from learngene_zoo.plugin import Loader, derive_seed, join

    if not task.sizes["train"]:
        raise WrongCall(f"{task.name} has no training images to rank neurons on; choose another task")
    join(run.device_name)
    model, seed = ancestry.model(), derive_seed(run.seed, "data")
    options: dict[str, Any] = {"batch_size": AT_ONCE, "seed": seed, "images": settings.images, "workers": run.workers}
    loader = Loader(task, "train", ancestry.input_format, shuffle=False, drop_last=False, **options)
    with magnitudes(model) as (stream_D, heads_LA, hidden_LM), torch.no_grad():
        for batch in loader.epoch(0):
            model(batch.images)
    sums = {
        "width": stream_D,
        "heads": torch.stack(heads_LA).unflatten(1, (ancestry.spec.heads, -1)).sum(dim=2),
        "hidden": torch.stack(hidden_LM),
    }
    return {f"{IMPORTANCE}{axis}": (one / one.mean(dim=-1, keepdim=True)).float() for axis, one in sums.items()}, {}


@contextmanager
def magnitudes(model: Any) -> Iterator[tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]]:
    """Within, absolute values are summed over images and tokens.

    Of the stream (D,), over the inputs of all blocks and the output of the last; for every block of what its heads give (A,) and
    of its hidden neurons (M,), as the layers after them read it.
    """
    import torch

    stream = torch.zeros(model.embed_dim, dtype=torch.float64)
    heads, hidden = (
        [torch.zeros(read.in_features, dtype=torch.float64) for read in layers]
        for layers in ([b.attn.proj for b in model.blocks], [b.mlp.fc2 for b in model.blocks])
    )

    def added(total: torch.Tensor) -> Any:
        def hook(_: Any, arguments: Any, *output: Any) -> None:
            total.add_((output or arguments)[0].double().abs().flatten(0, -2).sum(dim=0))

        return hook

    handles = [model.blocks[-1].register_forward_hook(added(stream))]
    for block, of_heads, of_hidden in zip(model.blocks, heads, hidden):
        handles.append(block.register_forward_pre_hook(added(stream)))
        handles.append(block.attn.proj.register_forward_pre_hook(added(of_heads)))
        handles.append(block.mlp.fc2.register_forward_pre_hook(added(of_hidden)))
    try:
        yield stream, heads, hidden
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, kw_only=True)
class Cut(Expander):
    """Cut the reordered model, and rescale what lost inputs."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    rescale: Annotated[bool, "scale linear layers by the square root of how many times fewer inputs they have"] = True

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth and every width in whole heads up to the ancestry model's."""
        return narrower(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The cut weights, positions resized, a new head. Raises `WrongCall` for a size beyond the ancestry model's."""
        from learngene_zoo.plugin import mapped

        config, whole = learngene.config, learngene.config.spec
        spec = target.whole_heads(whole).apply(whole)
        small = body_of(spec, whole)
        _check_smaller(small, whole)
        blocks, table = ends(whole.layers, small.layers), table_of(whole)
        larger, kept = inherited_blocks(learngene, blocks, run), table.sizes(small)
        fewer = {axis: range(kept[axis]) for axis, size in table.sizes(whole).items() if kept[axis] < size}
        cut = mapped(reordered(larger, whole, learngene.state), whole, {**fewer, "layers": blocks})
        made = rescaled(cut, whole, small) if self.rescale else cut
        return completed(config, spec, made, run, {"blocks": list(blocks)})


def ends(whole: int, layers: int) -> list[int]:
    """The blocks that are kept: as many first as last ones, or one more of the first."""
    front = (layers + 1) // 2
    return [*range(front), *range(whole - layers + front, whole)]


def reordered(state: StateDict, spec: Spec, importances: StateDict) -> StateDict:
    """The same function, its neurons from most to least important. Raises `BadFile` if the importances are not there."""
    import torch

    from learngene_zoo.plugin import mapped

    table = table_of(spec)
    width = _order(importances, "width", (spec.width,))
    heads = _order(importances, "heads", (spec.layers, spec.heads))
    hidden = _order(importances, "hidden", (spec.layers, spec.hidden))
    turned = dict(mapped(state, spec, {"width": width.tolist()}))
    for name in state:
        block, kind = table.block_of(name), table.find(name)
        if block is not None:
            own = {"heads": heads[block].tolist(), "hidden": hidden[block].tolist()}
            turned |= mapped({name: turned[name]}, spec, own)
        elif (
            kind is not None and ("layers",) in kind.axes and ("heads",) in kind.axes
        ):  # numbers of each head of each block
            layer, head = kind.axes.index(("layers",)), kind.axes.index(("heads",))
            parts = [part.index_select(head, heads[i]) for i, part in enumerate(turned[name].split(1, dim=layer))]
            turned[name] = torch.cat(parts, dim=layer)
    return turned


def _order(importances: StateDict, axis: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Indices, of the most important first; of equal ones the first first."""
    name = f"{IMPORTANCE}{axis}"
    if name not in importances or tuple(importances[name].shape) != shape:
        raise BadFile(f"the weight_subcloning learngene lacks {name} of shape {shape}; extract it again")
    return importances[name].argsort(dim=-1, descending=True, stable=True)


def rescaled(state: StateDict, whole: Spec, small: Spec) -> StateDict:
    """Linear layers, of a model of shape `small`, whose outputs have the standard deviation that they had with all inputs."""
    table, made = table_of(whole), dict(state)
    for name in state:
        kind = table.find(name)
        if kind is not None and kind.start in ("matrix", "deep") and len(kind.axes) > 1:
            before, after = (math.prod(kind.shape(table.sizes(spec))[1:]) for spec in (whole, small))
            made[name] = state[name] if before == after else (before / after) ** 0.5 * state[name]
    return made


def _check_smaller(small: Spec, whole: Spec) -> None:
    for axis in ("layers", "width", "heads", "hidden"):
        size, most = getattr(small, axis), getattr(whole, axis)
        if size > most:
            raise WrongCall(
                f"{axis} is {size}; the ancestry model has {most}, and weight_subcloning builds smaller ones only"
            )
    if small.head_width != whole.head_width:
        widths = ", ".join(str(heads * whole.head_width) for heads in range(1, whole.heads + 1))
        raise WrongCall(f"width is {small.width} with {small.heads} heads; whole heads are kept: choose width {widths}")


WEIGHT_SUBCLONING = Method(
    name="weight_subcloning",
    title="smaller models of the ancestry model's most important neurons, rescaled",
    paper=(
        "Samragh, Farajtabar, Mehta, Vemulapalli, Faghri, Naik, Tuzel, Rastegari. Weight Subcloning: Direct Initialization of "
        "Transformers Using Larger Pretrained Ones. arXiv 2312.09299, 2023"
    ),
    expander=Cut(),
    presets={"mini": Rank(), "paper": Rank(), "smoke": Rank(each=Ranking(images=16))},
    families=("vit", "eva"),
    tasks="one",
)
