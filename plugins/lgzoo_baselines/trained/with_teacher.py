"""Training with a teacher: settings, the teacher, and the distillation loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.plugin import (
    OMIT_DEFAULT,
    Bounds,
    Recipe,
    WrongCall,
    check_bounds,
    derive_seed,
    name_option,
)
from lgzoo_baselines.trained.pretrain_finetune import (
    TRAINING,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        FeatureLoss,
        InputFormat,
        Json,
        Model,
        Outsider,
        Run,
        Spec,
        StateDict,
        Task,
        Teacher,
        TimmModel,
    )

# Their weight in small presets: about as much as makes them count as much as the logits.
TOKENS = 20.0

# Settings of all methods with a teacher.
TeacherName = Annotated[
    str | None,
    "teacher instead of the ancestry model, a classifier of the task: "
    "timm:NAME, hf-hub:ORG/REPO or a folder",
]

TeacherTraining = Annotated[Recipe, "fine-tuning of the teacher if it was trained for another task"]


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """Configure the training of one model with a teacher."""

    share: Annotated[
        float, "weight of the distillation loss; the labels have the rest", Bounds(least=0, most=1)
    ] = 0.5
    temperature: Annotated[
        float, "temperature of the student's and the teacher's logits", Bounds(above=0)
    ] = 2.0
    tokens: Annotated[
        float,
        "weight of the distillation of the teacher's last tokens; 0: logits only",
        Bounds(least=0),
    ] = field(default=0.0, metadata=OMIT_DEFAULT)
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        check_bounds(self)


def prepare_teacher(
    name: str | None, ancestry: Ancestry, task: Task, recipe: Recipe, run: Run
) -> tuple[Descendant | TimmModel, dict[str, Any]]:
    """Return the teacher, and a record of which it is, or of its fine-tuning.

    Args:
        name: of another classifier of the task; None: the ancestry model with a head for the task.
        ancestry: the ancestry model.
        task: that teacher and student learn.
        recipe: of the ancestry model's fine-tuning, if this is not the task of its head.
        run: whose part `teacher` is the fine-tuning.
    """
    from learngene_zoo.plugin import open_teacher, train_teacher

    if name is None:
        return train_teacher(ancestry, task, recipe, run)
    return open_teacher(name, task, run)


def train_with_teacher(
    settings: DistillationSettings,
    model: Model,
    spec: Spec,
    images: InputFormat,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
    label: str,
) -> tuple[StateDict, Json]:
    """Train `model` with its teacher; return its tensors and its metrics.

    Args:
        settings: the recipe, and the shares of the losses.
        model: the student.
        spec: whose tokens the student has.
        images: the format of the student's images.
        teacher: a classifier of the task.
        task: whose images they see.
        run: how to compute.
        label: of the progress bar.
    """
    from learngene_zoo.plugin import (
        Distilled,
        get_state_dict,
        guide,
        load_training_images,
        make_objective,
        measure_validation,
        train,
    )

    recipe, share = settings.training, settings.share
    frozen = guide(teacher, images, run)
    labels = make_objective(task, model, recipe, derive_seed(run.seed, "attributes"))
    imitation = build_imitation_loss(settings, spec, teacher, frozen, run)
    objective = Distilled(labels, model, frozen, imitation, (1 - share, share))
    loader = load_training_images(task, images, recipe, run)
    for _ in train(objective, loader, recipe, run, label=label):
        pass
    metrics = measure_validation(model, task, images, recipe, run)
    return get_state_dict(model), {**metrics, "training_images": loader.images}


def build_imitation_loss(
    settings: DistillationSettings,
    spec: Spec,
    teacher: Descendant | TimmModel,
    frozen: Teacher | Outsider,
    run: Run,
) -> FeatureLoss:
    """Build the loss between a student of shape `spec` and its teacher.

    Args:
        settings: the temperature of the logits, and the weight of the tokens.
        spec: the shape of the student.
        teacher: a classifier of the task.
        frozen: the same teacher, as the training calls it.
        run: gives the seed of the maps between tokens.

    Raises:
        WrongCall: where tokens count and the teacher's cannot be compared.
    """
    from learngene_zoo.plugin import Descendant, LossSum, Teacher, TokenLoss, make_logits_loss

    logits = make_logits_loss(temperature=settings.temperature)
    if not settings.tokens:
        return logits
    if not isinstance(frozen, Teacher):
        raise WrongCall(
            f"tokens is {settings.tokens:g}, and only the answers are known of a teacher that is "
            "no Vision Transformer or sees images of another size or normalisation; use "
            f"{name_option('tokens', 0)}"
        )
    assert isinstance(teacher, Descendant)  # `guide` returns a `Teacher` for no other type
    tokens = TokenLoss(spec, teacher.spec, derive_seed(run.seed, "tokens"))
    return LossSum([(1.0, logits), (settings.tokens, tokens)])
