"""Probes of features before any training, and the images that they are fitted to and judged on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.intervals import compute_interval
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.splits.samples import PartOfSplit
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # per image; those of the committed results
IMAGE_SEED = 0  # the seed that draws the images
Arrays = tuple[np.ndarray, np.ndarray]  # of training images and of validation images


def hold_out_images(task: Task, train: slice, held_out: slice, seed: int = 0) -> Task:
    """Return a task whose images are all of the training split, in a random order.

    Args:
        task: the task.
        train: the images to train on, a slice of that order.
        held_out: the images of the validation and test splits.
        seed: the seed of the order.
    """
    order = np.random.default_rng(1000 + seed).permutation(task.sizes["train"])
    chosen, held_out_images = np.sort(order[train]), np.sort(order[held_out])

    def open_part(name: str) -> PartOfSplit:
        return PartOfSplit(task.split("train"), chosen if name == "train" else held_out_images)

    sizes = {"train": len(chosen), "validation": len(held_out_images), "test": len(held_out_images)}
    return replace(task, sizes=sizes, open_split=open_part, stamp=None)


def evaluate_on_test(model: Descendant, task: Task, run: Run, images: int) -> dict[str, float]:
    """Return the accuracy on at most so many test images, its interval and their number."""
    count = min(images, task.sizes["test"])
    evaluation = evaluate(model.model(), task, "test", model.input_format, run, images=count)
    low, high = compute_interval(round(evaluation.value * evaluation.images), evaluation.images)
    return {"value": evaluation.value, "low": low, "high": high, "images": evaluation.images}


def load_images(task: Task, split: str, images: int) -> tuple[torch.Tensor, np.ndarray]:
    """Return normalised images float32 (N, 3, H, W), balanced over the classes, and their labels
    (N,).
    """
    count = min(images, len(task.split(split)))
    loader = Loader(task, split, task.input_format, batch_size=250, seed=IMAGE_SEED, images=count)
    batches = list(loader.epoch(0))
    return (
        torch.cat([batch.inputs for batch in batches]),
        torch.cat([batch.labels for batch in batches]).numpy(),
    )


def standardise(train: np.ndarray, validation: np.ndarray) -> Arrays:
    """Return both arrays, standardised by the mean and standard deviation of the training images.

    Features that do not vary become 0.
    """
    mean, std = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    scale = np.where(std > 1e-5, 1 / np.maximum(std, 1e-5), 0)
    return (train - mean) * scale, (validation - mean) * scale


def classify_by_ridge(train: np.ndarray, labels: np.ndarray, validation: np.ndarray) -> np.ndarray:
    """Return the class of each validation image by a ridge regression onto the classes.

    The penalty is that with the smallest squared error on training images left out in turn.
    """
    classes, numbers = np.unique(labels, return_inverse=True)
    targets = np.eye(len(classes))[numbers]
    mean = targets.mean(axis=0)
    basis, singular, directions = np.linalg.svd(train, full_matrices=False)
    projected, best, least = basis.T @ targets, None, np.inf
    for penalty in PENALTIES:
        factors = singular**2 / (singular**2 + penalty * len(train))
        fitted = mean + basis @ (factors[:, None] * projected)
        leverage = 1 / len(train) + (basis**2 * factors).sum(axis=1)
        squared = float((((targets - fitted) / (1 - leverage)[:, None]) ** 2).sum())
        if squared < least:
            shrunk = factors / np.maximum(singular, 1e-9)
            best, least = directions.T @ (shrunk[:, None] * projected), squared
    return classes[(validation @ best + mean).argmax(axis=1)]


def classify_by_nearest_mean(
    train: np.ndarray, labels: np.ndarray, validation: np.ndarray
) -> np.ndarray:
    """Return the class of each validation image by the nearest class mean."""
    classes = np.unique(labels)
    means = np.stack([train[labels == label].mean(axis=0) for label in classes])
    return classes[(validation @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)]


PROBES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "ridge": classify_by_ridge,
    "nearest_mean": classify_by_nearest_mean,
}
