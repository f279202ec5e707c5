"""Vision towers in transformers' format: DINOv3, and SigLIP and CLIP with and without text tower.

Their tensors are named otherwise than those of from_transformers.py; the tables of names are those
with which such models are written (formats/renames.py). CLIP's projection becomes the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Spec, find_mlp_ratio
from learngene_zoo.settings import Json, from_json
from learngene_zoo.storage import StateDict
from learngene_zoo.text import count_noun

SIGLIP, CLIP, DINOV3 = "siglip_vision_model", "clip_vision_model", "dinov3_vit"
TOWERS = (SIGLIP, CLIP, DINOV3)
# The default epsilon of the norms and size of the patches.
EPSILONS = {SIGLIP: 1e-6, CLIP: 1e-5, DINOV3: 1e-5}
PATCHES = {SIGLIP: 16, CLIP: 32, DINOV3: 16}
_LEFT_OUT = ("mask_token", "position_ids")
# The kinds of models with two towers: that of the vision tower, and its class.
PAIRS = {
    "siglip": (SIGLIP, "SiglipVisionModel"),
    "clip": (CLIP, "CLIPVisionModelWithProjection"),
}
# The beginnings of the names of their other tensors.
OF_TEXTS = ("text_model.", "text_projection.", "logit_scale", "logit_bias")
_SIGLIP_CLASSIFIER = "SiglipForImageClassification"
# Keys of a config of two towers that hold for the vision tower, and of a classifier also these.
_KEPT = ("quantization_config", "learngene")
_KEPT_OF_CLASSIFIERS = ("architectures", "id2label", "num_labels", "problem_type", *_KEPT)


def unwrap_tower(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the config of the vision tower of a model with two towers; other configs unchanged.

    A classifier of SigLIP's reads the mean of the patches, whatever the tower's pooling. That of
    CLIP's has a head for this mean, which is left out.
    """
    kind, architectures = config.get("model_type"), str(config.get("architectures"))
    if kind not in PAIRS:
        return config
    stated = config.get("vision_config")
    vision = stated if isinstance(stated, dict) else {}
    tower, architecture = PAIRS[str(kind)]
    if _SIGLIP_CLASSIFIER in architectures:
        kept = {key: config[key] for key in _KEPT_OF_CLASSIFIERS if key in config}
        return {**vision, **kept, "model_type": tower, "vision_use_head": False}
    if "ForImageClassification" in architectures:
        architecture = "CLIPVisionModel"
    return {
        **vision,
        **{key: config[key] for key in (*_KEPT, "projection_dim") if key in config},
        "architectures": [architecture],
        "model_type": tower,
    }


def has_projection(config: Mapping[str, Json]) -> bool:
    """Return whether a CLIP tower has a projection."""
    return config["model_type"] == CLIP and "WithProjection" in str(config.get("architectures"))


def list_arguments(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return timm's arguments for the features of SigLIP and CLIP, which a ViT lacks."""
    if config["model_type"] == CLIP:
        classes = config.get("projection_dim", 512) if has_projection(config) else 0
        return {"pre_norm": True, "num_classes": classes}
    pools = config.get("vision_use_head", True)
    return {
        "class_token": False,
        "global_pool": "map" if pools else "avg",
        "fc_norm": False,
    }


def read_dinov3_spec(config: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of a DINOv3 model.

    Raises `WrongCall` for biases and activations that timm's model does not have, and `BadFile` for
    bad values.
    """
    gated, has_bias = config.get("use_gated_mlp", False), config.get("query_bias", True)
    usual = {
        "key_bias": False,
        "value_bias": has_bias,
        "proj_bias": True,
        "mlp_bias": True,
        "hidden_act": "silu" if gated else "gelu",
    }
    config = {"hidden_act": "gelu", **config}  # transformers' default, also of gated MLPs
    for key, value in usual.items():
        if config.get(key, value) != value:
            raise WrongCall(
                f"{where}: {key} is {config[key]!r:.40}, which timm's DINOv3 does not have; "
                "use timm's own weights"
            )
    width, hidden = config.get("hidden_size", 384), config.get("intermediate_size", 1536)
    values: dict[str, Any] = {
        "family": "eva",
        "layers": config.get("num_hidden_layers", 12),
        "width": width,
        "heads": config.get("num_attention_heads", 6),
        "classes": 0,
        "image_size": config.get("image_size", 224),
        "patch_size": config.get("patch_size", 16),
        "channels": config.get("num_channels", 3),
        "mlp_ratio": find_mlp_ratio(width, hidden, where),
        "registers": config.get("num_register_tokens", 0),
        "qkv_bias": has_bias,
        "swiglu": gated,
        "swiglu_multiple": (8 if hidden % 8 == 0 else 1) if gated else 0,
        "layer_scale": config.get("layerscale_value", 1.0),
        "rotary": True,
        "rope_type": "dinov3",
        "rope_temperature": config.get("rope_theta", 100.0),
        "rope_half": True,
        "absolute": False,
        "dynamic_image_size": True,
        "final_norm": True,
        "fc_norm": False,
        "norm_eps": config.get("layer_norm_eps", EPSILONS[DINOV3]),
    }
    spec: Spec = from_json(Spec, values, where)
    return spec


def rename_tower(
    config: Mapping[str, Json], stored: Mapping[str, Any], has_head: bool
) -> tuple[StateDict, tuple[str, ...]]:
    """Return the tensors by timm's names, and the names of those that are left out.

    Without `has_head` they include those of a classifier.
    """
    from learngene_zoo.pretrained.formats import renames

    kind = config["model_type"]
    names = {SIGLIP: renames.SIGLIP, CLIP: renames.CLIP, DINOV3: renames.DINOV3}[str(kind)]
    bare = {name.removeprefix("vision_model."): name for name in stored}
    dropped = tuple(
        name
        for name in bare
        if name.endswith(_LEFT_OUT)
        or name.startswith(OF_TEXTS)
        or (name.startswith("classifier.") and not has_head)
        # A pooling beside a classifier, which does not read it.
        or (name.startswith("head.") and kind == SIGLIP and not config.get("vision_use_head", True))
    )
    state = {
        names.restore(name): stored[full] for name, full in bare.items() if name not in dropped
    }
    if kind == DINOV3:
        return _restore_dinov3(state), dropped
    joint = renames.join_matrices(state)
    return (_restore_siglip(joint) if kind == SIGLIP else _restore_clip(joint)), dropped


def describe_text_tower(dropped: Sequence[str]) -> tuple[str, ...]:
    """Return the description of a text tower among tensors that are left out; () without one."""
    count = sum(name.startswith(OF_TEXTS) for name in dropped)
    return (f"the text tower ({count_noun(count, 'tensor')})",) if count else ()


def _restore_dinov3(state: dict[str, Any]) -> StateDict:
    """Return the tensors of timm's class, which has biases of queries and values and no others."""
    from learngene_zoo.pretrained.formats import renames

    gated = any(".mlp.gate." in name for name in state)
    restored: dict[str, Any] = {}
    for name, tensor in state.items():
        new = name.replace(".attn.q.bias", ".attn.q_bias").replace(".attn.v.bias", ".attn.v_bias")
        if gated:
            new = new.replace(".mlp.fc1.", ".mlp.fc1_x.").replace(".mlp.gate.", ".mlp.fc1_g.")
        restored[new] = tensor
    if "reg_token" in restored and not restored["reg_token"].shape[1]:
        del restored["reg_token"]
    return renames.join_matrices(restored)


def _restore_siglip(state: StateDict) -> StateDict:
    restored = dict(state)
    restored["pos_embed"] = restored["pos_embed"][None]
    for tensor in ("weight", "bias"):
        if f"classifier.{tensor}" in restored:
            restored[f"head.{tensor}"] = restored.pop(f"classifier.{tensor}")
        joint = restored.pop(f"attn_pool.qkv.{tensor}", None)
        if joint is not None:
            width = len(joint) // 3
            restored[f"attn_pool.q.{tensor}"] = joint[:width]
            restored[f"attn_pool.kv.{tensor}"] = joint[width:]
    return restored


def _restore_clip(state: StateDict) -> StateDict:
    restored = dict(state)
    restored["pos_embed"] = restored["pos_embed"][None]
    restored["cls_token"] = restored["cls_token"][None, None]
    if "head.weight" in restored:
        weight_CD = restored["head.weight"]
        restored["head.bias"] = weight_CD.new_zeros(len(weight_CD))
    return restored
