"""GHN-3: a graph hypernetwork with a convolutional decoder.

Knyazev, Hwang and Lacoste-Julien, Can We Scale Transformers to Predict Parameters of Diverse
ImageNet Models?, ICML 2023.

A hypernetwork reads a ViT's graph and predicts its weights. From a node's embedding the decoder
predicts a block of at most K x K channels, where K is the width of the encoder; larger tensors are
tiled with copies of it.

The meta-training is that of unguided.py. The paper trains on ImageNet, which corresponds to
`--task forms` or another task given by `--source`. Further tasks are trained in a second stage;
`--task-layer` conditions it on the task.

The released checkpoints can be used instead of training:
`--released hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from learngene_zoo.plugin import FLAT, Extractor, LearngeneConfig, Method
from lgzoo_tal.config import (
    PUBLISHED,
    Curriculum,
    MetaStep,
    Released,
    SourceRecipe,
    Stage,
    TasksRecipe,
    build_outline,
    build_stages,
    check_recipes,
    estimate_work,
    limit_to_two_steps,
    list_sources,
    shorten_recipe,
)
from lgzoo_tal.hypernet_spec import Conv, HypernetDetails
from lgzoo_tal.predict import HypernetExpander

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Learngene, Run, Spec, Task, Work

_RECIPE = replace(PUBLISHED, batch_size=128, lr=4e-4)  # of the released code
_TINY = Conv()


@dataclass(frozen=True, kw_only=True)
class Ghn3Extractor(Extractor):
    """Meta-train a hypernetwork with a convolutional decoder: on a source task, then on others."""

    curriculum: Curriculum = field(default=Curriculum(), metadata=FLAT)
    step: MetaStep = field(default=MetaStep(), metadata=FLAT)
    released: Released = None
    training: SourceRecipe = _RECIPE
    tuning: TasksRecipe = _RECIPE
    hypernet: Conv = _TINY

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recipes(self.training, self.tuning)

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
        """Train stage 1 on the source task, then stage 2 on the other tasks, if there are any."""
        from lgzoo_tal.modules.released import import_checkpoint
        from lgzoo_tal.unguided import meta_train_without_guidance

        ancestry, config = ancestries[0], self.outline([ancestries[0].spec])
        if self.released is not None:
            return import_checkpoint(self.released, "conv", config, run)
        stages = self.build_stages(ancestry.spec)
        return meta_train_without_guidance(self.curriculum, stages, config, ancestry, tasks, run)


GHN3 = Method(
    name="ghn3",
    title="a hypernetwork with a convolutional decoder predicts the weights of any size",
    paper=(
        "Knyazev, Hwang, Lacoste-Julien. Can We Scale Transformers to Predict Parameters of "
        "Diverse ImageNet Models? ICML 2023"
    ),
    expander=HypernetExpander(),
    presets={
        "mini": Ghn3Extractor(
            curriculum=Curriculum(embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            training=shorten_recipe(_RECIPE, images=100_000),
            tuning=shorten_recipe(_RECIPE, images=4000, epochs=10),
            hypernet=Conv(form="centred", places="relative", writers="by_depth"),
        ),
        "paper": Ghn3Extractor(
            hypernet=Conv(hidden=384, layers=24, heads=16), step=MetaStep(meta_batch=16)
        ),
        "t": Ghn3Extractor(step=MetaStep(meta_batch=8)),
        "s": Ghn3Extractor(
            hypernet=Conv(hidden=128, layers=5, heads=16), step=MetaStep(meta_batch=8)
        ),
        "l": Ghn3Extractor(
            hypernet=Conv(hidden=256, layers=12, heads=16), step=MetaStep(meta_batch=8)
        ),
        "smoke": Ghn3Extractor(
            curriculum=Curriculum(source=None, embedding_images=16),
            step=MetaStep(judged=0),
            training=limit_to_two_steps(_RECIPE),
            tuning=limit_to_two_steps(_RECIPE),
            hypernet=Conv(hidden=16, layers=1, heads=2),
        ),
    },
    tasks="many",
    families=("vit", "gpt2"),
    details=HypernetDetails,
    plot="lgzoo_tal.plot:draw_picture",
)
