"""One auxiliary model: distilled from the ancestry model on the task's images (Learngene Pool, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import (
    Json,
    Run,
    StateDict,
    ViTSpec,
    assemble,
    derive_seed,
    evaluate,
    objective_for,
    state_of,
    train,
)
from lgzoo_pool.distillation import Distilled, Shares
from lgzoo_pool.features import nobody
from lgzoo_pool.lessons import Lessons
from lgzoo_pool.levels import pairs
from lgzoo_pool.transforms import Transformations
from lgzoo_pool.work import auxiliary_settings

if TYPE_CHECKING:
    from lgzoo_pool.pool import Distil

MODEL, MATRICES = "model.", "matrices."


@dataclass(frozen=True, kw_only=True)
class Auxiliary:
    """A distilled model: its shape, its tensors by timm's names, its matrices', and what was recorded."""

    spec: ViTSpec
    state: StateDict
    matrices: StateDict
    record: Json
    depends: Json  # all that it depends on beside seeds


def auxiliary(pool: Distil, name: str, spec: ViTSpec, count: int, lessons: Lessons) -> Auxiliary:
    """The auxiliary model `name` after its distillation at `count` levels, which is a part of the run."""
    depends = _depends(pool, spec, count, lessons)
    tensors, record = lessons.run.part(name).once(partial(_distilled, pool, spec, count, lessons), depends=depends)
    state, matrices = _under(MODEL, tensors), _under(MATRICES, tensors)
    return Auxiliary(spec=spec, state=state, matrices=matrices, record=record, depends=depends)


def _depends(pool: Distil, spec: ViTSpec, count: int, lessons: Lessons) -> dict[str, Json]:
    """All that such a model depends on beside seeds: of the ancestry nothing, where nobody asks it."""
    who = lessons.identity if pool.alpha < 1 else {**lessons.identity, "teacher": None}
    return {**auxiliary_settings(pool, spec, count), **who, "precision": lessons.run.precision}


def _distilled(pool: Distil, spec: ViTSpec, count: int, lessons: Lessons, run: Run) -> tuple[StateDict, dict[str, Any]]:
    """Train it: its tensors and its matrices', and its value on validation images."""
    task, input_format = lessons.task, lessons.input_format
    model = assemble(spec, {}, seed=derive_seed(run.seed, "init"), scheme=pool.init).model()
    loader = lessons.images(pool.training, run)
    told = objective_for(task, model, pool.training, derive_seed(run.seed, "attributes"))
    ancestry = lessons.ancestor.spec if lessons.ancestor is not None else spec
    levels = pairs(spec.layers, ancestry.layers, count if pool.alpha < 1 else 0)
    teacher = lessons.teacher([other for _, other in levels], loader.images) if pool.alpha < 1 else nobody
    matrices = Transformations(ancestry.width, spec.width, len(levels), derive_seed(run.seed, "matrices"))
    shares = Shares(alpha=pool.alpha, tau=pool.tau, reduction=pool.pred_reduction)
    objective = Distilled(told, model, teacher, matrices, levels, shares)
    for _ in train(objective, loader, pool.training, run, label=f"auxiliary model of width {spec.width}"):
        pass
    found = evaluate(model, task, "validation", input_format, run)
    record = {f"validation_{found.metric}": found.value, "validation_images": found.images}
    tensors = {f"{MODEL}{tensor}": value for tensor, value in state_of(model.cpu()).items()}
    tensors |= {f"{MATRICES}{tensor}": value for tensor, value in state_of(matrices.cpu()).items()}
    return tensors, {**record, "training_images": loader.images}


def _under(prefix: str, tensors: StateDict) -> StateDict:
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
