"""Distillation: every size trained by itself on the source task, with the ancestry model as its teacher.

What learngenes are to replace where an ancestry model exists: its knowledge is distilled once per size, not condensed once
for all (Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015, section 2).

    loss = (1 - share) L_task + share t^2 KL(softmax(teacher / t) || softmax(student / t))

L_task is the loss of ordinary training on the task. With `tokens` w > 0 the student's tokens learn too, + share w L_tokens
(`TokenLoss`): of many classes, answers alone say little before a student is good. If the ancestry model was trained for this task, its own head answers for
the teacher; for any other task it is fine-tuned first. With `--teacher` any other classifier of the task is the teacher, such as
the LeViT-384 and RegNetY-16GF of learngene papers, and the ancestry model gives the shape. Each size is a part of the run, and tensors are named, as in
`pretrain_finetune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.plugin import FLAT, YOUNG, Bounds, Method, Part, Recipe, WrongCall, check_bounds, derive_seed, once
from lgzoo_baselines.pretrain_finetune import MINI, PAPER, SMOKE, TRAINING, Details, Sizes, Take, place, stored, work_of

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


TOKENS = 20.0  # their weight in small presets: about what makes them count as much as answers


@dataclass(frozen=True, kw_only=True)
class Distilling:
    """How the model of one size is trained."""

    share: Annotated[float, "the teacher's share of the loss; the rest is the labels'", Bounds(least=0, most=1)] = 0.5
    temperature: Annotated[float, "divides the logits of student and teacher before their softmax", Bounds(above=0)] = (
        2.0
    )
    tokens: Annotated[
        float, "weight of the teacher's last tokens beside its answers; 0: answers alone", Bounds(least=0)
    ] = field(default=0.0, metadata=YOUNG)
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Distil(Sizes):
    """Train a model of each size on the source task, with the ancestry model as its teacher."""

    method = "distillation"

    each: Distilling = field(default=Distilling(), metadata=FLAT)
    teacher: Annotated[
        str | None,
        "another teacher than the ancestry model: timm:NAME, hf-hub:ORG/REPO or a folder, a classifier of the task",
    ] = None
    teaching: Annotated[Recipe, "the teacher's fine-tuning, if the task is not its own"] = TRAINING

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One training for each size; the teacher's fine-tuning is not counted."""
        return work_of(self.specs(ancestries[0]), ancestries[0], self.each.training, images[0], taught=True)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Prepare the teacher, then train the sizes one after the other, each a part of the run; their heads are dropped."""
        from learngene_zoo.plugin import assemble

        ancestry, task = ancestries[0], tasks[0]
        teacher, metrics = teacher_of(self.teacher, ancestry, task, self.teaching, run)
        record, outline, trained = ancestry.record, self.outline([ancestry.spec]), dict[str, Part]()
        for size in self.specs(ancestry.spec):
            where = place(size, outline.spec)
            part, spec = run.part(where), size.with_(classes=task.classes, dense=task.dense)
            seed = derive_seed(part.seed, "init")
            student = assemble(
                spec, {}, seed=seed, scheme=self.init, mean=record.mean, std=record.std, view=record.view
            )
            trained[where] = once(part, "distillation.distil", distilled, self.each, [student, teacher, task])
        return stored(outline, trained, {"teacher": metrics} if metrics else {})


def teacher_of(
    named: str | None, ancestry: Ancestry, task: Task, recipe: Recipe, run: Run
) -> tuple[Descendant | TimmModel, dict[str, Any]]:
    """The teacher that is named, or the ancestry model with a head for the task; and which it is, or how it was fine-tuned."""
    from learngene_zoo.plugin import teacher_for, teacher_named

    return teacher_for(ancestry, task, recipe, run) if named is None else teacher_named(named, task, run)


def distilled(
    settings: Distilling, student: Descendant, teacher: Descendant | TimmModel, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """The tensors of the student after training with its teacher, without its head, and its metrics."""
    from learngene_zoo.plugin import without_head

    spec = student.spec
    label = f"distilling {spec.layers} layers on {task.name}"
    state, metrics = taught(settings, student.model(), spec, student.input_format, teacher, task, run, label)
    return without_head(state, spec), metrics


def taught(
    settings: Distilling,
    model: Model,
    spec: Spec,
    images: InputFormat,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
    label: str,
) -> tuple[StateDict, Json]:
    """Train `model`, with the tokens of `spec`, on images of this format with its teacher; its tensors, and its metrics."""
    from learngene_zoo.plugin import (
        Distilled,
        evaluate,
        guide,
        objective_for,
        state_of,
        train,
        training_images,
    )

    recipe, share, frozen = settings.training, settings.share, guide(teacher, images, run)
    labels = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    imitation = imitated(settings, spec, teacher, frozen, run)
    objective = Distilled(labels, model, frozen, imitation, (1 - share, share))
    loader = training_images(task, images, recipe, run)
    for _ in train(objective, loader, recipe, run, label=label):
        pass
    validation = evaluate(model, task, "validation", images, run)
    metrics = {f"validation_{validation.metric}": validation.value, "validation_images": validation.images}
    return state_of(model), {**metrics, "training_images": loader.images}


def imitated(
    settings: Distilling, spec: Spec, teacher: Descendant | TimmModel, frozen: Teacher | Outsider, run: Run
) -> FeatureLoss:
    """What a student of shape `spec` takes from its teacher. Raises `WrongCall` where the teacher's tokens cannot be compared."""
    from learngene_zoo.plugin import Descendant, LossSum, Teacher, TokenLoss, logits_loss

    answers = logits_loss(temperature=settings.temperature)
    if not settings.tokens:
        return answers
    if not isinstance(frozen, Teacher):
        raise WrongCall(
            f"tokens is {settings.tokens:g}, and only the answers are known of a teacher that is no Vision Transformer or sees images of "
            "another size or normalisation; use --tokens 0"
        )
    assert isinstance(teacher, Descendant)  # what `guide` says of others: only their answers are known
    compared = TokenLoss(spec, teacher.spec, derive_seed(run.seed, "tokens"))
    return LossSum([(1.0, answers), (settings.tokens, compared)])


DISTILLATION = Method(
    name=Distil.method,
    title="every size distilled from the ancestry by itself, and all of them stored",
    paper="Hinton, Vinyals, Dean. Distilling the Knowledge in a Neural Network. 2015",
    expander=Take(),
    presets={
        "mini": Distil(
            init="fan_in",
            each=Distilling(tokens=TOKENS, training=MINI),
            teaching=replace(TRAINING, epochs=4, images=6000),
        ),
        # DeiT's soft distillation (Touvron et al., 2021, equation 1 and table 9).
        "paper": Distil(
            depths=tuple(range(5, 16)),
            each=Distilling(share=0.1, temperature=3.0, training=PAPER),
            teaching=replace(PAPER, epochs=30, lr=1e-4),
        ),
        "smoke": Distil(depths=(1, 2), init="fan_in", each=Distilling(training=SMOKE), teaching=SMOKE),
    },
    families=("vit", "eva"),
    tasks="one",
    details=Details,
)
