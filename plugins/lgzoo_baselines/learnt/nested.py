"""Nested models: train one model so that its slices are smaller models.

Devvrit, Kudugunta, Kusupati and others, MatFormer: Nested Transformer for Elastic Inference,
NeurIPS 2024. An MLP with the hidden neurons 1, ..., m_g contains smaller ones, each with the first
neurons of the next:

    T_i(x) = W_2[:, :m_i] act(W_1[:m_i] x)        m_1 < ... < m_g

here m_i = floor(s_i m_g), s = 1/8, 1/4, 1/2, 1; and every step trains one of them, drawn uniformly,
in all blocks at once. MatFormer slices hidden neurons; on request heads, the residual stream (the
channels of whole heads) and blocks are sliced here too, as in slimmable networks (Yu et al., ICLR
2019) and DynaBERT (Hou et al., NeurIPS 2020):

    slice(model, size) = the first channels, heads and neurons of `size`, in its blocks
    loss               = (1 - share) L_task(slice)
                         + share t^2 KL(softmax(teacher / t) || softmax(slice / t))

The full model starts as the ancestry model, neurons and heads from most to least important. A
descendant is a slice, and with `granularity` one whose blocks have different numbers of neurons
(the paper's Mix'n'Match).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    Expander,
    Extractor,
    LearngeneConfig,
    Member,
    Method,
    Segment,
    WrongCall,
    adapt_rates,
    compute_once,
    name_option,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import build_descendant
from lgzoo_baselines.learnt.auxiliary import (
    HeadRecord,
    collect_learngene,
    load_tensors,
    select_shapes,
)
from lgzoo_baselines.learnt.nested_sizes import SHARE, NestedGrid, NestedSettings, derive_slice_spec
from lgzoo_baselines.trained.pretrain_finetune import MINI, PAPER, SMOKE, TRAINING
from lgzoo_baselines.trained.stored_models import estimate_work
from lgzoo_baselines.trained.with_teacher import TeacherName, TeacherTraining, prepare_teacher

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Learngene,
        Run,
        Spec,
        Target,
        Task,
        Work,
    )


@dataclass(frozen=True, kw_only=True)
class NestedDetails(HeadRecord):
    """Record what `details` of a learngene hold."""

    grid: NestedGrid


@dataclass(frozen=True, kw_only=True)
class NestedExtractor(Extractor):
    """Train all slices of the ancestry model together, one in every step."""

    each: NestedSettings = field(default=NestedSettings(), metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, pretrained_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape.

        Raises `WrongCall` for a model whose blocks have different sizes.
        """
        spec = ancestries[0]
        if not spec.plain:
            raise WrongCall(
                "nested takes models whose blocks all have one size; choose another ancestry model"
            )
        self.each.grid.list_specs(spec)  # each must be a model
        return LearngeneConfig(spec=spec).with_details(NestedDetails(grid=self.each.grid))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate one training of the full model; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the full model; it starts as the ancestry model with a head for the task."""
        from lgzoo_baselines.modules.nested import assemble_with_head, train_slices

        ancestry, task, config = ancestries[0], tasks[0], self.outline([ancestries[0].spec])
        teacher, metrics = prepare_teacher(self.teacher, ancestry, task, self.teaching, run)
        part, details = run.part("nested"), NestedDetails(grid=self.each.grid).with_task(task)
        # Without another teacher, the teacher is the ancestry model with a head for the task.
        has_other_teacher = self.teacher is not None
        start = assemble_with_head(ancestry, task, part.seed) if has_other_teacher else teacher
        inputs = [ancestry, start, teacher, task]
        trained = compute_once(part, "nested.train", train_slices, self.each, inputs)
        return collect_learngene(config, details, trained, metrics)


@dataclass(frozen=True, kw_only=True)
class NestedExpander(Expander):
    """Take a slice."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    granularity: Annotated[
        tuple[float, ...],
        "share of the hidden neurons for each block of the descendant (Mix'n'Match)",
        SHARE,
    ] = ()

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return the sizes in training; any size between can be built by name."""
        grid = parse_details(config, NestedDetails).grid
        return [Member(spec=spec) for spec in grid.list_specs(config.spec)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a slice with resized positions.

        The head is new unless the task is the learngene's. Raises `WrongCall` for a size that is
        not a slice's.
        """
        from learngene_zoo.plugin import get_shapes
        from lgzoo_baselines.modules.nested import slice_state

        config, full = learngene.config, learngene.config.spec
        details = parse_details(config, NestedDetails)
        spec = apply_granularity(self.granularity, apply_target(target, full), target, full)
        stored = full.with_(classes=details.classes, dense=details.dense)
        expected = select_shapes(
            get_shapes(stored), stored, head=details.has_head_for(target, spec)
        )
        state = load_tensors(learngene, expected)
        blocks = details.grid.choose_blocks(full, spec.layers)
        sliced = slice_state(state, stored, spec, blocks)
        parts = {name: tensor.contiguous() for name, tensor in sliced.items()}
        return build_descendant(learngene, spec, parts, run, {"blocks": blocks})


def apply_target(target: Target, full: Spec) -> Spec:
    """Return the shape of a target: a slice of `full`.

    With both `heads` and `width`, attention has so many heads of the stream's.

    Raises:
        WrongCall: for a shape that is not a slice.
    """
    named, unit = target.whole_heads(full), full.head_width
    width, heads = named.width or full.width, named.heads or full.heads
    if width % unit or heads * unit > width or width > full.width:
        widths = ", ".join(str(count * unit) for count in range(1, full.heads + 1))
        raise WrongCall(
            f"width is {width} with {heads} heads; a slice has whole heads of {unit} channels, and "
            f"at most as many as fit its width: choose width {widths}"
        )
    layers, ratio = named.layers or full.layers, named.mlp_ratio or full.mlp_ratio
    with_head = full.with_(classes=target.classes, image_size=target.image_size, dense=target.dense)
    spec = derive_slice_spec(with_head, layers, width // unit, heads, ratio)
    for axis in ("layers", "mlp_ratio"):
        size, limit = getattr(spec, axis), getattr(full, axis)
        if size > limit:
            raise WrongCall(f"{axis} is {size}; the nested model has {limit}: choose at most that")
    return spec


def apply_granularity(shares: Sequence[float], spec: Spec, target: Target, full: Spec) -> Spec:
    """Return `spec` with a share of the hidden neurons for each block, as segments of equal blocks.

    Args:
        shares: of each block; none leave `spec` as it is.
        spec: the shape of a slice.
        target: as the user named it.
        full: the shape of the full model.

    Raises:
        WrongCall: for another number of shares than layers, and for a target with an MLP ratio.
    """
    if not shares:
        return spec
    if len(shares) != spec.layers or target.mlp_ratio is not None:
        raise WrongCall(
            f"granularity has {len(shares)} shares and the model {spec.layers} layers; give one "
            f"for each layer, and no {name_option('mlp_ratio')}"
        )
    has_fewer_heads = spec.heads_width != spec.width
    attention = {"attention_width": spec.heads_width} if has_fewer_heads else {}
    runs = [(share * full.mlp_ratio, len(list(blocks))) for share, blocks in groupby(shares)]
    front = tuple(
        Segment(
            layers=layers,
            width=spec.width,
            heads=spec.heads,
            mlp_ratio=ratio,
            stitch=False,
            **attention,
        )
        for ratio, layers in runs[:-1]
    )
    return spec.with_(mlp_ratio=runs[-1][0], front=front)


# All axes at once, so that `plan` has narrow and shallow models too; MatFormer's grid is the preset
# `paper`.
SIZES = NestedGrid(hidden=(0.25, 0.5), stream=(0.5,), blocks=(0.5,))

NESTED = Method(
    name="nested",
    title="one model whose slices are trained jointly as smaller models",
    paper=(
        "Devvrit, Kudugunta, Kusupati, Dettmers, Chen, Dhillon, Tsvetkov, Hajishirzi, Kakade, "
        "Farhadi, Jain. MatFormer: Nested Transformer for Elastic Inference. NeurIPS 2024"
    ),
    expander=NestedExpander(),
    presets={
        "mini": NestedExtractor(
            each=NestedSettings(grid=SIZES, training=replace(MINI, lr=5e-4)),
            teaching=replace(TRAINING, epochs=4, images=6000),
        ),
        # MatFormer learns from labels alone. It starts from random weights; the recipe's rate for
        # these would destroy pretrained ones.
        "paper": NestedExtractor(
            each=NestedSettings(share=0.0, training=replace(PAPER, lr=5e-5)),
            teaching=replace(PAPER, epochs=30, lr=1e-4),
        ),
        "smoke": NestedExtractor(
            each=NestedSettings(grid=SIZES, ranked=16, training=SMOKE), teaching=SMOKE
        ),
    },
    tasks="one",
    details=NestedDetails,
)
