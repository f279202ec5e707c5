"""What both papers train with, but for epochs, batch and learning rate: DeiT's settings, as SN-Net released them. Cold."""

from learngene_zoo.plugin import Recipe

DEIT = Recipe(
    min_lr=1e-6,
    warmup=5,
    drop_path=0.1,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    augment="rand",
)
