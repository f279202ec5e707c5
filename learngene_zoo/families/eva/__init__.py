"""DINOv3, EVA and EVA02, Perception Encoder and ViTs with rotary positions: timm's `Eva`."""

from learngene_zoo.families.eva.names import (
    ARCHITECTURES,
    REGISTERED,
    choose_architecture,
    convert_config,
)
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.eva.table import TABLE, count_flops
from learngene_zoo.families.family import Family

_TINY = EvaSpec(
    layers=3, width=32, heads=2, classes=4, image_size=16, patch_size=8, rotary=True, absolute=False
)

FAMILY = Family(
    name="eva",
    spec=EvaSpec,
    table=TABLE,
    flops=count_flops,
    architectures=ARCHITECTURES,
    registered=REGISTERED,
    architecture=choose_architecture,
    arguments=EvaSpec.timm_args,
    values=convert_config,
    timm_modules=frozenset({"timm.models.eva"}),
    supported=(
        "timm's Eva with square images and LayerNorm, as vit_*_dinov3, eva02_*, eva_giant_*,"
        " vit_pe_* and vit_*_rope_*"
    ),
    examples=(_TINY.with_(registers=2, layer_scale=0.1, rope_type="mixed", swiglu=True),),
    host="learngene_zoo.families.eva.host",
)
