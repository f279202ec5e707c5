"""The parts of SN-Net's extraction: the anchors with heads for the task, their stitches, a teacher, and joint training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from learngene_zoo.plugin import (
    Ancestry,
    Descendant,
    InputFormat,
    Json,
    Run,
    StateDict,
    Task,
    Teacher,
    WrongCall,
    assemble,
    derive_seed,
    open_device,
    open_loader,
    state_of,
    teacher_for,
    to_json,
    training_images,
)
from learngene_zoo.plugin import join as meet
from lgzoo_pool.details import Details
from lgzoo_pool.judging import path_rows
from lgzoo_pool.least_squares import fit_of, moments, solve
from lgzoo_pool.network import StitchedNetwork, anchors_state, initial_stitches, network_of
from lgzoo_pool.tuning import Answers, train_stitches_alone, tune

if TYPE_CHECKING:
    from lgzoo_pool.snnet import Join

LOOKED_AT_ONCE = 16  # images whose features are in memory together


def join(
    snnet: Join, ancestries: Sequence[Ancestry], task: Task, details: Details, run: Run
) -> tuple[StateDict, dict[str, Json]]:
    """The trained tensors and the metrics. Raises `WrongCall` for anchors that see images differently."""
    _check_views(ancestries)
    input_format = ancestries[-1].input_format
    own, anchors = _with_heads(ancestries, task, run)
    specs = [anchor.spec for anchor in anchors]
    state = {
        **anchors_state([anchor.state for anchor in anchors]),
        **initial_stitches(specs, details.layout, derive_seed(run.seed, "stitches")),
    }
    same = _same(snnet, ancestries, task, details, run)
    metrics: dict[str, Json] = {}
    if snnet.stitch == "ls":
        network = network_of(specs, details.layout, state)
        compute = partial(least_squares, network, task, input_format, snnet.stitch_images)
        stitches, metrics["stitches"] = run.part("stitches").once(compute, same and {**same, "part": "stitches"})
        state |= dict(stitches)
    teacher, record = _teacher(snnet, ancestries, task, run)
    metrics |= {"teacher": record} if record else {}
    network = network_of(specs, details.layout, state)
    trained = partial(_trained, snnet, network, task, input_format, teacher, not own)
    tensors, record = run.part("training").once(trained, same and {**same, "part": "training"})
    return tensors, {**metrics, **record}


def least_squares(
    network: StitchedNetwork, task: Task, input_format: InputFormat, count: int, run: Run
) -> tuple[StateDict, Json]:
    """The stitches that fit best over some training images, and how well they do."""
    network.to(open_device(run))
    counted = moments(network, some_images(task, input_format, count, run))
    stitches = solve(counted)
    return stitches, {"images": count, **fit_of(counted, stitches)}


def some_images(task: Task, input_format: InputFormat, count: int, run: Run) -> Iterator[torch.Tensor]:
    """So many training images as they are, chosen by the seed, in batches on the run's device; processes share them."""
    meet(run.device)
    device = open_device(run)
    loader = open_loader(
        task,
        "train",
        input_format,
        batch_size=LOOKED_AT_ONCE,
        seed=derive_seed(run.seed, "data"),
        images=count,
        workers=run.workers,
        drop_last=False,
    )
    return (batch.images.to(device) for batch in loader.epoch(0))


def _trained(
    snnet: Join,
    network: StitchedNetwork,
    task: Task,
    input_format: InputFormat,
    teacher: Descendant | None,
    fresh: bool,
    run: Run,
) -> tuple[StateDict, dict[str, Any]]:
    """The network's tensors after training, and how good every configuration then is. `fresh` says whether heads are new."""
    paths = train_stitches_alone(network, heads=fresh) if snnet.trained == "stitches" else network.layout.paths
    record = tune(
        network,
        training_images(task, input_format, snnet.training, run),
        snnet.training,
        run,
        teacher=_answers(teacher, run),
        kind=snnet.guidance,
        share=snnet.share,
        temperature=snnet.temperature,
        paths=paths,
        label="stitched anchors",
    )
    metrics: dict[str, Any] = {"training": record}
    if snnet.judged != 0:
        numbers = [{"config": number} for number in range(len(network.layout.paths))]
        metrics["paths"] = path_rows(network, numbers, task, input_format, run, images=snnet.judged)
    return state_of(network.cpu()), metrics


def _answers(teacher: Descendant | None, run: Run) -> Answers | None:
    return None if teacher is None else Teacher(teacher.model().to(open_device(run)))


def _teacher(
    snnet: Join, ancestries: Sequence[Ancestry], task: Task, run: Run
) -> tuple[Descendant | None, dict[str, Any]]:
    """The widest anchor with a head that answers for the task, and what its fine-tuning recorded; None if nobody asks."""
    if snnet.guidance == "none" or not snnet.share:
        return None, {}
    return teacher_for(ancestries[-1], task, snnet.teaching, run)


def _with_heads(ancestries: Sequence[Ancestry], task: Task, run: Run) -> tuple[bool, list[Descendant]]:
    """The anchors as models for the task, and whether all have the heads that they came with."""
    models = [assemble(ancestry.spec, ancestry.state, seed=run.seed) for ancestry in ancestries]
    seeds = [derive_seed(run.seed, "head", place) for place in range(len(models))]
    ready = [
        model.for_task(task.name, task.class_names, seed=seed, dense=task.dense) for model, seed in zip(models, seeds)
    ]
    return all(after.state is before.state for after, before in zip(ready, models)), ready


def _check_views(ancestries: Sequence[Ancestry]) -> None:
    views = [(ancestry.record.mean, ancestry.record.std) for ancestry in ancestries]
    for place, (before, input_format) in enumerate(pairwise(views), start=2):
        if input_format != before:
            raise WrongCall(
                f"ancestries {place - 1} and {place} were trained on images normalised in two ways: mean "
                f"{list(before[0])} and {list(input_format[0])}, standard deviation {list(before[1])} and {list(input_format[1])}; take models of one family"
            )


def _same(
    snnet: Join, ancestries: Sequence[Ancestry], task: Task, details: Details, run: Run
) -> dict[str, Json] | None:
    """All that the parts depend on beside seeds; None where an ancestry model has no checksum."""
    sums = [ancestry.record.sha256 for ancestry in ancestries]
    if None in sums:
        return None
    told: dict[str, Json] = to_json({"settings": snnet, "task": task.record, "details": details})
    return {**told, "ancestries": sums, "precision": run.precision}
