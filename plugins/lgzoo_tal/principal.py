"""The principal components of some points, and the order in which similar ones are neighbours. Cold at its top."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import ndarray


def principal_plane(points: ndarray) -> tuple[ndarray, tuple[float, float]]:
    """(n, 2) the points (n, h) along their first two principal components, and the components' shares of the variance.

    In double precision. A component and its negative are as good as each other: the one is taken whose largest number is
    positive. Where the points do not differ there is no component, and all of them are at 0.
    """
    import numpy as np

    points = points.astype(np.float64)
    centred = points - points.mean(axis=0)
    left, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    # What rounding leaves of points that are the same is no component.
    sizes[sizes <= np.finfo(np.float64).eps * max(points.shape) * np.linalg.norm(points)] = 0
    peaks = np.abs(axes).argmax(axis=1)
    signs = np.where(axes[np.arange(len(axes)), peaks] < 0, -1.0, 1.0)
    plane = np.zeros((len(points), 2))
    count = min(2, len(sizes))
    plane[:, :count] = (left * sizes * signs)[:, :count]
    shares = np.zeros(2)
    if sizes.any():
        shares[:count] = sizes[:count] ** 2 / (sizes**2).sum()
    return plane, (float(shares[0]), float(shares[1]))


def cosines(points: ndarray) -> ndarray:
    """(n, n) the cosines between the points (n, h); 0 with a point that is 0."""
    import numpy as np

    points = points.astype(np.float64)
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    units = np.divide(points, lengths, out=np.zeros_like(points), where=lengths > 0)
    return np.clip(units @ units.T, -1.0, 1.0)


def neighbourly(similar: ndarray) -> list[int]:
    """The order of a similarity matrix (n, n) in which similar ones are neighbours.

    Hierarchical: the two groups that are most similar on average are joined, again and again, each time so that their most
    similar ends meet. Of the order and its reverse it is the one whose first end was named first.
    """
    groups = [[number] for number in range(len(similar))]
    while len(groups) > 1:
        one, other = max(combinations(groups, 2), key=lambda pair: float(similar[pair[0]][:, pair[1]].mean()))
        groups = [group for group in groups if group is not one and group is not other]
        joined = max(
            ((left, right) for left in (one, one[::-1]) for right in (other, other[::-1])),
            key=lambda pair: float(similar[pair[0][-1], pair[1][0]]),
        )
        groups.append([*joined[0], *joined[1]])
    order = groups[0] if groups else []
    return order if not order or order[0] < order[-1] else order[::-1]
