"""DeiT's augmentation (Touvron et al., "Training data-efficient image transformers", 2021), with
timm's transforms.

A random crop of 8 to 100 % of the area, a horizontal flip where the task allows it, RandAugment
`rand-m9-mstd0.5-inc1`, and random erasing with noise per pixel and probability 0.25, after
normalisation. At 32 pixels or fewer the crop is taken from the image with a border of 4 black
pixels, as in DeiT's code. That code also passes a colour jitter of 0.3, which timm ignores in
combination with RandAugment, so it is left out here.

timm draws from the global generators of random, numpy and torch. For each image they are seeded
with a function of (seed, epoch, index), and they are restored afterwards. Shapes: N images.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch

from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.seeds import derive_seed, draw_bits

RANDAUGMENT = "rand-m9-mstd0.5-inc1"
JITTER = 0.3
ERASED = 0.25
SMALL, BORDER = 32, 4  # pixels
T = TypeVar("T")


def apply_deit_augmentation(
    images: Iterable[torch.Tensor], input_format: InputFormat, seeds: Sequence[int], flip: bool
) -> torch.Tensor:
    """Augment images uint8 (3, H, W) each; returns uint8 (N, 3, size, size).

    If `size` is at most `SMALL`, the images must already have it. Random erasing is not applied
    here: it follows the normalisation.
    """
    from torchvision.transforms.functional import to_pil_image

    change = _create_transform(input_format, flip)
    with restore_generators():
        return torch.stack(
            [change(to_pil_image(image)) for image in _iterate_seeded(images, seeds)]
        )


def erase_rectangles(images_NCHW: torch.Tensor, seeds: Sequence[int]) -> torch.Tensor:
    """Replace a rectangle by noise in a quarter of the normalised images, in place.

    Returns the images.
    """
    from timm.data.random_erasing import RandomErasing

    erase = RandomErasing(ERASED, mode="pixel", device="cpu")
    with restore_generators():
        for image in _iterate_seeded(images_NCHW, seeds):
            erase(image)
    return images_NCHW


def derive_seeds(name: str, seed: int, epoch: int, indices: Sequence[int]) -> list[int]:
    """Return a seed below 2^63 for each image, a function of the arguments and its index."""
    seeds: list[int] = (
        draw_bits(derive_seed(seed, name, epoch), indices, 1)[:, 0] >> np.uint64(1)
    ).tolist()
    return seeds


@cache
def _create_transform(input_format: InputFormat, flip: bool) -> Any:
    from timm.data import create_transform
    from timm.data.auto_augment import RandAugment
    from torchvision.transforms import RandomCrop

    size = input_format.image_size
    transform = create_transform(
        size,
        is_training=True,
        use_prefetcher=True,  # leaves normalisation and erasing to the caller
        hflip=0.5 if flip else 0.0,
        color_jitter=JITTER,
        auto_augment=RANDAUGMENT,
        interpolation=input_format.view.interpolation,
        mean=input_format.mean if input_format.channels == 3 else input_format.mean * 3,
    )
    for step in transform.transforms:
        if isinstance(step, RandAugment):
            for operation in step.ops:
                if operation.name == "PosterizeIncreasing":
                    operation.aug_fn = _posterize
    if size <= SMALL:
        transform.transforms[0] = RandomCrop(size, padding=BORDER)
    return transform


def _posterize(image: Any, bits: int, **_: Any) -> Any:
    """Posterise as timm does, also with 0 bits.

    That gives black; newer versions of PIL refuse it.
    """
    from PIL import Image, ImageOps

    return ImageOps.posterize(image, bits) if bits else Image.new(image.mode, image.size)


@contextmanager
def restore_generators() -> Iterator[None]:
    """Restore the states of the global generators on exit."""
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _iterate_seeded(items: Iterable[T], seeds: Sequence[int]) -> Iterator[T]:
    """Yield the items; before each, all global generators are seeded for it."""
    for item, seed in zip(items, seeds, strict=True):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.random.default_generator.manual_seed(seed)
        yield item
