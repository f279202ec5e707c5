"""The images a recipe asks for, as batches in training order."""

from __future__ import annotations

from learngene_zoo.errors import WrongCall
from learngene_zoo.recipe import Recipe
from learngene_zoo.run import Run, derive_seed
from learngene_zoo.tasks.batches import Batches, open_loader
from learngene_zoo.tasks.task import Task
from learngene_zoo.view import View


def training_images(task: Task, view: View, recipe: Recipe, run: Run) -> Batches:
    """Shuffled and augmented batches of the task's training split, presented as `view` says.

    Raises `WrongCall` for mixed images where only a class can be mixed.
    """
    if (recipe.mixup or recipe.cutmix) and (task.attributes or task.kind != "classification"):
        labels = "attributes" if task.attributes else "masks"
        raise WrongCall(f"mixup and cutmix cannot mix the {labels} of {task.name}; set both to 0")
    return open_loader(
        task,
        "train",
        view,
        batch_size=recipe.batch_size,
        seed=derive_seed(run.seed, "data"),
        shuffle=True,
        augment=recipe.augment if recipe.epochs else "none",  # what nobody sees need not suit the task
        images=recipe.images,
        workers=run.workers,
    )
