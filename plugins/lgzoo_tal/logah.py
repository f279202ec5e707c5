"""LoGAH: a graph hypernetwork with a low-rank decoder.

Zhou, Knyazev, Jolicoeur-Martineau and Fu, LoGAH: Predicting 774-Million-Parameter Transformers
using Graph HyperNetworks with 1/100 Parameters, arXiv 2405.16287, 2024.

A hypernetwork reads a ViT's graph and predicts its weights. A matrix is the product of two factors
of rank r, so the decoder grows linearly with the widest layer and not with its square (eq. 5):

    W = U V^T,   U (o, r) and V (i, r) from one MLP of the node's embedding

The meta-training, and the four protocols that TAL's tables compare, are in unguided.py.

A checkpoint of the authors' training code can be used instead of training (`--released`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Method
from lgzoo_tal.config import (
    PUBLISHED,
    Curriculum,
    MetaStep,
    Released,
    SourceRecipe,
    Stage,
    TasksRecipe,
    adapt_rows,
    build_outline,
    build_stages,
    check_recipes,
    estimate_work,
    limit_to_two_steps,
    list_sources,
    shorten_recipe,
)
from lgzoo_tal.hypernet_spec import HypernetDetails, LowRank
from lgzoo_tal.predict import HypernetExpander

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Learngene, Run, Spec, Task, Work

# The published form for texts, see modules/text_graph.py and modules/text_embeddings.py.
TINY = LowRank(embeddings="predicted", scale="std")
SMALL = replace(TINY, hidden=128, layers=5, heads=16, rank=90)
MINI = LowRank(
    rank=64, widest=512, chunk=1024, form="centred", places="relative", writers="by_depth"
)
SMOKE = LowRank(hidden=16, layers=1, heads=2, rank=4, widest=64, chunk=512, form="centred")


@dataclass(frozen=True, kw_only=True)
class LogahExtractor(Extractor):
    """Meta-train a hypernetwork with a low-rank decoder: on a source task, then on all others."""

    curriculum: Curriculum = field(default=Curriculum(), metadata=FLAT)
    step: MetaStep = field(default=MetaStep(), metadata=FLAT)
    released: Released = None
    training: SourceRecipe = PUBLISHED
    tuning: TasksRecipe = PUBLISHED
    hypernet: LowRank = TINY

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipes(self.training, self.tuning)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with enough rows in the factors for the ancestry model."""
        return replace(self, hypernet=adapt_rows(self.hypernet, ancestries[0]))

    def build_stages(self, ancestry: Spec) -> tuple[Stage, Stage]:
        """Return the settings of both stages."""
        spec = self.hypernet.build_spec()
        return build_stages(self.curriculum, self.step, spec, self.training, self.tuning, ancestry)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config of plain ViTs of the ancestry's size.

        Raises `WrongCall` if the decoder cannot predict such models.
        """
        _, stage_2 = self.build_stages(ancestries[0])
        return build_outline(stage_2, ancestries[0], is_known=self.released is None)

    def needs_tasks(self) -> bool:
        """Return whether a hypernetwork is trained."""
        return self.released is None

    def list_further_tasks(self, ancestries: Sequence[Spec]) -> tuple[str, ...]:
        """Return the source task of a training."""
        return list_sources(self.curriculum, ancestries[0]) if self.needs_tasks() else ()

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Return the cost of both stages."""
        stages = self.build_stages(ancestries[0])
        return estimate_work(self.curriculum, stages, ancestries[0], images)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Train stage 1 on the source task, then stage 2 on the other tasks."""
        from lgzoo_tal.modules.released import import_checkpoint
        from lgzoo_tal.unguided import meta_train_without_guidance

        ancestry, config = ancestries[0], self.outline([ancestries[0].spec])
        if self.released is not None:
            return import_checkpoint(self.released, "low_rank", config, run)
        stages = self.build_stages(ancestry.spec)
        return meta_train_without_guidance(self.curriculum, stages, config, ancestry, tasks, run)


LOGAH = Method(
    name="logah",
    title="a hypernetwork with a low-rank decoder predicts the weights of any size",
    paper=(
        "Zhou, Knyazev, Jolicoeur-Martineau, Fu. LoGAH: Predicting 774-Million-Parameter "
        "Transformers using Graph HyperNetworks with 1/100 Parameters. 2024"
    ),
    expander=HypernetExpander(),
    presets={
        "mini": LogahExtractor(
            curriculum=Curriculum(embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            training=shorten_recipe(PUBLISHED, images=100_000),
            tuning=shorten_recipe(PUBLISHED, images=4000, epochs=10),
            hypernet=MINI,
        ),
        "paper": LogahExtractor(hypernet=SMALL),
        "tiny": LogahExtractor(hypernet=TINY),
        "base": LogahExtractor(hypernet=replace(SMALL, hidden=256, rank=128)),
        "large": LogahExtractor(hypernet=replace(SMALL, hidden=256, layers=12, rank=256)),
        "smoke": LogahExtractor(
            curriculum=Curriculum(source=None, embedding_images=16),
            step=MetaStep(judged=0),
            training=limit_to_two_steps(PUBLISHED),
            tuning=limit_to_two_steps(PUBLISHED),
            hypernet=SMOKE,
        ),
    },
    tasks="many",
    families=("vit", "gpt2"),
    details=HypernetDetails,
    plot="lgzoo_tal.plot:draw_picture",
)
