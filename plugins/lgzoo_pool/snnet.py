"""SN-Net: stitch pretrained models of several widths into one network of many sizes.

Pan, Cai and Zhuang, Stitchable Neural Networks, CVPR 2023. Two or three models, the anchors, are
ordered from narrow to wide. With f_1 .. f_l the blocks of an anchor, between its stem and its head,
the stitch (j, k) runs

    stem, f_1 .. f_j of the narrower anchor, a linear layer, f_k .. f_l and the head of the wider

1. `paths.py` determines the positions of stitches and which share a layer; every path through the
   anchors is a configuration.
2. The stitches are initialised by least squares over the features of a few images
   (`start_stitches` in `snnet_steps.py`).
3. Every step samples one configuration and trains it with labels and a teacher (`train_network` in
   `snnet_steps.py`, `modules/objectives.py`).

The paper's teacher is a RegNetY-16GF (`--teacher timm:regnety_160.deit_in1k`); without one it is
the original widest anchor, fine-tuned first if it was trained for another task. Configurations
are numbered as in the released code: the anchors, then the pairs of the first two, and so on; three
anchors of twelve blocks each have 71. That code runs stitched configurations without the final
norm, as its published FLOPs show; here they have it, unless the expander's `legacy` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from learngene_zoo.plugin import (
    OMIT_DEFAULT,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Method,
    Recipe,
    adapt_rates,
    compute_once,
    derive_seed,
)
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.expand import build_descendant, choose_candidate, list_candidates
from lgzoo_pool.paths import Unequal
from lgzoo_pool.settings import (
    DEIT,
    TRAINING,
    LeastSquaresSettings,
    NetworkSettings,
    PathSettings,
    TeacherTargets,
    estimate_work,
)
from lgzoo_pool.snnet_steps import check_formats, name_path, start_stitches, train_network

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Json,
        Member,
        Run,
        Spec,
        Target,
        Task,
        TimmModel,
        Work,
    )

_TRAINING = replace(TRAINING, lr=2e-4)


@dataclass(frozen=True, kw_only=True)
class SnnetExtractor(Extractor):
    """Stitch a family of ancestry models and train all configurations together."""

    nearest: Annotated[bool, "stitch neighbouring anchors only, at most two per configuration"] = (
        True
    )
    window: Annotated[int, "number of adjacent blocks that share a stitch", Bounds(least=1)] = 2
    stride: Annotated[int, "step of the window, in blocks", Bounds(least=1)] = 1
    unequal: Annotated[
        Unequal,
        "pairs of blocks for anchors of unequal depth: as in the released code, "
        "or by a window over the shallower one",
    ] = field(default="released", metadata=OMIT_DEFAULT)
    stitch: Annotated[
        Literal["ls", "random"],
        "initialisation of the stitches: least squares or random",
    ] = "ls"
    stitch_images: Annotated[
        int, "number of training images for least squares", Bounds(least=1)
    ] = 100
    trained: Annotated[
        Literal["all", "stitches"],
        "weights to train: all, or only stitches, class tokens and new heads",
    ] = "all"
    guidance: Annotated[
        TeacherTargets, "distillation targets: the teacher's class, its logits, or none"
    ] = "hard"
    teacher: Annotated[
        str | None,
        "teacher instead of the widest anchor, a classifier of the task: "
        "timm:NAME, hf-hub:ORG/REPO or a folder",
    ] = None
    share: Annotated[
        float, "weight of the distillation loss; the labels have the rest", Bounds(least=0, most=1)
    ] = 0.5
    temperature: Annotated[
        float, "temperature of the logits with soft guidance", Bounds(above=0)
    ] = 1.0
    judged: Annotated[
        int | None,
        "number of validation images for the evaluation of all configurations "
        "(none: all; 0: none of them)",
        Bounds(least=0),
    ] = None
    training: Recipe = _TRAINING
    teaching: Annotated[Recipe, "fine-tuning of the teacher if it was trained for another task"] = (
        _TRAINING
    )

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the anchors and their windows; its spec is the widest one's."""
        return LearngeneConfig(spec=ancestries[-1]).with_details(self._derive_details(ancestries))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the joint training; least squares and the evaluation take seconds."""
        paths = [member.spec for member in SnnetExpander().family(self.outline(ancestries))]
        has_teacher = self.guidance != "none"
        return [estimate_work(paths, self.training, images[0], ancestries[-1], has_teacher)]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Start the stitches, prepare the teacher and train all configurations, each as a part."""
        check_formats(ancestries)
        specs, task = [ancestry.spec for ancestry in ancestries], tasks[0]
        details = replace(
            self._derive_details(specs), task=task.name, classes=task.classes, dense=task.dense
        )
        anchors, has_new_heads = attach_heads(ancestries, task, run.seed)

        start, metrics = None, {}
        if self.stitch == "ls":
            start = compute_once(
                run.part("stitches"),
                "snnet.least_squares",
                start_stitches,
                LeastSquaresSettings(images=self.stitch_images),
                (details.layout, anchors, task),
            )
            metrics["stitches"] = start.record
        teacher = None
        if self.guidance != "none" and self.share:
            teacher, teacher_metrics = self._prepare_teacher(ancestries[-1], task, run)
            metrics |= {"teacher": teacher_metrics} if teacher_metrics else {}
        stitches = start or derive_seed(run.seed, "stitches")
        inputs = (details.layout, anchors, has_new_heads, stitches, teacher, task)
        network = compute_once(
            run.part("training"), "snnet.train", train_network, self._derive_training(), inputs
        )

        config = self.outline(specs).with_details(details)
        config = replace(config, metrics={**metrics, **network.record})
        return Learngene(config=config, state=network.state)

    def _prepare_teacher(
        self, widest: Ancestry, task: Task, run: Run
    ) -> tuple[Descendant | TimmModel, Json]:
        """Return the classifier that guides the training, and its name or metrics."""
        from learngene_zoo.plugin import open_teacher, train_teacher

        if self.teacher is not None:
            return open_teacher(self.teacher, task, run)
        return train_teacher(widest, task, self.teaching, run)

    def _derive_details(self, specs: Sequence[Spec]) -> StitchedDetails:
        return StitchedDetails.from_specs(
            specs,
            nearest=self.nearest,
            window=self.window,
            stride=self.stride,
            unequal=self.unequal,
        )

    def _derive_training(self) -> NetworkSettings:
        paths = PathSettings(
            recipe=self.training,
            guidance=self.guidance,
            share=self.share,
            temperature=self.temperature,
            evaluated=self.judged,
        )
        return NetworkSettings(trained=self.trained, paths=paths)


def attach_heads(
    ancestries: Sequence[Ancestry], task: Task, seed: int
) -> tuple[tuple[Descendant, ...], bool]:
    """Return the anchors as models for the task, and whether any of them has a new head."""
    from learngene_zoo.plugin import assemble

    models = [
        assemble(
            ancestry.spec,
            ancestry.state,
            seed=seed,
            mean=ancestry.record.mean,
            std=ancestry.record.std,
            view=ancestry.record.view,
        )
        for ancestry in ancestries
    ]
    anchors = tuple(
        model.for_task(
            task.name, task.class_names, seed=derive_seed(seed, "head", number), dense=task.dense
        )
        for number, model in enumerate(models)
    )
    has_new_heads = any(after.state is not before.state for after, before in zip(anchors, models))
    return anchors, has_new_heads


@dataclass(frozen=True, kw_only=True)
class SnnetExpander(Expander):
    """Take one configuration."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    config: Annotated[int | None, "number of the configuration, as listed by lgzoo plan"] = None
    legacy: Annotated[
        bool, "omit the final norm of stitched configurations, as in the released code"
    ] = False

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every configuration, in the order of their numbers."""
        candidates = list_candidates(config, name_path, legacy=self.legacy)
        return [candidate.member for candidate in candidates]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build the configuration; of several that fit, that with the most parameters.

        Its head is new for another task.
        """
        candidate = choose_candidate(
            learngene.config, name_path, target, {"config": self.config}, legacy=self.legacy
        )
        return build_descendant(learngene, candidate, task=target.task, seed=run.seed)


_SMOKE = replace(_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
# The released settings; the learning rate is their 5e-5 for 512 images, times the 1024 of a step.
_PAPER = replace(DEIT, epochs=50, batch_size=1024, lr=1e-4)
SNNET = Method(
    name="snnet",
    title=(
        "pretrained models of several widths, stitched; every path from a narrow "
        "to a wider one is a model"
    ),
    paper="Pan, Cai, Zhuang. Stitchable Neural Networks. CVPR 2023",
    expander=SnnetExpander(),
    details=StitchedDetails,
    presets={
        # 36 paths share the steps: with fewer images, or the paper's learning rate, stitched ones
        # hardly improve on chance.
        "mini": SnnetExtractor(
            training=replace(
                _TRAINING, epochs=1, images=60_000, batch_size=64, lr=1.5e-3, warmup=0.05
            ),
            teaching=replace(_TRAINING, epochs=4, images=6000),
            judged=1000,
        ),
        "paper": SnnetExtractor(training=_PAPER, teaching=replace(_PAPER, epochs=30)),
        "smoke": SnnetExtractor(stitch_images=16, training=_SMOKE, teaching=_SMOKE),
    },
    ancestries=(2, 3),
    tasks="one",
    plot="lgzoo_pool.plot:draw_picture",
)
