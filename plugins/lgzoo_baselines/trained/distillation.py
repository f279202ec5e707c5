"""Distillation: every size trained by itself on the source task, with the ancestry as its teacher.

The baseline that learngenes are to replace where an ancestry model exists: its knowledge is
distilled once per size, not condensed once for all (Hinton, Vinyals and Dean, Distilling the
Knowledge in a Neural Network, 2015, section 2).

    loss = (1 - share) L_task + share t^2 KL(softmax(teacher / t) || softmax(student / t))

L_task is the loss of ordinary training on the task. With `tokens` w > 0 the student's tokens learn
too, + share w L_tokens (`TokenLoss`): with many classes, logits alone say little before a student
is good.

If the ancestry model was trained for this task, its head gives the teacher's logits; for any other
task it is fine-tuned first. With `--teacher` any other classifier of the task is the teacher, such
as the LeViT-384 and RegNetY-16GF of learngene papers, and the ancestry model gives the shape. Each
size is a part of the run, and tensors are named, as in `pretrain_finetune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.plugin import (
    FLAT,
    OMIT_DEFAULT,
    Bounds,
    Extractor,
    LearngeneConfig,
    Method,
    Part,
    Recipe,
    WrongCall,
    check_bounds,
    derive_seed,
    once,
)
from lgzoo_baselines.trained.pretrain_finetune import (
    DEPTHS,
    MINI,
    PAPER,
    SMOKE,
    TRAINING,
    Depths,
    Init,
    PretrainFinetuneDetails,
    PretrainFinetuneExpander,
    Widths,
    check_sizes,
    collect_models,
    estimate_work,
    list_specs,
    name_size,
    outline_models,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        FeatureLoss,
        InputFormat,
        Json,
        Learngene,
        Model,
        Outsider,
        Run,
        Spec,
        StateDict,
        Task,
        Teacher,
        TimmModel,
        Work,
    )


# Their weight in small presets: about as much as makes them count as much as the logits.
TOKENS = 20.0

# Settings of all methods with a teacher.
TeacherName = Annotated[
    str | None,
    "another teacher than the ancestry model: timm:NAME, hf-hub:ORG/REPO or a folder, a classifier "
    "of the task",
]
TeacherTraining = Annotated[Recipe, "the teacher's fine-tuning, if the task is not its own"]


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """Configure the training of one model with a teacher."""

    share: Annotated[
        float, "the teacher's share of the loss; the rest is the labels'", Bounds(least=0, most=1)
    ] = 0.5
    temperature: Annotated[
        float, "divides the logits of student and teacher before their softmax", Bounds(above=0)
    ] = 2.0
    tokens: Annotated[
        float,
        "weight of the teacher's last tokens beside its answers; 0: answers alone",
        Bounds(least=0),
    ] = field(default=0.0, metadata=OMIT_DEFAULT)
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class DistillationExtractor(Extractor):
    """Train a model of each size on the source task, with the ancestry model as its teacher."""

    depths: Depths = DEPTHS
    widths: Widths = ()
    init: Init = "timm"
    each: DistillationSettings = field(default=DistillationSettings(), metadata=FLAT)
    teacher: TeacherName = None
    teaching: TeacherTraining = TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.depths, self.widths)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the largest model's shape. Raises `WrongCall` as `list_specs`."""
        return outline_models(self.depths, self.widths, ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate one training for each size; the teacher's fine-tuning is not counted."""
        specs, recipe = list_specs(self.depths, self.widths, ancestries[0]), self.each.training
        return estimate_work(specs, ancestries[0], recipe, images[0], has_teacher=True)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Prepare the teacher, then train the models, each a part of the run; heads are dropped."""
        from learngene_zoo.plugin import assemble

        ancestry, task = ancestries[0], tasks[0]
        teacher, metrics = prepare_teacher(self.teacher, ancestry, task, self.teaching, run)
        images: Any = {name: getattr(ancestry.record, name) for name in ("mean", "std", "view")}
        config, trained = self.outline([ancestry.spec]), dict[str, Part]()
        for size in list_specs(self.depths, self.widths, ancestry.spec):
            name = name_size(size, config.spec)
            part, spec = run.part(name), size.with_(classes=task.classes, dense=task.dense)
            seed = derive_seed(part.seed, "init")
            student = assemble(spec, {}, seed=seed, scheme=self.init, **images)
            trained[name] = once(
                part, "distillation.distil", distil_model, self.each, [student, teacher, task]
            )
        return collect_models(config, trained, {"teacher": metrics} if metrics else {})


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
    from learngene_zoo.plugin import teacher_for, teacher_named

    if name is None:
        return teacher_for(ancestry, task, recipe, run)
    return teacher_named(name, task, run)


def distil_model(
    settings: DistillationSettings,
    student: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Return the student's tensors after its training, without the head, and its metrics."""
    from learngene_zoo.plugin import without_head

    spec, images = student.spec, student.input_format
    label = f"distilling {spec.layers} layers on {task.name}"
    state, metrics = train_with_teacher(
        settings, student.model(), spec, images, teacher, task, run, label
    )
    return without_head(state, spec), metrics


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
        evaluate,
        guide,
        objective_for,
        state_of,
        train,
        training_images,
    )

    recipe, share = settings.training, settings.share
    frozen = guide(teacher, images, run)
    labels = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    imitation = build_imitation_loss(settings, spec, teacher, frozen, run)
    objective = Distilled(labels, model, frozen, imitation, (1 - share, share))
    loader = training_images(task, images, recipe, run)
    for _ in train(objective, loader, recipe, run, label=label):
        pass
    validation = evaluate(model, task, "validation", images, run)
    metrics = {
        f"validation_{validation.metric}": validation.value,
        "validation_images": validation.images,
    }
    return state_of(model), {**metrics, "training_images": loader.images}


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
    from learngene_zoo.plugin import Descendant, LossSum, Teacher, TokenLoss, logits_loss

    logits = logits_loss(temperature=settings.temperature)
    if not settings.tokens:
        return logits
    if not isinstance(frozen, Teacher):
        raise WrongCall(
            f"tokens is {settings.tokens:g}, and only the answers are known of a teacher that is "
            "no Vision Transformer or sees images of another size or normalisation; use --tokens 0"
        )
    assert isinstance(teacher, Descendant)  # `guide` returns a `Teacher` for no other type
    tokens = TokenLoss(spec, teacher.spec, derive_seed(run.seed, "tokens"))
    return LossSum([(1.0, logits), (settings.tokens, tokens)])


DISTILLATION = Method(
    name="distillation",
    title="every size distilled from the ancestry by itself, and all of them stored",
    paper="Hinton, Vinyals, Dean. Distilling the Knowledge in a Neural Network. 2015",
    expander=PretrainFinetuneExpander(),
    presets={
        "mini": DistillationExtractor(
            init="fan_in",
            each=DistillationSettings(tokens=TOKENS, training=MINI),
            teaching=replace(TRAINING, epochs=4, images=6000),
        ),
        # DeiT's soft distillation (Touvron et al., 2021, equation 1 and table 9).
        "paper": DistillationExtractor(
            depths=tuple(range(5, 16)),
            each=DistillationSettings(share=0.1, temperature=3.0, training=PAPER),
            teaching=replace(PAPER, epochs=30, lr=1e-4),
        ),
        "smoke": DistillationExtractor(
            depths=(1, 2),
            init="fan_in",
            each=DistillationSettings(training=SMOKE),
            teaching=SMOKE,
        ),
    },
    families=("vit", "eva"),
    tasks="one",
    details=PretrainFinetuneDetails,
)
