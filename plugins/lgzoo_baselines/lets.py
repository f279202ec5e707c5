"""LeTs: a small model and the matrices that make it wider and deeper are learnt together; every size between is read off them.

Xia, Zu, Yang and Geng, Initializing Variable-sized Vision Transformers from Learngene with Learnable Transformation, NeurIPS 2024.
From a source of S layers and width d, an auxiliary model of T layers and width d' is made in every pass:

    out     W+ = [W ; R W],  b+ = [b ; R b]        a layer that writes the wider stream, heads or hidden channels
    in      W+ = [W , W R']                        a layer that reads them
    depth   theta_t = g_0 theta+_m + g_1 theta+_(m + 1)        m = 2 floor(floor(t S / T) / 2)

R has d' - d rows: one for the stream, one of queries, keys, values and hidden channels each for every layer of the source, one for the head's
inputs. The pairs (g_0, g_1) are scalars of each kind of tensor, one set for the layers t = 0 and 1, one for 2 and 3, and so on. All
of it learns from the teacher's answers (`auxiliary.py`). A descendant has the first rows of every R, and layers at even distances among t = 0, ..., T - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import (
    LIMITS,
    Bounds,
    Expander,
    LearngeneConfig,
    Member,
    Method,
    ViTSpec,
    WrongCall,
    details_of,
    once,
)
from lgzoo_baselines.auxiliary import (
    ANSWERS,
    AUXILIARY,
    Origin,
    Taught,
    held,
    opened,
    presets,
    read_from,
    without_token,
)
from lgzoo_baselines.block_choice import completed, narrower
from lgzoo_baselines.forms import matrices

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Learngene, Part, Run, Spec, Target, Task, TimmModel

SOURCE = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")


@dataclass(frozen=True, kw_only=True)
class Details(Origin):
    """What `details` of a learngene hold."""

    layers: Annotated[int, "of the source", Bounds(least=2, most=LIMITS["layers"])]
    heads: Annotated[int, "of the source", Bounds(least=1, most=LIMITS["heads"])]

    def source(self, whole: Spec) -> Spec:
        """The shape of the source of this auxiliary model. Raises `WrongCall` for one that is none."""
        if self.layers % 2 or self.layers > whole.layers or self.heads > whole.heads:
            raise WrongCall(
                f"the source has {self.layers} layers and {self.heads} heads; expected an even number of at most "
                f"{whole.layers} layers, and at most {whole.heads} heads"
            )
        return whole.with_(
            layers=self.layers,
            width=self.heads * whole.head_width,
            heads=self.heads,
            classes=self.classes,
            dense=self.dense,
        )


@dataclass(frozen=True, kw_only=True)
class Transform(Taught):
    """Train the source and its matrices in an auxiliary model as wide as the ancestry model."""

    method = "lets"

    auxiliary_layers: Annotated[
        int | None,
        "layers of the auxiliary model (default: as many as the ancestry has)",
        Bounds(least=2, most=LIMITS["layers"]),
    ] = None
    source_layers: Annotated[
        int | None,
        "layers of the source, an even number (default: half of the auxiliary model's)",
        Bounds(least=2, most=LIMITS["layers"]),
    ] = None
    source_heads: Annotated[
        int | None, "heads of the source (default: half of the ancestry's)", Bounds(least=1, most=LIMITS["heads"])
    ] = None

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The auxiliary model's shape. Raises `WrongCall` for a source or a kind of block that it cannot be made of."""
        spec = without_token(ancestries[0], self.auxiliary_layers or ancestries[0].layers)
        assert isinstance(spec, ViTSpec)
        special = spec.layer_scale is not None or spec.qk_norm or not spec.qkv_bias
        if special or tuple(matrices(spec)) != SOURCE or spec.mlp_ratio % 1:
            raise WrongCall(
                "lets takes plain blocks alone, with biases and a whole mlp_ratio, without layer scale; choose another ancestry model"
            )
        halves = max(spec.layers // 4 * 2, 2), (spec.heads + 1) // 2
        details = Details(layers=self.source_layers or halves[0], heads=self.source_heads or halves[1])
        details.source(spec)
        return LearngeneConfig(method=self.method, spec=spec, details=details.json())

    def learnt(
        self, config: LearngeneConfig, ancestry: Ancestry, teacher: Descendant | TimmModel, task: Task, part: Run
    ) -> tuple[Origin, Part]:
        """The source, with the positions of the auxiliary model, and under `blocks.grow.` matrices and scalars."""
        from learngene_zoo.plugin import initial
        from lgzoo_baselines.grown_blocks import grown

        details = details_of(config, Details).of(task)
        spec = details.source(config.spec)
        start = opened(spec, initial(spec, part.seed, self.init), ancestry, part.seed)
        sizes = [config.spec.layers, config.spec.heads]
        return details, once(part, "lets.train", grown, self.each, [*sizes, start, teacher, task])


@dataclass(frozen=True, kw_only=True)
class Grow(Expander):
    """Transform the source to any size up to the auxiliary model's."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the auxiliary model's, with every width in whole heads from the source's to the auxiliary model's."""
        least = details_of(config, Details).source(config.spec).width
        return [member for member in narrower(config) if member.spec.width >= least]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Positions resized, a new head unless the task is the learngene's. Raises `WrongCall` for other sizes."""
        from learngene_zoo.plugin import shapes
        from lgzoo_baselines.grown_blocks import grow_shapes, plan, sized

        config = learngene.config
        details, whole = details_of(config, Details), config.spec
        spec = (target.whole_heads(whole) if target.heads is None else target).apply(whole)
        source = details.source(whole)
        if (
            not source.width <= spec.width <= whole.width
            or spec.layers > whole.layers
            or spec.head_width != whole.head_width
        ):
            raise WrongCall(
                f"{spec.layers} layers of width {spec.width} with {spec.heads} heads; this learngene builds at most {whole.layers} "
                f"layers, of width {source.width} to {whole.width}, in heads of {whole.head_width}"
            )
        expected = read_from(shapes(source), source, head=details.serves(target, spec))
        expected["pos_embed"] = (*expected["pos_embed"][:-1], whole.width)
        stored = held(learngene, {**expected, **grow_shapes(source, whole)})
        layers = plan(source.layers, whole.layers, spec.layers)
        parts = sized(stored, layers, spec.width - source.width, spec.width)
        return completed(config, spec, parts, run, {"blocks": [list(pair) for pair in layers]})


SHARED = presets(Transform, source_layers=2)

LETS = Method(
    name="lets",
    title="a small model and the matrices that widen and deepen it, learnt by distillation",
    paper=(
        "Xia, Zu, Yang, Geng. Initializing Variable-sized Vision Transformers from Learngene with Learnable Transformation. "
        "NeurIPS 2024"
    ),
    expander=Grow(),
    presets={
        **SHARED,
        "paper": replace(
            SHARED["paper"],
            auxiliary_layers=16,
            source_layers=8,
            each=replace(ANSWERS, training=replace(AUXILIARY, epochs=300)),
        ),
    },
    tasks="one",
    details=Details,
)
