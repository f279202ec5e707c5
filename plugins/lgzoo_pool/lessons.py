"""What both auxiliary models and the fine-tuning of a pool are taught: the same images in the same order, by the same ancestor."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from learngene_zoo.plugin import (
    Batches,
    Descendant,
    InputFormat,
    Json,
    Recipe,
    Run,
    Task,
    WrongCall,
    fingerprint_of,
    is_first,
    open_device,
    to_json,
    training_images,
    wait_for_all,
)
from lgzoo_pool.features import Ancestor, Teacher
from lgzoo_pool.kept import Kept, KeptTeacher, Store, bytes_of, check_room, shapes

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

KEPT = "teacher"  # the folder of kept answers, in the run's


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """A task's images and the ancestry model that answers to them, for all parts of `run`, the whole extraction.

    `ancestor` is the ancestry model with a head for the task; None where nobody asks it. With `keep` its answers are kept in
    the run's folder, in this precision.
    """

    ancestor: Descendant | None
    task: Task
    input_format: InputFormat
    run: Run
    keep: Kept | None = None

    def images(self, recipe: Recipe, part: Run) -> Batches:
        """The training images of one part. Their choice and order are a function of the whole run's seed."""
        return training_images(self.task, self.input_format, recipe, replace(part, seed=self.run.seed))

    def teacher(self, positions: Sequence[int], images: int) -> Teacher:
        """Who answers with the logits and the features at `positions` to so many images."""
        ancestor = Ancestor(self._model, positions)
        if self.keep is None:
            return ancestor
        if self.run.folder is None:
            raise WrongCall(
                "keep_teacher keeps answers in the run's folder, beside the learngene; name a place with -o"
            )
        check_room(self.run.folder, images, bytes_of(shapes(ancestor), self.keep))
        identity = {**self.identity, "precision": self.run.precision}
        rows = max(images, self.task.sizes["train"])
        return KeptTeacher(ancestor, Store(self.run.folder / KEPT, rows, self.keep, identity))

    def forget(self) -> None:
        """Remove what was kept of the ancestor's answers."""
        wait_for_all()
        if self.run.folder is not None and is_first():
            shutil.rmtree(self.run.folder / KEPT, ignore_errors=True)

    @cached_property
    def _model(self) -> VisionTransformer:
        assert self.ancestor is not None, "nobody may ask an ancestor that was not prepared"
        return self.ancestor.model().to(open_device(self.run))

    @cached_property
    def identity(self) -> dict[str, Json]:
        """What all answers depend on, as JSON."""
        teacher = None if self.ancestor is None else fingerprint_of(self.ancestor)
        return {"teacher": teacher, "task": to_json(self.task.record), "view": to_json(self.input_format)}
