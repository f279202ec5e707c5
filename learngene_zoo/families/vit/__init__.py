"""Vision Transformers: timm's `VisionTransformer`, dense and stitched ones too."""

from learngene_zoo.families.family import Family
from learngene_zoo.families.vit.spec import (
    ARCHITECTURES,
    REGISTERED,
    TABLE,
    ViTSpec,
    architecture_name,
    flops,
    spec_values,
)

_TINY = ViTSpec(layers=3, width=32, heads=2, classes=4, image_size=16, patch_size=8)

FAMILY = Family(
    name="vit",
    spec=ViTSpec,
    table=TABLE,
    flops=flops,
    architectures=ARCHITECTURES,
    registered=REGISTERED,
    architecture=architecture_name,
    arguments=ViTSpec.timm_args,
    values=spec_values,
    timm_modules=frozenset({"timm.models.vision_transformer", "timm.models.deit"}),
    supported=(
        "timm's VisionTransformer with plain blocks, as deit_*, deit3_* and most vit_*, with or without class token, "
        "registers, LayerScale, fc_norm, dynamic image size"
    ),
    examples=(_TINY, _TINY.with_(registers=2, layer_scale=0.1), _TINY.with_(pool="avg", class_token=False)),
    host="learngene_zoo.families.vit.host",
)
