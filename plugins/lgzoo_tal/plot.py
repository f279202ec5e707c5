"""The picture of a hypernetwork: models of many sizes as points, and similarities of tasks.

On the left, after TAL's Figure 5, each point is a model: the mean over its graph's nodes of the
encoder's output for its task, in the plane of the first two principal components. On the right are
the cosines between the task embeddings, if at least two are stored. GHN-3 and LoGAH are not
conditioned on the task: their map is coloured by layers and stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy import ndarray
from torch.nn import functional

from learngene_zoo.plugin import BadFile, Expander, Learngene, Run, Spec, parse_details, plotting
from lgzoo_tal.hypernet_spec import HypernetDetails
from lgzoo_tal.modules.hypernet import build_graph_for
from lgzoo_tal.plot_panels import Cloud, build_size_legend, draw_map, draw_similarity
from lgzoo_tal.predict import get_embedding, load_hypernet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In inches.
WIDTH, HEIGHT = 12.0, 6.3
LEFT, RIGHT, TOP, BELOW = 0.45, 0.78, 1.2, 1.0
MAP, MATRIX = 4.4, 3.4  # widths of the two panels
# Widths of the map by itself, and of its colour bar or task names.
ALONE, BAR, TASK_NAMES = 7.0, 0.3, 1.0
MAX_SIZES = 60  # sizes in the map
NAMES = {"ghn3": "GHN-3", "logah": "LoGAH", "pith": "PITH", "tal": "TAL"}


def draw_picture(learngene: Learngene, expander: Expander) -> Figure:
    """Draw the figure for the sizes of the expander's family.

    Raises `BadFile` for impossible tensors or details.
    """
    details = parse_details(learngene.config, HypernetDetails)
    clouds, shares = project_clouds(
        compute_graph_embeddings(learngene, details, select_sizes(learngene, expander))
    )
    tasks, embeddings = read_embeddings(learngene, details)
    has_matrix = embeddings is not None and len(tasks) > 1
    across = MAP if has_matrix else ALONE
    wide = (
        WIDTH if has_matrix else LEFT + across + RIGHT + (BAR if len(clouds) == 1 else TASK_NAMES)
    )
    figure = plotting.new_figure(wide, HEIGHT)
    axes = plotting.add_axes(figure, LEFT, BELOW, across, HEIGHT - TOP - BELOW)
    draw_map(axes, clouds, shares, HEIGHT - TOP - BELOW)
    plotting.draw_legend_below(figure, axes, build_size_legend(clouds))
    method = NAMES.get(learngene.config.method, learngene.config.method)
    title = f"{method}: {len(clouds[0].specs)} sizes"
    if clouds[0].task is not None:
        whom = (
            f"each of {len(clouds)} tasks"
            if len(clouds) > 1
            else plotting.shorten_label(clouds[0].task)
        )
        title += f" for {whom}"
    whose = "each task's own" if details.apart else "the"
    plotting.draw_heading(
        figure, LEFT, title, f"output of {whose} encoder, averaged over a model's graph"
    )
    if embeddings is not None and has_matrix:
        left = wide - RIGHT - MATRIX
        similar = compute_cosines(embeddings)
        panel = plotting.add_axes(figure, left, HEIGHT - TOP - 0.75 - MATRIX, MATRIX, MATRIX)
        draw_similarity(panel, tasks, similar, order_by_similarity(similar))
        plotting.draw_heading(figure, left, "similarity of the tasks", "cosine of their embeddings")
    return figure


def select_sizes(learngene: Learngene, expander: Expander) -> list[Spec]:
    """Return the expander's family.

    Of a large one evenly spaced depths and widths, with the smallest and the largest.
    """
    specs = [member.spec for member in expander.family(learngene.config)]
    depths = thin_out(sorted({spec.layers for spec in specs}), MAX_SIZES // 2)
    widths = thin_out(sorted({spec.width for spec in specs}), max(MAX_SIZES // len(depths), 2))
    return [spec for spec in specs if spec.layers in depths and spec.width in widths]


def thin_out(values: Sequence[int], count: int) -> list[int]:
    """Return at most `count` (2 or more) values, evenly spaced from the first to the last."""
    if len(values) <= count:
        return list(values)
    return [values[round(at * (len(values) - 1) / (count - 1))] for at in range(count)]


@torch.no_grad()
def compute_graph_embeddings(
    learngene: Learngene, details: HypernetDetails, specs: Sequence[Spec]
) -> list[Cloud]:
    """Return the graph embeddings (len(specs), h) for every task that the encoder distinguishes.

    These are the tasks with a stored embedding or with a hypernetwork for themselves. A model has
    as many classes as its task.

    Args:
        learngene: of TAL, LoGAH or GHN-3.
        details: its details.
        specs: the sizes.

    Raises:
        BadFile: for impossible tensors.
    """
    conditioned = details.hypernetwork.task is not None
    records = [*learngene.config.tasks, *([details.source] if details.source else [])]
    classes = {record.name: record.classes for record in records if record.classes > 0}
    # Gives a task the same colour in both panels.
    order = list(dict.fromkeys((*details.embedded, *details.tasks, None)))
    clouds, hypernets = [], {}
    for task in dict.fromkeys(details.tasks if details.apart else details.embedded) or (None,):
        if conditioned and task not in details.embedded:
            raise BadFile(
                "the learngene stores no task embedding for its task layer; extract or fetch it "
                "again"
            )
        owner = details.find_owner(task)
        if owner not in hypernets:
            hypernets[owner] = load_hypernet(learngene, details, owner)
        embedding, _ = get_embedding(learngene, details, task, 1, Run())
        models = tuple(spec.with_(classes=classes.get(task or "", spec.classes)) for spec in specs)
        rows = [
            hypernets[owner]
            .encode(build_graph_for(details.hypernetwork, spec), embedding)
            .double()
            .mean(dim=0)
            .numpy()
            for spec in models
        ]
        clouds.append(
            Cloud(
                task, order.index(task), models, _check_finite(np.stack(rows), "a graph embedding")
            )
        )
    return clouds


def read_embeddings(
    learngene: Learngene, details: HypernetDetails
) -> tuple[tuple[str, ...], ndarray | None]:
    """Return the tasks whose embedding is stored, and these (tasks, E). Raises `BadFile`."""
    names = tuple(dict.fromkeys(details.embedded))
    rows = [get_embedding(learngene, details, name, 1, Run())[0] for name in names]
    vectors = [row.double().numpy() for row in rows if row is not None]
    return (names, _check_finite(np.stack(vectors), "a task embedding")) if vectors else ((), None)


def _check_finite(rows: ndarray, name: str) -> ndarray:
    if not np.isfinite(rows).all():
        raise BadFile(
            f"the learngene cannot be drawn: {name} is not finite; extract or fetch it again"
        )
    return rows


def project_clouds(clouds: Sequence[Cloud]) -> tuple[list[Cloud], tuple[float, float]]:
    """Project the clouds onto the plane of their first two principal components.

    Returns them and the components' shares of the variance.
    """
    plane, shares = compute_principal_plane(np.concatenate([cloud.points for cloud in clouds]))
    planes = np.split(plane, len(clouds))
    projected = [
        Cloud(cloud.task, cloud.number, cloud.specs, points)
        for cloud, points in zip(clouds, planes)
    ]
    return projected, shares


def compute_principal_plane(points: ndarray) -> tuple[ndarray, tuple[float, float]]:
    """Return (n, 2) the points (n, h) along their first two principal components.

    The second value are the components' shares of the variance. In double precision. The sign of a
    component is such that its largest coefficient is positive. Equal points have no components and
    are all at 0.
    """
    points = points.astype(np.float64)
    centred = points - points.mean(axis=0)
    left, scales, axes = np.linalg.svd(centred, full_matrices=False)
    scales[scales <= np.finfo(np.float64).eps * max(points.shape) * np.linalg.norm(points)] = (
        0  # rounding errors
    )
    peaks = np.abs(axes).argmax(axis=1)
    signs = np.where(axes[np.arange(len(axes)), peaks] < 0, -1.0, 1.0)
    plane, shares = np.zeros((len(points), 2)), np.zeros(2)
    count = min(2, len(scales))
    plane[:, :count] = (left * scales * signs)[:, :count]
    if scales.any():
        shares[:count] = scales[:count] ** 2 / (scales**2).sum()
    return plane, (float(shares[0]), float(shares[1]))


def compute_cosines(points: ndarray) -> ndarray:
    """Return (n, n) the cosines between the points (n, h); 0 for a point at 0."""
    units = functional.normalize(torch.from_numpy(points).double())
    return (units @ units.T).clamp(-1, 1).numpy()


def order_by_similarity(similar: ndarray) -> list[int]:
    """Return an order in which similar ones are neighbours, from a similarity matrix (n, n).

    It is that of the Fiedler vector. Of the order and its reverse, the one that begins with the
    smaller number.
    """
    weights = similar - similar.min(initial=0)
    _, vectors = np.linalg.eigh(np.diag(weights.sum(axis=1)) - weights)
    order: list[int] = vectors[:, :2][:, -1:].argsort(axis=0, kind="stable").flatten().tolist()
    return order if order[:1] <= order[-1:] else order[::-1]
