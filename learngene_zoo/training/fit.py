"""Training every weight of a model on a task: what fine-tuning, pretraining and scratch training all are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from learngene_zoo.descendant import Descendant
from learngene_zoo.errors import WrongCall
from learngene_zoo.provenance import versions
from learngene_zoo.recipe import Recipe
from learngene_zoo.run import Run, derive_seed
from learngene_zoo.settings import Json, to_json
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.images import training_images
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import objective_for
from learngene_zoo.training.progress_guard import stalled
from learngene_zoo.vit import state_of


def fit(
    start: Descendant,
    task: Task,
    recipe: Recipe,
    run: Run,
    *,
    guard: bool = False,
    watch: Callable[[nn.Module], None] | None = None,
    judge: bool = True,
) -> Descendant:
    """Train every weight of `start` on a task; its accuracy or mIoU on validation images goes into the provenance.

    `guard` stops a training that does not leave chance; `watch` is called with the model after every epoch; without `judge`
    no validation image is looked at. Raises `WrongCall` for a model whose head is no head for this task.
    """
    if (start.spec.classes, start.spec.dense) != (task.classes, task.dense):
        each = "pixel" if task.dense else "image"
        raise WrongCall(
            f"{task.name} needs a head that gives one of {task.classes} classes per {each}: `for_task` makes it"
        )
    model = start.model()
    objective = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    loader = training_images(task, start.view, recipe, run)
    trained = train(objective, loader, recipe, run, label=f"training on {task.name}")
    for step in stalled(trained, task.classes) if guard else trained:
        if watch is not None and step.end_of_epoch:
            watch(model)
    metrics = {
        "task": task.name,
        **(_validated(model, start, task, run) if judge else {}),
        "training_images": loader.images,
        "epochs": recipe.epochs,
    }
    provenance = {**start.provenance, "recipe": to_json(recipe), "training_seed": run.seed, "metrics": metrics}
    return replace(
        start,
        state=state_of(model),
        task=task.name,
        class_names=task.class_names,
        provenance={**provenance, "versions": versions(), "trained_on": to_json(task.record)},
    )


def _validated(model: nn.Module, start: Descendant, task: Task, run: Run) -> dict[str, Json]:
    validation = evaluate(model, task, "validation", start.view, run)
    return {f"validation_{validation.metric}": validation.value, "validation_images": validation.images}
