"""Build timm's Vision Transformers from a spec, and read the spec of a module.

A module that a spec cannot express is refused.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import timm
import torch
from timm.layers import (
    Attention,
    AttentionPoolLatent,
    GluMlp,
    Mlp,
    PatchEmbed,
    RmsNorm,
    SwiGLU,
    activations,
)
from timm.models import vision_transformer
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    Block,
    ResPostBlock,
    VisionTransformer,
    checkpoint_filter_fn,
)
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.picture_spec import Pool
from learngene_zoo.families.spec import Segment, Spec
from learngene_zoo.families.tensors import build_empty
from learngene_zoo.families.vit import FAMILY
from learngene_zoo.families.vit.modules import (
    DenseVisionTransformer,
    StitchedBlock,
    StitchedDenseVisionTransformer,
    StitchedVisionTransformer,
)
from learngene_zoo.families.vit.names import list_arguments
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.storage import StateDict

_MODELS = (
    *(VisionTransformer, VisionTransformerDistilled),
    *(DenseVisionTransformer, StitchedVisionTransformer, StitchedDenseVisionTransformer),
)
# Prefixes of tensors that are dropped or shortened when a distilled DeiT is loaded.
_DISTILLATION = ("dist_token", "head_dist", "pos_embed")
_MLPS: dict[type[nn.Module], Any] = {Mlp: "mlp", SwiGLU: "swiglu", GluMlp: "swiglu_packed"}
_ACTIVATIONS: dict[type[nn.Module], Any] = {
    **{nn.GELU: "gelu", activations.GELU: "gelu", activations.GELUTanh: "gelu_tanh"},
    **{activations.QuickGELU: "quick_gelu", nn.SiLU: "silu"},
}
# Layers without tensors that have no effect in eval mode.
_TRAINING_ONLY = ("Dropout", "DropPath", "PatchDropout", "Identity")


def create(spec: ViTSpec, **extra: Any) -> VisionTransformer:
    """Build timm's module for a spec, or ours if it is dense or stitched.

    `extra` are further arguments of timm's.
    """
    model = timm.create_model(
        FAMILY.architecture(spec), weight_init="skip", **list_arguments(spec), **extra
    )
    # As if built without `weight_init`, so that later calls of `init_weights` and saved arguments
    # have timm's defaults.
    model.weight_init_mode = ""
    getattr(model, "_model_args", {}).pop("weight_init", None)
    return model


def open_folder(folder: Path, spec: Spec) -> nn.Module:
    """Open the folder of a model by timm alone, in eval mode."""
    model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return model


def open_architecture(name: str, **options: Any) -> nn.Module:
    """Build timm's module of that name without its weights."""
    model: nn.Module = timm.create_model(name, weight_init="skip", **options)
    return model


def trim_state(state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
    """Return a state without DeiT's distillation token, its position (the second) and its head."""
    if "dist_token" not in state:
        return state, ()
    positions = state["pos_embed"]
    trimmed: StateDict = {name: state[name] for name in state if not name.startswith(_DISTILLATION)}
    return {**trimmed, "pos_embed": torch.cat([positions[:, :1], positions[:, 2:]], dim=1)}, (
        "distillation token and its head",
    )


def convert_state(state: dict[str, Any], model: nn.Module, architecture: str) -> StateDict:
    """Convert weights from the other layouts that timm knows to timm's names.

    Positions are resampled as timm does for that model.
    """
    resampling: dict[str, Any] = {}
    if "flexi" in architecture or "radio" in architecture:
        resampling = {"interpolation": "bilinear", "antialias": False}
    if "radio" in architecture:
        names = getattr(vision_transformer, "_RADIO_ALIGN_CORNERS", ())
        resampling["align_corners"] = any(name in architecture for name in names)
    if "register_tokens" in state or "blocks.0.mlp.w12.weight" in state:
        # timm recognises DINOv2's layout by this tensor, and drops it.
        state.setdefault("mask_token", torch.empty(0))
    tensors: StateDict = checkpoint_filter_fn(state, model, adapt_layer_scale=True, **resampling)
    return tensors


def read_spec(model: nn.Module) -> ViTSpec:
    """Return the spec of a timm `VisionTransformer` or of one of our modules.

    The spec of a distilled model is that of the model without its distillation token. Raises
    `WrongCall` for any other module, and for a ViT with a feature that `ViTSpec` cannot express
    (parallel blocks, differential attention, no position embedding, rectangular images, ...); the
    message names the feature.
    """
    supported = f"supported are {FAMILY.supported}"
    if type(model) not in _MODELS:
        raise WrongCall(f"a {type(model).__name__} is not a plain ViT; {supported}")
    feature = _explain_unreadable(model)
    if feature:
        raise WrongCall(f"this ViT has {feature}, which is not supported; {supported}")
    try:
        spec = _read(model)
    except WrongCall as error:
        raise WrongCall(f"this ViT cannot be described: {error}; {supported}") from error
    difference = _describe_difference(model, spec)
    if difference:
        raise WrongCall(f"this ViT has {difference}; {supported}")
    return spec


def _explain_unreadable(model: VisionTransformer) -> str | None:
    """Return the feature that prevents reading the sizes, or None."""
    modules = dict(model.named_modules())
    for name, kinds in _list_expected(model):
        if name not in modules:
            return f"no {name}"
        if type(modules[name]) not in kinds:
            return f"a {type(modules[name]).__name__} for {name}"
    block = model.blocks[0]
    if not isinstance(block.norm1, (nn.LayerNorm, RmsNorm)):
        return f"a {type(block.norm1).__name__} for blocks.0.norm1"
    if _describe_layer(block.mlp.act) not in _ACTIVATIONS.values():
        return f"the activation {type(block.mlp.act).__name__}"
    if isinstance(block.mlp, GluMlp) and block.mlp.gate_last:
        return "a GluMlp whose gate is last"
    image, patch = model.patch_embed.img_size, model.patch_embed.patch_size
    if image is None or image[0] != image[1] or patch[0] != patch[1]:
        return f"images of {image} and patches of {patch}"
    if model.pos_embed is None:
        return "no position embedding"
    if model.global_pool not in get_args(Pool):
        return f"the pooling {model.global_pool!r}"
    return "padded images" if model.patch_embed.dynamic_img_pad else None


def _list_expected(model: VisionTransformer) -> list[tuple[str, tuple[type[nn.Module], ...]]]:
    """Return the modules from which the sizes are read, with their supported classes."""
    expected: list[tuple[str, tuple[type[nn.Module], ...]]] = [("patch_embed", (PatchEmbed,))]
    for i in range(max(len(model.blocks), 1)):
        block = (
            (StitchedBlock,) if i and hasattr(model.blocks[i], "stitch") else (Block, ResPostBlock)
        )
        expected += [
            (f"blocks.{i}", block),
            (f"blocks.{i}.attn", (Attention,)),
            (f"blocks.{i}.mlp", tuple(_MLPS)),
        ]
    return expected


def _read(model: VisionTransformer) -> ViTSpec:
    firsts, patches = [model.blocks[start] for start in _starts(model)], model.patch_embed
    kind, block = model.blocks[0], firsts[-1]
    normed_before, normed_after = (
        not isinstance(norm, nn.Identity) for norm in (model.norm, model.fc_norm)
    )
    usual_fc_norm = model.global_pool in ("avg", "avgmax", "max")
    return ViTSpec(
        layers=len(model.blocks),
        width=model.embed_dim,
        heads=block.attn.num_heads,
        classes=model.num_classes,
        image_size=patches.img_size[0],
        patch_size=patches.patch_size[0],
        channels=patches.proj.in_channels,
        mlp_ratio=_compute_ratio(_read_mlps(firsts))
        if _are_even(firsts)
        else _compute_ratio(_read_mlps([block])),
        attention_width=_read_attention_width(block),
        pool=model.global_pool,
        class_token=model.cls_token is not None,
        registers=0 if model.reg_token is None else model.reg_token.shape[1],
        qkv_bias=block.attn.qkv.bias is not None,
        proj_bias=block.attn.proj.bias is not None,
        qk_norm=not isinstance(block.attn.q_norm, nn.Identity),
        layer_scale=float(getattr(block.ls1, "init_values", 1e-5))
        if "ls1.gamma" in dict(block.named_parameters())
        else None,
        pre_norm=not isinstance(model.norm_pre, nn.Identity),
        final_norm=normed_before or normed_after,
        fc_norm=None
        if normed_after == usual_fc_norm or not (normed_before or normed_after)
        else normed_after,
        no_embed_class=model.no_embed_class,
        dynamic_image_size=model.dynamic_img_size,
        front=_read_front(model),
        dense=isinstance(model, DenseVisionTransformer),
        norm="layer" if isinstance(kind.norm1, nn.LayerNorm) else "rms",
        norm_eps=kind.norm1.eps,
        activation=_ACTIVATIONS[type(kind.mlp.act)],
        mlp=_MLPS[type(kind.mlp)],
        embed_norm=not isinstance(patches.norm, nn.Identity),
        scale_norms=not isinstance(kind.mlp.norm, nn.Identity),
        post_norm=isinstance(kind, ResPostBlock),
        pool_prefix=model.pool_include_prefix,
        **_pool_sizes(model),
    )


def _pool_sizes(model: VisionTransformer) -> dict[str, Any]:
    """Return the fields for sizes of the pooling by attention that a spec has to name."""
    pool, last = model.attn_pool, model.blocks[-1]
    if pool is None or not isinstance(model, StitchedVisionTransformer):
        return {}
    sizes: dict[str, Any] = {}
    lacks_heads = any(_read_attention_width(block) is not None for block in model.blocks)
    if lacks_heads or pool.num_heads != last.attn.num_heads:
        sizes["pool_heads"] = pool.num_heads
    hidden = pool.mlp.fc1.out_features
    if hidden != _get_first_layer(last).out_features:
        sizes["pool_mlp_ratio"] = _compute_ratio([(model.embed_dim, hidden)])
    return sizes


def _get_first_layer(block: Block) -> nn.Linear:
    """Return the first layer of a block's MLP, or its gate if that has a separate matrix."""
    layer: nn.Linear = block.mlp.fc1_g if isinstance(block.mlp, SwiGLU) else block.mlp.fc1
    return layer


def _starts(model: VisionTransformer) -> list[int]:
    """Return the numbers of the blocks at which the segments start.

    A segment starts at the first block, and at each block that has a stitch or another size than
    the block before.
    """
    blocks = list(model.blocks)
    if not isinstance(model, (StitchedVisionTransformer, StitchedDenseVisionTransformer)):
        return [0]
    later = (
        i
        for i in range(1, len(blocks))
        if hasattr(blocks[i], "stitch") or _read_sizes(blocks[i]) != _read_sizes(blocks[i - 1])
    )
    return [0, *later]


def _read_sizes(block: Block) -> tuple[int, ...]:
    """Return the sizes that may differ between the segments of a model."""
    layer = _get_first_layer(block)
    return layer.in_features, block.attn.num_heads, block.attn.proj.in_features, layer.out_features


def _read_front(model: VisionTransformer) -> tuple[Segment, ...]:
    """Return the segments before the last one."""
    starts = _starts(model)
    firsts = [model.blocks[start] for start in starts]
    even = _are_even(firsts)
    return tuple(
        Segment(
            layers=end - start,
            width=block.attn.qkv.in_features,
            heads=block.attn.num_heads,
            attention_width=_read_attention_width(block),
            mlp_ratio=None if even else _compute_ratio(_read_mlps([block])),
            stitch=hasattr(after, "stitch"),
        )
        for start, end, block, after in zip(starts, starts[1:], firsts, firsts[1:])
    )


def _read_attention_width(block: Block) -> int | None:
    """Return the width of all heads together; None if it is the width of the block."""
    width: int = block.attn.proj.in_features
    return None if width == block.attn.qkv.in_features else width


def _read_mlps(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Return width and hidden width of each block."""
    return [(layer.in_features, layer.out_features) for layer in map(_get_first_layer, blocks)]


def _are_even(blocks: Sequence[Block]) -> bool:
    """Return whether a single MLP ratio describes all of these blocks."""
    ratio = _compute_ratio(_read_mlps(blocks))
    return all(int(width * ratio) == hidden for width, hidden in _read_mlps(blocks))


def _compute_ratio(sizes: Sequence[tuple[int, int]]) -> float:
    """Return the smallest MLP ratio that gives these hidden widths when timm rounds down.

    `sizes` are pairs of width and hidden width.
    """
    ratio = max(hidden / width for width, hidden in sizes)
    return (
        ratio
        if all(int(width * ratio) >= hidden for width, hidden in sizes)
        else math.nextafter(ratio, math.inf)
    )


def _describe_difference(model: VisionTransformer, spec: ViTSpec) -> str | None:
    """Describe the first difference between a module and that of `spec`; None if there is none.

    Every layer and every setting of a layer is compared.
    """
    ours = dict(build_empty(spec).named_modules())
    left_out: tuple[str, ...] = ()
    theirs = dict(model.named_modules())
    if isinstance(model, VisionTransformerDistilled):
        left_out = _DISTILLATION
        theirs = {name: module for name, module in theirs.items() if name not in left_out} | {
            "": ours[""]
        }
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        actual, expected = _describe_layer(theirs.get(name)), _describe_layer(ours.get(name))
        if actual != expected:
            return f"{actual} for {name}; only {expected} is supported there"
    for name, tensor in model.named_parameters():
        if not name.startswith(left_out) and tuple(tensor.shape) != tuple(
            ours[""].get_parameter(name).shape
        ):
            return f"{name} of shape {tuple(tensor.shape)}"
    return None


def _describe_layer(module: nn.Module | None) -> str:
    """Describe a layer and its settings; equal descriptions mean equal functions."""
    if module is None:
        return "nothing"
    if type(module).__name__ in _TRAINING_ONLY:
        return "Identity"
    if type(module) in _ACTIVATIONS and getattr(module, "approximate", "none") == "none":
        return _ACTIVATIONS[type(module)]
    if isinstance(module, nn.LayerNorm):
        return f"LayerNorm({nn.LayerNorm.extra_repr(module)})"
    if isinstance(module, RmsNorm):
        return f"RmsNorm({module.normalized_shape}, eps={module.eps})"
    if isinstance(module, (Attention, AttentionPoolLatent)):
        return f"attention of {module.num_heads} heads of {module.head_dim}"
    return f"{type(module).__name__}({module.extra_repr()})"
