"""The steps of SN-Net: the check of the anchors, the start of the stitches, the joint training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

from learngene_zoo.plugin import WrongCall
from lgzoo_pool.paths import Path, StitchLayout
from lgzoo_pool.settings import LeastSquaresSettings, NetworkSettings

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        InputFormat,
        Json,
        Part,
        Run,
        StateDict,
        Task,
        TimmModel,
    )


def check_formats(ancestries: Sequence[Ancestry]) -> None:
    """Raise `WrongCall` for anchors that need images in different formats."""
    formats = [describe_format(ancestry.input_format) for ancestry in ancestries]
    for number, (before, after) in enumerate(pairwise(formats), start=2):
        different = [
            f"{name} {before[name]} and {after[name]}"
            for name in before
            if before[name] != after[name]
        ]
        if different:
            raise WrongCall(
                f"ancestries {number - 1} and {number} need images in different formats: "
                f"{', '.join(different)}; use models trained alike"
            )


def describe_format(images: InputFormat) -> dict[str, object]:
    """Return by name how images are normalised, resized and cropped, whatever their size."""
    return {
        "mean": list(images.mean),
        "standard deviation": list(images.std),
        **asdict(images.view),
    }


def start_stitches(
    settings: LeastSquaresSettings,
    layout: StitchLayout,
    anchors: Sequence[Descendant],
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Solve the stitches that map the features of one anchor to those of the next best (step 2).

    Args:
        settings: the number of images.
        layout: of the stitches.
        anchors: whole models, narrow to wide.
        task: of the images.
        run: how to compute.

    Returns:
        The stitches, and how well they fit.
    """
    from learngene_zoo.plugin import open_device
    from lgzoo_pool.modules.least_squares import (
        compute_moments,
        iterate_images,
        measure_fit,
        solve_stitches,
    )
    from lgzoo_pool.modules.network import stitch_anchors

    network = stitch_anchors(anchors, layout, run.seed).to(open_device(run))
    images = iterate_images(task, anchors[-1].input_format, settings.images, run)
    moments = compute_moments(network, images)
    stitches = solve_stitches(moments)
    return stitches, {"images": settings.images, **measure_fit(moments, stitches)}


def train_network(
    settings: NetworkSettings,
    layout: StitchLayout,
    anchors: Sequence[Descendant],
    has_new_heads: bool,
    start: Part | int,
    teacher: Descendant | TimmModel | None,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train one configuration in every step, and evaluate all of them (step 3).

    Args:
        settings: of the training.
        layout: of the stitches.
        anchors: whole models, narrow to wide.
        has_new_heads: whether heads must be trained even if only stitches are.
        start: the part with the stitches, or the seed of random ones.
        teacher: guides the training, if any.
        task: the data set.
        run: how to compute.

    Returns:
        The network's tensors and the metrics.
    """
    from learngene_zoo.plugin import (
        choose_metric,
        get_state_dict,
        guide,
        load_training_images,
        mark_chance,
        train,
    )
    from lgzoo_pool.modules.network import measure_paths, stitch_anchors
    from lgzoo_pool.modules.objectives import SampledPaths, freeze_anchors

    recipe, input_format = settings.paths.recipe, anchors[-1].input_format
    stitches = start if isinstance(start, int) else start.state
    network = stitch_anchors(anchors, layout, stitches)
    paths = layout.paths
    if settings.trained == "stitches":
        paths = freeze_anchors(network, heads=has_new_heads)
    batches = load_training_images(task, input_format, recipe, run)
    frozen = None if teacher is None else guide(teacher, input_format, run)
    objective = SampledPaths(network, task, settings.paths, run.seed, paths=paths, teacher=frozen)
    for step in train(objective, batches, recipe, run, unused=True, label="stitched anchors"):
        objective.finished.fill_(step.step)

    training: dict[str, Json] = {
        "training_images": batches.images,
        "epochs": recipe.epochs,
        "paths": len(paths),
    }
    names = [name_path(number, path) for number, path in enumerate(layout.paths)]
    limit = settings.paths.evaluated
    metrics = measure_paths(network, names, task, input_format, run, images=limit)
    if rows := metrics.get("paths"):
        best = max(row[choose_metric(task).name] for row in rows)
        training |= mark_chance(best, task, recipe, images=limit)
    return get_state_dict(network.cpu()), {"training": training, **metrics}


def name_path(number: int, path: Path) -> Mapping[str, Json]:
    """Return the expander's settings that lead to a path."""
    return {"config": number}
