"""Plain Vision Transformers (timm's `VisionTransformer`), with the dense and stitched variants."""
