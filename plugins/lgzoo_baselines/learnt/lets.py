"""LeTs: train a small model together with the transformations that widen and deepen it.

Xia, Zu, Yang and Geng, Initializing Variable-sized Vision Transformers from Learngene with
Learnable Transformation, NeurIPS 2024. From a source of S layers and width d, an auxiliary model of
T layers and width d' is computed in every forward pass:

    out     W+ = [W ; R W],  b+ = [b ; R b]        a layer that writes the wider stream, heads or
                                                   hidden channels
    in      W+ = [W , W R']                        a layer that reads them
    depth   theta_t = g_0 theta+_m + g_1 theta+_(m + 1)        m = 2 floor(floor(t S / T) / 2)

R has d' - d rows: one matrix for the stream, one of queries, keys, values and hidden channels each
for every layer of the source, one for the head's inputs. The pairs (g_0, g_1) are scalars of each
kind of tensor, one set for the layers t = 0 and 1, one for 2 and 3, and so on. All of them are
trained with the teacher's logits (`auxiliary.py`). A descendant has the first rows of every R, and
evenly spaced layers among t = 0, ..., T - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    LIMITS,
    Bounds,
    Expander,
    Extractor,
    LearngeneConfig,
    Member,
    Method,
    ViTSpec,
    WrongCall,
    adapt_rates,
    compute_once,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import build_descendant, list_smaller_members
from lgzoo_baselines.learnt.auxiliary import (
    AUXILIARY,
    LOGITS,
    HeadRecord,
    build_presets,
    collect_learngene,
    derive_auxiliary_spec,
    load_tensors,
    select_shapes,
    start_auxiliary,
)
from lgzoo_baselines.learnt.forms import list_matrices
from lgzoo_baselines.trained.pretrain_finetune import TRAINING
from lgzoo_baselines.trained.stored_models import Init, estimate_work
from lgzoo_baselines.trained.with_teacher import (
    DistillationSettings,
    TeacherName,
    TeacherTraining,
    prepare_teacher,
)

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

MATRICES = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")


@dataclass(frozen=True, kw_only=True)
class LetsDetails(HeadRecord):
    """Record what `details` of a learngene hold."""

    layers: Annotated[int, "layers of the source", Bounds(least=2, most=LIMITS["layers"])]
    heads: Annotated[int, "heads of the source", Bounds(least=1, most=LIMITS["heads"])]

    def derive_source_spec(self, auxiliary: Spec) -> Spec:
        """Return the source's shape from the auxiliary model's.

        Raises `WrongCall` for an odd number of layers, and for a source that is not smaller.
        """
        is_smaller = self.layers <= auxiliary.layers and self.heads <= auxiliary.heads
        if self.layers % 2 or not is_smaller:
            raise WrongCall(
                f"the source has {self.layers} layers and {self.heads} heads; expected an even "
                f"number of at most {auxiliary.layers} layers, and at most {auxiliary.heads} heads"
            )
        return auxiliary.with_(
            layers=self.layers,
            width=self.heads * auxiliary.head_width,
            heads=self.heads,
            classes=self.classes,
            dense=self.dense,
        )


@dataclass(frozen=True, kw_only=True)
class LetsExtractor(Extractor):
    """Train the source and its matrices in an auxiliary model as wide as the ancestry model."""

    each: DistillationSettings = field(default=LOGITS, metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING
    init: Init = "timm"
    auxiliary_layers: Annotated[
        int | None,
        "layers of the auxiliary model (default: the ancestry's)",
        Bounds(least=2, most=LIMITS["layers"]),
    ] = None
    source_layers: Annotated[
        int | None,
        "layers of the source model, an even number (default: half of the auxiliary model's)",
        Bounds(least=2, most=LIMITS["layers"]),
    ] = None
    source_heads: Annotated[
        int | None,
        "heads of the source model (default: half of the ancestry's)",
        Bounds(least=1, most=LIMITS["heads"]),
    ] = None

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary model's shape.

        Raises `WrongCall` for a source, or for a kind of block, that LeTs cannot have.
        """
        layers = self.auxiliary_layers or ancestries[0].layers
        spec = derive_plain_spec(derive_auxiliary_spec(ancestries[0], layers))
        half_depth, half_heads = max(spec.layers // 4 * 2, 2), (spec.heads + 1) // 2
        details = LetsDetails(
            layers=self.source_layers or half_depth, heads=self.source_heads or half_heads
        )
        details.derive_source_spec(spec)
        return LearngeneConfig(spec=spec).with_details(details)

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the auxiliary model's training; the teacher's fine-tuning is not counted."""
        specs, recipe = [self.outline(ancestries).spec], self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the source, and under `blocks.grow.` its matrices and scalars.

        The source has the positions of the auxiliary model.
        """
        from lgzoo_baselines.modules.lets import train_source

        ancestry, task, config = ancestries[0], tasks[0], self.outline([ancestries[0].spec])
        teacher, metrics = prepare_teacher(self.teacher, ancestry, task, self.teaching, run)
        part, details = run.part("auxiliary"), parse_details(config, LetsDetails).with_task(task)
        source = details.derive_source_spec(config.spec)
        start = start_auxiliary(source, self.init, ancestry, part.seed)
        inputs = [config.spec.layers, config.spec.heads, start, teacher, task]
        trained = compute_once(part, "lets.train", train_source, self.each, inputs)
        return collect_learngene(config, details, trained, metrics)


def derive_plain_spec(spec: Spec) -> ViTSpec:
    """Return the shape without LayerScale: none of the ancestry model's tensors is inherited.

    Raises `WrongCall` for another kind of block that cannot be grown.
    """
    assert isinstance(spec, ViTSpec)
    is_special = spec.qk_norm or not spec.qkv_bias
    if is_special or tuple(list_matrices(spec)) != MATRICES or spec.mlp_ratio % 1:
        raise WrongCall(
            "lets takes plain blocks alone, with biases, a whole mlp_ratio and no norms of queries "
            "and keys; choose another ancestry model"
        )
    return replace(spec, layer_scale=None)


@dataclass(frozen=True, kw_only=True)
class LetsExpander(Expander):
    """Transform the source to any size up to the auxiliary model's."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and every width from the source's to the auxiliary model's.

        Depths begin at 1; widths are whole heads.
        """
        min_width = parse_details(config, LetsDetails).derive_source_spec(config.spec).width
        members = list_smaller_members(config)
        return [member for member in members if member.spec.width >= min_width]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a wider and deeper source with resized positions.

        The head is new unless the task is the learngene's. Raises `WrongCall` for other sizes.
        """
        from learngene_zoo.plugin import get_shapes
        from lgzoo_baselines.modules.lets import grow_source, list_growth_shapes, plan_layers

        config = learngene.config
        details, auxiliary = parse_details(config, LetsDetails), config.spec
        named = target.whole_heads(auxiliary) if target.heads is None else target
        spec = named.apply(auxiliary)
        source = details.derive_source_spec(auxiliary)
        check_size(spec, source, auxiliary)
        expected = select_shapes(
            get_shapes(source), source, head=details.has_head_for(target, spec)
        )
        expected["pos_embed"] = (*expected["pos_embed"][:-1], auxiliary.width)
        stored = load_tensors(learngene, {**expected, **list_growth_shapes(source, auxiliary)})
        layers = plan_layers(source.layers, auxiliary.layers, spec.layers)
        parts = grow_source(stored, layers, spec.width - source.width, spec.width)
        provenance = {"blocks": [list(pair) for pair in layers]}
        return build_descendant(learngene, spec, parts, run, provenance)


def check_size(spec: Spec, source: Spec, auxiliary: Spec) -> None:
    """Raise `WrongCall` for a shape that is not between the source and the auxiliary model.

    Args:
        spec: the shape of a descendant.
        source: the narrowest shape.
        auxiliary: the widest and deepest shape.
    """
    is_between = source.width <= spec.width <= auxiliary.width and spec.layers <= auxiliary.layers
    if not is_between or spec.head_width != auxiliary.head_width:
        raise WrongCall(
            f"{spec.layers} layers of width {spec.width} with {spec.heads} heads; this learngene "
            f"builds at most {auxiliary.layers} layers, of width {source.width} to "
            f"{auxiliary.width}, in heads of {auxiliary.head_width}"
        )


PRESETS = build_presets(LetsExtractor, source_layers=2)

LETS = Method(
    name="lets",
    title="a small model and transformations that widen and deepen it, learnt by distillation",
    paper=(
        "Xia, Zu, Yang, Geng. Initializing Variable-sized Vision Transformers from Learngene with "
        "Learnable Transformation. NeurIPS 2024"
    ),
    expander=LetsExpander(),
    presets={
        **PRESETS,
        "paper": replace(
            PRESETS["paper"],
            auxiliary_layers=16,
            source_layers=8,
            each=replace(LOGITS, training=replace(AUXILIARY, epochs=300)),
        ),
    },
    tasks="one",
    details=LetsDetails,
)
