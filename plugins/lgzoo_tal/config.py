"""Settings that TAL, LoGAH and GHN-3 share, and the facts that follow before any computation.

A hypernetwork is meta-trained in up to two stages: on a source task, then on all other tasks.
`Stage` is everything that one stage depends on beside its data, the ancestry model and the random
seed. Both minimise

    (1 - alpha) CE + alpha guidance + norm_weight * sum of the predicted tensors' Frobenius norms

where only TAL's first stage has guidance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from learngene_zoo.plugin import (
    Bounds,
    LearngeneConfig,
    Recipe,
    Spec,
    TextSpec,
    Work,
    WrongCall,
    check_bounds,
    find_entry,
)
from lgzoo_tal.architectures import (
    Rule,
    SetName,
    compute_mean_size,
    derive_plain_spec,
    draw_architectures,
    scale_rule,
)
from lgzoo_tal.hypernet_spec import (
    Decoder,
    HypernetDetails,
    HypernetSpec,
    LowRank,
    check_target,
    count_rows,
)

Direction = Literal["student-teacher", "teacher-student"]
Axis = Literal["features", "positions"]
Reduction = Literal["images", "classes"]
Projection = Literal["predicted", "random"]
SOURCE = "forms"  # the default task of stage 1
# Fields that several methods have.
Released = Annotated[
    str | None,
    "released checkpoint to use instead of training: a file, or hf-hub:organisation/name/file",
]
SourceRecipe = Annotated[Recipe, "training of stage 1"]
TasksRecipe = Annotated[
    Recipe, "training of stage 2; an epoch has as many images as all its tasks together"
]

# Cost of the hypernetwork's own forward and backward pass in a step, in images through one layer of
# a model of the ancestry's width: measured with the presets `mini`.
HYPERNET_STEP = 36

ROWS = 1024  # of the factors in the presets `mini`, which become a multiple of it (`adapt_rows`)

# Training of the released code of LoGAH and TAL. Augmentation would make the attributes of a source
# task wrong.
PUBLISHED = Recipe(
    epochs=75,
    batch_size=512,
    lr=3e-4,
    warmup=5,
    weight_decay=0.01,
    clip=5.0,
    label_smoothing=0.1,
    augment="none",
)


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The tasks of both stages, and the outputs that the hypernetwork is trained for."""

    source: Annotated[
        str | None,
        "task of stage 1 (none: skip stage 1, as for text models by default)",
    ] = SOURCE
    joint: Annotated[
        bool, "train one hypernetwork for all tasks of stage 2 instead of one per task"
    ] = True
    sampling: Annotated[
        float,
        "temperature T of task sampling in stage 2, p ~ N^(1/T) for N images",
        Bounds(above=0),
    ] = 2.0
    task_layer: Annotated[bool, "condition the encoder on the task in stage 2, as TAL does"] = False
    embedding_images: Annotated[
        int | None,
        "number of training images for a task embedding (none: all)",
        Bounds(least=1),
    ] = None
    attributes: Annotated[
        bool,
        "also train on the source task's attributes, if it has any (no benefit in short trainings)",
    ] = True

    def __post_init__(self) -> None:
        check_bounds(self)

    def for_inputs(self, ancestry: Spec) -> "Curriculum":
        """Return this curriculum for an ancestry model's inputs.

        The default source task has images; without another one there is no stage 1 on texts.
        """
        is_default = isinstance(ancestry, TextSpec) and self.source == SOURCE
        return replace(self, source=None) if is_default else self


@dataclass(frozen=True, kw_only=True)
class MetaStep:
    """The training step of either stage; the number of images that the result is evaluated on."""

    architectures: Annotated[
        SetName,
        "set of training architectures: LoGAH's (vits-1k), TAL's, the deeper set of TAL+, or "
        "LoGAH's for GPT-2 (gpts-1k); all but the last are scaled to the ancestry model",
    ] = "vits-1k"
    hold_out: Annotated[
        tuple[str, ...],
        "sizes to leave out of training: 12x96 (layers x width), 12 (layers) or x96 (width)",
    ] = ()
    meta_batch: Annotated[
        int, "number of architectures predicted and trained in each step", Bounds(least=1)
    ] = 1
    norm_weight: Annotated[
        float, "weight of the predicted tensors' Frobenius norms in the loss", Bounds(least=0)
    ] = 3e-5
    judged: Annotated[
        int | None,
        "number of validation images per task for the evaluation of three "
        "predicted models (none: all)",
        Bounds(least=0),
    ] = None

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How the ancestry model guides stage 1 of TAL (eq. 4)."""

    alpha: Annotated[
        float,
        "weight of the guidance in the loss of stage 1 (not given in the paper; 0.2 in the "
        "authors' code)",
        Bounds(above=0, most=1),
    ] = 0.2
    direction: Annotated[
        Direction,
        "direction of the KL divergence: KL(student || ancestry) as in eq. 4, or "
        "the reverse, as in the authors' code",
    ] = "student-teacher"
    temperature: Annotated[
        float, "temperature of the softmax over features (3 in the authors' code)", Bounds(above=0)
    ] = 1.0
    axis: Annotated[
        Axis,
        "softmax over the features of the class token, or over all tokens for "
        "each feature, as in Shu et al. (2021)",
    ] = "features"
    reduction: Annotated[
        Reduction,
        "mean over images, or mean over images divided by the number of classes, as in the "
        "authors' code",
    ] = "images"
    projection: Annotated[
        Projection,
        "matrix M from the student's feature width to the ancestry's: predicted, "
        "or random in each step as in the authors' code",
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


def build_stages(
    curriculum: Curriculum,
    step: MetaStep,
    hypernet: HypernetSpec,
    training: Recipe,
    tuning: Recipe,
    ancestry: Spec,
) -> tuple[Stage, Stage]:
    """Return the settings of both stages; the second has the task layer, if there is one.

    Args:
        curriculum: the tasks of both stages.
        step: the training step of either stage.
        hypernet: the hypernetwork without a task layer.
        training: the recipe of stage 1.
        tuning: the recipe of stage 2.
        ancestry: the shape of the ancestry model, whose width is that of a task embedding.
    """
    hypernet = hypernet.for_inputs(ancestry)
    conditioned = hypernet.with_(task=ancestry.width) if curriculum.task_layer else hypernet
    return (
        Stage(hypernet=hypernet, step=step, recipe=training, attributes=curriculum.attributes),
        Stage(hypernet=conditioned, step=step, recipe=tuning, sampling=curriculum.sampling),
    )


def adapt_rows(hypernet: LowRank, ancestry: Spec, decoder: Decoder = "low_rank") -> LowRank:
    """Return the size of a hypernetwork whose factors have enough rows for an ancestry model.

    The number of rows is increased to a multiple of `ROWS` where the largest tensor of a model of
    the ancestry's width needs more, as that of patches of 14 pixels does.

    Args:
        hypernet: the size, as a preset has it.
        ancestry: the shape of the ancestry model.
        decoder: "projected" also needs a row for each row of the ancestry model's matrices.
    """
    spec = hypernet.build_spec().with_(decoder=decoder).for_inputs(ancestry)
    needed = max(count_rows(spec, derive_plain_spec(ancestry)).values())
    if decoder == "projected":
        needed = max(needed, count_matrix_rows(ancestry))
    return replace(hypernet, chunk=max(hypernet.chunk, -(-needed // ROWS) * ROWS))


def count_matrix_rows(ancestry: Spec) -> int:
    """Return the rows of the largest matrix in an ancestry model's blocks.

    It is that of the hidden neurons, or of queries, keys and values.
    """
    return max(ancestry.hidden, 3 * ancestry.width)


def check_recipes(training: Recipe, tuning: Recipe) -> None:
    """Check that models that exist for a single step can be trained so. Raises `WrongCall`."""
    for stage, recipe in (("training", training), ("tuning", tuning)):
        for name in ("mixup", "cutmix", "drop_path"):
            if value := getattr(recipe, name):
                raise WrongCall(
                    f"{name} of the {stage} is {value}; it must be 0: "
                    "predicted models are trained without it"
                )
        if recipe.layer_decay != 1:
            raise WrongCall(
                f"layer_decay of the {stage} is {recipe.layer_decay}; it must be 1: "
                "a hypernetwork has one learning rate for all layers"
            )
        if recipe.compile:
            raise WrongCall(
                f"compile of the {stage} is on; it must be off: every step has another graph"
            )


def shorten_recipe(recipe: Recipe, *, images: int, epochs: int = 1) -> Recipe:
    """Return the recipe for minutes of one CPU core, as in the presets `mini`."""
    return replace(recipe, epochs=epochs, images=images, batch_size=64, warmup=0.05)


def limit_to_two_steps(recipe: Recipe) -> Recipe:
    """Return the recipe for two steps, as in the presets `smoke`."""
    return replace(recipe, epochs=1, images=32, batch_size=16, warmup=0.0)


def build_outline(stage: Stage, ancestry: Spec, *, is_known: bool = True) -> LearngeneConfig:
    """Return the config that an extraction writes.

    Args:
        stage: the last stage of the extraction.
        ancestry: the shape of the ancestry model.
        is_known: False if the hypernetwork comes from a file; its size is then left out.

    Raises:
        WrongCall: if the hypernetwork cannot predict the largest model of the architectures.
    """
    rule = scale_rule(stage.step.architectures, ancestry)
    if is_known:
        _check_reach(stage, rule, ancestry)
    details = HypernetDetails(
        hypernet=stage.hypernet if is_known else None,
        layers=(min(rule.widths), max(rule.widths)),
    )
    return LearngeneConfig(spec=derive_plain_spec(ancestry)).with_details(details)


def _check_reach(stage: Stage, rule: Rule, ancestry: Spec) -> None:
    draw_architectures(rule, hold_out=stage.step.hold_out, count=0)  # refuses what is not a size
    for width in sorted({width for _, width in rule.sizes}):
        heads = rule.heads or width // ancestry.head_width
        check_target(stage.hypernet, rule.spec.with_(width=width, heads=heads), ancestry)


def list_sources(curriculum: Curriculum, ancestry: Spec) -> tuple[str, ...]:
    """Return the task of stage 1, which the extraction opens itself; () without one."""
    source = curriculum.for_inputs(ancestry).source
    return () if source is None else (source,)


def estimate_work(
    curriculum: Curriculum, stages: tuple[Stage, Stage], ancestry: Spec, images: Sequence[int]
) -> list[Work]:
    """Return the cost of both stages.

    Args:
        curriculum: the tasks of both stages.
        stages: the settings of both stages.
        ancestry: the shape of the ancestry model.
        images: the number of training images of each task of stage 2.
    """
    first, second = stages
    source = curriculum.for_inputs(ancestry).source
    if source is None:
        return [_estimate_stage(second, images, ancestry)]
    entry = find_entry(source)
    source_images = entry.sizes["train"] if entry else first.recipe.images or 0
    return [
        _estimate_stage(first, [source_images], ancestry),
        _estimate_stage(second, images, ancestry),
    ]


def _estimate_stage(stage: Stage, images: Sequence[int], ancestry: Spec) -> Work:
    recipe = stage.recipe
    rule = scale_rule(stage.step.architectures, ancestry)
    layers = compute_mean_size(rule, stage.step.hold_out) / ancestry.width
    return Work(
        images=sum(min(recipe.images or count, count) for count in images) * recipe.epochs,
        trained=stage.step.meta_batch * (layers + HYPERNET_STEP / recipe.batch_size),
        frozen=ancestry.layers if stage.guidance else 0,
    )
