"""The sizes that the shape encoder has an embedding for, and which of them a size is taken for. Cold.

GHN-3 embeds a parameter by four numbers, its output and input channels and its kernel's height and width, each looked up
on a grid (Knyazev et al., 2023, section 3.2; the grids are those of the released code). One more row stands for "no
parameter".
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

Four = tuple[int, int, int, int]


@lru_cache(maxsize=32)
def channel_grid(classes: int) -> tuple[int, ...]:
    """Numbers of channels, ascending. The number of classes is always one of them."""
    return tuple(sorted({1, 3, classes, *range(8, 64, 8), *range(64, 4096, 16), *range(4096, 8193, 32)}))


@lru_cache(maxsize=8)
def spatial_grid(spatial: int) -> tuple[int, ...]:
    """Heights and widths of a kernel, ascending, of a hypernetwork whose largest kernel is `spatial`."""
    return tuple(sorted({*range(1, max(11, spatial - 1) + 1, 2), 14, 16}))


@lru_cache(maxsize=4096)
def indices(shape: tuple[int, ...] | None, classes: int, spatial: int) -> Four:
    """Where a parameter's four numbers lie on the grids; the rows after the last for a node that has none."""
    channels, kernels = channel_grid(classes), spatial_grid(spatial)
    if shape is None:
        return len(channels), len(channels), len(kernels), len(kernels)
    out, into, high, wide = (*shape, 1, 1, 1)[:4]  # an axis that is not there has one place
    return (
        channel_index(out, channels),
        channel_index(into, channels),
        kernel_index(high, kernels),
        kernel_index(wide, kernels),
    )


def channel_index(size: int, grid: tuple[int, ...]) -> int:
    """The row of a number of channels: 4 to 7 count as 8 unless they are on the grid themselves."""
    return _nearest(8 if 4 <= size < 8 and size not in grid else size, grid)


def kernel_index(size: int, grid: tuple[int, ...]) -> int:
    """The row of a kernel's height or width: 2 counts as 3."""
    return _nearest(3 if size == 2 else size, grid)


def _nearest(size: int, grid: tuple[int, ...]) -> int:
    """The row of the size nearest to this one, of two equally near the smaller; beyond the grid the last."""
    place = bisect_left(grid, size)
    if place == len(grid):
        return place - 1
    if place == 0 or grid[place] - size < size - grid[place - 1]:
        return place
    return place - 1
