"""The images a recipe asks for, as batches in training order."""

from __future__ import annotations

from learngene_zoo.recipe import Recipe
from learngene_zoo.run import Run, derive_seed
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import Task
from learngene_zoo.view import View


def training_images(task: Task, view: View, recipe: Recipe, run: Run) -> Loader:
    """Shuffled and augmented batches of the task's training split, presented as `view` says."""
    return Loader(
        task,
        "train",
        view,
        batch_size=recipe.batch_size,
        seed=derive_seed(run.seed, "data"),
        shuffle=True,
        augment=recipe.augment,
        images=recipe.images,
        workers=run.workers,
    )
