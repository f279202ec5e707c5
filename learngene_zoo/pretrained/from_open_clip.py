"""Ancestry models of open_clip: a CLIP's vision tower that is a model of timm's.

Examples are SigLIP, EVA02-CLIP and MobileCLIP2. Their `open_clip_config.json` names timm's model
under `model_cfg.vision_cfg` and the image settings under `preprocess_cfg`; tensors are named
`visual.trunk.` and timm's name. The text tower is left out, and so is a projection after the tower
(`timm_proj` "linear" or "mlp"); one that is the tower's own head (no `timm_proj`) stays its head.
For towers of open_clip's own class, whose weights have other names, the error names the equivalent
in timm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import timm_config
from learngene_zoo.families.spec import Spec
from learngene_zoo.pretrained.layouts import describe_tensors
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict, Tensors

CONFIG = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
TRUNK = "visual.trunk."
# open_clip's defaults for keys that its file lacks.
USUAL = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
IMAGE_SIZE, POOL, PROJECTION = 224, "avg", "linear"
# Its words and timm's; its "longest" pads with black, not the mean.
CROP_MODES = {"shortest": "center", "squash": "squash"}
# Of towers of open_clip's own class, the beginnings of names of repositories and their twins in
# timm.
TWINS = {
    "laion/CLIP-ViT-B-32-laion2B-": "vit_base_patch32_clip_224.laion2b",
    "laion/CLIP-ViT-B-32-DataComp.XL-": "vit_base_patch32_clip_224.datacompxl",
    "laion/CLIP-ViT-B-32-256x256-DataComp-": "vit_base_patch32_clip_256.datacompxl",
    "laion/CLIP-ViT-B-16-laion2B-": "vit_base_patch16_clip_224.laion2b",
    "laion/CLIP-ViT-B-16-DataComp.XL-": "vit_base_patch16_clip_224.datacompxl",
    "laion/CLIP-ViT-L-14-laion2B-": "vit_large_patch14_clip_224.laion2b",
    "laion/CLIP-ViT-L-14-DataComp.XL-": "vit_large_patch14_clip_224.datacompxl",
    "laion/CLIP-ViT-H-14-laion2B-": "vit_huge_patch14_clip_224.laion2b",
    "laion/CLIP-ViT-bigG-14-laion2B-": "vit_gigantic_patch14_clip_224.laion2b",
    "apple/DFN2B-CLIP-ViT-B-16": "vit_base_patch16_clip_224.dfn2b",
    "apple/DFN2B-CLIP-ViT-L-14-39B": "vit_large_patch14_clip_224.dfn2b_s39b",
    "apple/DFN2B-CLIP-ViT-L-14": "vit_large_patch14_clip_quickgelu_224.dfn2b",
    "apple/DFN5B-CLIP-ViT-H-14-378": "vit_huge_patch14_clip_quickgelu_378.dfn5b",
    "apple/DFN5B-CLIP-ViT-H-14": "vit_huge_patch14_clip_quickgelu_224.dfn5b",
}


def spec_of(config: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of the vision tower.

    Raises `WrongCall` for a tower that is not a supported model of timm's, and `BadFile` for bad
    values.
    """
    model = _object(config, "model_cfg", where)
    vision = _object(model, "vision_cfg", where)
    name, more = vision.get("timm_model_name"), vision.get("timm_model_kwargs") or {}
    if not name:
        twin = next((name for start, name in TWINS.items() if start in where), None)
        advice = (
            f"use the same weights from timm: timm:{twin}"
            if twin
            else "look for the same weights in timm"
        )
        raise WrongCall(
            f"{where} has a vision tower of open_clip's own class, "
            f"of which only those of timm's are read; {advice} "
            "(lgzoo list ancestries)"
        )
    if not isinstance(more, dict):
        raise BadFile(f"{where}: timm_model_kwargs is {type(more).__name__}; expected an object")
    pool, projection = vision.get("timm_pool", POOL) or "", vision.get("timm_proj", PROJECTION)
    if not isinstance(pool, str):
        raise BadFile(f"{where}: timm_pool is {type(pool).__name__}; expected a string")
    after_it = projection in ("linear", "mlp")
    settings = {
        "architecture": name,
        "num_classes": 0 if after_it or projection == "none" else model.get("embed_dim"),
        "model_args": {**more, "img_size": vision.get("image_size", IMAGE_SIZE)},
    }
    if not after_it:
        settings["model_args"]["global_pool"] = pool
        return timm_config.spec_in(settings, where)
    # The tower was built as timm has it and its pooling changed then, which leaves its norms where
    # they are.
    return timm_config.spec_in(settings, where).with_pool(pool or None)


def _object(config: Mapping[str, Json], key: str, where: str) -> Mapping[str, Json]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise BadFile(
            f"{where}: {key} is {type(value).__name__}; expected an object, as open_clip writes it"
        )
    return value


def images_of(config: Mapping[str, Json], where: str) -> Mapping[str, Any]:
    """Return timm's image settings that match open_clip's evaluation."""
    preprocessing = _object(config, "preprocess_cfg", where) if config.get("preprocess_cfg") else {}
    mode = preprocessing.get("resize_mode") or "shortest"
    stated = {
        "mean": preprocessing.get("mean") or USUAL["mean"],
        "std": preprocessing.get("std") or USUAL["std"],
        "interpolation": "bilinear"
        if preprocessing.get("interpolation") == "bilinear"
        else "bicubic",
        "crop_pct": 1.0,
        "crop_mode": CROP_MODES.get(str(mode), mode),
    }
    return timm_config.image_settings({"pretrained_cfg": stated}, where)


def trunk(stored: Tensors, spec: Spec) -> tuple[StateDict, tuple[str, ...]]:
    """Return the vision tower's tensors by timm's names, and a description of the others.

    Raises `BadFile` if there are none.
    """
    names = [name for name in stored if name.startswith(TRUNK)]
    if not names:
        raise BadFile(
            f"{stored.path} has no tensors of a vision tower of timm's ({TRUNK}...); "
            "download it again"
        )
    other_names = [name for name in stored if not name.startswith(TRUNK)]
    left_out = (describe_tensors(other_names),) if other_names else ()
    return {name.removeprefix(TRUNK): stored[name] for name in names}, left_out
