"""The steps of Learngene Pool's algorithm, which are parts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.paths import Path
from lgzoo_pool.settings import AuxiliarySettings, PoolImages, TuningSettings

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, FeatureLoss, Json, Part, Run, Spec, StateDict
    from lgzoo_pool.modules.network import StitchedNetwork


def distil(
    settings: AuxiliarySettings,
    spec: Spec,
    teacher: Descendant | None,
    images: PoolImages,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train one auxiliary model on labels and to imitate the ancestry model (step 1).

    Args:
        settings: of the training.
        spec: the shape of the auxiliary model.
        teacher: the ancestry model with the task's head, if the model imitates it.
        images: of the task.
        run: how to compute.

    Returns:
        The tensors `model.*` and, with a teacher, its matrices W and M as `matrices.*`; and the
        metrics.
    """
    from learngene_zoo.plugin import (
        Distilled,
        Teacher,
        assemble,
        derive_seed,
        get_state_dict,
        make_objective,
        measure_validation,
        open_device,
        train,
    )
    from lgzoo_pool.modules.objectives import Imitation

    seed = derive_seed(run.seed, "init")
    model = assemble(spec, {}, seed=seed, scheme=settings.init).model()
    batches = images.open_batches(settings.training, run)
    seed = derive_seed(run.seed, "attributes")
    objective = make_objective(images.task, model, settings.training, seed)
    modules = {"model": model}
    if settings.imitating is not None and teacher is not None:
        seed = derive_seed(run.seed, "matrices")
        imitation = Imitation(spec, teacher.spec, settings.imitating, seed)
        teacher_blocks = [block for _, block in imitation.levels]
        frozen = Teacher(teacher.model().to(open_device(run)), teacher_blocks)
        weights = (settings.imitating.alpha, 1 - settings.imitating.alpha)
        blocks = [block for block, _ in imitation.levels]
        objective = Distilled(objective, model, frozen, imitation, weights, blocks)
        modules["matrices"] = imitation
    label = f"auxiliary model of width {spec.width}"
    for _ in train(objective, batches, settings.training, run, label=label):
        pass

    record = measure_validation(model, images.task, images.input_format, settings.training, run)
    state = {
        f"{kind}.{name}": tensor
        for kind, module in modules.items()
        for name, tensor in get_state_dict(module.cpu()).items()
    }
    return state, {**record, "training_images": batches.images}


def fine_tune(
    settings: TuningSettings,
    specs: Sequence[Spec],
    models: Sequence[Part],
    ancestry: Spec,
    teacher: Descendant | None,
    images: PoolImages,
    run: Run,
) -> tuple[StateDict, Json]:
    """Start the stitches, train one path in every step, and evaluate all of them (steps 2 and 3).

    Args:
        settings: of the stitches' start and of the training.
        specs: the shapes of the narrow and of the wide model.
        models: their parts.
        ancestry: the shape of the ancestry model, which the matrices lead from.
        teacher: guides the training, if any.
        images: of the task.
        run: how to compute.

    Returns:
        The pool's tensors and the metrics.
    """
    from learngene_zoo.plugin import Teacher, get_state_dict, open_device, train
    from lgzoo_pool.modules.network import measure_paths
    from lgzoo_pool.modules.objectives import SampledPaths

    recipe, task, seed = settings.paths.recipe, images.task, run.seed
    network, fit = stitch_models(settings, specs, models, ancestry, images, run)

    batches = images.open_batches(recipe, run)
    frozen = None if teacher is None else Teacher(teacher.model().to(open_device(run)))
    tokens = None
    if teacher is not None and settings.paths.tokens:
        tokens = partial(build_token_loss, specs, teacher.spec, seed)
    objective = SampledPaths(network, task, settings.paths, seed, teacher=frozen, tokens=tokens)
    label = f"pool of {sum(spec.layers for spec in specs)} instances"
    for step in train(objective, batches, recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)

    paths = network.layout.paths
    tuning = {"training_images": batches.images, "epochs": recipe.epochs, "paths": len(paths)}
    names = [name_path(number, path) for number, path in enumerate(paths)]
    limit = settings.paths.evaluated
    metrics = measure_paths(network, names, task, images.input_format, run, images=limit)
    return get_state_dict(network.cpu()), {"tuning": {**tuning, "stitches": fit}, **metrics}


def stitch_models(
    settings: TuningSettings,
    specs: Sequence[Spec],
    models: Sequence[Part],
    ancestry: Spec,
    images: PoolImages,
    run: Run,
) -> tuple[StitchedNetwork, dict[str, Json]]:
    """Build the pool from both models, and start its stitches (step 2).

    The arguments are those of `fine_tune`. Returns the pool, and how well its stitches fit.
    """
    from learngene_zoo.plugin import open_device
    from lgzoo_pool.modules.least_squares import (
        compute_moments,
        iterate_images,
        measure_fit,
        solve_stitches,
    )
    from lgzoo_pool.modules.network import (
        build_network,
        draw_stitches,
        merge_anchors,
        select_prefix,
    )
    from lgzoo_pool.modules.objectives import derive_stitches

    layout = StitchedDetails.from_specs(specs).layout
    anchors = merge_anchors([select_prefix("model.", model.state) for model in models])
    state = {**anchors, **draw_stitches(specs, layout, run.seed)}
    network = build_network(specs, layout, state).to(open_device(run))
    samples = iterate_images(images.task, images.input_format, settings.stitch_images, run)
    moments = compute_moments(network, samples)
    if settings.stitch == "ls" or settings.stitch == "joint":
        stitches = solve_stitches(moments, joint=settings.stitch == "joint")
    else:
        matrices = [select_prefix("matrices.", model.state) for model in models]
        stitches = derive_stitches(specs, layout, matrices, ancestry.width, settings.stitch)
    network.set_stitches(stitches)
    return network, measure_fit(moments, stitches)


def build_token_loss(specs: Sequence[Spec], teacher: Spec, seed: int, anchor: int) -> FeatureLoss:
    """Build the loss that compares the last tokens of paths into an anchor with the teacher's.

    Args:
        specs: the shapes of the anchors.
        teacher: its shape.
        seed: of the loss's layer.
        anchor: the number of the anchor.
    """
    from learngene_zoo.plugin import TokenLoss, derive_seed

    return TokenLoss(specs[anchor], teacher, derive_seed(seed, "tokens", anchor))


def name_path(number: int, path: Path) -> Mapping[str, Json]:
    """Return the expander's settings that lead to a path.

    They are its numbers of blocks of the narrow and of the wide model.
    """
    low, high = (
        sum(part.stop - part.start for part in path.parts if part.anchor == anchor)
        for anchor in (0, 1)
    )
    return {"low": low, "high": high}
