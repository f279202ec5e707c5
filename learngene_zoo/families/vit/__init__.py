"""Vision Transformers: timm's `VisionTransformer`, including dense and stitched ones."""

from learngene_zoo.families.family import Family
from learngene_zoo.families.vit.names import (
    ARCHITECTURES,
    BASES,
    OURS,
    choose_architecture,
    convert_config,
    list_arguments,
)
from learngene_zoo.families.vit.spec import TABLE, ViTSpec, count_flops

_TINY = ViTSpec(layers=3, width=32, heads=2, classes=4, image_size=16, patch_size=8)

FAMILY = Family(
    name="vit",
    spec=ViTSpec,
    table=TABLE,
    flops=count_flops,
    architectures=ARCHITECTURES,
    registered={**BASES, **OURS},
    architecture=choose_architecture,
    arguments=list_arguments,
    values=convert_config,
    timm_modules=frozenset({"timm.models.vision_transformer", "timm.models.deit"}),
    supported=(
        "timm's VisionTransformer with blocks of attention then MLP: deit*, most vit_* (CLIP,"
        " SigLIP, DINOv2, MAE, ...), beit3_*, aimv2_*"
    ),
    examples=(
        _TINY,
        _TINY.with_(registers=2, layer_scale=0.1),
        _TINY.with_(pool="avg", class_token=False),
    ),
    host="learngene_zoo.families.vit.host",
)
