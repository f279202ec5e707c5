"""Learngene Pool: distil two auxiliary models from the ancestry model and stitch them.

Shi, Xia, Yang, Chen, Kou and Geng, Building Variable-Sized Models via Learngene Pool, AAAI 2024,
algorithm 1:

1. Two auxiliary models of l blocks, a narrow one and one as wide as the ancestry, are distilled
   from the frozen ancestry model by eq. 8 (`distil` in `pool_steps.py`, `modules/objectives.py`).
   Their 2 l blocks are the learngene instances.
2. Stitch layers lead from blocks of the narrow model to blocks of the wide one (`paths.py`). They
   are initialised by the mean of the transformation matrices W of eq. 4.
3. The pool is fine-tuned: every step samples one path and trains it (`fine_tune` in
   `pool_steps.py`).

A descendant is one path: `low` blocks of the narrow model, a stitch, `high` blocks of the wide one;
or one of the two models. Block j of the narrow model leads to a block k of the wide one with
|j - k| <= 1, which is SN-Net's rule (the paper states none), so that low + high is l, l + 1 or
l + 2: tables 1 and 2 of the paper are the paths of l blocks, k = j + 1.

Not specified in the paper: heads have the ancestry's head width in all stages (3 of them at width
192; the authors' code distils with 3 and builds the pool with 12), and stitched paths have the
final norm (the paper's tables count it in the parameters, not in the FLOPs).

`alpha` 1 with `stitch` ls uses no teacher. It is our reading of the SN-Net in the paper's tables 1
and 2 ("equivalent storage resource costs"): two anchors of the auxiliary models' shapes, trained on
labels and stitched by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    BadFile,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Method,
    adapt_rates,
    compute_once,
)
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.expand import build_descendant, choose_candidate, derive_spec, list_candidates
from lgzoo_pool.pool_steps import distil, fine_tune, name_path
from lgzoo_pool.settings import (
    DEIT,
    POOL_TRAINING,
    PoolImages,
    PoolSettings,
    estimate_work,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Member,
        Run,
        Spec,
        Target,
        Task,
        Work,
    )


@dataclass(frozen=True, kw_only=True)
class PoolExtractor(Extractor):
    """Distil two auxiliary models, stitch them, and fine-tune all paths together."""

    settings: PoolSettings = field(default=PoolSettings(), metadata=FLAT)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr", "tuning_lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the auxiliary models as anchors; its spec is the wide one's."""
        low, high = self.settings.derive_auxiliaries(ancestries[0])
        return LearngeneConfig(spec=high).with_details(StitchedDetails.from_specs([low, high]))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate both auxiliary models and the fine-tuning of the pool, not the teacher's."""
        ancestry, settings, count = ancestries[0], self.settings, images[0]
        specs = settings.derive_auxiliaries(ancestry)
        paths = [
            derive_spec(path, specs) for path in StitchedDetails.from_specs(specs).layout.paths
        ]
        has_guide = settings.guidance_targets != "none"
        return [
            *(
                estimate_work([spec], settings.training, count, ancestry, settings.has_imitation)
                for spec in specs
            ),
            estimate_work(paths, settings.tuning, count, ancestry, has_guide),
        ]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Run algorithm 1. Both auxiliary models and the fine-tuning are parts of the run."""
        from learngene_zoo.plugin import train_teacher

        ancestry, task, settings = ancestries[0], tasks[0], self.settings
        config = self.outline([ancestry.spec])
        specs = [
            spec.with_(classes=task.classes, dense=task.dense)
            for spec in settings.derive_auxiliaries(ancestry.spec)
        ]
        images = PoolImages(task=task, input_format=ancestry.input_format, seed=run.seed)
        has_guide = settings.guidance_targets != "none"
        teacher, teacher_metrics = (
            train_teacher(ancestry, task, settings.teaching, run)
            if settings.has_imitation or has_guide
            else (None, {})
        )

        model = teacher if settings.has_imitation else None
        low, high = (
            compute_once(run.part(name), "pool.distil", distil, part, (spec, model, images))
            for name, part, spec in zip(
                ("low", "high"), settings.derive_auxiliary_settings(), specs
            )
        )
        inputs = (specs, (low, high), ancestry.spec, teacher if has_guide else None, images)
        pool = compute_once(
            run.part("tuning"), "pool.fine_tune", fine_tune, settings.derive_tuning(), inputs
        )

        details = replace(
            read_details(config), task=task.name, classes=task.classes, dense=task.dense
        )
        metrics = {
            **({"teacher": teacher_metrics} if teacher_metrics else {}),
            "low": low.record,
            "high": high.record,
            **pool.record,
        }
        config = replace(config.with_details(details), metrics=metrics)
        return Learngene(config=config, state=pool.state)


@dataclass(frozen=True, kw_only=True)
class PoolExpander(Expander):
    """Take one path through the pool."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    low: Annotated[int | None, "number of blocks of the narrow model"] = None
    high: Annotated[int | None, "number of blocks of the wide model"] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every path of the pool: both models, and every pair of instances."""
        _check_models(config)
        return [candidate.member for candidate in list_candidates(config, name_path)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build the path; of several that fit, the path with the most parameters.

        Its head is new for another task.
        """
        _check_models(learngene.config)
        settings = {"low": self.low, "high": self.high}
        candidate = choose_candidate(learngene.config, name_path, target, settings)
        return build_descendant(learngene, candidate, task=target.task, seed=run.seed)


def _check_models(config: LearngeneConfig) -> None:
    layers = [anchor.layers for anchor in read_details(config).anchors]
    if len(layers) != 2 or layers[0] != layers[1]:
        raise BadFile(
            "details of the pool learngene: expected two anchors with the same number of blocks, "
            f"got {layers} blocks; extract or fetch it again"
        )


# The paper takes over SN-Net's settings. We read its rate, 5e-4, as SN-Net's code reads rates: for
# 512 images a step.
_PAPER = replace(DEIT, epochs=100, batch_size=128, lr=1.25e-4)
_MINI = replace(POOL_TRAINING, epochs=1, images=64_000, batch_size=32, lr=2e-3, warmup=0.05)
_SMOKE = replace(POOL_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
POOL = Method(
    name="pool",
    title=(
        "two models distilled from the ancestry model and stitched; every path "
        "through their blocks is a descendant"
    ),
    paper=(
        "Shi, Xia, Yang, Chen, Kou, Geng. Building Variable-Sized Models via Learngene Pool. "
        "AAAI 2024"
    ),
    expander=PoolExpander(),
    details=StitchedDetails,
    presets={
        # Ten minutes on one core with the bundled ancestry model. With so few steps stitches must
        # start well, labels would undo the distillation, and the logits of many classes say little
        # (docs/results/pool.md).
        "mini": PoolExtractor(
            settings=PoolSettings(
                init="fan_in",
                stitch="joint",
                guidance_share=0.9,
                guidance_tokens=20.0,
                judged=1000,
                training=_MINI,
                tuning=replace(_MINI, images=96_000, lr=1e-3),
                teaching=replace(POOL_TRAINING, epochs=4, images=6000),
            )
        ),
        "paper": PoolExtractor(
            settings=PoolSettings(
                training=_PAPER,
                tuning=replace(_PAPER, epochs=50),
                teaching=replace(_PAPER, epochs=30),
            )
        ),
        "smoke": PoolExtractor(
            settings=PoolSettings(
                blocks=2,
                init="fan_in",
                low_levels=2,
                stitch_images=16,
                training=_SMOKE,
                tuning=_SMOKE,
                teaching=_SMOKE,
            )
        ),
    },
    tasks="one",
    plot="lgzoo_pool.plot:draw_picture",
)
