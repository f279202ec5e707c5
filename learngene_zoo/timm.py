"""Register our models with timm: it then opens folders of dense, stitched and pruned models.

Use it as `import learngene_zoo.timm`.
"""

from learngene_zoo.families.eva.modules import (
    DenseEva,
    PrunedDenseEva,
    PrunedEva,
    learngene_dense_eva,
    learngene_pruned_dense_eva,
    learngene_pruned_eva,
)
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
    "PrunedDenseEva",
    "PrunedEva",
    "StitchedDenseVisionTransformer",
    "StitchedVisionTransformer",
    "learngene_dense_eva",
    "learngene_dense_vit",
    "learngene_pruned_dense_eva",
    "learngene_pruned_eva",
    "learngene_stitched_dense_vit",
    "learngene_stitched_vit",
]
