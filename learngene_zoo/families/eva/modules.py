"""Modules that timm lacks: `Eva` with a dense head, or with blocks from which parts were removed.

A pruned block has fewer heads, or fewer hidden neurons, than the width of the stream asks for, and
each block may have other sizes. All heads keep their channels, because rotary positions turn pairs
of them. Importing this module registers the models with timm.

Shapes: B images, N tokens, D width, H heads, C channels of a head.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from timm.layers import (
    LayerNorm,
    apply_rot_embed_cat,
    calculate_drop_path_rates,
    create_rope_embed,
)
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.eva import Eva, EvaAttention, EvaBlock, checkpoint_filter_fn
from torch import nn

from learngene_zoo.families.dense import apply_dense_head, forward_dense
from learngene_zoo.families.eva.names import REGISTERED

Built = TypeVar("Built", bound=Eva)
# For each segment except the last: layers, width, heads; then optionally attention width, MLP ratio
# and whether a stitch follows, which is false here.
Front = Sequence[Sequence[Any]]


class DenseEva(Eva):
    """An `Eva` from images (B, C, H, W) to logits (B, K, H, W).

    In timm the epsilon of the norms is fixed by the architecture; here it is an argument,
    `norm_eps`.
    """

    def __init__(self, norm_eps: float = 1e-6, **settings: Any) -> None:
        super().__init__(norm_layer=partial(LayerNorm, eps=norm_eps), **settings)
        self.attn_pool = None  # patches are classified separately

    forward_head = apply_dense_head
    forward = forward_dense


class PrunedEvaAttention(EvaAttention):
    """An `EvaAttention` of fewer heads, for which timm's expects an output as wide as its input."""

    def forward(
        self,
        x: torch.Tensor,
        rope: torch.Tensor | None = None,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Map tokens (B, N, D) to their update (B, N, D)."""
        queries, keys, values = (
            part_BNA.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part_BNA in self._project(x)
        )
        if rope is not None:
            queries, keys = self._turn(queries, rope), self._turn(keys, rope)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            outputs_BHNC = nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal
            )
        else:
            if attn_mask is not None or is_causal:
                raise NotImplementedError("masks need fused attention")
            weights_BHNN = (queries * self.scale @ keys.transpose(2, 3)).softmax(dim=-1)
            outputs_BHNC = self.attn_drop(weights_BHNN) @ values
        outputs_BNA = self.norm(outputs_BHNC.transpose(1, 2).flatten(2))
        update_BND: torch.Tensor = self.proj_drop(self.proj(outputs_BNA))
        return update_BND

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values, each (B, N, H C)."""
        if self.qkv is None:
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)
        bias = None
        if self.q_bias is not None:
            bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return nn.functional.linear(x, self.qkv.weight, bias).chunk(3, dim=2)

    def _turn(self, parts_BHNC: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """Return queries or keys with the patches turned by their positions."""
        prefix, patches = parts_BHNC.tensor_split([self.num_prefix_tokens], dim=2)
        turned = apply_rot_embed_cat(patches, rope, half=self.rotate_half)
        return torch.cat([prefix, turned], dim=2).to(parts_BHNC.dtype)


class PrunedEva(Eva):
    """An `Eva` whose blocks have the sizes of `front` and, after these, `attention_width`.

    `attention_width` is that of the blocks of the last segment; None: their width.
    """

    def __init__(
        self,
        front: Front = (),
        attention_width: int | None = None,
        norm_eps: float = 1e-6,
        **settings: Any,
    ) -> None:
        norm_layer = partial(LayerNorm, eps=norm_eps)
        super().__init__(norm_layer=norm_layer, **_fit_heads(settings, attention_width))
        _replace_blocks(self, front, attention_width, {**settings, "norm_layer": norm_layer})


class PrunedDenseEva(DenseEva):
    """A pruned `Eva` with the dense head."""

    def __init__(
        self,
        front: Front = (),
        attention_width: int | None = None,
        norm_eps: float = 1e-6,
        **settings: Any,
    ) -> None:
        super().__init__(norm_eps=norm_eps, **_fit_heads(settings, attention_width))
        norm_layer = partial(LayerNorm, eps=norm_eps)
        _replace_blocks(self, front, attention_width, {**settings, "norm_layer": norm_layer})


def _compute_head_width(settings: dict[str, Any], attention_width: int | None) -> int:
    width: int = settings["embed_dim"] if attention_width is None else attention_width
    return width // int(settings["num_heads"])


def _fit_heads(settings: dict[str, Any], attention_width: int | None) -> dict[str, Any]:
    """Return arguments of timm's `Eva` with as many heads as fill the width.

    The blocks that it builds are replaced. The heads matter for the rotary positions, which then
    have the right number of channels.
    """
    heads = settings["embed_dim"] // _compute_head_width(settings, attention_width)
    pool_heads = settings.get("attn_pool_num_heads") or heads
    return {**settings, "num_heads": heads, "attn_pool_num_heads": pool_heads}


def _replace_blocks(
    model: Eva, front: Front, attention_width: int | None, settings: dict[str, Any]
) -> None:
    """Give a model the blocks of a pruned one."""
    head_width = _compute_head_width(settings, attention_width)
    ratio = settings.get("mlp_ratio", 4.0)
    sizes = [
        (heads, rest[1] if rest and rest[1] is not None else ratio)
        for layers, _, heads, *rest in front
        for _ in range(layers)
    ]
    depth = len(model.blocks)
    sizes += [(settings["num_heads"], ratio)] * (depth - len(sizes))
    rates = calculate_drop_path_rates(settings.get("drop_path_rate", 0.0), depth)
    model.blocks = nn.ModuleList(
        [
            _build_block(model, *size, head_width, {**settings, "drop_path_rate": rate})
            for size, rate in zip(sizes, rates)
        ]
    )
    if getattr(model, "rope_mixed", False):
        model.rope = _build_frequencies(model, head_width, settings)
    model.init_weights(needs_reset=False)


# timm's arguments of a block, by its arguments of a model.
_BLOCK = {
    **{name: name for name in ("qkv_bias", "qkv_fused", "swiglu_mlp", "swiglu_align_to")},
    **{name: name for name in ("scale_mlp", "scale_attn_inner", "attn_type", "init_values")},
    **{name: name for name in ("norm_layer", "device", "dtype")},
    **{"rope_rotate_half": "rotate_half", "proj_drop_rate": "proj_drop"},
    **{"attn_drop_rate": "attn_drop", "drop_path_rate": "drop_path"},
}


def _build_block(
    model: Eva, heads: int, mlp_ratio: float, head_width: int, settings: dict[str, Any]
) -> EvaBlock:
    """Build a block of a pruned model."""
    arguments = {theirs: settings[ours] for ours, theirs in _BLOCK.items() if ours in settings}
    block = EvaBlock(
        model.embed_dim,
        num_heads=heads,
        mlp_ratio=mlp_ratio,
        attn_head_dim=head_width,
        num_prefix_tokens=model.num_prefix_tokens,
        **arguments,
    )
    if type(block.attn) is EvaAttention and heads * head_width != model.embed_dim:
        block.attn.__class__ = PrunedEvaAttention
    return block


def _build_frequencies(model: Eva, head_width: int, settings: dict[str, Any]) -> nn.Module:
    """Build the learned rotary frequencies of the remaining heads."""
    heads = settings["num_heads"]
    kwargs = {name: settings[name] for name in ("device", "dtype") if name in settings}
    rope: nn.Module = create_rope_embed(
        rope_type="mixed",
        dim=heads * head_width,
        num_heads=heads,
        depth=len(model.blocks),
        feat_shape=None if model.dynamic_img_size else model.patch_embed.grid_size,
        temperature=settings.get("rope_temperature", 10000.0),
        grid_indexing=settings.get("rope_grid_indexing", "ij"),
        rotate_half=settings.get("rope_rotate_half", False),
        **kwargs,
    )
    return rope


default_cfgs = generate_default_cfgs(
    {
        name: {"input_size": (3, 224, 224), "first_conv": "patch_embed.proj", "classifier": "head"}
        for name in REGISTERED
    }
)


@register_model
def learngene_dense_eva(pretrained: bool = False, **settings: Any) -> DenseEva:
    """Build timm's Eva with the dense head; by default of base size for 224-pixel images."""
    return _build_module(DenseEva, "learngene_dense_eva", pretrained, settings)


@register_model
def learngene_pruned_eva(pretrained: bool = False, **settings: Any) -> PrunedEva:
    """Build a pruned Eva; by default of base size for 224-pixel images."""
    return _build_module(PrunedEva, "learngene_pruned_eva", pretrained, settings)


@register_model
def learngene_pruned_dense_eva(pretrained: bool = False, **settings: Any) -> PrunedDenseEva:
    """Build a pruned Eva with the dense head; by default of base size for 224-pixel images."""
    return _build_module(PrunedDenseEva, "learngene_pruned_dense_eva", pretrained, settings)


def _build_module(
    kind: type[Built], architecture: str, pretrained: bool, settings: dict[str, Any]
) -> Built:
    base = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    model: Built = build_model_with_cfg(
        kind,
        architecture,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        **{**base, **settings},
    )
    return model
