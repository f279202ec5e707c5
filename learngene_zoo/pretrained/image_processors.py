"""Image settings of models in transformers' format: `preprocessor_config.json` as timm's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping

from learngene_zoo.errors import BadFile
from learngene_zoo.runs.progress import print_note
from learngene_zoo.settings import Json

# Pillow's numbers.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_RESCALE = 1 / 255
# Steps without a setting in timm.
_REFUSED = ("do_flip_channel_order", "rescale_offset", "offset", "crop_pct")
# Processors of transformers for which `size` as a number is the shortest edge, not a square.
_SHORTEST_EDGE = ("CLIP", "ChineseCLIP", "Bit")
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_CLIP: dict[str, Json] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
}
_SQUARE = {"height": 224, "width": 224}
# What a processor of transformers does where its file has no key, by the start of its class name.
_DEFAULTS: Mapping[str, Mapping[str, Json]] = {
    "ViT": {**_HALF, "resample": 2, "size": _SQUARE},
    "Siglip": {**_HALF, "resample": 3, "size": _SQUARE},
    "DeiT": {
        **_HALF,
        "resample": 3,
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
        "crop_size": 224,
    },
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "DINOv3ViT": {**_IMAGENET, "resample": 2, "size": _SQUARE},
}


def read_processor_settings(config: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return timm's image settings, as far as the file states them.

    Keys that are absent have the defaults of the class that the file names, if that is one of
    `_DEFAULTS`. Raises `BadFile` for a step that is not supported.
    """
    config = {**_find_defaults(config), **config}
    factor = config.get("rescale_factor", _RESCALE)
    if (
        config.get("do_rescale", True) is not True
        or type(factor) is not float
        or abs(factor - _RESCALE) > 1e-6
    ):
        raise BadFile(
            f"{where}: do_rescale and rescale_factor must turn bytes into 0 to 1 (1/255); "
            f"got {factor!r:.40}"
        )
    for key in _REFUSED:
        if config.get(key):
            raise BadFile(f"{where}: {key} is {config[key]!r:.40}, which is not supported")
    stated: dict[str, Json] = {}
    if config.get("do_normalize") is False:
        stated = {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}
    else:
        names = {"mean": "image_mean", "std": "image_std"}
        stated = {
            ours: config[theirs] for ours, theirs in names.items() if config.get(theirs) is not None
        }
    resample = config.get("resample")
    if resample is not None:
        if resample not in _INTERPOLATIONS:
            raise BadFile(
                f"{where}: resample is {resample!r:.40}; expected 0 to 5, as Pillow numbers them"
            )
        stated["interpolation"] = _INTERPOLATIONS[resample]
    return {**stated, **_read_crop(config, where)}


def _find_defaults(config: Mapping[str, Json]) -> Mapping[str, Json]:
    kind = _name_kind(config)
    return next((_DEFAULTS[name] for name in _DEFAULTS if kind.startswith(name)), {})


def _name_kind(config: Mapping[str, Json]) -> str:
    """Return the class of a processor: `ViTImageProcessor`, or formerly `ViTFeatureExtractor`."""
    return str(config.get("image_processor_type") or config.get("feature_extractor_type"))


def _read_crop(config: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return the settings for resizing and cropping.

    `crop_pct` is the fraction of the resized side that is kept. Without `do_resize` transformers
    takes images of the model's size as they are. So do these settings, and a note says that other
    images are resized.
    """
    if config.get("do_resize") is False:
        print_note(
            f"{where}: do_resize is false, so transformers takes only images of the model's size;"
            " here other images are resized to it",
            "do_resize",
        )
        return {"crop_mode": "center", "crop_pct": 1.0}
    if config.get("size") is None:
        return {}
    sides = _read_sides(config["size"], where, "size")
    if isinstance(config["size"], Mapping):
        is_square = "shortest_edge" not in config["size"]
    else:
        is_square = not _name_kind(config).startswith(_SHORTEST_EDGE)
    crop = None
    if config.get("do_center_crop") and config.get("crop_size") is not None:
        crop = _compute_fraction(_read_sides(config["crop_size"], where, "crop_size"), sides)
        if crop > 1:
            print_note(
                f"{where}: crop_size is larger than size, so transformers pads images with black; "
                "here they are resized to crop_size",
                "crop_size",
            )
            crop = 1.0
    if is_square:
        return {"crop_mode": "squash", "crop_pct": crop or 1.0}
    return {"crop_mode": "center", "crop_pct": crop or 1.0}


def _compute_fraction(crop: int, size: int) -> float:
    """Return the largest fraction from which timm computes `size`, the side before the crop.

    timm rounds `crop` divided by the fraction down.
    """
    fraction = crop / size
    return fraction if math.floor(crop / fraction) == size else math.nextafter(fraction, 0)


def _read_sides(size: Json, where: str, key: str) -> int:
    """Return the side of a square, or the shortest edge."""
    edges = (
        [size]
        if not isinstance(size, Mapping)
        else [size[k] for k in ("height", "width", "shortest_edge") if k in size]
    )
    if not edges or any(type(edge) is not int or edge < 1 for edge in edges) or len(set(edges)) > 1:
        raise BadFile(f"{where}: {key} is {size!r:.60}; expected one side of a square, in pixels")
    return int(edges[0])
