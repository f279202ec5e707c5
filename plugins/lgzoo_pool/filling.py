"""Filling a pool: two auxiliary models, the stitches between them, and the fine-tuning of all paths. Each is a part of the run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from learngene_zoo.plugin import Ancestry, Json, Run, StateDict, Task, ViTSpec, open_device, state_of, teacher_for
from lgzoo_pool.auxiliary import Auxiliary, auxiliary
from lgzoo_pool.details import Details
from lgzoo_pool.joining import some_images
from lgzoo_pool.judging import path_rows
from lgzoo_pool.least_squares import Moments, fit_of, moments, solve
from lgzoo_pool.lessons import Lessons
from lgzoo_pool.network import StitchedNetwork, anchors_state, initial_stitches, network_of, stitch_shapes
from lgzoo_pool.pool import named
from lgzoo_pool.transforms import mean_matrix, stitch_weight
from lgzoo_pool.tuning import Answers, tune
from lgzoo_pool.work import tuning_settings

if TYPE_CHECKING:
    from lgzoo_pool.pool import Distil


@dataclass(frozen=True, kw_only=True)
class Filling:
    """What the fine-tuning starts from: the two auxiliary models, narrow and wide, with heads for the lessons' task."""

    pool: Distil
    details: Details
    ancestry: ViTSpec
    models: tuple[Auxiliary, Auxiliary]
    lessons: Lessons

    @property
    def specs(self) -> tuple[ViTSpec, ...]:
        """The shapes of both."""
        return tuple(model.spec for model in self.models)


def fill(pool: Distil, ancestry: Ancestry, task: Task, details: Details, run: Run) -> tuple[StateDict, dict[str, Json]]:
    """The tensors of a pool, and what its parts recorded."""
    asked = pool.alpha < 1 or pool.guided != "none"
    ancestor, taught = teacher_for(ancestry, task, pool.teaching, run) if asked else (None, {})
    keep = pool.kept if pool.keep_teacher and asked else None
    lessons = Lessons(ancestor=ancestor, task=task, input_format=ancestry.input_format, run=run, keep=keep)
    shapes = [spec.with_(classes=task.classes, dense=task.dense) for spec in pool.auxiliaries(ancestry.spec)]
    low = auxiliary(pool, "low", shapes[0], pool.low_levels, lessons)
    high = auxiliary(pool, "high", shapes[1], pool.high_levels, lessons)
    filling = Filling(pool=pool, details=details, ancestry=ancestry.spec, models=(low, high), lessons=lessons)
    state, tuned = run.part("tuning").once(partial(_tuned, filling), depends=_depends(filling))
    lessons.forget()
    return state, {**({"teacher": taught} if taught else {}), "low": low.record, "high": high.record, **tuned}


def _depends(filling: Filling) -> dict[str, Json]:
    """All that a fine-tuned pool depends on beside seeds: of the ancestry nothing, where nobody asks it."""
    pool, lessons = filling.pool, filling.lessons
    who = lessons.identity if pool.guided != "none" else {**lessons.identity, "teacher": None}
    models = [model.depends for model in filling.models]
    return {**tuning_settings(pool), **who, "precision": lessons.run.precision, "models": models}


def _tuned(filling: Filling, run: Run) -> tuple[StateDict, dict[str, Any]]:
    """Start the stitches, fine-tune all paths, and judge each of them."""
    pool, lessons, layout = filling.pool, filling.lessons, filling.details.layout
    task, input_format = lessons.task, lessons.input_format
    state = anchors_state([model.state for model in filling.models])
    state = {**state, **initial_stitches(filling.specs, layout, run.seed)}
    network = network_of(filling.specs, layout, state).to(open_device(run))
    counted = moments(network, some_images(task, input_format, pool.stitch_images, run))
    started = _started(filling, counted)
    _set(network, started)
    loader = lessons.images(pool.tuning, run)
    guided = tune(
        network,
        loader,
        pool.tuning,
        run,
        teacher=_answers(lessons, loader.images) if pool.guided != "none" else None,
        kind=pool.guided,
        share=pool.guidance_share,
        label=f"pool of {2 * pool.blocks} instances",
    )
    record: dict[str, Any] = {"tuning": {**guided, "stitches": fit_of(counted, started)}}
    if pool.judged != 0:
        settings = [named(number, path, filling.details) for number, path in enumerate(layout.paths)]
        record["paths"] = path_rows(network, settings, task, input_format, run, images=pool.judged)
    return state_of(network.cpu()), record


def _started(filling: Filling, counted: Moments) -> StateDict:
    """The stitches as the fine-tuning finds them: all alike out of the matrices, or each fitted by least squares."""
    kind = filling.pool.stitch
    if kind == "ls":
        return solve(counted)
    width = filling.ancestry.width
    low, high = (mean_matrix(model.matrices, width, model.spec.width) for model in filling.models)
    weight = stitch_weight(low, high, kind)
    shapes = stitch_shapes(filling.specs, filling.details.layout)
    return {name: weight if len(shape) == 2 else torch.zeros(shape) for name, shape in shapes.items()}


def _set(network: StitchedNetwork, stitches: StateDict) -> None:
    parameters = dict(network.named_parameters())
    for name, tensor in stitches.items():
        parameters[name].data.copy_(tensor)


def _answers(lessons: Lessons, images: int) -> Answers:
    return lessons.teacher((), images)
