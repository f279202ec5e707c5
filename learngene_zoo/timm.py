"""`import learngene_zoo.timm`: from then on timm knows our architectures, and opens folders of dense models."""

from learngene_zoo.dense import DenseVisionTransformer, learngene_dense_vit

__all__ = ["DenseVisionTransformer", "learngene_dense_vit"]
