"""Nested models: one model whose slices are models, all of them trained together.

Devvrit, Kudugunta, Kusupati and others, MatFormer: Nested Transformer for Elastic Inference, NeurIPS 2024. An MLP with the hidden
neurons 1, ..., m_g holds smaller ones, each the first neurons of the next:

    T_i(x) = W_2[:, :m_i] act(W_1[:m_i] x)        m_1 < ... < m_g; here m_i = floor(s_i m_g), s = 1/8, 1/4, 1/2, 1

and every step trains one of them, drawn uniformly, in all blocks at once. What MatFormer does with hidden neurons is done here, where
asked for, with heads, with the residual stream (the channels of whole heads) and with blocks too, as in slimmable networks (Yu et al.,
ICLR 2019) and DynaBERT (Hou et al., NeurIPS 2020):

    slice(model, size) = the first channels, heads and neurons of `size`, in its blocks
    loss               = (1 - share) L_task(slice) + share t^2 KL(softmax(teacher / t) || softmax(slice / t))

The whole model starts as the ancestry model, neurons and heads from most to least important. A descendant is a slice, and with
`granularity` one whose blocks have different numbers of neurons (the paper's Mix'n'Match).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import (
    FLAT,
    Expander,
    LearngeneConfig,
    Member,
    Method,
    Segment,
    WrongCall,
    details_of,
    once,
)
from lgzoo_baselines.auxiliary import Guided, Origin, held, read_from
from lgzoo_baselines.block_choice import completed
from lgzoo_baselines.nested_sizes import BLOCKS, SHARE, Grid, Nesting, sized
from lgzoo_baselines.pretrain_finetune import MINI, PAPER, SMOKE, TRAINING

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Learngene, Part, Run, Spec, Target, Task, TimmModel


@dataclass(frozen=True, kw_only=True)
class Details(Origin):
    """What `details` of a learngene hold."""

    grid: Grid


@dataclass(frozen=True, kw_only=True)
class Nest(Guided):
    """Train all slices of the ancestry model together, one in every step."""

    method = "nested"
    part = "nested"

    each: Nesting = field(default=Nesting(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape. Raises `WrongCall` for one whose blocks have different sizes."""
        spec = ancestries[0]
        if not spec.plain:
            raise WrongCall("nested takes models whose blocks all have one size; choose another ancestry model")
        self.each.grid.sizes(spec)  # each must be a model
        return LearngeneConfig(method=self.method, spec=spec, details=Details(grid=self.each.grid).json())

    def learnt(
        self, config: LearngeneConfig, ancestry: Ancestry, teacher: Descendant | TimmModel, task: Task, part: Run
    ) -> tuple[Origin, Part]:
        """The whole model's tensors; it starts as the ancestry model with a head for the task."""
        from lgzoo_baselines.nested_slices import nested, opened_for

        start = opened_for(ancestry, task, part.seed) if self.teacher is not None else teacher
        details = details_of(config, Details).of(task)
        return details, once(part, f"{self.method}.train", nested, self.each, [ancestry, start, teacher, task])


@dataclass(frozen=True, kw_only=True)
class Slice(Expander):
    """Take a slice."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    granularity: Annotated[
        tuple[float, ...], "shares of the hidden neurons, one for each block of the descendant (Mix'n'Match)", SHARE
    ] = ()

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The sizes that were trained; any size between can be built by name."""
        return [Member(spec=spec) for spec in details_of(config, Details).grid.sizes(config.spec)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Positions resized, a new head unless the task is the learngene's. Raises `WrongCall` for what is no slice."""
        from learngene_zoo.plugin import shapes
        from lgzoo_baselines.nested_slices import sliced

        config = learngene.config
        details, whole = details_of(config, Details), config.spec
        spec = self._uneven(_shape(target, whole), target, whole)
        stored = whole.with_(classes=details.classes, dense=details.dense)
        state = held(learngene, read_from(shapes(stored), stored, head=details.serves(target, spec)))
        blocks = BLOCKS[details.grid.choice](whole.layers, spec.layers)
        parts = {name: tensor.contiguous() for name, tensor in sliced(state, stored, spec, blocks).items()}
        return completed(config, spec, parts, run, {"blocks": blocks})

    def _uneven(self, spec: Spec, target: Target, whole: Spec) -> Spec:
        """The shape whose blocks have the neurons that `granularity` says; segments of equal blocks."""
        shares = self.granularity
        if not shares:
            return spec
        if len(shares) != spec.layers or target.mlp_ratio is not None:
            raise WrongCall(
                f"granularity has {len(shares)} shares and the model {spec.layers} layers; give one for each layer, and no --mlp-ratio"
            )
        runs = [(share * whole.mlp_ratio, len(list(same))) for share, same in groupby(shares)]
        front = tuple(
            Segment(layers=count, width=spec.width, heads=spec.heads, mlp_ratio=ratio, stitch=False, **_attention(spec))
            for ratio, count in runs[:-1]
        )
        return spec.with_(mlp_ratio=runs[-1][0], front=front)


def _attention(spec: Spec) -> dict[str, int]:
    return {} if spec.heads_width == spec.width else {"attention_width": spec.heads_width}


def _shape(target: Target, whole: Spec) -> Spec:
    """The shape that a target names; with `heads` and `width` both named, attention has so many heads of the stream's.

    Raises `WrongCall` for one that is no slice of `whole`.
    """
    named, unit = target.whole_heads(whole), whole.head_width
    width, heads = named.width or whole.width, named.heads or whole.heads
    if width % unit or heads * unit > width or width > whole.width:
        widths = ", ".join(str(count * unit) for count in range(1, whole.heads + 1))
        raise WrongCall(
            f"width is {width} with {heads} heads; a slice has whole heads of {unit} channels, and at most as many as fit its "
            f"width: choose width {widths}"
        )
    spec = whole.with_(classes=target.classes, image_size=target.image_size, dense=target.dense)
    spec = sized(spec, named.layers or whole.layers, width // unit, heads, named.mlp_ratio or whole.mlp_ratio)
    for axis in ("layers", "mlp_ratio"):
        if getattr(spec, axis) > getattr(whole, axis):
            raise WrongCall(
                f"{axis} is {getattr(spec, axis)}; the nested model has {getattr(whole, axis)}: choose at most that"
            )
    return spec


# All axes at once, so that `plan` has narrow and shallow models too; MatFormer's own grid is the preset `paper`.
SIZES = Grid(hidden=(0.25, 0.5), stream=(0.5,), blocks=(0.5,))

NESTED = Method(
    name="nested",
    title="one model whose slices are models, all of them trained together",
    paper=(
        "Devvrit, Kudugunta, Kusupati, Dettmers, Chen, Dhillon, Tsvetkov, Hajishirzi, Kakade, Farhadi, Jain. MatFormer: Nested "
        "Transformer for Elastic Inference. NeurIPS 2024"
    ),
    expander=Slice(),
    presets={
        "mini": Nest(
            each=Nesting(grid=SIZES, training=replace(MINI, lr=5e-4)), teaching=replace(TRAINING, epochs=4, images=6000)
        ),
        # MatFormer learns from labels alone.
        "paper": Nest(each=Nesting(share=0.0, training=PAPER), teaching=replace(PAPER, epochs=30, lr=1e-4)),
        "smoke": Nest(each=Nesting(grid=SIZES, ranked=16, training=SMOKE), teaching=SMOKE),
    },
    tasks="one",
    details=Details,
)
