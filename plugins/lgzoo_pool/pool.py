"""Learngene Pool: distil two auxiliary models from the ancestry model, stitch them, and build any path through both.

Shi, Xia, Yang, Chen, Kou and Geng, Building Variable-Sized Models via Learngene Pool, AAAI 2024, algorithm 1:

1. Two auxiliary models of l blocks, a narrow one and one as wide as the ancestry, are distilled from the frozen ancestry
   model (`distil`; the losses are in `objectives.py`). Their 2 l blocks are the learngene instances.
2. Stitches lead from blocks of the narrow model to blocks of the wide one (`paths.py`). They start from the
   transformation matrices that the distillation learned (`objectives.py`).
3. The pool is fine-tuned: every step trains one path, sampled anew (`fine_tune`, `objectives.py`).

A descendant is one path: `low` blocks of the narrow model, a stitch, `high` blocks of the wide one; or one of the two
models. Block j of the narrow model leads to a block k of the wide one with |j - k| <= 1, so that low + high is l - 1, l
or l + 1 in the interior of the pool: tables 1 and 2 of the paper are the paths of l blocks, k = j + 1.

Where the paper is silent: heads have the ancestry's head width in all stages (3 of them at width 192; the authors' code
distils with 3 and builds the pool with 12), and stitched paths have the final norm (the paper's tables count none).

`alpha` 1 with `stitch` ls uses no teacher: it is what the paper calls SN-Net with the auxiliary architectures, two
anchors trained on labels and stitched by least squares, which take the same storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import FLAT, BadFile, Expander, Extractor, Learngene, LearngeneConfig, Method, once
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.expand import build, choices, choose, spec_of
from lgzoo_pool.paths import Path
from lgzoo_pool.settings import (
    DEIT,
    POOL_TRAINING,
    AuxiliarySettings,
    PoolImages,
    PoolSettings,
    TuningSettings,
    work_of,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        FeatureLoss,
        Json,
        Member,
        Part,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        Work,
    )


@dataclass(frozen=True, kw_only=True)
class FillPool(Extractor):
    """Distil two auxiliary models from the ancestry model, stitch them, and fine-tune all paths together."""

    settings: PoolSettings = field(default=PoolSettings(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The anchors are the auxiliary models; the spec is the wide one's."""
        low, high = self.settings.auxiliaries(ancestries[0])
        return LearngeneConfig(method=POOL.name, spec=high, details=StitchedDetails.of([low, high]).json())

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Both auxiliary models and the fine-tuning of the pool; not the teacher's."""
        ancestry, settings = ancestries[0], self.settings
        specs = settings.auxiliaries(ancestry)
        paths = [spec_of(path, specs) for path in StitchedDetails.of(specs).layout.paths]
        parts = [work_of([spec], settings.training, images[0], ancestry, settings.imitates) for spec in specs]
        return [*parts, work_of(paths, settings.tuning, images[0], ancestry, settings.guided != "none")]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Algorithm 1. Both auxiliary models and the fine-tuning are parts of the run."""
        from learngene_zoo.plugin import teacher_for

        ancestry, task, settings = ancestries[0], tasks[0], self.settings
        config = self.outline([ancestry.spec])
        specs = [spec.with_(classes=task.classes, dense=task.dense) for spec in settings.auxiliaries(ancestry.spec)]
        images = PoolImages(task=task, input_format=ancestry.input_format, seed=run.seed)
        needed = settings.imitates or settings.guided != "none"
        teacher, taught = teacher_for(ancestry, task, settings.teaching, run) if needed else (None, {})

        imitated = teacher if settings.imitates else None
        low, high = (
            once(run.part(name), "pool.distil", distil, part, (spec, imitated, images))
            for name, part, spec in zip(("low", "high"), settings.distillations(), specs)
        )
        guide = teacher if settings.guided != "none" else None
        inputs = (specs, (low, high), ancestry.spec, guide, images)
        pool = once(run.part("tuning"), "pool.fine_tune", fine_tune, settings.fine_tuning(), inputs)

        details = replace(read_details(config), task=task.name, classes=task.classes, dense=task.dense)
        metrics = {**({"teacher": taught} if taught else {}), "low": low.record, "high": high.record, **pool.record}
        return Learngene(config=replace(config, details=details.json(), metrics=metrics), state=pool.state)


def distil(
    settings: AuxiliarySettings, spec: Spec, teacher: Descendant | None, images: PoolImages, run: Run
) -> tuple[StateDict, Json]:
    """Step 1: one auxiliary model, trained on labels and to imitate the ancestry model; and its matrices W and M."""
    from learngene_zoo.plugin import (
        Distilled,
        Teacher,
        assemble,
        derive_seed,
        evaluate,
        objective_for,
        open_device,
        state_of,
        train,
    )
    from lgzoo_pool.objectives import Imitation

    model = assemble(spec, {}, seed=derive_seed(run.seed, "init"), scheme=settings.init).model()
    batches = images.batches(settings.training, run)
    objective = objective_for(images.task, model, settings.training, derive_seed(run.seed, "attributes"))
    trained = {"model": model}
    if settings.imitating is not None and teacher is not None:
        imitation = Imitation(spec, teacher.spec, settings.imitating, derive_seed(run.seed, "matrices"))
        frozen = Teacher(teacher.model().to(open_device(run)), [block for _, block in imitation.levels])
        weights = (settings.imitating.alpha, 1 - settings.imitating.alpha)
        blocks = [block for block, _ in imitation.levels]
        objective = Distilled(objective, model, frozen, imitation, weights, blocks)
        trained["matrices"] = imitation
    for _ in train(objective, batches, settings.training, run, label=f"auxiliary model of width {spec.width}"):
        pass

    found = evaluate(model, images.task, "validation", images.input_format, run)
    record = {f"validation_{found.metric}": found.value, "validation_images": found.images}
    state = {f"{kind}.{name}": t for kind in trained for name, t in state_of(trained[kind].cpu()).items()}
    return state, {**record, "training_images": batches.images}


def fine_tune(
    settings: TuningSettings,
    specs: Sequence[Spec],
    models: Sequence[Part],
    ancestry: Spec,
    teacher: Descendant | None,
    images: PoolImages,
    run: Run,
) -> tuple[StateDict, Json]:
    """Steps 2 and 3: start the stitches, train one path in every step, and evaluate all of them."""
    from learngene_zoo.plugin import Teacher, open_device, state_of, train
    from lgzoo_pool.least_squares import fit_of, moments, solve, some_images
    from lgzoo_pool.network import anchors_state, initial_stitches, network_of, path_metrics, under
    from lgzoo_pool.objectives import SampledPaths, matrix_stitches

    layout, device, recipe = StitchedDetails.of(specs).layout, open_device(run), settings.paths.recipe
    anchors = anchors_state([under("model.", model.state) for model in models])
    network = network_of(specs, layout, {**anchors, **initial_stitches(specs, layout, run.seed)}).to(device)
    counted = moments(network, some_images(images.task, images.input_format, settings.stitch_images, run))
    if settings.stitch == "ls" or settings.stitch == "joint":
        stitches = solve(counted, joint=settings.stitch == "joint")
    else:
        matrices = [under("matrices.", model.state) for model in models]
        stitches = matrix_stitches(specs, layout, matrices, ancestry.width, settings.stitch)
    network.set_stitches(stitches)

    batches = images.batches(recipe, run)
    frozen = None if teacher is None else Teacher(teacher.model().to(device))
    tokens = None if teacher is None or not settings.paths.tokens else partial(compared, specs, teacher.spec, run.seed)
    objective = SampledPaths(network, images.task, settings.paths, run.seed, teacher=frozen, tokens=tokens)
    label = f"pool of {sum(spec.layers for spec in specs)} instances"
    for step in train(objective, batches, recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)

    tuned = {"training_images": batches.images, "epochs": recipe.epochs, "paths": len(layout.paths)}
    names = [path_settings(number, path) for number, path in enumerate(layout.paths)]
    paths = path_metrics(network, names, images.task, images.input_format, run, images=settings.paths.evaluated)
    return state_of(network.cpu()), {"tuning": {**tuned, "stitches": fit_of(counted, stitches)}, **paths}


def compared(specs: Sequence[Spec], teacher: Spec, seed: int, anchor: int) -> FeatureLoss:
    """What compares the last tokens of paths that end in an anchor with the teacher's."""
    from learngene_zoo.plugin import TokenLoss, derive_seed

    return TokenLoss(specs[anchor], teacher, derive_seed(seed, "tokens", anchor))


def path_settings(number: int, path: Path) -> Mapping[str, Json]:
    """The expander's settings that lead to a path: its number of blocks of the narrow and of the wide model."""
    low, high = (sum(part.stop - part.start for part in path.parts if part.anchor == anchor) for anchor in (0, 1))
    return {"low": low, "high": high}


@dataclass(frozen=True, kw_only=True)
class TakePath(Expander):
    """Take one path through the pool."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    low: Annotated[int | None, "blocks of the narrow model"] = None
    high: Annotated[int | None, "blocks of the wide model"] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every path of the pool: both models, and every pair of an instance with a next one."""
        _check_models(config)
        return [choice.member for choice in choices(config, path_settings)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it; of several paths that fit, the one with the most parameters. Its head is fresh for another task."""
        _check_models(learngene.config)
        choice = choose(learngene.config, path_settings, target, {"low": self.low, "high": self.high})
        return build(learngene, choice, task=target.task, seed=run.seed)


def _check_models(config: LearngeneConfig) -> None:
    layers = [anchor.layers for anchor in read_details(config).anchors]
    if len(layers) != 2 or layers[0] != layers[1]:
        raise BadFile(
            f"details of the pool learngene: expected two anchors with the same number of blocks, got {layers} blocks; "
            "extract or fetch it again"
        )


# The paper takes over SN-Net's settings; their rate of 5e-4 is for 512 images a step.
_PAPER = replace(DEIT, epochs=100, batch_size=128, lr=1.25e-4)
_MINI = replace(POOL_TRAINING, epochs=1, images=64_000, batch_size=32, lr=2e-3, warmup=0.05)
_SMOKE = replace(POOL_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
POOL = Method(
    name="pool",
    title="two models distilled from the ancestry and stitched together; every path through their blocks is a model",
    paper="Shi, Xia, Yang, Chen, Kou, Geng. Building Variable-Sized Models via Learngene Pool. AAAI 2024",
    expander=TakePath(),
    details=StitchedDetails,
    presets={
        # Ten minutes on one core with the bundled ancestry model. With so few steps stitches must start well, labels
        # would undo the distillation, and the answers to many classes say little (docs/methods/pool.md).
        "mini": FillPool(
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
        "paper": FillPool(
            settings=PoolSettings(
                training=_PAPER, tuning=replace(_PAPER, epochs=50), teaching=replace(_PAPER, epochs=30)
            )
        ),
        "smoke": FillPool(
            settings=PoolSettings(
                blocks=2, init="fan_in", low_levels=2, stitch_images=16, training=_SMOKE, tuning=_SMOKE, teaching=_SMOKE
            )
        ),
    },
    tasks="one",
    plot="lgzoo_pool.plot:picture",
)
