"""Models written in the layouts of other packages: transformers, open_clip, DINOv2."""
