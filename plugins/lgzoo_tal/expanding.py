"""From a learngene to one predicted model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from learngene_zoo.plugin import BadFile, Descendant, Learngene, Run, ViTSpec, WrongCall, assemble, open_task
from lgzoo_tal.details import Details, hypernet_in, read_details
from lgzoo_tal.embedding import embed, recorded_ancestry
from lgzoo_tal.hypernet import Hypernet, hypernet_of
from lgzoo_tal.judging import predicted
from lgzoo_tal.meta import Lesson
from lgzoo_tal.tensors import TASKS, hypernet_names

if TYPE_CHECKING:
    from lgzoo_tal.predict import Predict


def expanded(predict: Predict, learngene: Learngene, spec: ViTSpec, task: str | None, run: Run) -> Descendant:
    """The model of this shape for this task, weights as predicted."""
    config = learngene.config
    details = read_details(config)
    hypernet = held(learngene, whose(details, task))
    embedding, how = task_embedding(learngene, details, task, predict.embedding_images, run)
    lesson = Lesson(classes=spec.classes, embedding=embedding)
    parts = predicted(hypernet, spec, lesson, run, head=predict.head == "predicted")
    mean, std = config.normalisation
    made = assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance={"embedding": how})
    return replace(made, inherited=made.inherited - {"cls_token"})  # zeros, whatever the learngene


def whose(details: Details, task: str | None) -> str | None:
    """The task whose hypernetwork serves `task`; None if there is one for all. Raises `WrongCall`."""
    if not details.apart:
        return None
    if task in details.tasks:
        return task
    if len(details.tasks) == 1:
        return details.tasks[0]
    raise WrongCall(
        f"this learngene has a hypernetwork for each of {', '.join(details.tasks)}, and none for "
        f"{task or 'no task'}; name one of them with --task"
    )


def held(learngene: Learngene, task: str | None) -> Hypernet:
    """A learngene's hypernetwork, frozen. Raises `BadFile` if its tensors are not those that its config describes."""
    names = hypernet_names(learngene.state, task)
    try:
        return hypernet_of(
            hypernet_in(learngene.config), {official: learngene.state[name] for official, name in names.items()}
        )
    except BadFile as error:
        raise BadFile(f"{learngene.folder or 'the learngene'}: {error}") from error


def task_embedding(
    learngene: Learngene, details: Details, task: str | None, images: int, run: Run
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """The embedding of a task, and where it is from; none for a hypernetwork without a task layer."""
    size = hypernet_in(learngene.config).task
    if size is None:
        return None, {"from": "no task layer"}
    if task is None:
        stored = [_stored(learngene, name, size) for name in details.tasks or details.embedded]
        if not stored:
            raise WrongCall("this learngene stores no task embedding; name a task with --task")
        return torch.stack(stored).mean(dim=0), {"from": "the mean of the learngene's tasks"}
    if task in details.embedded:
        return _stored(learngene, task, size), {"from": "the learngene", "task": task}
    ancestry = recorded_ancestry(learngene.config, offline=run.offline)
    if ancestry.spec.width != size:
        raise BadFile(
            f"the learngene's ancestry model gives {ancestry.spec.width} features and its task layer takes {size}; extract it again"
        )
    opened = open_task(task, offline=run.offline)
    shown = min(images, opened.sizes["train"])
    if not shown:
        raise WrongCall(
            f"{task} has no training image to be embedded from; choose one of {', '.join(details.embedded)}"
        )
    return embed(ancestry.model(), opened, ancestry.input_format, run, images), {
        "from": "training images",
        "images": shown,
    }


def _stored(learngene: Learngene, task: str, size: int) -> torch.Tensor:
    name = f"{TASKS}{task}"
    where = str(learngene.folder or "the learngene")
    if name not in learngene.state:
        raise BadFile(f"{where} lacks the embedding {name}, which its details name; extract or fetch it again")
    tensor = learngene.state[name].float()
    if tuple(tensor.shape) != (size,):
        raise BadFile(f"{where}: the embedding {name} has shape {tuple(tensor.shape)}; ({size},) is wanted")
    return tensor
