"""timm's `config.json`: written so that timm opens our folders alone, read so that we open any ViT's. Cold at its top.

Nothing in such a file is ever a path or a class: arguments are numbers, flags and words from a closed list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall, unknown
from learngene_zoo.families.vit.spec import TIMM_NAMES, ViTSpec, architecture
from learngene_zoo.settings import Json, from_json, to_json

# The registered timm model that every descendant is, with all of its arguments given, so that none of its defaults matters.
ARCHITECTURE = "vit_base_patch16_224"
# Those that dense and stitched descendants are: `import learngene_zoo.timm` makes them known to timm.
DENSE_ARCHITECTURE = "learngene_dense_vit"
STITCHED_ARCHITECTURE = "learngene_stitched_vit"
STITCHED_DENSE_ARCHITECTURE = "learngene_stitched_dense_vit"
OURS = {  # by whether they are stitched and whether they are dense
    (False, True): DENSE_ARCHITECTURE,
    (True, False): STITCHED_ARCHITECTURE,
    (True, True): STITCHED_DENSE_ARCHITECTURE,
}

# Arguments that change training only, or how a fresh model would start.
_WITHOUT_EFFECT = {
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init"),
}
_OUR_NAMES = {timm: ours for ours, timm in TIMM_NAMES.items()}

# What timm takes for what a pretrained_cfg does not say.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def architecture_name(spec: ViTSpec) -> str:
    """What timm calls the architecture that this model is, given all of its arguments."""
    return OURS.get((bool(spec.front), spec.dense), ARCHITECTURE)


def timm_config(
    spec: ViTSpec, *, mean: Sequence[float], std: Sequence[float], class_names: Sequence[str], licence: str
) -> dict[str, Json]:
    """The root of a config.json that `timm.create_model("local-dir:...", pretrained=True)` understands.

    For a dense or a stitched model after `import learngene_zoo.timm`.
    """
    config: dict[str, Json] = {
        "architecture": architecture_name(spec),
        "num_classes": spec.classes,
        "num_features": spec.width,
        "global_pool": spec.pool,
        "model_args": spec.timm_args(),
        "pretrained_cfg": pretrained_cfg(spec, mean=mean, std=std, licence=licence),
    }
    return {**config, "label_names": list(class_names)} if class_names else config


def pretrained_cfg(
    spec: ViTSpec, *, mean: Sequence[float], std: Sequence[float], licence: str = "unknown"
) -> dict[str, Json]:
    """timm's description of a model's weights and of the images it wants."""
    return {
        "input_size": [spec.channels, spec.image_size, spec.image_size],
        "fixed_input_size": not spec.dynamic_image_size,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": list(mean),
        "std": list(std),
        "num_classes": spec.classes,
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": licence,
    }


def spec_in(config: Mapping[str, Json], where: str) -> ViTSpec:
    """The spec of the model that timm would build from a config.json; cold for the architectures of `spec.py`.

    Raises `BadFile` for what is no timm config, for arguments that no spec can express and for impossible sizes, and
    `WrongCall` for an architecture that is no plain ViT.
    """
    name, args, images = config.get("architecture"), config.get("model_args", {}), image_settings(config, where)
    if not isinstance(name, str):
        raise BadFile(f"{where} names no timm architecture; a folder that timm can open is wanted")
    if not isinstance(args, dict):
        raise BadFile(f"{where}: model_args is {type(args).__name__}, an object is wanted")
    base = _without_weights(name)
    told = {"classes": images.get("num_classes", 1000)}
    size = images.get("input_size")
    if size is not None:
        told["channels"] = size[0]
        if images.get("fixed_input_size"):
            told["image_size"] = size[-1]
    if "front" in args and name not in (STITCHED_ARCHITECTURE, STITCHED_DENSE_ARCHITECTURE):
        raise BadFile(f"{where}: model_args holds 'front', which {name} does not have")
    values = {**to_json(base), **told, **_known_arguments(args, where)}
    return from_json(ViTSpec, values, where)


def _without_weights(name: str) -> ViTSpec:
    """An architecture by itself: the size of its images is mostly a matter of its pretrained weights, else 224."""
    ours = {architecture: dense for (_, dense), architecture in OURS.items()}
    known = architecture(ARCHITECTURE if name in ours else name)
    return (
        known.with_(image_size=224, dense=ours.get(name, False))
        if known
        else architecture_of_timm(name, pretrained_cfg={"num_classes": 1000})
    )


def _known_arguments(args: Mapping[str, Json], where: str) -> dict[str, Json]:
    """timm's arguments in our words."""
    known = {}
    for name, value in args.items():
        if name in _WITHOUT_EFFECT or (value is None and name not in _OUR_NAMES):  # None: timm's own default
            continue
        if name == "front":
            known[name] = _segments(value, f"{where}: {name}")
            continue
        if name not in _OUR_NAMES:
            raise BadFile(f"{where}: model_args holds {name!r}, which this zoo does not know")
        known[_OUR_NAMES[name]] = _square(value, f"{where}: {name}") if name in ("img_size", "patch_size") else value
    return known


def _segments(value: Json, where: str) -> Json:
    """The segments in front as `ViTSpec` has them."""
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == 3 for item in value):
        raise BadFile(f"{where} is no list of segments, each [layers, width, heads]")
    return [dict(zip(("layers", "width", "heads"), item)) for item in value]


def _square(value: Json, where: str) -> Json:
    """timm takes a size as one number or as two."""
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise BadFile(f"{where} is {value}; only square images and patches are supported")
        return value[0]
    return value


def check_keys(config: Mapping[str, Json], where: str) -> None:
    """Raises `BadFile` for a key that `timm_config` does not write."""
    known = {
        *timm_config(ViTSpec(layers=1, width=1, heads=1), mean=(), std=(), class_names=("",), licence=""),
        "learngene",
    }
    extra = sorted(set(config) - known)
    if extra:
        raise BadFile(f"{where}: unknown key {extra[0]!r}; known are {', '.join(sorted(known))}")


def image_settings(config: Mapping[str, Json], where: str) -> dict[str, Any]:
    """The `pretrained_cfg` of a config.json, with what its root overrides; the types of what we use are checked."""
    cfg = config.get("pretrained_cfg", config)
    if not isinstance(cfg, dict):
        raise BadFile(f"{where}: pretrained_cfg is {type(cfg).__name__}, an object is wanted")
    cfg = dict(cfg)
    for key in ("num_classes", "label_names"):
        if key in config:
            cfg[key] = config[key]
    cfg = {key: value for key, value in cfg.items() if value is not None}
    _check_numbers(cfg, where)
    return cfg


def _check_numbers(cfg: Mapping[str, Json], where: str) -> None:
    size = cfg.get("input_size", [3, 224, 224])
    if not (isinstance(size, list) and len(size) == 3 and all(type(item) is int for item in size)):
        raise BadFile(f"{where}: input_size is {size}; [channels, height, width] is wanted")
    if cfg.get("fixed_input_size") and size[1] != size[2]:
        raise BadFile(f"{where}: input_size is {size}; only square images are supported")
    for key in ("mean", "std"):
        values = cfg.get(key, [])
        numbers = isinstance(values, list) and all(type(item) in (int, float) and abs(item) < 1e6 for item in values)
        if not numbers or (key == "std" and not all(item > 0 for item in values)):
            raise BadFile(
                f"{where}: {key} is {values}; one {'positive ' if key == 'std' else ''}number per channel is wanted"
            )
    names = cfg.get("label_names", [])
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise BadFile(f"{where}: label_names must be a list of strings")


def normalisation(images: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for each channel; where a config gives another number of them, their average."""
    mean, std = (tuple(map(float, images.get(key) or usual)) for key, usual in (("mean", _MEAN), ("std", _STD)))
    if len(mean) == channels == len(std):
        return mean, std
    return (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels


def architecture_of_timm(name: str, **options: Any) -> ViTSpec:
    """The spec of any architecture of timm's, with or without a pretrained tag. Nothing is downloaded.

    `options` are further ones of `timm.create_model`.

    Raises `WrongCall` for one that timm does not have or that is no plain ViT.
    """
    import timm
    import torch

    from learngene_zoo.families.vit.reading import SUPPORTED, spec_of

    bare, _, tag = name.partition(".")
    if not timm.is_model(bare):
        close = get_close_matches(bare, timm.list_models(), n=1)
        hint = f"did you mean {close[0]}?" if close else "timm.list_models('*vit*') lists those there are"
        raise WrongCall(f"no timm model named {bare!r}; {hint}")
    if tag and not timm.models.is_model_pretrained(name):
        raise unknown(f"pretrained tag of {bare}", name, timm.list_pretrained(f"{bare}.*"))
    family = timm.models.model_entrypoint(bare).__module__
    if family not in ("timm.models.vision_transformer", "timm.models.deit"):
        raise WrongCall(f"{name} is no Vision Transformer but one of {family}; {SUPPORTED}")
    with torch.device("meta"):
        return spec_of(timm.create_model(name, weight_init="skip", **options))


def check_agreement(config: Mapping[str, Json], spec: ViTSpec, where: str) -> None:
    """Raises `BadFile` unless timm would build the model that `spec` describes."""
    theirs = spec_in(config, where)
    for field in fields(ViTSpec):
        if getattr(theirs, field.name) != getattr(spec, field.name):
            raise BadFile(
                f"{where} contradicts itself: {field.name} is {getattr(theirs, field.name)} for timm "
                f"and {getattr(spec, field.name)} under 'learngene'"
            )


def refuse_pickle(path: Path) -> None:
    """Raises `BadFile` for a weights file that could run code when it is opened."""
    if path.suffix.lower() in (".bin", ".ckpt", ".npz", ".pickle", ".pkl", ".pt", ".pth", ".tar"):
        raise BadFile(
            f"{path} is not a safetensors file and may run code when opened; "
            "convert it: timm.models.save_for_hf(model, folder, safe_serialization=True)"
        )
