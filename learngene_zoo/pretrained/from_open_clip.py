"""Ancestry models of open_clip: a CLIP's vision tower, of timm's or of open_clip's class.

Examples of timm's are SigLIP, EVA02-CLIP and MobileCLIP2. Their `open_clip_config.json` names
timm's model under `model_cfg.vision_cfg` and the image settings under `preprocess_cfg`; tensors are
named `visual.trunk.` and timm's name. The text tower is left out, and so is a projection after the
tower (`timm_proj` "linear" or "mlp"); one that is the tower's own head (no `timm_proj`) stays its
head.

Of open_clip's class `VisionTransformer`, sizes and kinds of layers are in the config, and the
tensors have the names with which such models are written (formats/renames.py). Its projection
becomes the head. For a tower with a key that is not read, the error names the equivalent in timm.
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
TRUNK, TOWER = "visual.trunk.", "visual."
# Of a tower of open_clip's class: the keys that are read, with open_clip's defaults, and those that
# have no effect on the function.
OWN: dict[str, Json] = {
    "layers": 12,
    "width": 768,
    "head_width": 64,
    "mlp_ratio": 4.0,
    "patch_size": 16,
    "image_size": 224,
    "ls_init_value": None,
    "no_ln_pre": False,
    "pool_type": "tok",
    "norm_kwargs": None,
    "act_kwargs": None,
}
_WITHOUT_EFFECT = ("patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads")
# Other keys with open_clip's default, which is the only value that is read.
_FIXED = {"pos_embed_type": "learnable", "block_type": "default"}
# timm's models with the epsilons of their norms, which no argument sets.
BASES = {1e-5: "vit_base_patch16_clip_224", 1e-6: "vit_base_patch16_224"}
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


def read_spec(config: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of the vision tower.

    Raises `WrongCall` for a tower that is not supported, and `BadFile` for bad values.
    """
    model = _get_object(config, "model_cfg", where)
    vision = _get_object(model, "vision_cfg", where)
    name, more = vision.get("timm_model_name"), vision.get("timm_model_kwargs") or {}
    if not name:
        return _read_own_spec(model, vision, where)
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
        return timm_config.read_spec(settings, where)
    # The tower was built as timm has it and its pooling changed then, which leaves its norms where
    # they are.
    return timm_config.read_spec(settings, where).with_pool(pool or None)


def _read_own_spec(model: Mapping[str, Json], vision: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of a tower of open_clip's class.

    Raises `WrongCall` for a feature that is not read, with the equivalent in timm, and `BadFile`
    for bad values.
    """
    changed = {
        key: value
        for key, value in vision.items()
        if value is not None and value is not False and _FIXED.get(key) != value
    }
    # Keys of timm's towers have no effect without timm's name.
    unread = sorted(
        key for key in set(changed) - set(OWN) - set(_WITHOUT_EFFECT) if not key.startswith("timm_")
    )
    values: dict[str, Any] = {**OWN, **{key: changed[key] for key in changed if key in OWN}}
    norm, act = values["norm_kwargs"] or {}, values["act_kwargs"] or {}
    for key in ("layers", "width", "head_width"):
        if type(values[key]) is list:
            unread.append(f"a list as {key}")
        elif type(values[key]) is not int or values[key] < 1:
            raise BadFile(f"{where}: {key} is {values[key]!r:.40}; expected a whole number above 0")
    if not isinstance(norm, dict) or not isinstance(act, dict):
        raise BadFile(f"{where}: norm_kwargs and act_kwargs must be objects")
    epsilon, approximate = norm.get("eps", 1e-5), act.get("approximate", "none")
    unread += [f"norm_kwargs {key}" for key in norm if key != "eps"]
    unread += [f"act_kwargs {key}" for key in act if key != "approximate"]
    unread += [] if epsilon in BASES else [f"norms of eps {epsilon!r:.20}"]
    unread += [] if approximate in ("none", "tanh") else [f"GELU {approximate!r:.20}"]
    pools = {"tok": "token", "avg": "avg"}
    unread += [] if values["pool_type"] in pools else [f"pool_type {values['pool_type']!r:.20}"]
    if unread:
        twin = next((name for start, name in TWINS.items() if start in where), None)
        advice = (
            f"use the same weights from timm: timm:{twin}"
            if twin
            else "look for the same weights in timm"
        )
        raise WrongCall(
            f"{where} has a vision tower of open_clip's own class with {', '.join(unread)}, which "
            f"is not read; {advice} (lgzoo list ancestries)"
        )
    if values["width"] % values["head_width"]:
        raise BadFile(f"{where}: head_width {values['head_width']} does not divide the width")
    gelu = "quick_gelu" if model.get("quick_gelu") else "gelu"
    arguments = {
        "depth": values["layers"],
        "embed_dim": values["width"],
        "num_heads": values["width"] // values["head_width"],
        "mlp_ratio": values["mlp_ratio"],
        "patch_size": values["patch_size"],
        "img_size": values["image_size"],
        "num_classes": model.get("embed_dim"),
        "pre_norm": not values["no_ln_pre"],
        "init_values": values["ls_init_value"] or 0.0,
        "global_pool": pools[values["pool_type"]],
        **({"fc_norm": False} if values["pool_type"] == "avg" else {}),
        "act_layer": "gelu_tanh" if approximate == "tanh" and gelu == "gelu" else gelu,
    }
    settings = {"architecture": BASES[epsilon], "model_args": arguments}
    return timm_config.read_spec(settings, where)


def _get_object(config: Mapping[str, Json], key: str, where: str) -> Mapping[str, Json]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise BadFile(
            f"{where}: {key} is {type(value).__name__}; expected an object, as open_clip writes it"
        )
    return value


def read_images(config: Mapping[str, Json], where: str) -> Mapping[str, Any]:
    """Return timm's image settings that match open_clip's evaluation."""
    preprocessing = (
        _get_object(config, "preprocess_cfg", where) if config.get("preprocess_cfg") else {}
    )
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
    return timm_config.read_image_settings({"pretrained_cfg": stated}, where)


def select_trunk(stored: Tensors, spec: Spec) -> tuple[StateDict, tuple[str, ...]]:
    """Return the vision tower's tensors by timm's names, and a description of the others.

    Raises `BadFile` if there are none.
    """
    is_own = f"{TOWER}class_embedding" in stored
    start = TOWER if is_own else TRUNK
    names = [name for name in stored if name.startswith(start)]
    if not names:
        raise BadFile(
            f"{stored.path} has no tensors of a vision tower of timm's ({TRUNK}...) or of "
            f"open_clip's class ({TOWER}class_embedding ...); download it again"
        )
    other_names = [name for name in stored if not name.startswith(start)]
    left_out = (describe_tensors(other_names),) if other_names else ()
    state = {name.removeprefix(start): stored[name] for name in names}
    return (_restore_tower(state, spec) if is_own else state), left_out


def _restore_tower(stored: Mapping[str, Any], spec: Spec) -> StateDict:
    """Return the tensors of open_clip's class by timm's names.

    Without a norm before the first block, timm's patches have a bias; its heads have one.
    """
    from learngene_zoo.pretrained.formats.renames import OPEN_CLIP

    state = {OPEN_CLIP.restore(name): stored[name] for name in stored}
    for name, axes in (("pos_embed", (None,)), ("cls_token", (None, None))):
        if name in state:
            state[name] = state[name][axes]
    if "head.weight" in state:
        state["head.weight"] = state["head.weight"].T.contiguous()
        state["head.bias"] = state["head.weight"].new_zeros(len(state["head.weight"]))
    if not getattr(spec, "pre_norm", True) and "patch_embed.proj.weight" in state:
        weight = state["patch_embed.proj.weight"]
        state["patch_embed.proj.bias"] = weight.new_zeros(len(weight))
    return state
