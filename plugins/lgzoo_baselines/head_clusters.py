"""Clusters of heads: those of measured distances, and those that Cluster-Learngene's authors published (`cluster_lg.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import Bounds, WrongCall, check_bounds

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec

Clusters = tuple[tuple[int, ...], ...]  # of one block, the largest first; heads counted from 0, the centroid first

# The centroids in the authors' code, by the width of DeiT, and of which layer each layer has its MLP.
RELEASED: dict[int, tuple[tuple[int, ...], ...]] = {
    192: ((0, 1, 2), (0, 2), (0, 2), (0, 1, 2), (0, 1, 2), (1, 0), (0, 1, 2), (2, 0), (0, 1, 2), (1, 0), (1,), (0,)),
    384: (
        (1, 2, 3), (0, 1, 3), (4, 2, 3), (1, 3), (4, 1, 3, 5), (4, 0, 1), (2, 0, 1, 3, 5), (4,), (5, 1, 2), (5,), (2,), (3,),
    ),
    768: (
        (1, 5, 4, 2, 8), (2, 6, 11), (6, 3, 5, 7), (3, 7, 5, 9, 1, 2), (5, 2, 1, 8, 10), (6, 7, 10, 11), (0, 1, 5, 3),
        (10, 6, 4, 11), (0, 3, 7, 9), (3,), (3, 4), (5,),
    ),
}  # fmt: skip
RELEASED_MLPS = {
    192: (0, 1, 1, 3, 4, 5, 6, 7, 8, 9, 10, 10),
    384: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9),
    768: (0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 9, 9),
}
AT = 224  # pixels of an image for which `eps` is given


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How heads are clustered."""

    images: Annotated[int, "validation images that attention is measured on", Bounds(least=1)] = 1000
    eps: Annotated[
        float,
        f"most pixels between neighbours of a cluster, at {AT} pixels; in proportion at other sizes",
        Bounds(least=0),
    ] = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)


def published(spec: Spec) -> tuple[Clusters, ...]:
    """The published centroids, each a cluster of its own. Raises `WrongCall` for another shape than theirs."""
    found = RELEASED.get(spec.width)
    if found is None or (spec.layers, spec.head_width) != (len(found), 64):
        raise WrongCall(
            f"centroids are published for DeiT-Tiny, -Small and -Base, not for {spec.layers} layers of width {spec.width}; leave out "
            "--released"
        )
    return tuple(tuple((head,) for head in block) for block in found)


def clustered(distances: Sequence[float], eps: float) -> Clusters:
    """Steps 2 and 3, for the heads of one block. Of equal sizes the cluster with the first head comes first."""
    order = sorted(range(len(distances)), key=lambda head: distances[head])
    groups = [[order[0]]]
    for before, head in pairwise(order):
        if distances[head] - distances[before] <= eps:
            groups[-1].append(head)
        else:
            groups.append([head])
    made = []
    for group in sorted(map(sorted, groups), key=lambda group: (-len(group), group[0])):
        mean = sum(distances[head] for head in group) / len(group)
        centroid = min(group, key=lambda head: abs(distances[head] - mean))
        made.append((centroid, *(head for head in group if head != centroid)))
    return tuple(made)
