"""The picture of a hypernetwork: graph embeddings of models of many sizes, and the similarity of its tasks (TAL, Figure 5).

On the left each point is a model: the mean over its graph's nodes of the encoder's output for its task, in the plane of the
first two principal components. On the right are the cosines between the task embeddings, if at least two are stored. GHN-3 and
LoGAH are not conditioned on the task: their map is coloured by layers and stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy import ndarray
from torch.nn import functional

from learngene_zoo.plugin import BadFile, Expander, Learngene, Run, Spec, details_of, plotting
from lgzoo_tal.embedding import embedding_for
from lgzoo_tal.graph import graph_of
from lgzoo_tal.learngene import Details
from lgzoo_tal.plot_panels import Cloud, draw_map, draw_similarity, size_legend
from lgzoo_tal.predict import hypernet_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In inches.
WIDTH, HEIGHT = 12.0, 6.3
LEFT, RIGHT, TOP, BELOW = 0.45, 0.78, 1.2, 1.0
MAP, MATRIX = 4.4, 3.4  # widths of the two panels
ALONE, BAR, TASK_NAMES = 7.0, 0.3, 1.0  # widths of the map by itself, and of its colour bar or task names
MOST = 60  # sizes in the map
NAMES = {"ghn3": "GHN-3", "logah": "LoGAH", "tal": "TAL"}


def picture(learngene: Learngene, expander: Expander) -> Figure:
    """The figure for the sizes of the expander's family. Raises `BadFile` for impossible tensors or details."""
    details = details_of(learngene.config, Details)
    clouds, shares = projected(graph_embeddings(learngene, details, sizes(learngene, expander)))
    tasks, embeddings = stored_embeddings(learngene, details)
    both = embeddings is not None and len(tasks) > 1
    across = MAP if both else ALONE
    wide = WIDTH if both else LEFT + across + RIGHT + (BAR if len(clouds) == 1 else TASK_NAMES)
    figure = plotting.new_figure(wide, HEIGHT)
    axes = plotting.axes_at(figure, LEFT, BELOW, across, HEIGHT - TOP - BELOW)
    draw_map(axes, clouds, shares, HEIGHT - TOP - BELOW)
    plotting.legend_below(figure, axes, size_legend(clouds))
    title = f"{NAMES.get(learngene.config.method, learngene.config.method)}: {len(clouds[0].specs)} sizes"
    if clouds[0].task is not None:
        whom = f"each of {len(clouds)} tasks" if len(clouds) > 1 else plotting.shortened(clouds[0].task)
        title += f" for {whom}"
    whose = "each task's own" if details.apart else "the"
    plotting.heading(figure, LEFT, title, f"output of {whose} encoder, averaged over a model's graph")
    if embeddings is not None and both:
        left = wide - RIGHT - MATRIX
        similar = cosines(embeddings)
        panel = plotting.axes_at(figure, left, HEIGHT - TOP - 0.75 - MATRIX, MATRIX, MATRIX)
        draw_similarity(panel, tasks, similar, neighbouring(similar))
        plotting.heading(figure, left, "similarity of the tasks", "cosine of their embeddings")
    return figure


def sizes(learngene: Learngene, expander: Expander) -> list[Spec]:
    """The expander's family; of a large one evenly spaced depths and widths, with the smallest and the largest."""
    specs = [member.spec for member in expander.family(learngene.config)]
    depths = thinned(sorted({spec.layers for spec in specs}), MOST // 2)
    widths = thinned(sorted({spec.width for spec in specs}), max(MOST // len(depths), 2))
    return [spec for spec in specs if spec.layers in depths and spec.width in widths]


def thinned(values: Sequence[int], count: int) -> list[int]:
    """At most `count` (2 or more) values, evenly spaced from the first to the last."""
    if len(values) <= count:
        return list(values)
    return [values[round(at * (len(values) - 1) / (count - 1))] for at in range(count)]


@torch.no_grad()
def graph_embeddings(learngene: Learngene, details: Details, specs: Sequence[Spec]) -> list[Cloud]:
    """The graph embeddings (len(specs), h) of these sizes, for every task that the encoder distinguishes.

    These are the tasks with a stored embedding or with a hypernetwork of their own. A model has as many classes as its task.
    Raises `BadFile` for impossible tensors.
    """
    conditioned = details.hypernetwork.task is not None
    records = [*learngene.config.tasks, *([details.source] if details.source else [])]
    classes = {record.name: record.classes for record in records if record.classes > 0}
    # Gives a task the same colour in both panels.
    order = list(dict.fromkeys((*details.embedded, *details.tasks, None)))
    found, hypernets = [], {}
    for task in dict.fromkeys(details.tasks if details.apart else details.embedded) or (None,):
        if conditioned and task not in details.embedded:
            raise BadFile("the learngene stores no task embedding for its task layer; extract or fetch it again")
        owner = details.owner(task)
        if owner not in hypernets:
            hypernets[owner] = hypernet_in(learngene, details, owner)
        embedding, _ = embedding_for(learngene, details, task, 1, Run())
        models = tuple(spec.with_(classes=classes.get(task or "", spec.classes)) for spec in specs)
        rows = [hypernets[owner].encode(graph_of(spec), embedding).double().mean(dim=0).numpy() for spec in models]
        found.append(Cloud(task, order.index(task), models, _finite(np.stack(rows), "a graph embedding")))
    return found


def stored_embeddings(learngene: Learngene, details: Details) -> tuple[tuple[str, ...], ndarray | None]:
    """The tasks whose embedding the learngene stores, and the embeddings (tasks, E). Raises `BadFile`."""
    names = tuple(dict.fromkeys(details.embedded))
    rows = [embedding_for(learngene, details, name, 1, Run())[0] for name in names]
    found = [row.double().numpy() for row in rows if row is not None]
    return (names, _finite(np.stack(found), "a task embedding")) if found else ((), None)


def _finite(rows: ndarray, what: str) -> ndarray:
    if not np.isfinite(rows).all():
        raise BadFile(f"the learngene cannot be drawn: {what} is not finite; extract or fetch it again")
    return rows


def projected(clouds: Sequence[Cloud]) -> tuple[list[Cloud], tuple[float, float]]:
    """The clouds in the plane of their first two principal components, and the components' shares of the variance."""
    plane, shares = principal_plane(np.concatenate([cloud.points for cloud in clouds]))
    planes = np.split(plane, len(clouds))
    return [Cloud(one.task, one.number, one.specs, points) for one, points in zip(clouds, planes)], shares


def principal_plane(points: ndarray) -> tuple[ndarray, tuple[float, float]]:
    """(n, 2) the points (n, h) along their first two principal components, and the components' shares of the variance.

    In double precision. The sign of a component is such that its largest coefficient is positive. Equal points have no
    components and are all at 0.
    """
    points = points.astype(np.float64)
    centred = points - points.mean(axis=0)
    left, scales, axes = np.linalg.svd(centred, full_matrices=False)
    scales[scales <= np.finfo(np.float64).eps * max(points.shape) * np.linalg.norm(points)] = 0  # rounding errors
    peaks = np.abs(axes).argmax(axis=1)
    signs = np.where(axes[np.arange(len(axes)), peaks] < 0, -1.0, 1.0)
    plane, shares = np.zeros((len(points), 2)), np.zeros(2)
    count = min(2, len(scales))
    plane[:, :count] = (left * scales * signs)[:, :count]
    if scales.any():
        shares[:count] = scales[:count] ** 2 / (scales**2).sum()
    return plane, (float(shares[0]), float(shares[1]))


def cosines(points: ndarray) -> ndarray:
    """(n, n) the cosines between the points (n, h); 0 for a point at 0."""
    units = functional.normalize(torch.from_numpy(points).double())
    return (units @ units.T).clamp(-1, 1).numpy()


def neighbouring(similar: ndarray) -> list[int]:
    """An order in which similar ones are neighbours, from a similarity matrix (n, n): that of the Fiedler vector.

    Of the order and its reverse, the one that begins with the smaller number.
    """
    weights = similar - similar.min(initial=0)
    _, vectors = np.linalg.eigh(np.diag(weights.sum(axis=1)) - weights)
    order: list[int] = vectors[:, :2][:, -1:].argsort(axis=0, kind="stable").flatten().tolist()
    return order if order[:1] <= order[-1:] else order[::-1]
