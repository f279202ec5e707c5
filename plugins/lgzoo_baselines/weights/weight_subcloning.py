"""Weight subcloning: keep and rescale the most important neurons of a larger model.

Samragh, Farajtabar, Mehta, Vemulapalli, Faghri, Naik, Tuzel, Rastegari. Weight Subcloning: Direct
Initialization of Transformers Using Larger Pretrained Ones. arXiv 2312.09299, 2023.

    1  rank       neurons by their mean absolute value over images and tokens, of texts without
                  padding: channels of the residual stream over all blocks at once, since they are
                  the same neurons in each; hidden neurons and heads within their block
    2  reorder    all neurons from most to least important, which does not change the function
    3  cut        the first d of D channels, the first heads, the first hidden neurons; blocks are
                  removed from the middle, where a block changes the stream least
    4  rescale    W <- sqrt(inputs before / inputs after) W for every linear layer that lost inputs,
                  so that its outputs keep their standard deviation

The learngene is the ancestry model, or its name, with the importances of its neurons; every size is
a cut of the same reordered model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import (
    FLAT,
    BadFile,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    Work,
    WrongCall,
    check_bounds,
    compute_once,
    get_table,
)
from lgzoo_baselines.blocks.block_choice import (
    Store,
    build_descendant,
    list_smaller_members,
    read_blocks,
    resize_like,
)

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task

# Tensors: `importance.width` (D,), `importance.heads` (L, H), `importance.hidden` (L, M).
IMPORTANCE = "importance."
BATCH_SIZE = 16  # images that go through the model together


@dataclass(frozen=True, kw_only=True)
class NeuronRanking:
    """Settings of the ranking of neurons."""

    images: Annotated[
        int, "number of training images for the ranking (labels are not used)", Bounds(least=1)
    ] = 256

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class WeightSubcloningExtractor(Extractor):
    """Rank the neurons of the ancestry model; keep it, or only its name."""

    store: Store = True
    each: NeuronRanking = field(default=NeuronRanking(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        return LearngeneConfig(spec=ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Return the cost of one forward pass over the images."""
        count = min(self.each.images, images[0])
        return [Work(images=count, trained=0, frozen=ancestries[0].layers)]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the ranking, step 1, a part of the run, beside the ancestry model's weights."""
        from learngene_zoo.plugin import remove_head

        ancestry, part = ancestries[0], run.part("ranking")
        inputs = [ancestry, tasks[0]]
        importances = compute_once(
            part, "weight_subcloning.ranking", rank_neurons, self.each, inputs
        ).state
        state = remove_head(ancestry.state, ancestry.spec) if self.store else {}
        return Learngene(
            config=self.outline([ancestry.spec]),
            state={**state, **{name: importances[name] for name in importances}},
        )


def rank_neurons(
    settings: NeuronRanking, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Return the importances of channels, heads and hidden neurons, each with mean 1; no record.

    Args:
        settings: the number of images.
        ancestry: the model whose neurons are ranked.
        task: its training images are used in their order, without labels.
        run: gives the device, the seed and the workers.

    Raises:
        WrongCall: for a task without training images.
    """
    from learngene_zoo.plugin import sample_images
    from lgzoo_baselines.modules.weight_subcloning import sum_magnitudes

    if not task.sizes["train"]:
        raise WrongCall(
            f"{task.name} has no training images to rank neurons on; choose another task"
        )
    model, spec = ancestry.model(), ancestry.spec
    loader = sample_images(
        task,
        "train",
        ancestry.input_format,
        run,
        images=settings.images,
        batch_size=BATCH_SIZE,
    )
    inputs = (batch.inputs for batch in loader.epoch(0))
    sums = sum_magnitudes(model, spec, inputs)
    values_of = {
        "width": sums.stream,
        "heads": sums.heads.unflatten(1, (spec.heads, -1)).sum(dim=2),
        "hidden": sums.hidden,
    }
    return {
        f"{IMPORTANCE}{axis}": (values / values.mean(dim=-1, keepdim=True)).float()
        for axis, values in values_of.items()
    }, {}


@dataclass(frozen=True, kw_only=True)
class WeightSubcloningExpander(Expander):
    """Cut the reordered model, and rescale linear layers that lost inputs."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    rescale: Annotated[
        bool, "multiply linear layers by sqrt(a/b) if their inputs are cut from a to b"
    ] = True

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and every width in whole heads up to the ancestry model's."""
        return list_smaller_members(config)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for a size beyond the ancestry model's."""
        larger = config.spec
        check_smaller(resize_like(larger, target.whole_heads(larger).apply(larger)), larger)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the cut weights, with resized positions and a new head.

        Raises `WrongCall` for a size beyond the ancestry model's.
        """
        from learngene_zoo.plugin import map_axes

        larger = learngene.config.spec
        spec = target.whole_heads(larger).apply(larger)
        smaller = resize_like(larger, spec)
        check_smaller(smaller, larger)
        blocks, table = choose_ends(larger.layers, smaller.layers), get_table(larger)
        before, after = table.sizes(larger), table.sizes(smaller)
        indices = {axis: range(after[axis]) for axis in before if after[axis] < before[axis]}
        state = reorder_neurons(read_blocks(learngene, blocks, run), larger, learngene.state)
        state = map_axes(state, larger, {**indices, "layers": blocks})
        state = rescale_weights(state, larger, smaller) if self.rescale else state
        return build_descendant(learngene, spec, state, run, {"blocks": list(blocks)})


def check_smaller(smaller: Spec, larger: Spec) -> None:
    """Raise `WrongCall` if an axis would grow or if heads would change their width."""
    for axis in ("layers", "width", "heads", "hidden"):
        size, most = getattr(smaller, axis), getattr(larger, axis)
        if size > most:
            raise WrongCall(
                f"{axis} is {size}; the ancestry model has {most}, and weight_subcloning builds "
                "smaller ones only"
            )
    if smaller.head_width != larger.head_width:
        widths = ", ".join(str(heads * larger.head_width) for heads in range(1, larger.heads + 1))
        raise WrongCall(
            f"width is {smaller.width} with {smaller.heads} heads; whole heads are kept: "
            f"choose width {widths}"
        )


def choose_ends(depth: int, count: int) -> list[int]:
    """Return the indices of as many first as last blocks, or one more of the first."""
    front = (count + 1) // 2
    return [*range(front), *range(depth - count + front, depth)]


def reorder_neurons(state: StateDict, spec: Spec, importances: StateDict) -> StateDict:
    """Return tensors of the same function with neurons from most to least important, step 2.

    Args:
        state: tensors of a model of shape `spec`, of all or of some blocks.
        spec: the shape of the ancestry model.
        importances: the tensors of `rank_neurons`.

    Raises:
        BadFile: if the importances are missing.
    """
    import torch

    from learngene_zoo.plugin import map_axes

    table = get_table(spec)
    width = _sort_neurons(importances, "width", (spec.width,))
    heads = _sort_neurons(importances, "heads", (spec.layers, spec.heads))
    hidden = _sort_neurons(importances, "hidden", (spec.layers, spec.hidden))
    reordered = dict(map_axes(state, spec, {"width": width.tolist()}))
    for name in state:
        block, kind = table.block_of(name), table.find(name)
        if block is not None:
            within = {"heads": heads[block].tolist(), "hidden": hidden[block].tolist()}
            reordered |= map_axes({name: reordered[name]}, spec, within)
        elif kind is not None and ("layers",) in kind.axes and ("heads",) in kind.axes:
            # One tensor outside the blocks with numbers of each head of each block.
            layer_axis, head_axis = kind.axes.index(("layers",)), kind.axes.index(("heads",))
            layers = reordered[name].split(1, dim=layer_axis)
            parts = [part.index_select(head_axis, heads[i]) for i, part in enumerate(layers)]
            reordered[name] = torch.cat(parts, dim=layer_axis)
    return reordered


def _sort_neurons(importances: StateDict, axis: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return indices from the most to the least important; of equal ones the first comes first."""
    name = f"{IMPORTANCE}{axis}"
    if name not in importances or tuple(importances[name].shape) != shape:
        raise BadFile(
            f"the weight_subcloning learngene lacks {name} of shape {shape}; extract it again"
        )
    return importances[name].argsort(dim=-1, descending=True, stable=True)


def rescale_weights(state: StateDict, larger: Spec, smaller: Spec) -> StateDict:
    """Return tensors whose linear layers keep the standard deviation of their outputs, step 4.

    Args:
        state: tensors of a model of shape `smaller`.
        larger: the shape of the ancestry model.
        smaller: the shape of the cut.
    """
    table, rescaled = get_table(larger), dict(state)
    for name in state:
        kind = table.find(name)
        if kind is not None and kind.start in ("matrix", "deep") and len(kind.axes) > 1:
            shapes = [kind.shape(table.sizes(spec)) for spec in (larger, smaller)]
            before, after = (math.prod(shape) // shape[kind.writes] for shape in shapes)
            if before != after:
                rescaled[name] = (before / after) ** 0.5 * state[name]
    return rescaled


WEIGHT_SUBCLONING = Method(
    name="weight_subcloning",
    title="smaller models from the ancestry model's most important neurons, rescaled",
    paper=(
        "Samragh, Farajtabar, Mehta, Vemulapalli, Faghri, Naik, Tuzel, Rastegari. Weight "
        "Subcloning: Direct Initialization of Transformers Using Larger Pretrained Ones. "
        "arXiv 2312.09299, 2023"
    ),
    expander=WeightSubcloningExpander(),
    presets={
        "mini": WeightSubcloningExtractor(),
        "paper": WeightSubcloningExtractor(),
        "smoke": WeightSubcloningExtractor(each=NeuronRanking(images=16)),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="one",
    uses_labels=False,
)
