"""Changes of training images that keep their label; what happens to one is a function of (seed, epoch, index).

`light`: a shift of up to an eighth of the side, the rim reflected, and a mirror image where the task allows it.
`rand`: a random crop, RandAugment (Cubuk et al., "RandAugment", 2020; two operations of magnitude 9) and the mirror.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from learngene_zoo.run import derive_seed
from learngene_zoo.tasks.draws import bits, uniform

Augment = Literal["none", "light", "rand"]
T = TypeVar("T")
AUGMENTS: tuple[Augment, ...] = ("none", "light", "rand")


def _reflected(places: np.ndarray, side: int) -> np.ndarray:
    """Places outside 0 .. side-1 mirrored back at the rim: -1 is 1, side is side-2."""
    places = np.abs(places)
    return np.where(places >= side, 2 * (side - 1) - places, places)


def light(images_NCHW: torch.Tensor, seed: int, epoch: int, indices: Sequence[int], flip: bool) -> torch.Tensor:
    """A shifted, perhaps mirrored copy of every image; uint8 in, uint8 out."""
    count, channels, height, width = images_NCHW.shape
    draws_N3 = uniform(derive_seed(seed, "light", epoch), indices, 3)
    reach = np.array([height // 8, width // 8])
    shifts_N2 = np.floor(draws_N3[:, :2] * (2 * reach + 1)).astype(np.int64) - reach
    rows_NH = _reflected(np.arange(height) + shifts_N2[:, :1], height)
    columns_NW = _reflected(np.arange(width) + shifts_N2[:, 1:], width)
    if flip:
        columns_NW = np.where(draws_N3[:, 2:] < 0.5, columns_NW, columns_NW[:, ::-1])
    places = torch.from_numpy((rows_NH[:, :, None] * width + columns_NW[:, None, :]).reshape(count, 1, -1))
    flat = images_NCHW.reshape(count, channels, height * width)
    return flat.gather(2, places.expand(-1, channels, -1)).view(count, channels, height, width)


@cache
def _rand(size: int, flip: bool) -> Any:
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(size, scale=(0.5, 1.0), antialias=True), v2.RandAugment(num_ops=2, magnitude=9)]
    return v2.Compose([*steps, *([v2.RandomHorizontalFlip()] if flip else [])])


def rand(
    images: torch.Tensor | Sequence[torch.Tensor],
    seed: int,
    epoch: int,
    indices: Sequence[int],
    flip: bool,
    size: int,
) -> torch.Tensor:
    """uint8 (N, C, size, size) of uint8 (C, H, W) images of any size. The global random state is left as it was."""
    change = _rand(size, flip)
    return torch.stack([change(image) for image in seeded(images, seed, epoch, indices)])


def seeded(items: Iterable[T], seed: int, epoch: int, indices: Sequence[int]) -> Iterator[T]:
    """The items, torch's generator seeded for each before it is given out; afterwards that is as it was before."""
    seeds = bits(derive_seed(seed, "rand", epoch), indices, 1)[:, 0] >> np.uint64(1)
    with torch.random.fork_rng(devices=[]):
        for item, item_seed in zip(items, seeds.tolist(), strict=True):
            torch.random.default_generator.manual_seed(item_seed)
            yield item
