"""timm's names: the architectures of its class `Eva`, and its arguments as fields of a spec.

In timm no argument that JSON can hold sets the epsilon of the norms. A model is therefore named
after the most similar architecture with the same epsilon, and all other arguments are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from learngene_zoo.errors import BadFile
from learngene_zoo.families.eva.spec import TIMM_NAMES, EvaSpec
from learngene_zoo.families.picture_spec import read_segments, unify_sides
from learngene_zoo.settings import Json

_SIZES = {
    "tiny": (192, 3, 12),
    "small": (384, 6, 12),
    "base": (768, 12, 12),
    "large": (1024, 16, 24),
    "huge": (1280, 20, 32),
    "giant": (1408, 16, 40),
    "gigantic": (1536, 16, 50),
    "7b": (4096, 32, 40),
}


def _make_spec(size: str, **rest: Json) -> EvaSpec:
    width, heads, layers = _SIZES[size]
    return EvaSpec(**{"width": width, "heads": heads, "layers": layers, **rest})


_DINOV3: dict[str, Json] = {
    "final_norm": True,
    "fc_norm": False,
    "registers": 4,
    "layer_scale": 1e-5,
    "norm_eps": 1e-5,
    "classes": 0,
}
_DINOV3 |= {
    "rotary": True,
    "rope_type": "dinov3",
    "rope_temperature": 100.0,
    "rope_half": True,
    "absolute": False,
}
_DINOV3 |= {"dynamic_image_size": True, "image_size": 256}
_LINGBOT = {**_DINOV3, "pool": "token", "image_size": 512}
_PLUS = {"swiglu": True, "swiglu_multiple": 8}
_TOKEN: dict[str, Json] = {"pool": "token", "final_norm": True, "fc_norm": False}
_EVA02: dict[str, Json] = {
    "patch_size": 14,
    "mlp_ratio": 4 * 2 / 3,
    "swiglu": True,
    "rotary": True,
    "rope_reference": 16,
}
_EVA02_BASE = {**_EVA02, "qkv_fused": False, "mlp_norm": True}
_EVA02_CLIP = {**_EVA02_BASE, **_TOKEN, "attention_norm": True}
_GIANT = {"patch_size": 14, "mlp_ratio": 6144 / 1408}
_REG_GAP = {"image_size": 256, "layer_scale": 1e-5, "class_token": False, "registers": 1}
_REG_GAP |= {"rotary": True, "absolute": False, "rope_reference": 16}
_ROPE: dict[str, Json] = {
    **_TOKEN,
    "attention": "rope",
    "layer_scale": 1e-5,
    "rotary": True,
    "rope_indexing": "xy",
}
_AXIAL: dict[str, Json] = {"rope_temperature": 100.0}
_MIXED: dict[str, Json] = {"rope_temperature": 10.0, "rope_type": "mixed"}
_APE = {"no_embed_class": True}
_PE = {
    "attention": "rope",
    "pre_norm": True,
    "rotary": True,
    "rope_offset": 1.0,
    "rope_indexing": "xy",
    "norm_eps": 1e-5,
}
_PE_CORE = {
    **_PE,
    "pool": "map",
    "pool_heads": 8,
    "pool_mlp_ratio": 4.0,
    "final_norm": True,
    "fc_norm": False,
}
_PE_BARE = {**_PE, "final_norm": False, "fc_norm": False, "rope_reference": 32, "classes": 0}
_GIGANTIC = {
    "patch_size": 14,
    "image_size": 448,
    "mlp_ratio": 8960 / 1536,
    "class_token": False,
    "rope_offset": 0.0,
}

# The specs that `plan` and `show` know without importing timm and without a download, with the
# classes and the image size of the default weights.
ARCHITECTURES: dict[str, EvaSpec] = {
    **{
        f"vit_{size}_patch16_dinov3{suffix}": _make_spec(size, **_DINOV3, qkv_bias=bias)
        for size in ("small", "base", "large")
        for suffix, bias in (("", False), ("_qkvb", True))
    },
    **{
        f"vit_{size}_plus_patch16_dinov3{suffix}": _make_spec(
            size, **_DINOV3, **_PLUS, qkv_bias=bias
        )
        for size in ("small", "huge")
        for suffix, bias in (("", False), ("_qkvb", True))
    },
    "vit_tiny_patch16_dinov3_qkvb": _make_spec("tiny", **_DINOV3),
    "vit_7b_patch16_dinov3": _make_spec(
        "7b", **_DINOV3, qkv_bias=False, mlp_ratio=2, swiglu=True, swiglu_multiple=64
    ),
    **{
        f"vit_{size}_patch16_lingbot": _make_spec(size, **_LINGBOT)
        for size in ("small", "base", "large")
    },
    "vit_giant_patch16_lingbot": _make_spec(
        "giant", **_LINGBOT, **_PLUS, width=1536, heads=24, qkv_bias=False, mlp_ratio=4 * 2 / 3
    ),
    **{
        f"eva02_{size}_patch14_224": _make_spec(size, **_EVA02, classes=0)
        for size in ("tiny", "small")
    },
    **{
        f"eva02_{size}_patch14_336": _make_spec(size, **_EVA02, image_size=336)
        for size in ("tiny", "small")
    },
    **{
        f"eva02_{size}_patch14_224": _make_spec(size, **_EVA02_BASE, classes=0)
        for size in ("base", "large")
    },
    **{
        f"eva02_{size}_patch14_448": _make_spec(size, **_EVA02_BASE, image_size=448)
        for size in ("base", "large")
    },
    "eva02_base_patch16_clip_224": _make_spec(
        "base", **{**_EVA02_CLIP, "patch_size": 16}, classes=512
    ),
    "eva02_large_patch14_clip_224": _make_spec("large", **_EVA02_CLIP, classes=768),
    "eva02_large_patch14_clip_336": _make_spec("large", **_EVA02_CLIP, classes=768, image_size=336),
    "eva02_enormous_patch14_clip_224": EvaSpec(
        layers=64,
        width=1792,
        heads=16,
        patch_size=14,
        mlp_ratio=15360 / 1792,
        post_norm=True,
        classes=1024,
        **_TOKEN,
    ),
    **{
        f"eva_giant_patch14_{size}": _make_spec("giant", **_GIANT, image_size=size)
        for size in (224, 336, 560)
    },
    "eva_giant_patch14_clip_224": _make_spec("giant", **_GIANT, **_TOKEN, classes=1024),
    "vit_medium_patch16_rope_reg1_gap_256": _make_spec("base", **_REG_GAP, width=512, heads=8),
    "vit_mediumd_patch16_rope_reg1_gap_256": _make_spec(
        "base", **_REG_GAP, width=512, heads=8, layers=20, qkv_bias=False
    ),
    "vit_betwixt_patch16_rope_reg4_gap_256": _make_spec(
        "base", **{**_REG_GAP, "registers": 4}, width=640, heads=10
    ),
    "vit_base_patch16_rope_reg1_gap_256": _make_spec("base", **_REG_GAP),
    **{
        f"vit_{size}_patch16_rope_{kind}224": _make_spec(size, **_ROPE, **frequencies, **positions)
        for size in ("small", "base", "large")
        for kind, frequencies, positions in (
            ("", _AXIAL, {"absolute": False}),
            ("ape_", _AXIAL, _APE),
            ("mixed_", _MIXED, {"absolute": False}),
            ("mixed_ape_", _MIXED, _APE),
        )
    },
    **{
        f"vit_pe_core_{size}_patch16_384": _make_spec(
            size, **_PE_CORE, rope_reference=24, image_size=384, classes=512
        )
        for size in ("tiny", "small")
    },
    "vit_pe_core_base_patch16_224": _make_spec("base", **_PE_CORE, rope_reference=14, classes=1024),
    "vit_pe_core_large_patch14_336": _make_spec(
        "large", **_PE_CORE, patch_size=14, rope_reference=24, image_size=336, classes=1024
    ),
    "vit_pe_core_gigantic_patch14_448": _make_spec(
        "gigantic", **{**_PE_CORE, **_GIGANTIC}, rope_reference=32, classes=1280
    ),
    "vit_pe_lang_large_patch14_448": _make_spec(
        "large", **_PE_BARE, layers=23, patch_size=14, image_size=448, layer_scale=0.1
    ),
    "vit_pe_lang_gigantic_patch14_448": _make_spec(
        "gigantic", **{**_PE_BARE, **_GIGANTIC}, layers=47, layer_scale=0.1
    ),
    **{
        f"vit_pe_spatial_{size}_patch16_512": _make_spec(size, **_PE_BARE, image_size=512)
        for size in ("tiny", "small", "base")
    },
    "vit_pe_spatial_large_patch14_448": _make_spec(
        "large", **_PE_BARE, patch_size=14, image_size=448
    ),
    "vit_pe_spatial_gigantic_patch14_448": _make_spec(
        "gigantic", **{**_PE_BARE, **_GIGANTIC}, layer_scale=0.1
    ),
}

# The architecture of dense descendants, which `import learngene_zoo.timm` registers.
DENSE_ARCHITECTURE = "learngene_dense_eva"
# The same of pruned descendants, whose blocks have fewer heads or several sizes.
PRUNED_ARCHITECTURE = "learngene_pruned_eva"
PRUNED_DENSE_ARCHITECTURE = "learngene_pruned_dense_eva"
REGISTERED = {
    DENSE_ARCHITECTURE: _make_spec("base", dense=True),
    PRUNED_ARCHITECTURE: _make_spec("base"),
    PRUNED_DENSE_ARCHITECTURE: _make_spec("base", dense=True),
}

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
    *("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "head_init_scale"),
}
# Arguments that have no effect with these values.
_ABSENT = {"qk_norm": False, "attn_only_layer_scale": False, "dynamic_img_pad": False}
_WITHOUT_FC_NORM = "vit_base_patch16_rope_224"  # unlike the small and the large model
_OUR_NAMES = {timm: ours for ours, timm in TIMM_NAMES.items()}


# Arguments of our modules for the sizes of pruned blocks.
_PRUNED = ("front", "attention_width")
_BLOCK_ARGUMENTS: dict[str, tuple[str, ...]] = {
    DENSE_ARCHITECTURE: (),
    PRUNED_ARCHITECTURE: _PRUNED,
    PRUNED_DENSE_ARCHITECTURE: _PRUNED,
}


def choose_architecture(spec: EvaSpec) -> str:
    """Return the architecture that builds this model when it gets all arguments.

    It is the most similar of timm's with the same epsilon of the norms. timm treats an argument of
    None as one that is not given, so an architecture must have None wherever the model has it.
    """
    if not spec.plain:
        return PRUNED_DENSE_ARCHITECTURE if spec.dense else PRUNED_ARCHITECTURE
    if spec.dense:
        return DENSE_ARCHITECTURE
    field_names = [field.name for field in fields(spec)]

    def common(name: str) -> int:
        return sum(
            getattr(ARCHITECTURES[name], field) == getattr(spec, field) for field in field_names
        )

    absent = _list_absent(spec)
    return max(
        (
            name
            for name, tag_spec in ARCHITECTURES.items()
            if tag_spec.norm_eps == spec.norm_eps
            and all(getattr(tag_spec, field) is None for field in absent)
        ),
        key=common,
    )


def _list_absent(spec: EvaSpec) -> list[str]:
    """Return the fields that are None and for which another value would change the model."""
    has_effect = {
        "layer_scale": not spec.post_norm,
        "rope_reference": spec.scales_positions,
        "pool_heads": spec.pools_by_attention,
        "pool_mlp_ratio": spec.pools_by_attention,
    }
    return [name for name, matters in has_effect.items() if matters and getattr(spec, name) is None]


def convert_config(architecture: str, args: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return a model's arguments as the JSON of an `EvaSpec`.

    Args:
        architecture: timm's name of the model.
        args: the arguments, `model_args`.
        where: the file, for messages.

    Raises:
        BadFile: for an argument that no spec can express.
    """
    values: dict[str, Json] = {}
    for name, value in args.items():
        if name in _WITHOUT_EFFECT or (name in _ABSENT and value == _ABSENT[name]):
            continue
        if architecture in REGISTERED and name in ("norm_eps", *_BLOCK_ARGUMENTS[architecture]):
            values[name] = read_segments(value, f"{where}: {name}") if name == "front" else value
            continue
        if name not in _OUR_NAMES:
            if value is None:
                continue
            raise BadFile(f"{where}: model_args has {name!r}, which is not supported")
        sides = ("img_size", "patch_size", "ref_feat_shape")
        values[_OUR_NAMES[name]] = (
            unify_sides(value, f"{where}: {name}") if name in sides else value
        )
    bare = architecture.split(".", 1)[0]
    if "image_size" not in values and _has_own_size(bare) and bare in ARCHITECTURES:
        # In timm, a pretrained_cfg cannot change this size.
        values["image_size"] = ARCHITECTURES[bare].image_size
    return {**values, **_read_norms(bare, values)}


def _has_own_size(architecture: str) -> bool:
    """Return whether timm's architecture itself sets the size of the images."""
    return architecture.startswith("eva02_") or "_gap_" in architecture


def _read_norms(architecture: str, values: Mapping[str, Json]) -> dict[str, Json]:
    """Return the two norms after the blocks.

    If an argument is None or left out, timm derives it from the pooling.
    """
    names = ("pool", "fc_norm", "final_norm")
    if not any(name in values for name in names) or architecture not in ARCHITECTURES:
        return {}
    neither = "pe_lang" in architecture or "pe_spatial" in architecture  # timm's own arguments
    without = (
        neither
        or "dinov3" in architecture
        or "lingbot" in architecture
        or architecture == _WITHOUT_FC_NORM
    )
    fc_norm = values.get("fc_norm", False if without else None)
    final_norm = values.get("final_norm", False if neither else None)
    pool = values.get("pool", ARCHITECTURES[architecture].pool)
    fc_norm = pool == "avg" if fc_norm is None else fc_norm
    return {"fc_norm": fc_norm, "final_norm": not fc_norm if final_norm is None else final_norm}
