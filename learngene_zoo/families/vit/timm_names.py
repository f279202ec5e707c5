"""What timm calls Vision Transformers: the registered models that the zoo knows or adds, and the arguments that shape them."""

from collections.abc import Mapping

from learngene_zoo.errors import BadFile
from learngene_zoo.families.vit.spec import TIMM_NAMES, ViTSpec
from learngene_zoo.settings import Json

# The registered timm model that every plain descendant is, with all of its arguments given, so that none of its defaults matters.
ARCHITECTURE = "vit_base_patch16_224"
# Those that dense and stitched descendants are: `import learngene_zoo.timm` registers them.
DENSE_ARCHITECTURE = "learngene_dense_vit"
STITCHED_ARCHITECTURE = "learngene_stitched_vit"
STITCHED_DENSE_ARCHITECTURE = "learngene_stitched_dense_vit"
_OUR_NAMES = {timm: ours for ours, timm in TIMM_NAMES.items()}
# Arguments that change training only, or how a fresh model would start.
_WITHOUT_EFFECT = {
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init"),
}

_SIZES = {"tiny": (192, 3, 12), "small": (384, 6, 12), "base": (768, 12, 12), "large": (1024, 16, 24)}
_USUAL = (("deit", ("tiny", "small", "base")), ("vit", ("tiny", "small", "base", "large")))


def _sized(size: str, **rest: Json) -> ViTSpec:
    width, heads, layers = _SIZES[size]
    return ViTSpec(layers=layers, width=width, heads=heads, **rest)


# Specs that `plan` and `show` know without importing timm and without a download.
ARCHITECTURES: dict[str, ViTSpec] = {
    **{f"{name}_{size}_patch16_224": _sized(size) for name, sizes in _USUAL for size in sizes},
    **{f"vit_{size}_patch32_224": _sized(size, patch_size=32) for size in ("small", "base")},
    "deit_base_patch16_384": _sized("base", image_size=384),
    **{f"vit_{size}_patch16_384": _sized(size, image_size=384) for size in _SIZES},
    **{
        f"deit3_{size}_patch16_224": _sized(size, layer_scale=1e-6, no_embed_class=True)
        for size in ("small", "base", "large")
    },
}
# What the models that modules.py registers are without arguments.
REGISTERED = {
    DENSE_ARCHITECTURE: _sized("base", dense=True),
    STITCHED_ARCHITECTURE: _sized("base"),
    STITCHED_DENSE_ARCHITECTURE: _sized("base", dense=True),
}


def architecture_name(spec: ViTSpec) -> str:
    """The registered model that becomes this one when it is given all arguments."""
    if spec.front:
        return STITCHED_DENSE_ARCHITECTURE if spec.dense else STITCHED_ARCHITECTURE
    return DENSE_ARCHITECTURE if spec.dense else ARCHITECTURE


def spec_values(architecture: str, args: Mapping[str, Json], where: str) -> dict[str, Json]:
    """A model's arguments as fields of a `ViTSpec` in JSON. Raises `BadFile` for an argument that no spec can express."""
    if "front" in args and architecture not in (STITCHED_ARCHITECTURE, STITCHED_DENSE_ARCHITECTURE):
        raise BadFile(f"{where}: model_args has 'front', which {architecture} does not take")
    values = {}
    for name, value in args.items():
        if name in _WITHOUT_EFFECT or (value is None and name not in _OUR_NAMES):  # None: timm's own default
            continue
        if name == "front":
            values[name] = _segments(value, f"{where}: {name}")
            continue
        if name not in _OUR_NAMES:
            raise BadFile(f"{where}: model_args has {name!r}, which is not supported")
        values[_OUR_NAMES[name]] = _square(value, f"{where}: {name}") if name in ("img_size", "patch_size") else value
    return values


def _segments(value: Json, where: str) -> Json:
    """The segments in front as `ViTSpec` has them."""
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == 3 for item in value):
        raise BadFile(f"{where}: expected a list of segments, each [layers, width, heads]")
    return [dict(zip(("layers", "width", "heads"), item)) for item in value]


def _square(value: Json, where: str) -> Json:
    """timm takes a size as one number or as two."""
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise BadFile(f"{where} is {value}; only square images and patches are supported")
        return value[0]
    return value
