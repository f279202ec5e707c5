"""Models in the layout of transformers: ViT, DINOv2, DINOv3, SigLIP, CLIP and I-JEPA.

`KINDS` has a row for each. A folder has `config.json`, `model.safetensors` with the names that
transformers saves, and `preprocessor_config.json`. Some models need a change of tensors that leaves
the outputs as they are: layer scales multiplied into the layers before them (ViT), positions moved
into registers, biases of 0. `LayoutFiles.changes` lists these changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.errors import BadFile
from learngene_zoo.families.spec import Spec
from learngene_zoo.pretrained.formats import renames
from learngene_zoo.pretrained.formats.features import (
    ATTENTION_POOL,
    GATED,
    GATED_MLP,
    LAYER_SCALE,
    NO_PRE_NORM,
    NO_REGISTERS,
    NO_TOKEN,
    PLAIN,
    PRE_NORM,
    REGISTERS,
    TOKEN,
    find_feature,
)
from learngene_zoo.pretrained.formats.layout import (
    OTHER_FORMATS,
    TRANSFORMERS,
    Convertible,
    LayoutFiles,
    PackageLayout,
    find_common_fault,
    suggest_headless,
    write_record,
)
from learngene_zoo.pretrained.formats.preprocessing import (
    find_fault_for_transformers,
    write_processor,
)
from learngene_zoo.pretrained.formats.renames import Names
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, WEIGHTS, StateDict

PREPROCESSOR = "preprocessor_config.json"
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
# Tensors by the names of `renames`, and descriptions of what was changed.
Prepared = tuple[dict[str, torch.Tensor], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class TransformersKind:
    """A kind of model in transformers.

    Attributes:
        model: its class without a head.
        classifier: its class with a head; "" if there is none.
        model_type: of its config.
        head: the pooled tokens that the head reads: "token", "avg", "both" (the head has two
            inputs, of which one gets the weights and the other zeros), or "projection" (the class
            token, by a matrix without bias).
        inner: prefix of the names in a model with a head.
        names: the table of names for a spec.
        allowed: the features that it may have (see features.py).
        family: of the models.
        prepare: returns the tensors that are renamed, and descriptions of changes.
        describe: returns the keys of the config that only this kind has.
        find_fault: returns a further reason why a model cannot be written, or "".
        read: returns the outputs of a model without head: tokens or pooled tokens, by name.
    """

    model: str
    classifier: str = ""
    model_type: str
    head: str = ""
    inner: str = ""
    names: Callable[[Any], Names]
    allowed: frozenset[str]
    family: str = "vit"
    prepare: Callable[[Any, StateDict], Prepared]
    describe: Callable[[Any], dict[str, Json]] = lambda spec: {}
    find_fault: Callable[[Any], str] = lambda spec: ""
    read: Callable[[Any, Any], dict[str, torch.Tensor]] = lambda outputs, spec: {
        "tokens": outputs.last_hidden_state
    }


def choose(model: Convertible, kind: str = "") -> PackageLayout:
    """Return the layout of the named kind, or of the kind that the model's spec describes."""
    name = kind or describe_kind(model.spec)
    chosen, layout = KINDS[name], f"{TRANSFORMERS}:{name}"

    def find_fault(model: Convertible) -> str:
        return _find_fault(chosen, model)

    def write(model: Convertible) -> LayoutFiles:
        return _write(chosen, model, layout)

    def open_files(folder: Path, spec: Spec, images_BCHW: torch.Tensor) -> dict[str, torch.Tensor]:
        return _read_outputs(chosen, folder, spec, images_BCHW)

    return PackageLayout(name=layout, find_fault=find_fault, write=write, open_files=open_files)


def describe_kind(spec: Any) -> str:
    """Return the kind of model that a spec describes."""
    if spec.family == "eva":
        return "dinov3_vit"
    if spec.pre_norm:
        return "clip"
    if not spec.class_token:
        return "siglip"
    if spec.registers:
        return "dinov2_with_registers"
    return "dinov2" if spec.layer_scale is not None or spec.mlp == "swiglu_packed" else "vit"


def _find_fault(kind: TransformersKind, model: Convertible) -> str:
    """Return why a model is not of this kind, with advice; "" if it is."""
    spec = model.spec
    fault = find_common_fault(spec, kind.family)
    if fault:
        return fault
    feature = find_feature(spec, kind.allowed)
    if feature:
        return f"it has {feature}, unlike {kind.model}; {OTHER_FORMATS}"
    return kind.find_fault(spec) or _find_head_fault(kind, model) or _find_view_fault(model)


def _find_head_fault(kind: TransformersKind, model: Convertible) -> str:
    spec: Any = model.spec
    if not spec.classes:
        return ""
    if not kind.classifier:
        return f"transformers has no {kind.model} with a head; {suggest_headless()}"
    if kind.head == "projection" and "head.bias" in model.state and model.state["head.bias"].any():
        return f"its head has a bias, unlike that of {kind.classifier}; {suggest_headless()}"
    pools = {"both": ("token", "avg"), "projection": ("token",)}.get(kind.head, (kind.head,))
    includes_prefix = spec.pool == "avg" and getattr(spec, "pool_prefix", False)
    if spec.pool not in pools or (includes_prefix and spec.prefix_tokens):
        words = {"token": "the class token", "avg": "the mean of the patches"}
        return (
            f"its head reads pool {spec.pool!r}, and that of {kind.classifier} "
            f"{' and '.join(words[pool] for pool in pools)}; {suggest_headless()}"
        )
    return ""


def _find_view_fault(model: Convertible) -> str:
    return find_fault_for_transformers(model.images)


def _write(kind: TransformersKind, model: Convertible, layout: str) -> LayoutFiles:
    """Return the files of a model of this kind."""
    spec: Any = model.spec
    state, changes = kind.prepare(spec, renames.split_matrices(model.state))
    names = kind.names(spec)
    heads = {name: state.pop(name) for name in list(state) if name.startswith("head.")}
    inner = kind.inner if spec.classes else ""
    renamed = {inner + name: tensor for name, tensor in renames.rename_state(names, state).items()}
    renamed |= _rename_head(kind, spec, heads)
    class_name = kind.classifier if spec.classes else kind.model
    documents = {
        CONFIG: {**_write_config(kind, model), "learngene": write_record(model, layout)},
        PREPROCESSOR: write_processor(model.images),
    }
    return LayoutFiles(
        weights=WEIGHTS,
        state={name: tensor.float().contiguous() for name, tensor in renamed.items()},
        documents=documents,
        changes=changes,
        usage=_write_usage(kind, class_name),
        library="transformers",
    )


def _write_usage(kind: TransformersKind, class_name: str) -> str:
    """Return the code that opens a folder."""
    auto = "AutoModel" if class_name == kind.model else "AutoModelForImageClassification"
    if kind.head == "projection" and class_name == kind.classifier:
        auto = class_name
    return (
        f"from transformers import AutoImageProcessor, {auto}\n\n"
        f'model = {auto}.from_pretrained("FOLDER")\n'
        'processor = AutoImageProcessor.from_pretrained("FOLDER")'
    )


def _rename_head(kind: TransformersKind, spec: Any, heads: StateDict) -> StateDict:
    """Return the tensors of the head by their names in transformers."""
    if not heads:
        return {}
    weight_CD = heads["head.weight"]
    if kind.head == "projection":
        return {"visual_projection.weight": weight_CD}
    if kind.head == "both":
        parts = [weight_CD, torch.zeros_like(weight_CD)]
        weight_CD = torch.cat(parts if spec.pool == "token" else parts[::-1], dim=1)
    return {"classifier.weight": weight_CD, "classifier.bias": heads["head.bias"]}


def _write_config(kind: TransformersKind, model: Convertible) -> dict[str, Json]:
    """Return the content of config.json, without our record."""
    spec: Any = model.spec
    tower: dict[str, Json] = {
        "model_type": kind.model_type,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "image_size": spec.image_size,
        "patch_size": spec.patch_size,
        "num_channels": spec.channels,
        "layer_norm_eps": spec.norm_eps,
        **kind.describe(spec),
    }
    class_name = kind.classifier if spec.classes else kind.model
    labels = _write_labels(model) if kind.head != "projection" else {}
    if kind is KINDS["siglip"] and spec.classes:
        # The classifier's config is that of both towers; the text tower is not built.
        tower = {"model_type": "siglip", "vision_config": tower, "text_config": {}}
    return {"architectures": [class_name], "dtype": "float32", **tower, **labels}


def _write_labels(model: Convertible) -> dict[str, Json]:
    if not model.spec.classes:
        return {}
    names = model.class_names or [f"LABEL_{number}" for number in range(model.spec.classes)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification",
    }


# The tensors of each kind.


def _prepare_vit(spec: Any, state: StateDict) -> Prepared:
    """Return the tensors of a ViT, with the pooler that transformers expects without a head.

    Its matrix is the identity and its activation is linear, so `pooler_output` is the class token.
    """
    changes: tuple[str, ...] = ()
    prepared = _fill(spec, state)
    if spec.layer_scale is not None:
        prepared = renames.fold_layer_scale(prepared)
        changes = ("layer scales are multiplied into attn.proj and mlp.fc2",)
    if not spec.classes and spec.class_token:
        prepared["pooler.dense.weight"] = torch.eye(spec.width)
        prepared["pooler.dense.bias"] = torch.zeros(spec.width)
        changes += ("a pooler that returns the class token is added",)
    return prepared, changes + _describe_positions(spec)


def _prepare_dinov2(spec: Any, state: StateDict) -> Prepared:
    changes: tuple[str, ...] = ()
    if spec.layer_scale is None:
        state = renames.add_layer_scale(state)
        changes = ("layer scales of 1 are added",)
    prepared = _fill(spec, state)
    if spec.registers:
        prepared["mask_token"] = torch.zeros(1, spec.width)
        changes += ("a mask token of zeros is added, which only a pretraining uses",)
    return prepared, changes + _describe_positions(spec)


def _fill(spec: Any, state: StateDict) -> dict[str, torch.Tensor]:
    """Return a state with the biases and positions that transformers expects."""
    filled = dict(state)
    if not spec.qkv_bias:  # transformers has a setting for these
        filled = _remove_attention_biases(renames.add_biases(filled))
    else:
        filled = renames.add_biases(filled)
    if spec.class_token:
        filled = renames.embed_prefix(filled, spec.registers, not spec.no_embed_class)
    return filled


def _remove_attention_biases(state: StateDict) -> dict[str, torch.Tensor]:
    ends = (".attn.q.bias", ".attn.k.bias", ".attn.v.bias")
    return {name: tensor for name, tensor in state.items() if not name.endswith(ends)}


def _describe_positions(spec: Any) -> tuple[str, ...]:
    changes: tuple[str, ...] = ()
    if not spec.proj_bias:
        changes = ("biases of 0 are added",)
    if spec.class_token and spec.no_embed_class:
        changes += ("a position of zeros is added for the class token",)
    elif spec.registers:
        changes += ("the positions of the registers are added to them",)
    return changes


def _prepare_dinov3(spec: Any, state: StateDict) -> Prepared:
    """Return the tensors of DINOv3.

    timm's class keeps the biases of queries and values apart from the matrix.
    """
    prepared: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        new = name.replace(".attn.q_bias", ".attn.q.bias").replace(".attn.v_bias", ".attn.v.bias")
        new = new.replace(".mlp.fc1_g.", ".mlp.gate.").replace(".mlp.fc1_x.", ".mlp.fc1.")
        if spec.swiglu and not spec.swiglu_split and ".mlp.fc1." in name:
            prepared[name.replace(".fc1.", ".gate.")], tensor = tensor.chunk(2)
        prepared[new] = tensor
    changes = ["a mask token of zeros is added, which only a pretraining uses"]
    prepared["mask_token"] = torch.zeros(1, 1, spec.width)
    if not spec.registers:
        prepared["reg_token"] = torch.zeros(1, 0, spec.width)
    if not spec.scaled:
        changes.append("layer scales of 1 are added")
        for block in range(spec.layers):
            for scale in ("gamma_1", "gamma_2"):
                prepared[f"blocks.{block}.{scale}"] = torch.ones(spec.width)
    return prepared, tuple(changes)


def _prepare_siglip(spec: Any, state: StateDict) -> Prepared:
    prepared = renames.add_biases(state)
    prepared["pos_embed"] = prepared["pos_embed"][0]
    if spec.pools_by_attention:
        for tensor in ("weight", "bias"):
            parts = [prepared.pop(f"attn_pool.{part}.{tensor}") for part in ("q", "kv")]
            prepared[f"attn_pool.qkv.{tensor}"] = torch.cat(parts)
    return prepared, _describe_biases(spec)


def _prepare_clip(spec: Any, state: StateDict) -> Prepared:
    prepared = renames.embed_prefix(renames.add_biases(state), 0, not spec.no_embed_class)
    prepared["pos_embed"] = prepared["pos_embed"][0]
    prepared["cls_token"] = prepared["cls_token"][0, 0]
    positions = ("a position of zeros is added for the class token",) * spec.no_embed_class
    return prepared, (*_describe_biases(spec), *positions)


def _describe_biases(spec: Any) -> tuple[str, ...]:
    return () if spec.qkv_bias and spec.proj_bias else ("biases of 0 are added",)


# The settings of each kind.


def _describe_vit(spec: Any) -> dict[str, Json]:
    pooler: dict[str, Json] = {"pooler_act": "linear", "pooler_output_size": spec.width}
    return {
        "intermediate_size": spec.hidden,
        "hidden_act": _ACTIVATIONS[spec.activation],
        "qkv_bias": spec.qkv_bias,
        **({} if spec.classes or not spec.class_token else pooler),
    }


def _describe_tower(spec: Any) -> dict[str, Json]:
    return {"intermediate_size": spec.hidden, "hidden_act": _ACTIVATIONS[spec.activation]}


def _describe_siglip(spec: Any) -> dict[str, Json]:
    return {**_describe_tower(spec), "vision_use_head": spec.pools_by_attention}


def _describe_clip(spec: Any) -> dict[str, Json]:
    return {**_describe_tower(spec), **({"projection_dim": spec.classes} if spec.classes else {})}


def _describe_dinov2(spec: Any) -> dict[str, Json]:
    ratio = find_ratio(spec)
    gated = spec.mlp == "swiglu_packed"
    registers: dict[str, Json] = {"num_register_tokens": spec.registers}
    return {
        "mlp_ratio": ratio,
        "hidden_act": "gelu" if gated else _ACTIVATIONS[spec.activation],
        "qkv_bias": spec.qkv_bias,
        "layerscale_value": float(spec.layer_scale or 1.0),
        "use_swiglu_ffn": gated,
        **(registers if spec.registers else {"use_mask_token": False}),
    }


def find_ratio(spec: Any) -> int | None:
    """Return the whole MLP ratio with which DINOv2 has these hidden widths; None if there is none.

    In transformers the ratio is an integer. Of SwiGLU, gate and values have two thirds of the
    hidden width each, rounded up to a multiple of 8.
    """
    for ratio in range(1, 65):
        hidden = spec.width * ratio
        if spec.mlp == "swiglu_packed":
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == spec.hidden:
            return ratio
    return None


def _find_dinov2_fault(spec: Any) -> str:
    if spec.mlp == "swiglu_packed" and spec.activation != "silu":
        return f"its SwiGLU has the activation {spec.activation}; {OTHER_FORMATS}"
    if find_ratio(spec) is not None:
        return ""
    advice = f"use the format {TRANSFORMERS}:vit" if describe_kind(spec) == "dinov2" else ""
    if spec.mlp == "swiglu_packed" or not advice:
        advice = OTHER_FORMATS
    return (
        f"its MLPs are {spec.hidden} wide, which is no whole multiple of the width {spec.width}, "
        f"as Dinov2Config needs; {advice}"
    )


def _describe_dinov3(spec: Any) -> dict[str, Json]:
    has_bias = spec.qkv_bias
    return {
        "intermediate_size": spec.hidden,
        "hidden_act": "silu" if spec.swiglu else "gelu",
        "use_gated_mlp": spec.swiglu,
        "num_register_tokens": spec.registers,
        "rope_theta": float(spec.rope_temperature),
        "query_bias": has_bias,
        "value_bias": has_bias,
        "key_bias": has_bias and spec.attention == "rope",
        "proj_bias": True,
        "mlp_bias": True,
        "layerscale_value": float(spec.layer_scale or 1.0),
    }


def _find_dinov3_fault(spec: Any) -> str:
    if spec.rope_offset or spec.rope_indexing != "ij" or spec.rope_reference is not None:
        return f"its rotary positions are not those of DINOv3; {OTHER_FORMATS}"
    return ""


def _read_pooled(outputs: Any, spec: Any) -> dict[str, torch.Tensor]:
    """Return the pooled tokens; the last hidden state of CLIP has no final norm."""
    return {"pooled": outputs.pooler_output}


def _read_siglip(outputs: Any, spec: Any) -> dict[str, torch.Tensor]:
    tokens = {"tokens": outputs.last_hidden_state}
    return {**tokens, "pooled": outputs.pooler_output} if spec.pools_by_attention else tokens


_POOLER = {"pooler.dense": "pooler.dense"}
_MASK = {"mask_token": "embeddings.mask_token"}
_VIT = Names(renames.VIT.block, renames.VIT.inside, {**renames.VIT.outside, **_POOLER})
_DINOV2_NAMES, _DINOV2_GATED, _DINOV3 = (
    Names(names.block, names.inside, {**names.outside, **_MASK})
    for names in (renames.DINOV2, renames.DINOV2_GATED, renames.DINOV3)
)


def _name_dinov2(spec: Any) -> Names:
    return _DINOV2_GATED if spec.mlp == "swiglu_packed" else _DINOV2_NAMES


KINDS: Mapping[str, TransformersKind] = {
    "vit": TransformersKind(
        model="ViTModel",
        classifier="ViTForImageClassification",
        model_type="vit",
        head="token",
        inner="vit.",
        names=lambda spec: _VIT,
        allowed=PLAIN | {LAYER_SCALE},
        prepare=_prepare_vit,
        describe=_describe_vit,
    ),
    "ijepa": TransformersKind(
        model="IJepaModel",
        classifier="IJepaForImageClassification",
        model_type="ijepa",
        head="avg",
        inner="ijepa.",
        names=lambda spec: _VIT,
        allowed=frozenset([NO_TOKEN, NO_REGISTERS, NO_PRE_NORM, LAYER_SCALE]),
        prepare=_prepare_vit,
        describe=_describe_vit,
    ),
    "dinov2": TransformersKind(
        model="Dinov2Model",
        classifier="Dinov2ForImageClassification",
        model_type="dinov2",
        head="both",
        inner="dinov2.",
        names=_name_dinov2,
        allowed=PLAIN | {LAYER_SCALE, GATED},
        prepare=_prepare_dinov2,
        describe=_describe_dinov2,
        find_fault=_find_dinov2_fault,
    ),
    "dinov2_with_registers": TransformersKind(
        model="Dinov2WithRegistersModel",
        classifier="Dinov2WithRegistersForImageClassification",
        model_type="dinov2_with_registers",
        head="both",
        inner="dinov2_with_registers.",
        names=_name_dinov2,
        allowed=frozenset([TOKEN, REGISTERS, NO_PRE_NORM, LAYER_SCALE, GATED]),
        prepare=_prepare_dinov2,
        describe=_describe_dinov2,
        find_fault=_find_dinov2_fault,
    ),
    "dinov3_vit": TransformersKind(
        model="DINOv3ViTModel",
        model_type="dinov3_vit",
        names=lambda spec: _DINOV3,
        allowed=frozenset([GATED_MLP, REGISTERS, "no layer scales"]),
        family="eva",
        prepare=_prepare_dinov3,
        describe=_describe_dinov3,
        find_fault=_find_dinov3_fault,
    ),
    "siglip": TransformersKind(
        model="SiglipVisionModel",
        classifier="SiglipForImageClassification",
        model_type="siglip_vision_model",
        head="avg",
        inner="vision_model.",
        names=lambda spec: renames.SIGLIP,
        allowed=frozenset([NO_TOKEN, NO_REGISTERS, NO_PRE_NORM, ATTENTION_POOL]),
        prepare=_prepare_siglip,
        describe=_describe_siglip,
        read=_read_siglip,
    ),
    "clip": TransformersKind(
        model="CLIPVisionModel",
        classifier="CLIPVisionModelWithProjection",
        model_type="clip_vision_model",
        head="projection",
        inner="vision_model.",
        names=lambda spec: renames.CLIP,
        allowed=frozenset([TOKEN, NO_REGISTERS, PRE_NORM]),
        prepare=_prepare_clip,
        describe=_describe_clip,
        read=_read_pooled,
    ),
}


def _read_outputs(
    kind: TransformersKind, folder: Path, spec: Spec, images_BCHW: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Open a folder with transformers and return its outputs.

    Raises `BadFile` if transformers misses tensors or does not know one.
    """
    import transformers

    class_name = kind.classifier if spec.classes else kind.model
    model, report = getattr(transformers, class_name).from_pretrained(
        folder, output_loading_info=True
    )
    faults = [f"{key}: {', '.join(map(str, values))}" for key, values in report.items() if values]
    if faults:
        raise BadFile(f"transformers did not read {folder} as it was written: {'; '.join(faults)}")
    with torch.no_grad():
        outputs = model.eval()(images_BCHW)
    if not spec.classes:
        return kind.read(outputs, spec)
    return {"logits": outputs.image_embeds if kind.head == "projection" else outputs.logits}
