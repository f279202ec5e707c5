"""Examine a model after an epoch: the losses on held-out images, and probes on a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.loader import Batches, sample_images
from learngene_zoo.training.healing.fitting import BATCH_SIZE, fit_maps, measure_losses
from learngene_zoo.training.healing.objective import Recovery
from learngene_zoo.training.healing.settings import MAX_HELD_OUT, MAX_PROBED
from learngene_zoo.training.probes import compute_features, run_probe
from learngene_zoo.training.watch import Validation

if TYPE_CHECKING:
    from learngene_zoo.tasks.task import Task


@dataclass(kw_only=True)
class Examiner:
    """A function that validates the student of an objective, for `Watch`.

    The losses are those of maps that are fitted to the model of the epoch, so that they compare
    models, and not how closely the maps have followed them. Without a task the value is minus their
    sum. With a task it is the mean of the accuracies of two probes on its validation images:
    k-nearest neighbours and ridge regression. The losses alone do not show that features are lost.

    Attributes:
        objective: the objective.
        images: the images without labels.
        input_format: the format of the images.
        run: the run.
        task: the task of the probes.
        task_format: the format of its images.
        map_images: the number of images that the maps are fitted to.
        refit: keep the fitted maps for the next epoch.
        held_out: batches of the held-out images.
        is_fitted: whether the maps are those of the model that is measured next.
    """

    objective: Recovery
    images: Task
    input_format: InputFormat | TextFormat
    run: Run
    task: Task | None
    task_format: InputFormat | TextFormat
    map_images: int
    refit: bool
    held_out: Batches = field(init=False)
    is_fitted: bool = True

    def __post_init__(self) -> None:
        self.held_out = sample_images(
            self.images,
            "validation",
            self.input_format,
            self.run,
            images=MAX_HELD_OUT,
            batch_size=BATCH_SIZE,
        )

    def __call__(self, model: nn.Module, average: nn.Module | None) -> Validation:
        """Return the result of the model, of which the objective, or its average, is."""
        objective: Any = average or self.objective
        if self.refit and average is not None:
            self._fit_maps(self.objective)
        # Of the model before training, which is measured first, the maps are fitted already.
        with nullcontext() if self.refit else keep_maps(objective):
            if not self.is_fitted:
                self._fit_maps(objective)
            loss = sum(measure_losses(objective, self.held_out, self.run).values())
        self.is_fitted = False
        text = f"held-out loss {loss:.4f}"
        if self.task is None:
            return Validation(value=-loss, text=text, others={"held_out_loss": loss})
        k, accuracies, images = self._probe(model, self.task)
        knn, ridge = accuracies["knn"], accuracies["ridge"]
        return Validation(
            value=(knn + ridge) / 2,
            text=f"{text}, {k}-NN {knn:.4f}, ridge {ridge:.4f}",
            images=images,
            others={"held_out_loss": loss, "knn_accuracy": knn, "ridge_accuracy": ridge},
        )

    def _fit_maps(self, objective: Recovery) -> None:
        seed = derive_seed(self.run.seed, "data")
        fit_maps(objective, self.images, self.map_images, seed, self.run)

    def _probe(self, model: nn.Module, task: Task) -> tuple[int | None, dict[str, float], int]:
        """Return the number of neighbours, the accuracies, and the number of validation images."""
        train, held_out = (
            compute_features(model, task, split, self.task_format, self.run, images=MAX_PROBED)
            for split in ("train", "validation")
        )
        results = [
            run_probe(train, held_out, task, "validation", kind) for kind in ("knn", "ridge")
        ]
        accuracies: dict[str, float] = {result.probe: result.value for result in results}
        return results[0].k, accuracies, len(held_out.labels)


@contextmanager
def keep_maps(objective: Recovery) -> Iterator[None]:
    """Restore the maps of an objective after this context."""
    maps = {name: tensor.clone() for name, tensor in objective.maps.state_dict().items()}
    try:
        yield
    finally:
        objective.maps.load_state_dict(maps)
