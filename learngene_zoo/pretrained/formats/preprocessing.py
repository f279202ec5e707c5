"""How images are presented to a model, in the files of transformers and open_clip."""

from __future__ import annotations

import math

from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.settings import Json

# Pillow's numbers.
_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
_PADDED = "use the format timm, or fine-tune it with the fit crop or stretch"


def find_fault_for_transformers(images: InputFormat) -> str:
    """Return why no image processor of transformers does this; "" if one does."""
    if images.view.crop_mode == "border":
        return f"its images are padded, which image processors of transformers do not do; {_PADDED}"
    return ""


def write_processor(images: InputFormat) -> dict[str, Json]:
    """Return the content of a preprocessor_config.json."""
    view, size = images.view, images.image_size
    resized = math.floor(size / view.crop_pct)
    is_square, is_cropped = view.crop_mode == "squash", resized != size
    crops = is_cropped or not is_square
    square: Json = {"height": size, "width": size}
    return {
        "image_processor_type": "CLIPImageProcessor" if crops else "ViTImageProcessor",
        "do_convert_rgb": images.channels == 3,
        "do_resize": True,
        "size": {"height": resized, "width": resized} if is_square else {"shortest_edge": resized},
        "resample": _RESAMPLE[view.interpolation],
        **({"do_center_crop": True, "crop_size": square} if crops else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(images.mean),
        "image_std": list(images.std),
    }


def find_fault_for_open_clip(images: InputFormat) -> str:
    """Return why open_clip's evaluation does not do this; "" if it does."""
    view = images.view
    if view.crop_mode == "border":
        return f"its images are padded with their mean, which open_clip does not do; {_PADDED}"
    if view.interpolation not in ("bicubic", "bilinear"):
        return (
            f"its images are resized with {view.interpolation}, which open_clip does not have; "
            "use the format timm"
        )
    return ""


def describe_crop(images: InputFormat) -> tuple[str, ...]:
    """Return how open_clip crops images otherwise than the model; empty if it does not."""
    if images.view.crop_pct == 1.0:
        return ()
    resized = math.floor(images.image_size / images.view.crop_pct)
    return (
        f"open_clip resizes images to {images.image_size} pixels, and not to {resized} before it "
        f"crops {images.image_size}",
    )


def write_preprocess_cfg(images: InputFormat) -> dict[str, Json]:
    """Return the content of `preprocess_cfg` of an open_clip_config.json."""
    is_square = images.view.crop_mode == "squash"
    return {
        "size": images.image_size,
        "mode": "RGB",
        "mean": list(images.mean),
        "std": list(images.std),
        "interpolation": images.view.interpolation,
        "resize_mode": "squash" if is_square else "shortest",
        "fill_color": 0,
    }
