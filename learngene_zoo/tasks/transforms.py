"""Transform the images of a split into a model's input: check, augment, resize and normalise.

Without augmentation the pixels are those of timm's evaluation transforms: resized by PIL, then
cropped at the centre.

The effect of an augmentation on an image is a function of (seed, epoch, index), and of the number
of the copy with repeated augmentation.

- `light`: a shift of up to an eighth of the side, with reflected border, and a horizontal flip
  where the task allows it.
- `rand`: a random crop, RandAugment (Cubuk et al., "RandAugment", 2020; two operations of magnitude
  9) and the flip.
- `deit`: see deit.py.

A change of geometry is applied to image and mask alike, a change of colour only to the image; mask
pixels from outside the image are 255. Shapes: N images.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.errors import BadData, BadPlugin, WrongCall
from learngene_zoo.families.picture_format import (
    USUAL_VIEW,
    InputFormat,
    Interpolation,
    View,
)
from learngene_zoo.seeds import derive_seed, draw_uniform
from learngene_zoo.tasks import deit
from learngene_zoo.tasks.task import IGNORED, Attribute, Samples, Task

Augment = Literal["none", "light", "rand", "deit"]
Images = torch.Tensor | Sequence[torch.Tensor]
T = TypeVar("T")
AUGMENTS: tuple[Augment, ...] = get_args(Augment)
# Maximal pixels of an image that is resized before its centre is cropped; of larger ones only the
# centre is computed.
MAX_RESIZED = 8_000_000
LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601


# Checking.


def check_samples(got: Any, task: Task, indices: Sequence[int]) -> Samples:
    """Convert what `Split.__getitems__` returns for `indices` to `Samples`, and check it.

    Raises `BadData` that names the image whose mask or attributes do not fit the task, and
    `BadPlugin` for images of another type.
    """
    samples = got if isinstance(got, Samples) else Samples(got)
    for image in samples.images[:1]:
        if image.dtype != torch.uint8:
            raise BadPlugin(f"{task.name} has images of {image.dtype}; expected torch.uint8")
    if task.dense:
        _check_masks(samples, task, indices)
    if task.attributes:
        _check_attributes(samples.attributes, task, indices)
    return samples


def _check_masks(samples: Samples, task: Task, indices: Sequence[int]) -> None:
    masks = samples.masks
    if masks is None:
        raise BadData(f"{task.name} is a segmentation task, but its images have no masks")
    if isinstance(masks, torch.Tensor) and isinstance(samples.images, torch.Tensor):
        # All at once, as one by one is slow for many small images
        sized = masks.shape == (len(indices), *samples.images.shape[-2:])
        if sized and not _find_wrong(masks, task.classes).any():
            return
    for image, mask_HW, index in zip(samples.images, masks, indices, strict=True):
        where = f"image {index} of {task.name}"
        if mask_HW.shape != image.shape[-2:]:
            raise BadData(
                f"{where} has {_describe_size(image.shape[-2:])} pixels and its mask "
                f"{_describe_size(mask_HW.shape)}"
            )
        wrong = mask_HW[_find_wrong(mask_HW, task.classes)]
        if len(wrong):
            raise BadData(
                f"the mask of {where} holds {int(wrong[0])}; expected 0 to {task.classes - 1}, or "
                f"{IGNORED} for ignored pixels"
            )


def _find_wrong(masks: torch.Tensor, classes: int) -> torch.Tensor:
    return (masks >= classes) & (masks != IGNORED)


def _describe_size(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _check_attributes(
    attributes_NA: torch.Tensor | None, task: Task, indices: Sequence[int]
) -> None:
    expected = (len(indices), len(task.attributes))
    if attributes_NA is None or tuple(attributes_NA.shape) != expected:
        got = "none" if attributes_NA is None else f"a table of shape {tuple(attributes_NA.shape)}"
        raise BadData(f"{task.name} declares attributes of shape {expected}, got {got}")
    for attribute, values_N in zip(task.attributes, attributes_NA.unbind(dim=1)):
        wrong_N = _find_impossible(attribute, values_N)
        if wrong_N.any():
            first = int(wrong_N.nonzero()[0])
            value = (
                f"one of 0 to {attribute.classes - 1}" if attribute.classes else "a finite number"
            )
            raise BadData(
                f"image {indices[first]} of {task.name} has {attribute.name} "
                f"{float(values_N[first])}; "
                f"expected {value}, or NaN"
            )


def _find_impossible(attribute: Attribute, values_N: torch.Tensor) -> torch.Tensor:
    """Return a mask of impossible values of an attribute, bool (N,)."""
    if attribute.classes is None:
        return values_N.isinf()
    known_N = values_N.nan_to_num()
    return (known_N < 0) | (known_N >= attribute.classes) | (known_N != known_N.floor())


# Resizing and normalising.


def fit_images(
    images: Images, size: int, view: View = USUAL_VIEW, fill: Sequence[int] = (0,)
) -> torch.Tensor:
    """Resize images by PIL as in `view`, then crop the centre or pad with `fill`.

    Returns uint8 (N, C, size, size).
    """
    if not isinstance(images, torch.Tensor):
        return torch.cat([fit_images(image[None], size, view, fill) for image in images])
    shape = compute_resized_shape(images.shape[-2:], size, view)
    if math.prod(shape) > MAX_RESIZED:
        return torch.stack(
            [_resize_centre(image, shape, size, view.interpolation) for image in images]
        )
    if shape != images.shape[-2:] and len(images):
        images = torch.stack([resize_image(image, shape, view.interpolation) for image in images])
    return crop_or_pad(images, size, fill)


def fit_masks(masks: Images, size: int, view: View = USUAL_VIEW) -> torch.Tensor:
    """Resize and crop masks like their images, with nearest interpolation.

    Returns uint8 (N, size, size); padding is `IGNORED`.
    """
    if not isinstance(masks, torch.Tensor):
        return torch.cat([fit_masks(mask[None], size, view) for mask in masks])
    shape = compute_resized_shape(masks.shape[-2:], size, view)
    if math.prod(shape) > MAX_RESIZED:
        return masks[:, _find_nearest(masks.shape[-2], shape[0], size)][
            :, :, _find_nearest(masks.shape[-1], shape[1], size)
        ]
    if shape != masks.shape[-2:]:
        masks = functional.interpolate(masks[:, None], size=shape, mode="nearest-exact")[:, 0]
    return crop_or_pad(masks[:, None], size, (IGNORED,))[:, 0]


def compute_resized_shape(
    shape: Sequence[int], size: int, view: View = USUAL_VIEW
) -> tuple[int, int]:
    """Return height and width before the centre crop, rounded as in timm and torchvision."""
    height, width = shape
    side, least = math.floor(size / view.crop_pct), min(height, width)
    if view.crop_mode == "squash":
        return side, side
    if view.crop_mode == "border":
        ratio = max(height / side, width / side)
        return max(1, round(height / ratio)), max(1, round(width / ratio))
    return int(side * height / least), int(side * width / least)


def resize_image(
    image_CHW: torch.Tensor, shape: tuple[int, int], interpolation: Interpolation
) -> torch.Tensor:
    """Resize to uint8 (C, *shape), channel by channel, with exactly PIL's pixels."""
    from PIL import Image

    resampling = Image.Resampling[interpolation.upper()]
    planes = [
        Image.fromarray(plane_HW).resize(shape[::-1], resampling) for plane_HW in image_CHW.numpy()
    ]
    return torch.from_numpy(np.stack([np.asarray(plane) for plane in planes]))


def _resize_centre(
    image_CHW: torch.Tensor, shape: tuple[int, int], size: int, interpolation: Interpolation
) -> torch.Tensor:
    """Resize an image to `shape`, but compute only the centre of `size` pixels.

    The pixels equal those of `resize_image` up to rounding, as PIL's filter extends across the
    border of the box.
    """
    from PIL import Image

    (height, width), (top, left) = image_CHW.shape[-2:], _find_corner(shape, size)
    down, right = height / shape[0], width / shape[1]
    box = (left * right, top * down, (left + size) * right, (top + size) * down)
    resampling = Image.Resampling[interpolation.upper()]
    planes = [
        Image.fromarray(plane_HW).resize((size, size), resampling, box=box)
        for plane_HW in image_CHW.numpy()
    ]
    return torch.from_numpy(np.stack([np.asarray(plane) for plane in planes]))


def _find_nearest(length: int, enlarged: int, size: int) -> torch.Tensor:
    """Return indices of the nearest pixels for the centre of an enlarged axis, int64 (size,).

    Args:
        length: pixels of the axis before it is enlarged.
        enlarged: pixels of the axis after it is enlarged.
        size: pixels of its centre.
    """
    first = round((enlarged - size) / 2)
    scale = torch.tensor(length / enlarged, dtype=torch.float32)  # as `interpolate` computes it
    positions = (torch.arange(first, first + size, dtype=torch.float32) + 0.5) * scale
    return positions.floor().long().clamp(max=length - 1)


def _find_corner(shape: Sequence[int], size: int) -> tuple[int, int]:
    """Return the first row and column of the centre of `size` pixels."""
    top, left = (round((side - size) / 2) for side in shape)
    return top, left


def crop_or_pad(images_NCHW: torch.Tensor, size: int, fill: Sequence[int]) -> torch.Tensor:
    """Crop the centre of `size` pixels; smaller images are padded with a colour, as in timm.

    `fill` has a value for each channel; its mean is used if the number of channels differs.
    """
    channels, height, width = images_NCHW.shape[-3:]
    if height < size or width < size:
        colour = fill if len(fill) == channels else [round(sum(fill) / len(fill))] * channels
        shape = (*images_NCHW.shape[:-2], max(height, size), max(width, size))
        padded = torch.tensor(colour, dtype=images_NCHW.dtype)[:, None, None].expand(shape).clone()
        top, left = find_padding((height, width), size)
        padded[..., top : top + height, left : left + width] = images_NCHW
        images_NCHW = padded
    top, left = _find_corner(images_NCHW.shape[-2:], size)
    return images_NCHW[..., top : top + size, left : left + size]


def find_padding(shape: Sequence[int], size: int) -> tuple[int, int]:
    """Return the number of rows above and of columns left of an image padded to `size` pixels."""
    top, left = (max(0, size - side) // 2 for side in shape)
    return top, left


def normalise_images(images_NCHW: torch.Tensor, input_format: InputFormat) -> torch.Tensor:
    """Return (value - mean) / std of values scaled to 0 to 1, float32 (N, channels, H, W).

    Images are first converted to the format's number of channels.
    """
    images = _convert_channels(images_NCHW, input_format.channels)
    mean = torch.tensor(input_format.mean, dtype=torch.float32)[:, None, None] * 255
    std = torch.tensor(input_format.std, dtype=torch.float32)[:, None, None] * 255
    return images.to(torch.float32).sub_(mean).div_(std)


def _convert_channels(images_NCHW: torch.Tensor, channels: int) -> torch.Tensor:
    got = images_NCHW.shape[1]
    if got == channels:
        return images_NCHW
    if got == 1:
        return images_NCHW.expand(-1, channels, -1, -1)
    if channels == 1 and got == 3:
        weights = torch.tensor(LUMINANCE)[:, None, None]
        return (images_NCHW.float() * weights).sum(dim=1, keepdim=True)
    raise WrongCall(
        f"the images have {got} channels and the model expects {channels}; only 1 and 3 can be "
        "converted"
    )


# Augmentation.


# Seed, epoch, indices, and whether a flipped image keeps its label
How = tuple[int, int, Sequence[int], bool]


def augment_images(
    images: Images, masks: Images | None, augment: Augment, input_format: InputFormat, how: How
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return augmented images, uint8 (N, C, size, size), and masks, uint8 (N, size, size).

    `deit` normalises before erasing, so its images are float32 and already normalised.

    Args:
        images: uint8 (C, H, W) each.
        masks: uint8 (H, W) each; None: there are none.
        augment: the augmentation.
        input_format: the size and the view.
        how: seed, epoch, indices, and whether a flipped image keeps its label.
    """
    size, view = input_format.image_size, input_format.view
    if augment == "deit":
        assert masks is None, "the loader refuses masks"
        return _augment_deit(images, input_format, how), None
    if augment == "rand":
        return (
            _augment_rand(images, size, how)
            if masks is None
            else _augment_rand_jointly(images, masks, size, how)
        )
    fitted_NCHW = fit_images(images, size, view, input_format.fill)
    if masks is None:
        return shift_and_flip(fitted_NCHW, *how) if augment == "light" else fitted_NCHW, None
    masks_NHW = fit_masks(masks, size, view)
    if augment == "none":
        return fitted_NCHW, masks_NHW
    # Pixels are only moved, so the mask can be processed as a further channel
    moved = shift_and_flip(torch.cat([fitted_NCHW, masks_NHW[:, None]], dim=1), *how)
    return moved[:, :-1], moved[:, -1]


def shift_and_flip(
    images_NCHW: torch.Tensor, seed: int, epoch: int, indices: Sequence[int], flip: bool
) -> torch.Tensor:
    """Return a shifted and possibly flipped copy of every image, uint8."""
    count, channels, height, width = images_NCHW.shape
    draws_N3 = draw_uniform(derive_seed(seed, "light", epoch), indices, 3)
    reach = np.array([height // 8, width // 8])
    shifts_N2 = np.floor(draws_N3[:, :2] * (2 * reach + 1)).astype(np.int64) - reach
    rows_NH = _reflect(np.arange(height) + shifts_N2[:, :1], height)
    columns_NW = _reflect(np.arange(width) + shifts_N2[:, 1:], width)
    if flip:
        columns_NW = np.where(draws_N3[:, 2:] < 0.5, columns_NW, columns_NW[:, ::-1])
    positions = torch.from_numpy(
        (rows_NH[:, :, None] * width + columns_NW[:, None, :]).reshape(count, 1, -1)
    )
    flat = images_NCHW.reshape(count, channels, height * width)
    return flat.gather(2, positions.expand(-1, channels, -1)).view(count, channels, height, width)


def _reflect(positions: np.ndarray, side: int) -> np.ndarray:
    """Reflect positions outside 0 .. side-1 at the border: -1 becomes 1, side becomes side-2."""
    positions = np.abs(positions)
    return np.where(positions >= side, 2 * (side - 1) - positions, positions)


def _augment_deit(images: Images, input_format: InputFormat, how: How) -> torch.Tensor:
    seed, epoch, indices, flip = how
    size = input_format.image_size
    sources = (
        fit_images(images, size, input_format.view, input_format.fill)
        if size <= deit.SMALL
        else images
    )
    coloured = [_convert_channels(image[None], 3)[0] for image in sources]
    changed = deit.apply_deit_augmentation(
        coloured, input_format, deit.derive_seeds("deit", seed, epoch, indices), flip
    )
    return deit.erase_rectangles(
        normalise_images(changed, input_format), deit.derive_seeds("erased", seed, epoch, indices)
    )


def _augment_rand(images: Images, size: int, how: How) -> tuple[torch.Tensor, None]:
    change = _create_rand(size, how[-1])
    return torch.stack([change(image) for image in _iterate_seeded(images, *how[:-1])]), None


@cache
def _create_rand(size: int, flip: bool) -> Any:
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(size, scale=(0.5, 1.0), antialias=True),
        v2.RandAugment(num_ops=2, magnitude=9),
    ]
    return v2.Compose([*steps, *([v2.RandomHorizontalFlip()] if flip else [])])


def _augment_rand_jointly(
    images: Images, masks: Images, size: int, how: How
) -> tuple[torch.Tensor, torch.Tensor]:
    from torchvision import tv_tensors

    change, made_images, made_masks = _create_joint_rand(size, how[-1]), [], []
    for image, mask in _iterate_seeded(list(zip(images, masks, strict=True)), *how[:-1]):
        image, mask = change(tv_tensors.Image(image), tv_tensors.Mask(mask))
        made_images.append(image.as_subclass(torch.Tensor))
        made_masks.append(mask.as_subclass(torch.Tensor))
    return torch.stack(made_images), torch.stack(made_masks)


@cache
def _create_joint_rand(size: int, flip: bool) -> Any:
    """Return RandAugment's operations at magnitude 9 of 30 as separate transforms.

    torchvision's class does not support masks.
    """
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    def make_affine(degrees: float = 0.0, **options: Any) -> Any:
        fill = {tv_tensors.Image: 0, tv_tensors.Mask: IGNORED}
        return v2.RandomAffine(degrees, fill=fill, **options)

    operations = [
        v2.Identity(),
        make_affine(shear=(-5.1, 5.1, 0.0, 0.0)),  # the angle whose tangent is 0.09, of at most 0.3
        make_affine(shear=(0.0, 0.0, -5.1, 5.1)),
        make_affine(translate=(0.136, 0.0)),  # of at most 150/331 of the side
        make_affine(translate=(0.0, 0.136)),
        make_affine(9.0),  # degrees of at most 30
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


def _iterate_seeded(
    items: Iterable[T], seed: int, epoch: int, indices: Sequence[int]
) -> Iterator[T]:
    """Yield the items; before each, torch's generator is seeded for it. Restores it at the end."""
    seeds = deit.derive_seeds("rand", seed, epoch, indices)
    with torch.random.fork_rng(devices=[]):
        for item, item_seed in zip(items, seeds, strict=True):
            torch.random.default_generator.manual_seed(item_seed)
            yield item
