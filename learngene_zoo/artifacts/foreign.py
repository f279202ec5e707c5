"""Ancestry models in the format of transformers: ViT, DeiT, DINOv2 and DINOv2 with registers, as `facebook/dinov2-small` is.

Their config.json says `model_type` where timm's says `architecture`. Each is a model that timm has as well, so it is read as that one:
`RENAMES` turns names of tensors into timm's, and queries, keys and values become one matrix. Of other kinds (CLIP, SigLIP, DINOv3) the
twin in timm is named instead. What the format has and timm's model has not, poolers and mask tokens, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import timm_config
from learngene_zoo.families.spec import Spec
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

BASE = "vit_base_patch16_224"  # the model of timm that these are, with other arguments
PREPROCESSOR = "preprocessor_config.json"
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
HALVES = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
# The kinds that are read, and the normalisation of those whose repository does not say it.
KINDS = {"vit": HALVES, "deit": IMAGENET, "dinov2": IMAGENET, "dinov2_with_registers": IMAGENET}
# Of the kinds that are not read, the beginnings of names of repositories and their twins in timm.
TWINS = {
    "facebook/dinov3-vits16-": "vit_small_patch16_dinov3.lvd1689m",
    "facebook/dinov3-vits16plus-": "vit_small_plus_patch16_dinov3.lvd1689m",
    "facebook/dinov3-vitb16-": "vit_base_patch16_dinov3.lvd1689m",
    "facebook/dinov3-vitl16-": "vit_large_patch16_dinov3.lvd1689m",
    "openai/clip-vit-base-patch16": "vit_base_patch16_clip_quickgelu_224.openai",
    "openai/clip-vit-base-patch32": "vit_base_patch32_clip_quickgelu_224.openai",
    "openai/clip-vit-large-patch14": "vit_large_patch14_clip_quickgelu_224.openai",
    "google/siglip-base-patch16-224": "vit_base_patch16_siglip_224.webli",
    "google/siglip2-base-patch16-224": "vit_base_patch16_siglip_224.v2_webli",
    "google/siglip-so400m-patch14-224": "vit_so400m_patch14_siglip_224.webli",
    "google/siglip2-so400m-patch14-224": "vit_so400m_patch14_siglip_224.v2_webli",
}
# From names of tensors to timm's, one rule after the other; of files written by transformers 4 and 5.
RENAMES = (
    (r"^(vit|deit|dinov2|dinov2_with_registers)\.", ""),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(encoder\.)?layers?\.(\d+)\.", r"blocks.\2."),
    (r"\.attention\.(attention\.)?([qkv])(uery|ey|alue|_proj)\.", r".attn.\2."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
)
LEFT_OUT = re.compile(r"(^|\.)(pooler|mask_token|distillation_classifier|cls_classifier)(\.|$)")


def spec_of(config: Mapping[str, Json], where: str) -> Spec:
    """The spec of the model. Raises `WrongCall` for a kind that is not read, with its twin in timm, and `BadFile` for bad values."""
    kind = config["model_type"]
    if kind not in KINDS:
        twin = next((name for start, name in TWINS.items() if start in where), None)
        advice = f"use the same weights from timm: timm:{twin}" if twin else "look for the same weights in timm"
        raise WrongCall(
            f"{where} is a {kind!r:.40} model in the format of transformers, of which {', '.join(KINDS)} are read; {advice} "
            "(lgzoo list ancestries)"
        )
    if config.get("hidden_act", "gelu") != "gelu" or config.get("use_swiglu_ffn"):
        raise WrongCall(f"{where}: only MLPs with GELU are read in the format of transformers; use timm's own weights")
    width, registers = config.get("hidden_size", 768), config.get("num_register_tokens", 4)
    wide = config.get("intermediate_size", 3072) if kind in ("vit", "deit") else None
    if not all(isinstance(size, int) and size > 0 for size in (width, wide or 1, registers or 1)):
        raise BadFile(f"{where}: hidden_size, intermediate_size and num_register_tokens must be whole numbers above 0")
    arguments = {
        "depth": config.get("num_hidden_layers", 12),
        "embed_dim": width,
        "num_heads": config.get("num_attention_heads", 12),
        "mlp_ratio": wide / width if wide else config.get("mlp_ratio", 4),
        "img_size": config.get("image_size", 224),
        "patch_size": config.get("patch_size", 16),
        "in_chans": config.get("num_channels", 3),
        "num_classes": len(_labels(config)),
        "qkv_bias": config.get("qkv_bias", True),
        **({} if wide else {"init_values": 1.0}),
        **({"reg_tokens": registers, "no_embed_class": True} if kind == "dinov2_with_registers" else {}),
    }
    return timm_config.spec_in({"architecture": BASE, "model_args": arguments}, where)


def _labels(config: Mapping[str, Json]) -> list[str]:
    """The classes of its head; none if it has none, or one that timm's model has not (DINOv2's sees two kinds of tokens)."""
    if config["model_type"] not in ("vit", "deit") or "ForImageClassification" not in str(config.get("architectures")):
        return []
    named = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    try:
        return [str(named[str(number)]) for number in range(len(named))]
    except (TypeError, KeyError):
        raise BadFile(
            "id2label of a config.json in the format of transformers must number the classes from 0"
        ) from None


def images_of(
    config: Mapping[str, Json], where: str, beside: Callable[[str], Mapping[str, Json] | None]
) -> Mapping[str, Any]:
    """timm's image settings; `beside` reads another file of the repository, None if it has none of that name."""
    said = beside(PREPROCESSOR) or {}
    usual, names = KINDS[config["model_type"]], _labels(config)
    named = names if not all(name.startswith("LABEL_") for name in names) else []
    mean, std = said.get("image_mean", usual["mean"]), said.get("image_std", usual["std"])
    stated = {"mean": mean, "std": std, "num_classes": len(names), **({"label_names": named} if named else {})}
    return timm_config.image_settings({"pretrained_cfg": stated}, where)


def renamed(stored: Mapping[str, Any], spec: Spec) -> StateDict:
    """The tensors by timm's names. Those that timm's model has no place for are left out; whether all are there is checked after."""
    import torch

    found = {_name(name): stored[name] for name in stored if not LEFT_OUT.search(name)}
    joint: dict[str, Any] = {}
    for name in [name for name in found if ".attn.q." in name]:
        parts = [found.pop(name.replace(".attn.q.", f".attn.{part}."), None) for part in "qkv"]
        if all(part is not None for part in parts):
            joint[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)
    state = {**found, **joint}
    if not spec.classes:
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    if "reg_token" in state and "pos_embed" in state and "cls_token" in state:
        # timm's model with registers has no position of the class token: it is part of that token.
        positions = state["pos_embed"]
        state |= {"cls_token": state["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    return state


def _name(name: str) -> str:
    for pattern, new in RENAMES:
        name = re.sub(pattern, new, name)
    return name
