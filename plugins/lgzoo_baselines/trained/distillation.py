"""Distillation: a separate model for every size, trained with the ancestry model as teacher.

The baseline that learngenes are meant to replace: the ancestry model is distilled once per size
instead of once for all sizes (Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural
Network, 2015, section 2).

    loss = (1 - share) L_task + share t^2 KL(softmax(teacher / t) || softmax(student / t))

L_task is the usual loss of the task. With `tokens` w > 0 the loss has another term, share w
L_tokens (`TokenLoss`): with many classes, logits alone give little information early in training.

If the ancestry model was trained for this task, its head gives the teacher's logits; for any other
task it is fine-tuned first. With `--teacher` any other classifier of the task is the teacher, such
as the LeViT-384 and RegNetY-16GF of learngene papers, and the ancestry model gives the shape. Each
size is a part of the run, and tensors are named, as in `pretrain_finetune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from learngene_zoo.plugin import (
    FLAT,
    Extractor,
    LearngeneConfig,
    Method,
    Part,
    adapt_rates,
    compute_once,
    derive_seed,
)
from lgzoo_baselines.trained.pretrain_finetune import (
    MINI,
    PAPER,
    SMOKE,
    TRAINING,
    PretrainFinetuneExpander,
)
from lgzoo_baselines.trained.stored_models import (
    DEPTHS,
    Depths,
    Init,
    PretrainFinetuneDetails,
    Widths,
    check_sizes,
    collect_models,
    estimate_work,
    list_specs,
    name_size,
    outline_models,
)
from lgzoo_baselines.trained.with_teacher import (
    TOKENS,
    DistillationSettings,
    TeacherName,
    TeacherTraining,
    prepare_teacher,
    train_with_teacher,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Json,
        Learngene,
        Run,
        Spec,
        StateDict,
        Task,
        TimmModel,
        Work,
    )


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

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

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
        images["files"] = ancestry.files
        config, trained = self.outline([ancestry.spec]), dict[str, Part]()
        for size in list_specs(self.depths, self.widths, ancestry.spec):
            name = name_size(size, config.spec)
            part, spec = run.part(name), size.with_(classes=task.classes, dense=task.dense)
            seed = derive_seed(part.seed, "init")
            student = assemble(spec, {}, seed=seed, scheme=self.init, **images)
            trained[name] = compute_once(
                part, "distillation.distil", distil_model, self.each, [student, teacher, task]
            )
        return collect_models(config, trained, {"teacher": metrics} if metrics else {})


def distil_model(
    settings: DistillationSettings,
    student: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Return the student's tensors after its training, without the head, and its metrics."""
    from learngene_zoo.plugin import remove_head

    spec, images = student.spec, student.input_format
    label = f"distilling {spec.layers} layer{'' if spec.layers == 1 else 's'} on {task.name}"
    state, metrics = train_with_teacher(
        settings, student.model(), spec, images, teacher, task, run, label
    )
    return remove_head(state, spec), metrics


DISTILLATION = Method(
    name="distillation",
    title="a separate model for every size, distilled from the ancestry model",
    paper="Hinton, Vinyals, Dean. Distilling the Knowledge in a Neural Network. 2015",
    expander=PretrainFinetuneExpander(),
    presets={
        "mini": DistillationExtractor(
            init="fan_in",
            each=DistillationSettings(tokens=TOKENS, training=MINI),
            teaching=replace(TRAINING, epochs=4, images=6000),
        ),
        # DeiT's soft distillation (Touvron et al., 2021).
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
    families=("vit", "eva", "gpt2", "bert"),
    tasks="one",
    details=PretrainFinetuneDetails,
)
