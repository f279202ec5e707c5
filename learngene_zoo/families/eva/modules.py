"""`Eva` with a dense head (see dense.py), which timm lacks. Importing this module registers it with timm.

timm takes a norm's epsilon only as Python code; here it is an argument, `norm_eps`.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import LayerNorm
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.eva import Eva, checkpoint_filter_fn

from learngene_zoo.families.dense import dense_head
from learngene_zoo.families.eva.names import REGISTERED


class DenseEva(Eva):
    """From images (B, C, H, W) to logits (B, K, H, W)."""

    def __init__(self, norm_eps: float = 1e-6, **settings: Any) -> None:
        super().__init__(norm_layer=partial(LayerNorm, eps=norm_eps), **settings)
        self.attn_pool = None  # every patch keeps its own class

    def forward_head(
        self, x: torch.Tensor, pre_logits: bool = False, size: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """As `dense_head`, of all tokens after the last block."""
        return dense_head(self, x, pre_logits, size)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """Logits (B, K, H, W)."""
        height, width = x.shape[-2:]
        return self.forward_head(self.forward_features(x, attn_mask, is_causal), size=(height, width))


default_cfgs = generate_default_cfgs(
    {name: {"input_size": (3, 224, 224), "first_conv": "patch_embed.proj", "classifier": "head"} for name in REGISTERED}
)


@register_model
def learngene_dense_eva(pretrained: bool = False, **settings: Any) -> DenseEva:
    """timm's Eva with the dense head; by default of base size for 224-pixel images."""
    base = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    built: DenseEva = build_model_with_cfg(
        DenseEva, "learngene_dense_eva", pretrained, pretrained_filter_fn=checkpoint_filter_fn, **{**base, **settings}
    )
    return built
