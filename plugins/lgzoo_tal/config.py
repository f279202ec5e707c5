"""The settings that TAL, LoGAH and GHN-3 share, as records, and what follows from them before anything is computed.

A hypernetwork is meta-trained in up to two stages: on a source task, then on all other tasks. `Stage` is everything that one
stage depends on beside its data, the ancestry model and the random seed. Both minimise

    (1 - alpha) CE + alpha guidance + norm_weight * sum of the predicted tensors' Frobenius norms

where only TAL's first stage has guidance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from learngene_zoo.plugin import Bounds, LearngeneConfig, Recipe, Spec, Work, WrongCall, check_bounds, find_entry
from lgzoo_tal.architectures import Rule, SetName, architectures, drawn, plain, scaled
from lgzoo_tal.hypernet_spec import HypernetSpec, check_target
from lgzoo_tal.learngene import Details

Direction = Literal["student-teacher", "teacher-student"]
Axis = Literal["features", "positions"]
Reduction = Literal["images", "classes"]
Projection = Literal["predicted", "random"]

# Cost of the hypernetwork's own forward and backward pass in a step, in images through one layer of a model of the ancestry's
# width: measured with the presets `mini`.
HYPERNET_STEP = 36

# Training of the released code of LoGAH and TAL. Augmentation would make the attributes of a source task wrong.
PUBLISHED = Recipe(
    epochs=75, batch_size=512, lr=3e-4, warmup=5, weight_decay=0.01, clip=5.0, label_smoothing=0.1, augment="none"
)


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The tasks of both stages, and what the hypernetwork learns from them."""

    source: Annotated[
        str | None, "task of stage 1, opened unless it is among the tasks (none: there is no stage 1)"
    ] = "forms"
    joint: Annotated[bool, "train one hypernetwork for all tasks of stage 2, or one for each"] = True
    sampling: Annotated[
        float, "temperature T of task sampling in stage 2, p ~ N^(1/T) for N images", Bounds(above=0)
    ] = 2.0
    task_layer: Annotated[bool, "condition the encoder on the task in stage 2, as TAL does"] = False
    embedding_images: Annotated[
        int | None, "training images that a task embedding is computed from (default: all)", Bounds(least=1)
    ] = None
    attributes: Annotated[
        bool, "also learn the source task's attributes, if it has any (they do not help short trainings)"
    ] = True

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class MetaStep:
    """What a training step of either stage does; how many images the result is evaluated on."""

    architectures: Annotated[SetName, "training architectures: LoGAH's (vits-1k), TAL's, or the deeper set of TAL+"] = (
        "vits-1k"
    )
    hold_out: Annotated[
        tuple[str, ...], "sizes to leave out of training: 12x96 (layers x width), 12 (layers) or x96 (width)"
    ] = ()
    meta_batch: Annotated[int, "architectures predicted and trained in each step", Bounds(least=1)] = 1
    norm_weight: Annotated[float, "weight of the predicted tensors' Frobenius norms in the loss", Bounds(least=0)] = (
        3e-5
    )
    judged: Annotated[
        int | None,
        "validation images of each task that three predicted models are evaluated on (default: all)",
        Bounds(least=0),
    ] = None

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How the ancestry model guides stage 1 of TAL (eq. 4)."""

    alpha: Annotated[
        float,
        "weight of the guidance in the loss of stage 1 (not given in the paper; 0.2 in the authors' code)",
        Bounds(above=0, most=1),
    ] = 0.2
    direction: Annotated[
        Direction,
        "KL divergence from the student's features to the ancestry's, as printed, or the reverse, as in the authors' code",
    ] = "student-teacher"
    temperature: Annotated[
        float, "temperature of the softmax over features (3 in the authors' code)", Bounds(above=0)
    ] = 1.0
    axis: Annotated[
        Axis, "softmax over the class token's features, or over all tokens for each feature, as in the work cited"
    ] = "features"
    reduction: Annotated[
        Reduction, "mean over images, or mean over images divided by the number of classes, as in the authors' code"
    ] = "images"
    projection: Annotated[
        Projection, "M, which maps a student's features to the ancestry's width: predicted, or random in each step"
    ] = "predicted"

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Everything that a stage depends on beside its data, the ancestry model and the seed."""

    hypernet: HypernetSpec
    step: MetaStep
    recipe: Recipe
    attributes: bool = False
    guidance: Guidance | None = None
    sampling: float = 2.0
    freeze: bool = False  # train only the decoder and the task layers


def stages(
    curriculum: Curriculum, step: MetaStep, hypernet: HypernetSpec, training: Recipe, tuning: Recipe, ancestry: Spec
) -> tuple[Stage, Stage]:
    """The settings of both stages; the second has a task layer if there is to be one."""
    conditioned = hypernet.with_(task=ancestry.width) if curriculum.task_layer else hypernet
    return (
        Stage(hypernet=hypernet, step=step, recipe=training, attributes=curriculum.attributes),
        Stage(hypernet=conditioned, step=step, recipe=tuning, sampling=curriculum.sampling),
    )


def check_recipes(training: Recipe, tuning: Recipe) -> None:
    """Raises `WrongCall` for what a model that exists for a single step cannot be trained with."""
    for stage, recipe in (("training", training), ("tuning", tuning)):
        for name, value in (("mixup", recipe.mixup), ("cutmix", recipe.cutmix), ("drop_path", recipe.drop_path)):
            if value:
                raise WrongCall(
                    f"{name} of the {stage} is {value}; it must be 0: predicted models are trained without it"
                )
        if recipe.compile:
            raise WrongCall(f"compile of the {stage} is on; it must be off: every step has another graph")


def short(recipe: Recipe, *, images: int, epochs: int = 1) -> Recipe:
    """The recipe for minutes of one CPU core: the presets `mini`."""
    return replace(recipe, epochs=epochs, images=images, batch_size=64, warmup=0.05)


def two_steps(recipe: Recipe) -> Recipe:
    """The recipe for two steps: the presets `smoke`."""
    return replace(recipe, epochs=1, images=32, batch_size=16, warmup=0.0)


def outline(method: str, stage: Stage, ancestry: Spec, *, known: bool = True) -> LearngeneConfig:
    """The config that an extraction writes whose last stage is `stage`.

    Without `known` the hypernetwork comes from a file and its size is left out. Raises `WrongCall` if the hypernetwork cannot
    predict the largest model of the architectures.
    """
    rule = scaled(stage.step.architectures, ancestry)
    if known:
        _check_reach(stage, rule, ancestry)
    details = Details(hypernet=stage.hypernet if known else None, layers=(min(rule.widths), max(rule.widths)))
    return LearngeneConfig(method=method, spec=plain(ancestry), details=details.json())


def _check_reach(stage: Stage, rule: Rule, ancestry: Spec) -> None:
    architectures(rule, hold_out=stage.step.hold_out, count=0)  # refuses what is not a size
    for width in sorted({width for _, width in rule.sizes}):
        try:
            check_target(stage.hypernet, rule.spec.with_(width=width, heads=width // ancestry.head_width))
        except WrongCall as error:  # a decoder for small pictures
            raise WrongCall(f"{error}, or `--preset paper`, whose decoder is for pictures of 224 pixels") from None


def work(curriculum: Curriculum, both: tuple[Stage, Stage], ancestry: Spec, images: Sequence[int]) -> list[Work]:
    """The cost of both stages; `images` are the training images of the tasks of stage 2."""
    first, second = both
    if curriculum.source is None:
        return [_work(second, images, ancestry)]
    entry = find_entry(curriculum.source)
    source = entry.sizes["train"] if entry else first.recipe.images or 0
    return [_work(first, [source], ancestry), _work(second, images, ancestry)]


def _work(stage: Stage, images: Sequence[int], ancestry: Spec) -> Work:
    recipe, specs = stage.recipe, drawn(stage.step.architectures, stage.step.hold_out, ancestry)
    layers = sum(spec.layers * spec.width for spec in specs) / len(specs) / ancestry.width
    return Work(
        images=sum(min(recipe.images or count, count) for count in images) * recipe.epochs,
        trained=stage.step.meta_batch * (layers + HYPERNET_STEP / recipe.batch_size),
        frozen=ancestry.layers if stage.guidance else 0,
    )
