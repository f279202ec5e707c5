"""Build timm's `Eva` from a spec, and read the spec of a module.

A module that a spec cannot express is refused.
"""

from itertools import groupby
from pathlib import Path
from typing import Any

import timm
from timm.layers import (
    AttentionRope,
    GluMlp,
    LayerNorm,
    Mlp,
    PatchEmbed,
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    SwiGLU,
)
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm, checkpoint_filter_fn
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.eva import FAMILY
from learngene_zoo.families.eva.modules import (
    DenseEva,
    PrunedDenseEva,
    PrunedEva,
    PrunedEvaAttention,
)
from learngene_zoo.families.eva.names import ARCHITECTURES
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.spec import Segment, Spec, find_mlp_ratio
from learngene_zoo.storage import StateDict

_ROPES = {RotaryEmbeddingCat: "cat", RotaryEmbeddingMixed: "mixed", RotaryEmbeddingDinoV3: "dinov3"}
_WHERE = "the module"  # in messages
# Layers without tensors that have no effect in eval mode.
_TRAINING_ONLY = ("Dropout", "DropPath", "PatchDropoutWithIndices", "Identity")
_WITHOUT_EFFECT = {
    *("training", "fused_attn", "grad_checkpointing", "head_init_scale", "init_values", "scale"),
    *("shift_coords", "jitter_coords", "rescale_coords", "aug_active"),
    *("qkv_bias_separate", "default_cfg", "dump_patches", "call_super_init"),
}


def create(spec: EvaSpec, **extra: Any) -> Eva:
    """Build the module for a spec: timm's, or ours if it is dense or pruned.

    `extra` are further arguments of timm's.
    """
    return timm.create_model(FAMILY.architecture(spec), **spec.timm_args(), **extra)


def open_folder(folder: Path, spec: Spec) -> nn.Module:
    """Open the folder of a model by timm alone, in eval mode."""
    model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return model


def open_architecture(name: str, **options: Any) -> nn.Module:
    """Build timm's module of that name without its weights."""
    model: nn.Module = timm.create_model(name, **options)
    return model


def trim_state(state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
    """Return the state unchanged: a spec describes all tensors of these models."""
    return state, ()


def convert_state(state: dict[str, Any], model: nn.Module, architecture: str) -> StateDict:
    """Convert weights from the layouts of papers' authors that timm knows to timm's names."""
    tensors: StateDict = checkpoint_filter_fn(state, model)
    return tensors


def read_spec(model: nn.Module) -> EvaSpec:
    """Return the spec of a timm `Eva`.

    Raises `WrongCall` for any other module, and for one with a feature that `EvaSpec` cannot
    express (rectangular images, grouped queries, RMSNorm, ...); the message names the feature.
    """
    if type(model) not in (Eva, DenseEva, PrunedEva, PrunedDenseEva):
        raise WrongCall(
            f"a {type(model).__name__} is not timm's Eva; supported are {FAMILY.supported}"
        )
    feature = _explain_unreadable(model)
    if feature:
        raise WrongCall(
            f"this model has {feature}, which is not supported; supported are {FAMILY.supported}"
        )
    spec = _match_named(_read(model), model)
    difference = _describe_difference(model, spec)
    if difference:
        raise WrongCall(f"this model has {difference}; supported are {FAMILY.supported}")
    return spec


def _explain_unreadable(model: Eva) -> str | None:
    """Return the feature that prevents reading the sizes, or None."""
    if type(model.patch_embed) is not PatchEmbed or not len(model.blocks):
        return f"a {type(model.patch_embed).__name__} and {len(model.blocks)} blocks"
    image, patch = model.patch_embed.img_size, model.patch_embed.patch_size
    if image is None or image[0] != image[1] or patch[0] != patch[1]:
        return f"images of {image} and patches of {patch}"
    if model.global_pool not in ("token", "avg", "avgmax", "max", "map"):
        return f"the pooling {model.global_pool!r}"
    block = model.blocks[0]
    for module, kinds in (
        (block, (EvaBlock, EvaBlockPostNorm)),
        (block.attn, (EvaAttention, PrunedEvaAttention, AttentionRope)),
        (block.mlp, (Mlp, GluMlp, SwiGLU)),
        (block.norm1, (LayerNorm,)),
        (model.rope, (type(None), *_ROPES)),
    ):
        if type(module) not in kinds:
            return f"a {type(module).__name__}"
    return None


def _read(model: Eva) -> EvaSpec:
    block, patches, pool = model.blocks[-1], model.patch_embed, model.attn_pool
    attention, mlp = block.attn, block.mlp
    split = isinstance(mlp, SwiGLU)
    hidden = (mlp.fc1_g if split else mlp.fc2).weight.shape[0 if split else 1]
    joint = attention.qkv is not None
    biased = attention.q_bias is not None if joint and isinstance(attention, EvaAttention) else None
    return EvaSpec(
        layers=len(model.blocks),
        width=model.embed_dim,
        heads=attention.num_heads,
        classes=model.num_classes,
        image_size=patches.img_size[0],
        patch_size=patches.patch_size[0],
        channels=patches.proj.in_channels,
        mlp_ratio=find_mlp_ratio(model.embed_dim, hidden, _WHERE),
        attention_width=_read_attention_width(block),
        front=_read_front(model),
        pool=model.global_pool,
        pool_heads=None if pool is None else pool.num_heads,
        pool_mlp_ratio=None
        if pool is None
        else find_mlp_ratio(model.embed_dim, pool.mlp.fc1.out_features, _WHERE),
        class_token=model.cls_token is not None,
        registers=0 if model.reg_token is None else model.reg_token.shape[1],
        attention="rope" if isinstance(attention, AttentionRope) else "eva",
        qkv_bias=(
            (attention.qkv if joint else attention.q_proj).bias is not None
            if biased is None
            else biased
        ),
        qkv_fused=joint,
        attention_norm=not isinstance(attention.norm, nn.Identity),
        swiglu=not isinstance(mlp, Mlp),
        swiglu_multiple=1 if split and isinstance(mlp.norm, nn.Identity) else 0,
        mlp_norm=not isinstance(mlp.norm, nn.Identity),
        layer_scale=None if getattr(block, "gamma_1", None) is None else block.init_values,
        absolute=model.pos_embed is not None,
        no_embed_class=model.no_embed_class,
        post_norm=isinstance(block, EvaBlockPostNorm),
        pre_norm=not isinstance(model.norm_pre, nn.Identity),
        final_norm=not isinstance(model.norm, nn.Identity),
        fc_norm=not isinstance(model.fc_norm, nn.Identity),
        dynamic_image_size=model.dynamic_img_size,
        norm_eps=block.norm1.eps,
        dense=isinstance(model, DenseEva),
        **_read_rotary(model.rope),
    )


def _read_attention_width(block: Any) -> int | None:
    """Return the width of all heads together; None if it is the width of the stream."""
    proj = block.attn.proj
    width: int = proj.in_features
    return None if width == proj.out_features else width


def _read_front(model: Eva) -> tuple[Segment, ...]:
    """Return the segments before the last one: runs of blocks of equal size."""
    runs = [list(run) for _, run in groupby(model.blocks, key=_read_sizes)]
    last = runs[-1][0].mlp.fc2.in_features
    return tuple(
        Segment(
            layers=len(run),
            width=model.embed_dim,
            heads=run[0].attn.num_heads,
            attention_width=_read_attention_width(run[0]),
            mlp_ratio=None
            if run[0].mlp.fc2.in_features == last
            else find_mlp_ratio(model.embed_dim, run[0].mlp.fc2.in_features, _WHERE),
            stitch=False,
        )
        for run in runs[:-1]
    )


def _read_sizes(block: Any) -> tuple[int, ...]:
    return block.attn.num_heads, block.attn.proj.in_features, block.mlp.fc2.in_features


def _match_named(spec: EvaSpec, model: Eva) -> EvaSpec:
    """Return the spec with the MLP ratio of timm's architecture, if it gives the same widths.

    The ratio cannot be computed from the widths, which are rounded.
    """
    tag_spec = ARCHITECTURES.get(
        str((getattr(model, "pretrained_cfg", None) or {}).get("architecture"))
    )
    if tag_spec is None:
        return spec
    named = spec.with_(mlp_ratio=tag_spec.mlp_ratio, swiglu_multiple=tag_spec.swiglu_multiple)
    same = named.hidden == spec.hidden and (
        not spec.pools_by_attention or named.hidden_of_pool == spec.hidden_of_pool
    )
    return named if same else spec


def _read_rotary(rope: Any) -> dict[str, Any]:
    """Return the fields of the rotary positions."""
    if rope is None:
        return {}
    kind, reference = _ROPES[type(rope)], getattr(rope, "ref_feat_shape", None)
    return {
        "rotary": True,
        "rope_type": kind,
        "rope_offset": float(getattr(rope, "grid_offset", 0.0)),
        "rope_indexing": rope.grid_indexing,
        "rope_temperature": float(rope.temperature),
        "rope_half": getattr(rope, "rotate_half", False),
        "rope_reference": None if reference is None else reference[0],
    }


def _describe_difference(model: Eva, spec: EvaSpec) -> str | None:
    """Describe the first difference between a module and that of `spec`; None if there is none.

    Every layer and every setting of a layer is compared.
    """
    # Imported here because `import learngene_zoo.timm` needs this module, but not that one.
    from learngene_zoo.families.tensors import build_empty

    ours, theirs = _describe_model(build_empty(spec)), _describe_model(model)
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        if theirs.get(name) != ours.get(name):
            return (
                f"{name} {theirs.get(name, 'absent')}; only {ours.get(name, 'none')} is supported"
                " there"
            )
    return None


def _describe_model(model: nn.Module) -> dict[str, Any]:
    """Return every setting of every layer, and the shape of every tensor, by name.

    Modules with equal descriptions compute the same function.
    """
    settings: dict[str, Any] = {}
    for path, module in model.named_modules():
        kind = type(module).__name__
        if kind in _TRAINING_ONLY:
            continue
        settings[path or "model"] = kind
        for name, value in vars(module).items():
            if not name.startswith("_") and name not in _WITHOUT_EFFECT and _is_plain(value):
                settings[f"{path}.{name}".lstrip(".")] = (
                    list(value) if isinstance(value, tuple) else value
                )
    return {**settings, **{name: list(tensor.shape) for name, tensor in model.state_dict().items()}}


def _is_plain(value: Any) -> bool:
    """Return whether an attribute is a setting: a number, a word, or a list of numbers."""
    several = isinstance(value, (list, tuple)) and all(
        isinstance(item, (int, float)) for item in value
    )
    return several or isinstance(value, (bool, int, float, str))
