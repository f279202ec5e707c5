"""timm's modules: built from a spec, and the spec read off a module; what a spec cannot express is refused."""

import math
from collections.abc import Sequence
from typing import Any

import timm
from timm.layers import Attention, Mlp, PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.tensors import empty
from learngene_zoo.families.vit import FAMILY
from learngene_zoo.families.vit.modules import (
    DenseVisionTransformer,
    StitchedBlock,
    StitchedDenseVisionTransformer,
    StitchedVisionTransformer,
)
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.storage import StateDict

_MODELS = (VisionTransformer, DenseVisionTransformer, StitchedVisionTransformer, StitchedDenseVisionTransformer)
# Without effect in eval mode, and without tensors.
_TRAINING_ONLY = ("Dropout", "DropPath", "PatchDropout", "Identity")


def create(spec: ViTSpec, **extra: Any) -> VisionTransformer:
    """timm's module for a spec, or ours if it is dense or stitched; `extra` are further arguments of timm's."""
    model = timm.create_model(FAMILY.architecture(spec), weight_init="skip", **spec.timm_args(), **extra)
    # As if built without `weight_init`: who calls `init_weights` or saves the arguments later gets timm's defaults.
    model.weight_init_mode = ""
    getattr(model, "_model_args", {}).pop("weight_init", None)
    return model


def open_architecture(name: str, **options: Any) -> nn.Module:
    """timm's module of that name, without its weights."""
    model: nn.Module = timm.create_model(name, weight_init="skip", **options)
    return model


def converted(state: dict[str, Any], model: nn.Module) -> StateDict:
    """Weights in one of the other layouts that timm knows, by timm's names."""
    tensors: StateDict = checkpoint_filter_fn(state, model)
    return tensors


def spec_of(model: nn.Module) -> ViTSpec:
    """The spec of a timm `VisionTransformer`, or of one of our own modules.

    Raises `WrongCall` for any other module, and for a ViT with a feature that `ViTSpec` cannot express (SwiGLU, another
    activation or norm, map pooling, no position embedding, rectangular images, ...); the message names the feature.
    """
    supported = f"supported are {FAMILY.supported}"
    if type(model) not in _MODELS:
        raise WrongCall(f"a {type(model).__name__} is not a plain ViT; {supported}")
    feature = _unreadable(model)
    if feature:
        raise WrongCall(f"this ViT has {feature}, which is not supported; {supported}")
    spec = _read(model)
    difference = _first_difference(model, spec)
    if difference:
        raise WrongCall(f"this ViT has {difference}; {supported}")
    return spec


def _unreadable(model: VisionTransformer) -> str | None:
    """The feature that keeps even the sizes from being read, if there is one."""
    modules = dict(model.named_modules())
    for name, kind in _expected(model):
        if name not in modules:
            return f"no {name}"
        if type(modules[name]) is not kind:
            return f"a {type(modules[name]).__name__} for {name}"
    image, patch = model.patch_embed.img_size, model.patch_embed.patch_size
    if image is None or image[0] != image[1] or patch[0] != patch[1]:
        return f"images of {image} and patches of {patch}"
    if model.pos_embed is None:
        return "no position embedding"
    if model.global_pool not in ("token", "avg", "avgmax", "max"):
        return f"the pooling {model.global_pool!r}"
    if model.patch_embed.dynamic_img_pad or model.pool_include_prefix:
        return "padded images" if model.patch_embed.dynamic_img_pad else "pool_include_prefix"
    return None


def _expected(model: VisionTransformer) -> list[tuple[str, type[nn.Module]]]:
    """The modules that the sizes are read off."""
    found: list[tuple[str, type[nn.Module]]] = [("patch_embed", PatchEmbed)]
    later = _starts(model)[1:]
    for i in range(max(len(model.blocks), 1)):
        block = StitchedBlock if i in later else Block
        found += [(f"blocks.{i}", block), (f"blocks.{i}.attn", Attention), (f"blocks.{i}.mlp", Mlp)]
    return found


def _read(model: VisionTransformer) -> ViTSpec:
    firsts, patches = [model.blocks[start] for start in _starts(model)], model.patch_embed
    block = firsts[-1]
    normed_before, normed_after = (not isinstance(norm, nn.Identity) for norm in (model.norm, model.fc_norm))
    usual_fc_norm = model.global_pool != "token"
    return ViTSpec(
        layers=len(model.blocks),
        width=model.embed_dim,
        heads=block.attn.num_heads,
        classes=model.num_classes,
        image_size=patches.img_size[0],
        patch_size=patches.patch_size[0],
        channels=patches.proj.in_channels,
        mlp_ratio=_ratio([(first.mlp.fc1.in_features, first.mlp.fc1.out_features) for first in firsts]),
        pool=model.global_pool,
        class_token=model.cls_token is not None,
        registers=0 if model.reg_token is None else model.reg_token.shape[1],
        qkv_bias=block.attn.qkv.bias is not None,
        proj_bias=block.attn.proj.bias is not None,
        qk_norm=not isinstance(block.attn.q_norm, nn.Identity),
        layer_scale=None if isinstance(block.ls1, nn.Identity) else float(getattr(block.ls1, "init_values", 1e-5)),
        pre_norm=not isinstance(model.norm_pre, nn.Identity),
        final_norm=normed_before or normed_after,
        fc_norm=None if normed_after == usual_fc_norm or not (normed_before or normed_after) else normed_after,
        no_embed_class=model.no_embed_class,
        dynamic_image_size=model.dynamic_img_size,
        front=_front(model),
        dense=isinstance(model, DenseVisionTransformer),
    )


def _starts(model: VisionTransformer) -> list[int]:
    """Where the segments start: at the first block, and wherever a block has a stitch."""
    return [0, *(i for i, block in enumerate(model.blocks) if i and hasattr(block, "stitch"))]


def _front(model: VisionTransformer) -> tuple[Segment, ...]:
    """The segments before the last."""
    starts = _starts(model)
    firsts = [model.blocks[start] for start in starts]
    return tuple(
        Segment(layers=end - start, width=block.mlp.fc1.in_features, heads=block.attn.num_heads)
        for start, end, block in zip(starts, starts[1:], firsts)
    )


def _ratio(sizes: Sequence[tuple[int, int]]) -> float:
    """The least MLP ratio that gives these widths these hidden widths, when timm multiplies and rounds down."""
    ratio = max(hidden / width for width, hidden in sizes)
    return ratio if all(int(width * ratio) >= hidden for width, hidden in sizes) else math.nextafter(ratio, math.inf)


def _first_difference(model: VisionTransformer, spec: ViTSpec) -> str | None:
    """Where the module is not the one that `spec` builds: any other layer, any other setting of a layer."""
    ours = dict(empty(spec).named_modules())
    theirs = dict(model.named_modules())
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        found, expected = _described(theirs.get(name)), _described(ours.get(name))
        if found != expected:
            return f"{found} for {name}; only {expected} is supported there"
    for name, tensor in model.named_parameters():
        if tuple(tensor.shape) != tuple(ours[""].get_parameter(name).shape):
            return f"{name} of shape {tuple(tensor.shape)}"
    return None


def _described(module: nn.Module | None) -> str:
    """A layer and its settings in words; equal words, equal function."""
    if module is None:
        return "nothing"
    if type(module).__name__ in _TRAINING_ONLY:
        return "Identity"
    if isinstance(module, nn.LayerNorm):
        return f"LayerNorm({nn.LayerNorm.extra_repr(module)})"
    if isinstance(module, Attention):
        return f"attention of {module.num_heads} heads"
    return f"{type(module).__name__}({module.extra_repr()})"
