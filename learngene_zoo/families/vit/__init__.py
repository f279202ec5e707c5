"""Vision Transformers: timm's `VisionTransformer`, dense and stitched ones too."""

from learngene_zoo.families.family import Family
from learngene_zoo.families.vit.cost import flops
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.families.vit.table import TABLE
from learngene_zoo.families.vit.timm_names import ARCHITECTURES, REGISTERED, architecture_name, spec_values

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
    host="learngene_zoo.families.vit.host",
)
