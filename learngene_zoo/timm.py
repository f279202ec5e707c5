"""Register our models with timm: it then opens folders of dense and stitched models.

Use it as `import learngene_zoo.timm`.
"""

from learngene_zoo.families.eva.host import DenseEva, learngene_dense_eva
from learngene_zoo.families.vit.modules import (
    DenseVisionTransformer,
    StitchedDenseVisionTransformer,
    StitchedVisionTransformer,
    learngene_dense_vit,
    learngene_stitched_dense_vit,
    learngene_stitched_vit,
)

__all__ = [
    "DenseEva",
    "DenseVisionTransformer",
    "StitchedDenseVisionTransformer",
    "StitchedVisionTransformer",
    "learngene_dense_eva",
    "learngene_dense_vit",
    "learngene_stitched_dense_vit",
    "learngene_stitched_vit",
]
