"""Augmentation of training images, alone or with their masks. What happens to an image is a function of (seed, epoch, index).

`light`: a shift of up to an eighth of the side, the border reflected, and a mirror image where the task allows it.
`rand`: a random crop, RandAugment (Cubuk et al., "RandAugment", 2020; two operations of magnitude 9) and the mirror.

A change of geometry moves image and mask alike, a change of colour leaves the mask as it is; mask pixels from outside the image
are 255. Shapes: N images.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from learngene_zoo.seeds import bits, derive_seed, uniform
from learngene_zoo.tasks.images import IGNORED

Augment = Literal["none", "light", "rand"]
T = TypeVar("T")
AUGMENTS: tuple[Augment, ...] = ("none", "light", "rand")


def _reflected(places: np.ndarray, side: int) -> np.ndarray:
    """Places outside 0 .. side-1 mirrored back at the border: -1 is 1, side is side-2."""
    places = np.abs(places)
    return np.where(places >= side, 2 * (side - 1) - places, places)


def light(images_NCHW: torch.Tensor, seed: int, epoch: int, indices: Sequence[int], flip: bool) -> torch.Tensor:
    """A shifted and possibly mirrored copy of every image; uint8 in, uint8 out."""
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
    images: torch.Tensor | Sequence[torch.Tensor], seed: int, epoch: int, indices: Sequence[int], flip: bool, size: int
) -> torch.Tensor:
    """uint8 (N, C, size, size) of uint8 (C, H, W) images of any size. The global random state is left unchanged."""
    change = _rand(size, flip)
    return torch.stack([change(image) for image in seeded(images, seed, epoch, indices)])


def seeded(items: Iterable[T], seed: int, epoch: int, indices: Sequence[int]) -> Iterator[T]:
    """The items, with torch's generator seeded for each before it is yielded, and restored at the end."""
    seeds = bits(derive_seed(seed, "rand", epoch), indices, 1)[:, 0] >> np.uint64(1)
    with torch.random.fork_rng(devices=[]):
        for item, item_seed in zip(items, seeds.tolist(), strict=True):
            torch.random.default_generator.manual_seed(item_seed)
            yield item


Images = torch.Tensor | Sequence[torch.Tensor]


def light_joint(
    images_NCHW: torch.Tensor, masks_NHW: torch.Tensor, seed: int, epoch: int, indices: Sequence[int], flip: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifted and possibly mirrored copies: pixels are only moved, so the mask goes along as one more channel."""
    both = torch.cat([images_NCHW, masks_NHW[:, None]], dim=1)
    moved = light(both, seed, epoch, indices, flip)
    return moved[:, :-1], moved[:, -1]


def rand_joint(
    images: Images, masks: Images, seed: int, epoch: int, indices: Sequence[int], flip: bool, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random crops (N, C, size, size) and (N, size, size), two operations each, and the mirror."""
    from torchvision import tv_tensors

    change, made_images, made_masks = _rand_joint(size, flip), [], []
    for image, mask in seeded(list(zip(images, masks, strict=True)), seed, epoch, indices):
        image, mask = change(tv_tensors.Image(image), tv_tensors.Mask(mask))
        made_images.append(image.as_subclass(torch.Tensor))
        made_masks.append(mask.as_subclass(torch.Tensor))
    return torch.stack(made_images), torch.stack(made_masks)


@cache
def _rand_joint(size: int, flip: bool) -> Any:
    """RandAugment's operations at magnitude 9 of 30 as separate transforms: torchvision's class refuses masks."""
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    def moved(degrees: float = 0.0, **how: Any) -> Any:
        fill = {tv_tensors.Image: 0, tv_tensors.Mask: IGNORED}
        return v2.RandomAffine(degrees, fill=fill, **how)

    operations = [
        v2.Identity(),
        moved(shear=(-5.1, 5.1, 0.0, 0.0)),  # the angle whose tangent is 0.09, of at most 0.3
        moved(shear=(0.0, 0.0, -5.1, 5.1)),
        moved(translate=(0.136, 0.0)),  # of at most 150/331 of the side
        moved(translate=(0.0, 0.136)),
        moved(9.0),  # degrees of at most 30
        v2.ColorJitter(brightness=0.27),  # of at most 0.9, as the next three
        v2.ColorJitter(saturation=0.27),
        v2.ColorJitter(contrast=0.27),
        v2.RandomAdjustSharpness(1.27, p=1.0),
        v2.RandomPosterize(bits=7, p=1.0),
        v2.RandomSolarize(threshold=178, p=1.0),
        v2.RandomAutocontrast(p=1.0),
        v2.RandomEqualize(p=1.0),
    ]
    steps = [
        v2.RandomResizedCrop(size, scale=(0.5, 1.0), antialias=True),
        v2.RandomChoice(operations),
        v2.RandomChoice(operations),
    ]
    return v2.Compose([*steps, *([v2.RandomHorizontalFlip()] if flip else [])])
