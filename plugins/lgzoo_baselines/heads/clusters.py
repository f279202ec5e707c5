"""Clusters of heads (`cluster_lg.py`): of measured distances, and published by the authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import Bounds, WrongCall, check_bounds, name_option

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec

# Of one block, the largest first; heads counted from 0, the centroid first.
Clusters = tuple[tuple[int, ...], ...]

# The centroids in the authors' code, by the width of DeiT, and the layer whose MLP each layer has.
RELEASED: dict[int, tuple[tuple[int, ...], ...]] = {
    192: (
        (0, 1, 2), (0, 2), (0, 2), (0, 1, 2), (0, 1, 2), (1, 0),
        (0, 1, 2), (2, 0), (0, 1, 2), (1, 0), (1,), (0,),
    ),
    384: (
        (1, 2, 3), (0, 1, 3), (4, 2, 3), (1, 3), (4, 1, 3, 5), (4, 0, 1),
        (2, 0, 1, 3, 5), (4,), (5, 1, 2), (5,), (2,), (3,),
    ),
    768: (
        (1, 5, 4, 2, 8), (2, 6, 11), (6, 3, 5, 7), (3, 7, 5, 9, 1, 2), (5, 2, 1, 8, 10),
        (6, 7, 10, 11), (0, 1, 5, 3), (10, 6, 4, 11), (0, 3, 7, 9), (3,), (3, 4), (5,),
    ),
}  # fmt: skip
RELEASED_MLPS = {
    192: (0, 1, 1, 3, 4, 5, 6, 7, 8, 9, 10, 10),
    384: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9),
    768: (0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 9, 9),
}
EPS_IMAGE_SIZE = 224  # the image size in pixels for which `eps` is given


@dataclass(frozen=True, kw_only=True)
class HeadClustering:
    """Settings of the clustering of heads."""

    images: Annotated[
        int,
        "number of validation images on which attention distances are measured",
        Bounds(least=1),
    ] = 1000
    eps: Annotated[
        float,
        "DBSCAN's eps: largest gap between the attention distances of a cluster, in pixels, for "
        f"images of {EPS_IMAGE_SIZE} pixels; scaled for other sizes",
        Bounds(least=0),
    ] = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)


def get_released_clusters(spec: Spec) -> tuple[Clusters, ...]:
    """Return the published centroids, each as a cluster of one head.

    Raises `WrongCall` for a shape without published centroids.
    """
    centroids = RELEASED.get(spec.width)
    if centroids is None or (spec.layers, spec.head_width) != (len(centroids), 64):
        raise WrongCall(
            f"centroids are published for DeiT-Tiny, -Small and -Base, not for {spec.layers} "
            f"layers of width {spec.width}; leave out {name_option('released')}"
        )
    return tuple(tuple((head,) for head in block) for block in centroids)


def cluster_heads(distances: Sequence[float], eps: float) -> Clusters:
    """Return the clusters of the heads of one block, steps 2 and 3.

    Of clusters of the same size that with the first head comes first.
    """
    order = sorted(range(len(distances)), key=lambda head: distances[head])
    groups = [[order[0]]]
    for before, head in pairwise(order):
        if distances[head] - distances[before] <= eps:
            groups[-1].append(head)
        else:
            groups.append([head])
    clusters = []
    for group in sorted(map(sorted, groups), key=lambda group: (-len(group), group[0])):
        mean = sum(distances[head] for head in group) / len(group)
        centroid = min(group, key=lambda head: abs(distances[head] - mean))
        clusters.append((centroid, *(head for head in group if head != centroid)))
    return tuple(clusters)
