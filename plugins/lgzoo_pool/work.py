"""What an extraction of a pool will take, and what each of its parts depends on. Cold.

Layers are counted in those of the ancestry's width; a narrower one counts for its share of the width, not of its square, since
at the size of the bundled models most of a layer's time goes with its width.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Extractor, Json, Recipe, ViTSpec, Work, to_json
from lgzoo_pool.details import details_of
from lgzoo_pool.members import spec_of

if TYPE_CHECKING:
    from lgzoo_pool.pool import Distil


def auxiliary_settings(pool: Distil, spec: ViTSpec, count: int) -> dict[str, Json]:
    """The settings that an auxiliary model distilled at `count` levels depends on: those of a teacher only if there is one."""
    own = {"part": "auxiliary model", "spec": spec, "init": pool.init, "alpha": pool.alpha, "training": pool.training}
    taught = {
        "levels": count,
        "tau": pool.tau,
        "pred_reduction": pool.pred_reduction,
        "kept": pool.kept if pool.keep_teacher else None,
        "teaching": pool.teaching,
    }
    told: dict[str, Json] = to_json({**own, **(taught if pool.alpha < 1 else {})})
    return told


def tuning_settings(pool: Distil) -> dict[str, Json]:
    """The settings that the fine-tuning depends on, beside those of the auxiliary models."""
    own = {
        "part": "pool",
        "stitch": pool.stitch,
        "stitch_images": pool.stitch_images,
        "tuning": pool.tuning,
        "judged": pool.judged,
    }
    taught = {"share": pool.guidance_share, "teaching": pool.teaching} if pool.guided != "none" else {}
    told: dict[str, Json] = to_json({**own, "guided": pool.guided, **taught})
    return told


def work(pool: Extractor, ancestries: Sequence[ViTSpec], images: Sequence[int]) -> list[Work]:
    """Both auxiliary models and the fine-tuning; not the ancestry's own, if the task is not its own."""
    made: Distil = pool  # type: ignore[assignment]
    (ancestry,) = ancestries
    models = made.auxiliaries(ancestry)
    counts = made.low_levels, made.high_levels
    kinds = [auxiliary_settings(made, spec, count) for spec, count in zip(models, counts)]
    asked = ancestry.layers if made.alpha < 1 else 0
    parts = [
        _part(made, made.training, images[0], kind, _layers(spec, ancestry), asked) for kind, spec in zip(kinds, models)
    ]
    paths = [spec_of(path, models) for path in details_of(models).layout.paths]
    mean = sum(_layers(path, ancestry) for path in paths) / len(paths)
    depends = {**tuning_settings(made), "models": kinds}
    guided = ancestry.layers if made.guided != "none" else 0
    return [*parts, _part(made, made.tuning, images[0], depends, mean, guided)]


def _part(pool: Distil, recipe: Recipe, images: int, depends: Json, trained: float, asked: float) -> Work:
    shown = min(recipe.images or sys.maxsize, images)
    passes = min(recipe.epochs, 1) if pool.keep_teacher else recipe.epochs
    share = passes / recipe.epochs if recipe.epochs else 0.0
    return Work(depends=depends, images=shown * recipe.epochs, trained=trained, asked=asked * share)


def _layers(spec: ViTSpec, ancestry: ViTSpec) -> float:
    """A model's layers in those of the ancestry's width."""
    return sum(segment.layers * segment.width / ancestry.width for segment in spec.segments)
