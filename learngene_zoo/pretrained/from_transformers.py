"""Ancestry models in transformers' format: ViT, DeiT, DINOv2 (with registers), I-JEPA, MAE, MSN.

Their config.json has `model_type` where timm's has `architecture`. timm has each of these models
too, so it is read as timm's: `RENAMES` maps names of tensors to timm's, and queries, keys and
values become one matrix. The vision towers of SigLIP and CLIP, and DINOv3, have other names
(from_transformers_towers.py). Tensors that timm's model lacks (text towers, poolers, mask tokens,
decoders, the second head of a distilled DeiT) are left out and reported. Keys that would change the
function are read, or refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import timm_config
from learngene_zoo.families.spec import Spec, find_mlp_ratio
from learngene_zoo.families.transformers_config import (
    describe_left_out_head,
    describe_other_head,
    list_text_types,
)
from learngene_zoo.pretrained import from_transformers_towers as towers
from learngene_zoo.pretrained.image_processors import read_processor_settings
from learngene_zoo.pretrained.layouts import describe_tensors
from learngene_zoo.runs.progress import print_note
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, StateDict, read_json

# The models of timm that these are, with other arguments: by whether the MLPs are SwiGLU, and the
# epsilon of the norms.
BASES = {
    (False, 1e-6): "vit_base_patch16_224",
    (False, 1e-5): "vit_base_patch16_clip_224",
    (True, 1e-6): "vit_giant_patch14_dinov2",
}
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # of a processor of images and texts, by transformers 5
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
HALVES = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
OPENAI = {
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
}
# The kinds that are read, and the normalisation of those whose repository does not say it.
KINDS = {
    "vit": HALVES,
    "deit": IMAGENET,
    "dinov2": IMAGENET,
    "dinov2_with_registers": IMAGENET,
    "ijepa": HALVES,
    "vit_mae": IMAGENET,
    "vit_msn": IMAGENET,
    towers.SIGLIP: HALVES,
    towers.CLIP: OPENAI,
    towers.DINOV3: IMAGENET,
}
_CLASSIFIER = "ForImageClassification"  # the end of the names of classifiers
_DINOV2 = ("dinov2", "dinov2_with_registers")
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
}
_USUAL_ACTIVATIONS = {towers.SIGLIP: "gelu_pytorch_tanh", towers.CLIP: "quick_gelu"}
_PATCHES = {"dinov2": 14, **towers.PATCHES}
# Keys that say that the model is another function than its kind's; refused unless they say nothing.
_REFUSED = ("quantization_config", "auto_map", "pruned_heads", "add_cross_attention")
# From names of tensors to timm's, one rule after the other; of files written by transformers 4 and
# 5.
RENAMES = (
    (r"^(vit|deit|dinov2|dinov2_with_registers|ijepa)\.", ""),
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
    (r"\.mlp\.weights_in\.", ".mlp.fc1."),
    (r"\.mlp\.(weights_out|down_proj)\.", ".mlp.fc2."),
    (r"^(cls_)?classifier\.", "head."),
)
LEFT_OUT = re.compile(r"(^|\.)(pooler|mask_token|distillation_classifier)(\.|$)|^decoder\.")
# Tensors that are one in timm's model: its name, and those of its parts.
_JOINED = {
    ".attn.qkv.": (".attn.q.", ".attn.k.", ".attn.v."),
    ".mlp.fc1.": (".mlp.gate_proj.", ".mlp.up_proj."),
}


def is_transformers_folder(folder: Path) -> bool:
    """Return whether a folder has the config.json of an image model that is read here."""
    try:
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    except BadFile:  # raised again when the folder is opened
        return False
    return is_transformers_config(config)


def is_transformers_config(config: Mapping[str, Json]) -> bool:
    """Return whether a config.json is of an image model that is read here, and not of timm's."""
    is_of_timm = bool(config.keys() & {"architecture", "method"})
    return not is_of_timm and config.get("model_type") in (*KINDS, *towers.PAIRS)


def read_spec(config: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of the model.

    Raises `WrongCall` for a kind that is not supported, and `BadFile` for bad values.
    """
    config = towers.unwrap_tower(config)
    kind = config["model_type"]
    if kind not in KINDS:
        raise _refuse_kind(kind, where)
    for key in _REFUSED:
        if config.get(key):
            raise WrongCall(
                f"{where} has {key}, which is not read; "
                "use timm's own weights, or save the model without it"
            )
    width, registers = config.get("hidden_size", 768), config.get("num_register_tokens", 4)
    wide = 3072 if kind in _DINOV2 else config.get("intermediate_size", 3072)
    if not all(
        type(size) is int and size > 0
        for size in (width, wide, registers + 1 if registers == 0 else registers)
    ):
        raise BadFile(
            f"{where}: hidden_size, "
            "intermediate_size and num_register_tokens must be whole numbers above 0"
        )
    if kind == towers.DINOV3:
        return towers.read_dinov3_spec(config, where)
    gated = kind in _DINOV2 and config.get("use_swiglu_ffn") is True
    arguments = {
        "depth": config.get("num_hidden_layers", 12),
        "embed_dim": width,
        "num_heads": config.get("num_attention_heads", 12),
        "mlp_ratio": _compute_mlp_ratio(config, width, gated, where),
        "img_size": config.get("image_size", 224),
        "patch_size": config.get("patch_size", _PATCHES.get(str(kind), 16)),
        "in_chans": config.get("num_channels", 3),
        "num_classes": len(_list_labels(config)),
        "qkv_bias": config.get("qkv_bias", True),
        "pre_norm": False,
        "init_values": 1.0 if kind in _DINOV2 else 0.0,
        **(
            {"reg_tokens": registers, "no_embed_class": True}
            if kind == "dinov2_with_registers"
            else {}
        ),
        **(
            {"class_token": False, "global_pool": "avg", "fc_norm": False}
            if kind == "ijepa"
            else {}
        ),
        **(towers.list_arguments(config) if kind in towers.TOWERS else {}),
    }
    arguments["act_layer"] = "silu" if gated else _read_activation(config, where)
    return timm_config.read_spec(
        {
            "architecture": BASES[gated, _read_epsilon(config, gated, where)],
            "model_args": arguments,
        },
        where,
    )


def _refuse_kind(kind: Json, where: str) -> WrongCall:
    """Return the error for a kind of model that is not supported."""
    return WrongCall(
        f"{where} is a {kind!r:.40} model in the format of transformers, of which "
        f"{', '.join([*KINDS, *towers.PAIRS, *list_text_types()])} are read; look for the same "
        "weights in timm (lgzoo list ancestries)"
    )


def _read_epsilon(config: Mapping[str, Json], gated: bool, where: str) -> float:
    """Return the epsilon of timm's norms: the stated one, but at least 1e-6.

    timm's own conversions use 1e-6 for any smaller value.
    """
    kind = str(config["model_type"])
    usual = 1e-6 if kind in (*_DINOV2, "vit_msn") else towers.EPSILONS.get(kind, 1e-12)
    stated = config.get("layer_norm_eps", usual)
    if type(stated) not in (int, float) or not 0 <= stated < 1:
        raise BadFile(f"{where}: layer_norm_eps is {stated!r:.40}; expected a small number")
    epsilon = max(float(stated), 1e-6)
    if (gated, epsilon) not in BASES:
        epsilons = ", ".join(f"{value:g}" for is_gated, value in BASES if is_gated == gated)
        raise WrongCall(
            f"{where}: layer_norm_eps is {stated:g}; "
            f"timm's models of this kind have {epsilons}, so it is not read"
        )
    return epsilon


def _read_activation(config: Mapping[str, Json], where: str) -> str:
    stated = config.get("hidden_act", _USUAL_ACTIVATIONS.get(str(config["model_type"]), "gelu"))
    if stated not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        raise WrongCall(
            f"{where}: hidden_act is {stated!r:.40}, which is not read; "
            f"read are {names}: use timm's own weights"
        )
    return _ACTIVATIONS[stated]


def _compute_mlp_ratio(config: Mapping[str, Json], width: int, gated: bool, where: str) -> float:
    """Return the ratio from which timm computes the same hidden width as transformers."""
    if config["model_type"] not in _DINOV2:
        hidden = config.get("intermediate_size", 3072)
    else:
        ratio = config.get("mlp_ratio", 4)
        if type(ratio) not in (int, float) or not 0 < ratio < 1_000:
            raise BadFile(f"{where}: mlp_ratio is {ratio!r:.40}; expected a number above 0")
        hidden = int(width * ratio)
        # Two thirds, rounded up to a multiple of 8, for each half.
        hidden = 2 * ((int(hidden * 2 / 3) + 7) // 8 * 8) if gated else hidden
    return find_mlp_ratio(width, hidden, where)


def _list_labels(config: Mapping[str, Json]) -> list[str]:
    """Return the classes of the head; empty if timm's model does not have this head.

    DINOv2's head reads two kinds of tokens, which timm's does not. A head of several labels at once
    or of numbers has no classes.
    """
    if config["model_type"] in _DINOV2 or _CLASSIFIER not in str(config.get("architectures")):
        return []
    count = config.get("num_labels", 2)
    usual = {
        str(number): f"LABEL_{number}"
        for number in range(count if type(count) is int and count < 10**6 else 2)
    }
    named = config.get("id2label") or usual
    if "num_labels" in config and isinstance(named, Mapping) and len(named) != len(usual):
        named = usual  # as in transformers
    try:
        labels = [str(named[str(number)]) for number in range(len(named))]
    except (TypeError, KeyError):
        raise BadFile(
            "id2label of a config.json in the format of transformers must number the classes from 0"
        ) from None
    return [] if describe_other_head(config, len(labels)) else labels


def read_images(
    config: Mapping[str, Json], where: str, beside: Callable[[str], Mapping[str, Json] | None]
) -> Mapping[str, Any]:
    """Return timm's image settings.

    `beside` reads another file of the repository; it returns None if there is none of that name.
    """
    config = towers.unwrap_tower(config)
    names = _list_labels(config)
    named = names if not all(name.startswith("LABEL_") for name in names) else []
    stated = {
        **KINDS[config["model_type"]],
        **_read_processor(where, beside),
    }
    stated |= {"num_classes": len(names), **({"label_names": named} if named else {})}
    return timm_config.read_image_settings({"pretrained_cfg": stated}, where)


def _read_processor(
    where: str, beside: Callable[[str], Mapping[str, Json] | None]
) -> dict[str, Json]:
    """Return timm's image settings, as far as the file of an image processor states them."""
    settings, name = beside(PREPROCESSOR), PREPROCESSOR
    if settings is None:
        nested, name = (beside(PROCESSOR) or {}).get("image_processor"), PROCESSOR
        settings = nested if isinstance(nested, Mapping) else {}
        if not settings:
            print_note(
                f"there is no {PREPROCESSOR} beside {where}; mean and standard deviation are those "
                "of its kind of model, resizing and cropping are timm's defaults",
                "no preprocessor",
            )
    return read_processor_settings(settings, where.replace("config.json", name))


def rename_tensors(
    config: Mapping[str, Json], stored: Mapping[str, Any], spec: Spec
) -> tuple[StateDict, tuple[str, ...]]:
    """Return the tensors by timm's names, and descriptions of those that are left out.

    The caller checks whether all tensors are present.
    """
    config = towers.unwrap_tower(config)
    if config["model_type"] in towers.TOWERS:
        state, left_out = towers.rename_tower(config, stored, bool(spec.classes))
        return state, (*towers.describe_text_tower(left_out), *_describe_changes(config, left_out))
    dropped = [name for name in stored if LEFT_OUT.search(name)]
    if not spec.classes:
        dropped += [name for name in stored if _name(name).startswith("head.")]
    state = _join({_name(name): stored[name] for name in stored if name not in set(dropped)})
    if "reg_token" in state and "pos_embed" in state and "cls_token" in state:
        # timm's model with registers has no position of the class token: it is part of that token.
        positions = state["pos_embed"]
        state |= {"cls_token": state["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
        if not state["reg_token"].numel():
            del state["reg_token"]
    return state, tuple(_describe_changes(config, dropped))


def _join(tensors: dict[str, Any]) -> dict[str, Any]:
    """Concatenate the tensors of `_JOINED`.

    Parts of which one is missing stay as they are, and are refused later.
    """
    import torch

    joint = dict(tensors)
    for joint_name, parts in _JOINED.items():
        for name in [name for name in joint if parts[0] in name]:
            names = [name.replace(parts[0], part) for part in parts]
            if all(part in joint for part in names):
                joint[name.replace(parts[0], joint_name)] = torch.cat(
                    [joint.pop(part) for part in names]
                )
    return joint


def _describe_changes(config: Mapping[str, Json], dropped: Sequence[str]) -> list[str]:
    """Describe the tensors that are left out and the differences from transformers' model.

    Those of a text tower are described by `describe_text_tower`.
    """
    bare = [
        name.partition(".")[2] if name.startswith(("vit.", "deit.", "dinov2", "ijepa.")) else name
        for name in dropped
        if not name.startswith(towers.OF_TEXTS)
    ]
    words = [describe_tensors([name.removeprefix("embeddings.") for name in bare])] if bare else []
    if any("distillation_classifier" in name for name in dropped):
        words.append("the average of two heads (the head is cls_classifier)")
    if config["model_type"] not in _DINOV2:  # whose heads are left out in any case
        words += describe_left_out_head(config, [_CLASSIFIER])
    stated = config.get("layer_norm_eps", 1e-6)
    return [*words, f"layer_norm_eps {stated:g} (1e-06 in timm)"] if stated < 1e-6 else words


def _name(name: str) -> str:
    for pattern, new in RENAMES:
        name = re.sub(pattern, new, name)
    return name
