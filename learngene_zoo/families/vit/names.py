"""timm's names of Vision Transformers, and their arguments in any config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from learngene_zoo.errors import BadFile
from learngene_zoo.families import spec as common
from learngene_zoo.families.picture_spec import (
    read_segments,
    unify_sides,
    write_segment,
)
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Json

# The argument of timm's VisionTransformer for each field. Fields without an argument are not here.
TIMM_NAMES = {
    **common.TIMM_NAMES,
    "pool": "global_pool",
    "class_token": "class_token",
    "registers": "reg_tokens",
    "qkv_bias": "qkv_bias",
    "proj_bias": "proj_bias",
    "qk_norm": "qk_norm",
    "layer_scale": "init_values",
    "pre_norm": "pre_norm",
    "final_norm": "final_norm",
    "fc_norm": "fc_norm",
    "no_embed_class": "no_embed_class",
    "dynamic_image_size": "dynamic_img_size",
}

# The timm model that usual descendants are saved as. All of its arguments are given, so that none
# of its defaults matters.
ARCHITECTURE = "vit_base_patch16_224"

POST_NORM_ARCHITECTURE = "vit_base_patch16_rpn_224"

# The timm models for other descendants, by the values that no argument in a file can set: the class
# of the MLPs and the epsilon of the norms.
_BASES = {
    ("mlp", 1e-6): ARCHITECTURE,
    ("mlp", 1e-5): "vit_base_patch16_clip_224",
    ("swiglu_packed", 1e-6): "vit_giant_patch14_dinov2",
    ("swiglu", 1e-6): "aimv2_large_patch14_224",
    ("swiglu", 1e-5): "aimv2_large_patch14_224",
}

# The architectures of dense and stitched descendants, which `import learngene_zoo.timm` registers.
DENSE_ARCHITECTURE = "learngene_dense_vit"
STITCHED_ARCHITECTURE = "learngene_stitched_vit"
STITCHED_DENSE_ARCHITECTURE = "learngene_stitched_dense_vit"

# The fields for kinds of layers. They are arguments of our models; for timm's see
# `_read_layer_values`.
LAYER_FIELDS = tuple(item.name for item in fields(ViTSpec) if item.metadata.get("omit_default"))
_OUR_NAMES = {timm: ours for ours, timm in TIMM_NAMES.items()}
_NORMS = {"layernorm": "layer", "rmsnorm": "rms"}
_NORM_WORDS = {ours: timm for timm, ours in _NORMS.items()}

# Arguments that affect only training or the initialisation.
_WITHOUT_EFFECT = {
    *(
        "drop_rate",
        "pos_drop_rate",
        "patch_drop_rate",
        "proj_drop_rate",
        "attn_drop_rate",
        "drop_path_rate",
    ),
    *("weight_init", "fix_init"),
}

_SIZES = {
    "tiny": (192, 3, 12),
    "small": (384, 6, 12),
    "base": (768, 12, 12),
    "large": (1024, 16, 24),
}
_USUAL = (("deit", ("tiny", "small", "base")), ("vit", ("tiny", "small", "base", "large")))


def _make_spec(size: str, **rest: Json) -> ViTSpec:
    width, heads, layers = _SIZES[size]
    return ViTSpec(layers=layers, width=width, heads=heads, **rest)


# The specs that `plan` and `show` know without importing timm and without a download.
ARCHITECTURES: dict[str, ViTSpec] = {
    **{f"{name}_{size}_patch16_224": _make_spec(size) for name, sizes in _USUAL for size in sizes},
    **{f"vit_{size}_patch32_224": _make_spec(size, patch_size=32) for size in ("small", "base")},
    "deit_base_patch16_384": _make_spec("base", image_size=384),
    **{f"vit_{size}_patch16_384": _make_spec(size, image_size=384) for size in _SIZES},
    **{
        f"deit3_{size}_patch16_224": _make_spec(size, layer_scale=1e-6, no_embed_class=True)
        for size in ("small", "base", "large")
    },
}

# The default specs of the models that modules.py registers.
OURS = {
    DENSE_ARCHITECTURE: _make_spec("base", dense=True),
    STITCHED_ARCHITECTURE: _make_spec("base"),
    STITCHED_DENSE_ARCHITECTURE: _make_spec("base", dense=True),
}

# The default specs of timm's models in `_BASES`.
BASES = {
    ARCHITECTURE: _make_spec("base"),
    POST_NORM_ARCHITECTURE: _make_spec(
        "base", qkv_bias=False, class_token=False, pool="avg", post_norm=True
    ),
    "vit_base_patch16_clip_224": _make_spec("base", pre_norm=True, norm_eps=1e-5),
    "vit_giant_patch14_dinov2": ViTSpec(
        layers=40,
        width=1536,
        heads=24,
        patch_size=14,
        mlp_ratio=2.66667 * 2,
        layer_scale=1e-5,
        mlp="swiglu_packed",
        activation="silu",
    ),
    "aimv2_large_patch14_224": ViTSpec(
        layers=24,
        width=1024,
        heads=8,
        patch_size=14,
        mlp_ratio=2.75,
        class_token=False,
        pool="avg",
        fc_norm=False,
        qkv_bias=False,
        proj_bias=False,
        norm="rms",
        norm_eps=1e-5,
        activation="silu",
        mlp="swiglu",
        embed_norm=True,
    ),
}


def choose_architecture(spec: ViTSpec) -> str:
    """Return the registered model that builds this model when it gets all arguments."""
    if not spec.plain:
        return STITCHED_DENSE_ARCHITECTURE if spec.dense else STITCHED_ARCHITECTURE
    if spec.dense:
        return DENSE_ARCHITECTURE
    return POST_NORM_ARCHITECTURE if spec.post_norm else _BASES[spec.mlp, spec.norm_eps]


def list_arguments(spec: ViTSpec) -> dict[str, Json]:
    """Return the arguments with which the model of `choose_architecture` builds this model.

    All arguments are given, so that no default matters. Our modules also have `front` (layers,
    width and heads of each segment; then, if one of them is not the default, attention width, MLP
    ratio and whether a stitch follows) and the fields in `LAYER_FIELDS` that are not at their
    defaults.
    """
    plain = {timm: getattr(spec, ours) for ours, timm in TIMM_NAMES.items()}
    if not spec.plain or spec.dense:
        usual = ViTSpec(layers=1, width=1, heads=1)
        layers = {
            name: getattr(spec, name)
            for name in LAYER_FIELDS
            if getattr(spec, name) != getattr(usual, name)
        }
        front = [write_segment(segment) for segment in spec.front]
        return {**plain, **layers, **({"front": front} if front else {})}
    return {**plain, **_list_differences(spec, BASES[choose_architecture(spec)])}


def _list_differences(spec: ViTSpec, base: ViTSpec) -> dict[str, Json]:
    """Return the arguments for the kinds of layers in which a model differs from its base.

    timm treats an argument of None as one that is not given. A field that is None here and not in
    the base is therefore written as a number with the same effect.
    """
    arguments: dict[str, Json] = {}
    if base.layer_scale is not None and spec.layer_scale is None:
        arguments["init_values"] = 0.0
    if base.fc_norm is not None and spec.fc_norm is None:
        arguments["fc_norm"] = int(spec.usual_fc_norm)
    if spec.activation != base.activation:
        arguments["act_layer"] = spec.activation
    if spec.pool_prefix:
        arguments["pool_include_prefix"] = True
    if spec.scale_norms:
        arguments |= {"scale_attn_norm": True, "scale_mlp_norm": True}
    other_norm = (spec.norm, spec.norm_eps) != (base.norm, base.norm_eps)
    if other_norm:
        arguments["norm_layer"] = _NORM_WORDS[spec.norm]
    if spec.embed_norm and (other_norm or not base.embed_norm):
        arguments |= {
            "norm_layer": _NORM_WORDS[spec.norm],
            "embed_norm_layer": _NORM_WORDS[spec.norm],
        }
    elif base.embed_norm and not spec.embed_norm:
        arguments["embed_norm_layer"] = ""
    return arguments


def convert_config(architecture: str, args: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return a model's arguments as the JSON of a `ViTSpec`.

    Args:
        architecture: name of the model.
        args: the arguments, `model_args`.
        where: the file, for messages.

    Raises:
        BadFile: for an argument that no spec can express.
    """
    if "front" in args and architecture not in (STITCHED_ARCHITECTURE, STITCHED_DENSE_ARCHITECTURE):
        raise BadFile(f"{where}: model_args has 'front', which {architecture} does not take")
    values = {}
    for name, value in args.items():
        if (
            name in _LAYER_ARGUMENTS
            or name in _WITHOUT_EFFECT
            or (value is None and name not in _OUR_NAMES)
        ):
            continue  # None: timm's own default
        if name == "front":
            values[name] = read_segments(value, f"{where}: {name}")
        elif architecture in OURS and name in LAYER_FIELDS:
            values[name] = value
        elif name not in _OUR_NAMES:
            raise BadFile(f"{where}: model_args has {name!r}, which is not supported")
        else:
            values[_OUR_NAMES[name]] = _convert_field(name, value, where)
    return {**values, **_read_layer_values(args, where)}


def _convert_field(name: str, value: Json, where: str) -> Json:
    """Return the value of an argument as its field has it."""
    if name in ("img_size", "patch_size"):
        return unify_sides(value, f"{where}: {name}")
    if (name == "init_values" and value == 0) or (name == "fc_norm" and type(value) is int):
        return None  # as `_list_differences` writes them
    return value


_LAYER_ARGUMENTS = (
    *("act_layer", "norm_layer", "embed_norm_layer"),
    *("scale_attn_norm", "scale_mlp_norm", "pool_include_prefix"),
)


def _read_layer_values(args: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return the fields for timm's arguments for kinds of layers.

    Raises `BadFile` for layers that no spec can express; `where` names the file.
    """
    values: dict[str, Json] = {}
    if "act_layer" in args:
        values["activation"] = args["act_layer"] or "gelu"
    if "pool_include_prefix" in args:
        values["pool_prefix"] = args["pool_include_prefix"]
    if "scale_attn_norm" in args or "scale_mlp_norm" in args:
        values["scale_norms"] = args.get("scale_attn_norm", False)
        if values["scale_norms"] != args.get("scale_mlp_norm", False):
            raise BadFile(
                f"{where}: model_args has one of scale_attn_norm and scale_mlp_norm; only both are"
                " supported"
            )
    if "norm_layer" in args:
        values |= {"norm": _read_norm(args["norm_layer"] or "layernorm", where), "norm_eps": 1e-6}
    if "embed_norm_layer" in args:
        values["embed_norm"] = bool(args["embed_norm_layer"])
        if args["embed_norm_layer"] not in (None, "", args.get("norm_layer")):
            raise BadFile(
                f"{where}: embed_norm_layer is not norm_layer; only equal norms are supported"
            )
    return values


def _read_norm(word: Json, where: str) -> str:
    plain = word.replace("_", "").lower() if isinstance(word, str) else ""
    if plain not in _NORMS:
        raise BadFile(f"{where}: norm_layer is {word!r}; supported are {', '.join(_NORMS)}")
    return _NORMS[plain]
