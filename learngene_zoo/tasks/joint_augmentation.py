"""Changes of an image together with its mask; what happens to one is a function of (seed, epoch, index).

`light` and `rand` are what they are without masks (`augmentation.py`). A change of place moves image and mask alike, a
change of colour leaves the mask as it is; where nothing is known any more the mask says 255. Shapes: N images.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from learngene_zoo.tasks import augmentation
from learngene_zoo.tasks.augmentation import seeded
from learngene_zoo.tasks.checking import IGNORED

Images = torch.Tensor | Sequence[torch.Tensor]


def light(
    images_NCHW: torch.Tensor, masks_NHW: torch.Tensor, seed: int, epoch: int, indices: Sequence[int], flip: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifted, perhaps mirrored copies: pixels are only moved, so that the mask can go along as one more channel."""
    both = torch.cat([images_NCHW, masks_NHW[:, None]], dim=1)
    moved = augmentation.light(both, seed, epoch, indices, flip)
    return moved[:, :-1], moved[:, -1]


def rand(
    images: Images, masks: Images, seed: int, epoch: int, indices: Sequence[int], flip: bool, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random crops (N, C, size, size) and (N, size, size), two operations each, and the mirror."""
    from torchvision import tv_tensors

    change, made_images, made_masks = _rand(size, flip), [], []
    for image, mask in seeded(list(zip(images, masks, strict=True)), seed, epoch, indices):
        image, mask = change(tv_tensors.Image(image), tv_tensors.Mask(mask))
        made_images.append(image.as_subclass(torch.Tensor))
        made_masks.append(mask.as_subclass(torch.Tensor))
    return torch.stack(made_images), torch.stack(made_masks)


@cache
def _rand(size: int, flip: bool) -> Any:
    """RandAugment's operations at magnitude 9 of 30 as transforms of their own: its own class refuses masks."""
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
