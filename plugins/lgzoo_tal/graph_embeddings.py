"""What the encoder makes of models of many sizes: graph embeddings, the mean over a graph's nodes (TAL, Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy import isfinite, ndarray, stack

from learngene_zoo.plugin import BadFile, Learngene, Run, ViTSpec
from lgzoo_tal.details import Details, hypernet_in, read_details
from lgzoo_tal.expanding import held, task_embedding, whose
from lgzoo_tal.graph import graph_of


@dataclass(frozen=True, eq=False)
class Cloud:
    """The models of all sizes, for one task; or for none, where the encoder is not told the task."""

    task: str | None
    specs: tuple[ViTSpec, ...]
    points: ndarray  # (len(specs), h) float64


def stored_embeddings(learngene: Learngene) -> tuple[tuple[str, ...], ndarray | None]:
    """The tasks whose embedding the learngene stores, and the embeddings (tasks, E). Raises `BadFile`."""
    details = read_details(learngene.config)
    names = tuple(dict.fromkeys(details.embedded))
    rows = [task_embedding(learngene, details, name, 1, Run())[0] for name in names]
    found = [row.double().numpy() for row in rows if row is not None]
    if not found:
        return (), None
    return names, _finite(stack(found), "the tasks' embeddings")


@torch.no_grad()
def clouds(learngene: Learngene, specs: Sequence[ViTSpec]) -> list[Cloud]:
    """The graph embeddings of these sizes, for every task that the encoder tells from others.

    These are the tasks with a stored embedding, or with a hypernetwork of their own. A model has as many classes as its
    task. Raises `BadFile` for tensors that cannot be.
    """
    details = read_details(learngene.config)
    informed = hypernet_in(learngene.config).task is not None
    records = [*learngene.config.tasks, *([details.source] if details.source else [])]
    classes = {record.name: record.classes for record in records if record.classes > 0}
    found, hypernets = [], {}
    for task in _told_apart(details):
        if informed and task not in details.embedded:
            raise BadFile("the learngene stores no task embedding for its task layer; extract or fetch it again")
        own = whose(details, task)
        if own not in hypernets:
            hypernets[own] = held(learngene, own)
        embedding, _ = task_embedding(learngene, details, task, 1, Run())
        asked = tuple(spec.with_(classes=classes.get(task or "", spec.classes)) for spec in specs)
        rows = [hypernets[own].encode(graph_of(spec), embedding).double().mean(dim=0).numpy() for spec in asked]
        found.append(Cloud(task, asked, _finite(stack(rows), "what its encoder makes of a model")))
    return found


def _told_apart(details: Details) -> tuple[str | None, ...]:
    """The tasks whose graph embeddings may differ; None alone where there is no such task."""
    return tuple(dict.fromkeys(details.tasks if details.apart else details.embedded)) or (None,)


def _finite(rows: ndarray, what: str) -> ndarray:
    if not isfinite(rows).all():
        raise BadFile(f"the learngene cannot be drawn: {what} is not finite; extract or fetch it again")
    return rows
