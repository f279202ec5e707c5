"""SN-Net: stitch whole pretrained models of several widths into one network of many sizes.

Pan, Cai and Zhuang, Stitchable Neural Networks, CVPR 2023. Two or three models, the anchors, are ordered from narrow to
wide. With f_1 .. f_l the blocks of an anchor, between its stem and its head, the stitch (j, k) runs

    stem, f_1 .. f_j of the narrower anchor, then a linear layer, then f_k .. f_l and the head of the wider one

1. `paths.py` says where stitches lie and which share a layer; every path through the anchors is a configuration.
2. The layers start from least squares over the features of a few images (`least_squares`).
3. Every step samples one configuration and trains it, on labels and on the answers of a teacher (`train_network`,
   `objectives.py`).

The paper's teacher is a RegNetY-16GF (`--teacher timm:regnety_160.deit_in1k`); without one it is the widest anchor as it came,
fine-tuned first if it was trained for another task. Configurations are numbered as in the released code: the anchors,
then the pairs of the first two, and so on; three anchors of twelve blocks each have 71. That code runs stitched
configurations without the final norm, and so its FLOPs are published; here they have it, unless the expander's `legacy`
is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    YOUNG,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Method,
    Recipe,
    WrongCall,
    derive_seed,
    once,
)
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.expand import build, choices, choose
from lgzoo_pool.paths import Layout, Path, Unequal
from lgzoo_pool.settings import (
    DEIT,
    TRAINING,
    LeastSquaresSettings,
    NetworkSettings,
    PathSettings,
    TeacherTargets,
    work_of,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Json,
        Member,
        Part,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        TimmModel,
        Work,
    )

_TRAINING = replace(TRAINING, lr=2e-4)


@dataclass(frozen=True, kw_only=True)
class Join(Extractor):
    """Stitch a family of ancestry models and train all configurations together."""

    nearest: Annotated[bool, "stitch neighbouring anchors only, two to a configuration"] = True
    window: Annotated[int, "neighbouring blocks that share their stitches", Bounds(least=1)] = 2
    stride: Annotated[int, "blocks by which the window slides", Bounds(least=1)] = 1
    unequal: Annotated[
        Unequal, "stitches to a deeper anchor: as in the released code, or by a window over the shallower one"
    ] = field(default="released", metadata=YOUNG)
    stitch: Annotated[
        Literal["ls", "random"], "initialisation of the stitches: least squares, or random as in a model from scratch"
    ] = "ls"
    stitch_images: Annotated[int, "training images for least squares", Bounds(least=1)] = 100
    trained: Annotated[Literal["all", "stitches"], "what to train: all weights, or stitches and class tokens"] = "all"
    guidance: Annotated[TeacherTargets, "targets from the teacher: its class, its logits, or none"] = "hard"
    teacher: Annotated[
        str | None,
        "the teacher instead of the widest anchor: timm:NAME, hf-hub:ORG/REPO or a folder, a classifier of the task",
    ] = None
    share: Annotated[float, "weight of the teacher's loss; the labels have the rest", Bounds(least=0, most=1)] = 0.5
    temperature: Annotated[float, "temperature of the logits with soft guidance", Bounds(above=0)] = 1.0
    judged: Annotated[
        int | None, "validation images for evaluating all configurations (default: all; 0: none)", Bounds(least=0)
    ] = None
    training: Recipe = _TRAINING
    teaching: Annotated[Recipe, "the teacher's fine-tuning if it was trained for another task"] = _TRAINING

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The anchors and their windows; the spec is the widest one's."""
        return LearngeneConfig(method=SNNET.name, spec=ancestries[-1], details=self._details(ancestries).json())

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """The joint training; least squares and the evaluation take seconds."""
        widest = ancestries[-1]
        paths = [member.spec for member in TakeConfiguration().family(self.outline(ancestries))]
        return [work_of(paths, self.training, images[0], widest, self.guidance != "none")]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Least squares, the teacher's fine-tuning and the joint training are parts of the run."""
        check_formats(ancestries)
        specs, task = [ancestry.spec for ancestry in ancestries], tasks[0]
        details = replace(self._details(specs), task=task.name, classes=task.classes, dense=task.dense)
        anchors, fresh = with_heads(ancestries, task, run.seed)

        start, metrics = None, {}
        if self.stitch == "ls":
            settings = LeastSquaresSettings(images=self.stitch_images)
            start = once(
                run.part("stitches"), "snnet.least_squares", least_squares, settings, (details.layout, anchors, task)
            )
            metrics["stitches"] = start.record
        teacher = None
        if self.guidance != "none" and self.share:
            teacher, taught = self._teacher(ancestries[-1], task, run)
            metrics |= {"teacher": taught} if taught else {}
        inputs = (details.layout, anchors, fresh, start or derive_seed(run.seed, "stitches"), teacher, task)
        network = once(run.part("training"), "snnet.train", train_network, self._training(), inputs)

        config = replace(self.outline(specs), details=details.json(), metrics={**metrics, **network.record})
        return Learngene(config=config, state=network.state)

    def _teacher(self, widest: Ancestry, task: Task, run: Run) -> tuple[Descendant | TimmModel, Json]:
        """The classifier that guides the training, and which it is or the metrics of its fine-tuning."""
        from learngene_zoo.plugin import teacher_for, teacher_named

        if self.teacher is not None:
            return teacher_named(self.teacher, task, run)
        return teacher_for(widest, task, self.teaching, run)

    def _details(self, specs: Sequence[Spec]) -> StitchedDetails:
        return StitchedDetails.of(
            specs, nearest=self.nearest, window=self.window, stride=self.stride, unequal=self.unequal
        )

    def _training(self) -> NetworkSettings:
        paths = PathSettings(
            recipe=self.training,
            guidance=self.guidance,
            share=self.share,
            temperature=self.temperature,
            evaluated=self.judged,
        )
        return NetworkSettings(trained=self.trained, paths=paths)


def check_formats(ancestries: Sequence[Ancestry]) -> None:
    """Raises `WrongCall` for anchors that need images in different formats."""
    formats = [ancestry.input_format for ancestry in ancestries]
    for place, (before, after) in enumerate(pairwise(formats), start=2):
        if (before.mean, before.std) != (after.mean, after.std):
            raise WrongCall(
                f"ancestries {place - 1} and {place} need images normalised differently: mean {list(before.mean)} and "
                f"{list(after.mean)}, standard deviation {list(before.std)} and {list(after.std)}; use models trained alike"
            )


def with_heads(ancestries: Sequence[Ancestry], task: Task, seed: int) -> tuple[tuple[Descendant, ...], bool]:
    """The anchors as models for the task, and whether any of them got a fresh head."""
    from learngene_zoo.plugin import assemble

    models = [assemble(one.spec, one.state, seed=seed, mean=one.record.mean, std=one.record.std) for one in ancestries]
    ready = tuple(
        model.for_task(task.name, task.class_names, seed=derive_seed(seed, "head", place), dense=task.dense)
        for place, model in enumerate(models)
    )
    return ready, any(after.state is not before.state for after, before in zip(ready, models))


def least_squares(
    settings: LeastSquaresSettings, layout: Layout, anchors: Sequence[Descendant], task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Step 2: the stitches that map the features of one anchor to those of the next best, and how well they do."""
    from learngene_zoo.plugin import open_device
    from lgzoo_pool.least_squares import fit_of, moments, solve, some_images
    from lgzoo_pool.network import stitched_anchors

    network = stitched_anchors(anchors, layout, run.seed).to(open_device(run))
    counted = moments(network, some_images(task, anchors[-1].input_format, settings.images, run))
    stitches = solve(counted)
    return stitches, {"images": settings.images, **fit_of(counted, stitches)}


def train_network(
    settings: NetworkSettings,
    layout: Layout,
    anchors: Sequence[Descendant],
    fresh: bool,
    start: Part | int,
    teacher: Descendant | TimmModel | None,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Step 3: train one configuration in every step, and evaluate all of them.

    `start` has the stitches, or is the seed of random ones; `fresh` says that heads are new.
    """
    from learngene_zoo.plugin import guide, state_of, train, training_images
    from lgzoo_pool.network import path_metrics, stitched_anchors
    from lgzoo_pool.objectives import SampledPaths, freeze_anchors

    recipe, input_format = settings.paths.recipe, anchors[-1].input_format
    network = stitched_anchors(anchors, layout, start if isinstance(start, int) else start.state)
    paths = freeze_anchors(network, heads=fresh) if settings.trained == "stitches" else layout.paths
    batches = training_images(task, input_format, recipe, run)
    frozen = None if teacher is None else guide(teacher, input_format, run)
    objective = SampledPaths(network, task, settings.paths, run.seed, paths=paths, teacher=frozen)
    for step in train(objective, batches, recipe, run, unused=True, label="stitched anchors"):
        objective.finished.fill_(step.step)

    trained = {"training_images": batches.images, "epochs": recipe.epochs, "paths": len(paths)}
    names = [path_settings(number, path) for number, path in enumerate(layout.paths)]
    found = path_metrics(network, names, task, input_format, run, images=settings.paths.evaluated)
    return state_of(network.cpu()), {"training": trained, **found}


def path_settings(number: int, path: Path) -> Mapping[str, Json]:
    """The expander's settings that lead to a path."""
    return {"config": number}


@dataclass(frozen=True, kw_only=True)
class TakeConfiguration(Expander):
    """Take one configuration."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    config: Annotated[int | None, "its number, as `lgzoo plan` lists it"] = None
    legacy: Annotated[bool, "leave the final norm out of stitched configurations, as in the released code"] = False

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every configuration, in the order of their numbers."""
        return [choice.member for choice in choices(config, path_settings, legacy=self.legacy)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it; of several that fit, the one with the most parameters. Its head is fresh for another task."""
        choice = choose(learngene.config, path_settings, target, {"config": self.config}, legacy=self.legacy)
        return build(learngene, choice, task=target.task, seed=run.seed)


_SMOKE = replace(_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
# The released settings; the learning rate is their 5e-5 for 512 images, times the 1024 of a step.
_PAPER = replace(DEIT, epochs=50, batch_size=1024, lr=1e-4)
SNNET = Method(
    name="snnet",
    title="whole models of several widths stitched together; every way from a narrow into a wide one is a model",
    paper="Pan, Cai, Zhuang. Stitchable Neural Networks. CVPR 2023",
    expander=TakeConfiguration(),
    details=StitchedDetails,
    presets={
        # 36 paths share the steps: with fewer images, or the paper's learning rate, stitched ones hardly improve on chance.
        "mini": Join(
            training=replace(_TRAINING, epochs=1, images=60_000, batch_size=64, lr=1.5e-3, warmup=0.05),
            teaching=replace(_TRAINING, epochs=4, images=6000),
            judged=1000,
        ),
        "paper": Join(training=_PAPER, teaching=replace(_PAPER, epochs=30)),
        "smoke": Join(stitch_images=16, training=_SMOKE, teaching=_SMOKE),
    },
    ancestries=(2, 3),
    tasks="one",
    plot="lgzoo_pool.plot:picture",
)
