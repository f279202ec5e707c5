"""Distillation: every size trained by itself on the source task, with the ancestry model as its teacher. Cold.

What learngenes are to replace where an ancestry model exists: the ancestry's knowledge is asked for once per size, not
condensed once for all (Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015, section 2).

    loss = (1 - share) L_task + share t^2 KL(softmax(teacher / t) || softmax(student / t))

L_task is what training on the task minimises anyway. On the task that the ancestry model was trained for its own head is the
teacher's; for any other it is fine-tuned first. Each size is a part of the run, and tensors are named, as in
`pretrain_finetune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.plugin import Extractor, Learngene, LearngeneConfig, Method, Recipe, ViTSpec, WrongCall
from lgzoo_baselines.stored_sizes import MINI, PAPER, SMOKE, TRAINING, Take, check_depths, outline_of, train_each

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class Distil(Extractor):
    """Train a model of each depth on the source task, with the ancestry model as its teacher."""

    depths: Annotated[tuple[int, ...], "how many layers the models have"] = (3, 6, 9, 12)
    init: Annotated[Literal["timm", "fan_in"], "the weights that training starts from"] = "timm"
    share: Annotated[float, "the teacher's share of the loss; the rest is the labels'"] = 0.5
    temperature: Annotated[float, "what logits are divided by where student and teacher are compared"] = 2.0
    training: Recipe = TRAINING
    teaching: Annotated[Recipe, "the teacher's fine-tuning, if the task is not its own"] = TRAINING

    def __post_init__(self) -> None:
        check_depths(self.depths)
        if not 0 <= self.share <= 1:
            raise WrongCall(f"share is {self.share}; it must lie between 0 and 1")
        if not self.temperature > 0:
            raise WrongCall(f"temperature is {self.temperature}; it must be above 0")

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The ancestry model's shape with the deepest of the depths."""
        return outline_of(DISTILLATION.name, self.depths, ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Prepare the teacher, then train the sizes one after the other; their heads are dropped."""
        from learngene_zoo.plugin import teacher_for

        ancestry, task = ancestries[0], tasks[0]
        teacher, record = teacher_for(ancestry, task, self.teaching, run)
        train = partial(self._distilled, teacher, task)
        return train_each(self.outline([ancestry.spec]), train, run, {"teacher": record} if record else {})

    def _distilled(self, teacher: Descendant, task: Task, layers: int, run: Run) -> tuple[StateDict, dict[str, Any]]:
        """The tensors of one size trained under the teacher, without its head, and its validation accuracy."""
        from learngene_zoo.plugin import (
            Distilled,
            Teacher,
            assemble,
            derive_seed,
            evaluate,
            logits_loss,
            objective_for,
            open_device,
            state_of,
            train,
            training_images,
            without_head,
        )

        seed = derive_seed(run.seed, "init")
        spec = teacher.spec.with_(layers=layers)
        student = assemble(spec, {}, seed=seed, scheme=self.init, mean=teacher.mean, std=teacher.std)
        model, guide = student.model(), Teacher(teacher.model().to(open_device(run)))
        labels = objective_for(task, model, self.training, derive_seed(run.seed, "attributes"))
        imitation = logits_loss(temperature=self.temperature)
        objective = Distilled(labels, model, guide, imitation, (1 - self.share, self.share))
        loader = training_images(task, student.input_format, self.training, run)
        for _ in train(objective, loader, self.training, run, label=f"distilling {layers} layers on {task.name}"):
            pass
        validation = evaluate(model, task, "validation", student.input_format, run)
        metrics = {f"validation_{validation.metric}": validation.value, "validation_images": validation.images}
        return without_head(state_of(model), spec), {**metrics, "training_images": loader.images}


DISTILLATION = Method(
    name="distillation",
    title="every size distilled from the ancestry by itself, and all of them stored",
    paper="Hinton, Vinyals, Dean. Distilling the Knowledge in a Neural Network. 2015",
    expander=Take(),
    presets={
        "mini": Distil(
            init="fan_in",
            training=MINI,
            teaching=replace(TRAINING, epochs=4, images=6000),
        ),
        # DeiT's soft distillation (Touvron et al., 2021, equation 1 and table 9).
        "paper": Distil(
            depths=tuple(range(5, 16)),
            share=0.1,
            temperature=3.0,
            training=PAPER,
            teaching=replace(PAPER, epochs=30, lr=1e-4),
        ),
        "smoke": Distil(
            depths=(1, 2),
            init="fan_in",
            training=SMOKE,
            teaching=SMOKE,
        ),
    },
    tasks="one",
)
