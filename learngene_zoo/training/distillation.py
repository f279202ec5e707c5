"""What a student is told beside its labels: the answers of a teacher to the same images; and where the teacher comes from.

Shapes: B images, K classes. Of dense models K stands last, behind the patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.artifacts.descendant import Descendant, assemble, fingerprint_of
from learngene_zoo.recipe import Recipe
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import to_json
from learngene_zoo.storage import StateDict
from learngene_zoo.training.fit import fit

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.artifacts.ancestry import Ancestry
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.objectives import Labelled


def teacher_for(ancestry: Ancestry, task: Task, recipe: Recipe, run: Run) -> tuple[Descendant, dict[str, Any]]:
    """The ancestry model with a head for the task, and what its fine-tuning recorded.

    It is its own head if it was trained for the task: nothing is then computed, and the record is empty. Otherwise it is the
    one that `Descendant.for_task` gives, and the whole model is fine-tuned by `recipe`, as the part `teacher` of the run.
    """
    mean, std = ancestry.record.mean, ancestry.record.std
    own = assemble(ancestry.spec, ancestry.state, seed=run.seed, mean=mean, std=std, class_names=ancestry.class_names)
    if ancestry.class_names == task.class_names and ancestry.spec.dense == task.dense:
        return replace(own, task=task.name), {}
    part = run.part("teacher")
    start = own.for_task(task.name, task.class_names, seed=part.seed, dense=task.dense)
    depends = {"teacher": fingerprint_of(start), "task": to_json(task.record), "recipe": to_json(recipe)}
    tensors, record = part.once(partial(_taught, start, task, recipe), depends=depends)
    return start.with_state(dict(tensors)), dict(record)


def _taught(start: Descendant, task: Task, recipe: Recipe, run: Run) -> tuple[StateDict, dict[str, Any]]:
    tuned = fit(start, task, recipe, run)
    return tuned.state, dict(tuned.provenance["metrics"])


class Guided(nn.Module):
    """The objective `told` of a student, times `1 - share`, and beside it `share` times the distance to the teacher's answers.

    Both models are asked in the passes that they make anyway, where their heads answer. The teacher is no part of this module:
    it is neither trained nor saved.
    """

    def __init__(
        self, told: nn.Module, student: VisionTransformer, teacher: VisionTransformer, share: float, temperature: float
    ) -> None:
        super().__init__()
        self.told = told
        self.share, self.temperature = share, temperature
        self._models = (student, teacher.eval())  # a tuple hides them from the module's parameters

    def forward(self, batch: Labelled) -> dict[str, torch.Tensor]:
        """The losses of `told` by their names, and `distillation`, a scalar."""
        student, teacher = self._models
        with torch.no_grad(), listening(teacher) as wanted:
            teacher(batch.images)
        with listening(student) as given:
            losses = self.told(batch)
        distance = divergence(given[0].float(), wanted[0].float(), self.temperature)
        return {
            **{name: (1 - self.share) * loss for name, loss in losses.items()},
            "distillation": self.share * distance,
        }


@contextmanager
def listening(model: VisionTransformer) -> Iterator[list[torch.Tensor]]:
    """A list to which, within, every answer of the model's head is added: logits (B, K), or (B, patches, K)."""
    answers: list[torch.Tensor] = []
    hook = model.get_classifier().register_forward_hook(lambda module, inputs, output: answers.append(output))
    try:
        yield answers
    finally:
        hook.remove()


def divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """t^2 KL(softmax(teacher / t) || softmax(student / t)), the mean over all but the last axis, which are the classes.

    The factor keeps the gradient's size whatever the temperature (Hinton, Vinyals and Dean, 2015, section 2.1).
    """
    logs_NK = functional.log_softmax(student.flatten(0, -2) / temperature, dim=-1)
    wanted_NK = functional.log_softmax(teacher.flatten(0, -2) / temperature, dim=-1)
    return temperature**2 * functional.kl_div(logs_NK, wanted_NK, reduction="batchmean", log_target=True)
