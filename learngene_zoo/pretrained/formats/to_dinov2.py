"""Models with the names of DINOv2's authors (facebookresearch/dinov2), as a safetensors file.

Their code has no file of sizes: config.json is timm's, which converts these names itself, and has
the arguments of the authors' class `DinoVisionTransformer` under `dinov2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.families.spec import Spec
from learngene_zoo.families.timm_config import write_timm_config
from learngene_zoo.pretrained.formats import renames
from learngene_zoo.pretrained.formats.features import (
    GATED,
    LAYER_SCALE,
    NO_PRE_NORM,
    NO_REGISTERS,
    REGISTERS,
    TOKEN,
    find_feature,
)
from learngene_zoo.pretrained.formats.layout import (
    DINOV2,
    OTHER_FORMATS,
    Convertible,
    LayoutFiles,
    PackageLayout,
    find_common_fault,
    suggest_headless,
    write_record,
)
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, WEIGHTS

_ALLOWED = frozenset([TOKEN, NO_REGISTERS, REGISTERS, NO_PRE_NORM, LAYER_SCALE, GATED])
_NAMES = {"reg_token": "register_tokens", ".mlp.fc1.": ".mlp.w12.", ".mlp.fc2.": ".mlp.w3."}


def choose(model: Convertible, kind: str = "") -> PackageLayout:
    """Return the only layout of this format."""
    return PackageLayout(name=DINOV2, find_fault=find_fault, write=write, open_files=open_files)


def find_fault(model: Convertible) -> str:
    """Return why the authors' class cannot express a model, with advice; "" if it can."""
    spec: Any = model.spec
    fault = find_common_fault(spec, "vit")
    if fault:
        return fault
    feature = find_feature(spec, _ALLOWED)
    if feature:
        return f"it has {feature}, unlike DinoVisionTransformer; {OTHER_FORMATS}"
    if spec.classes:
        return f"checkpoints of DINOv2 have no head; {suggest_headless()}"
    gated = spec.mlp == "swiglu_packed"
    if spec.norm_eps != 1e-6 or spec.activation != ("silu" if gated else "gelu"):
        return (
            f"its norms have an epsilon of {spec.norm_eps:g} and its activation is "
            f"{spec.activation}, unlike DinoVisionTransformer; {OTHER_FORMATS}"
        )
    if gated and spec.hidden % 8:
        return f"its SwiGLU is {spec.hidden} wide, which is no multiple of 8; {OTHER_FORMATS}"
    return ""


def write(model: Convertible) -> LayoutFiles:
    """Return the files of a model."""
    spec: Any = model.spec
    state: dict[str, torch.Tensor] = dict(model.state)
    changes = ["a mask token of zeros is added, which only a pretraining uses"]
    if not spec.proj_bias:
        changes.append("biases of 0 are added")
    state = renames.add_biases(state)
    if not spec.qkv_bias:
        state = {name: state[name] for name in state if not name.endswith(".attn.qkv.bias")}
    if spec.no_embed_class:
        changes.append("a position of zeros is added for the class token")
    elif spec.registers:
        changes.append("the positions of the registers are added to them")
    state = renames.embed_prefix(state, spec.registers, not spec.no_embed_class)
    state["mask_token"] = torch.zeros(1, spec.width)
    return LayoutFiles(
        weights=WEIGHTS,
        state={_rename(spec, name): tensor.float().contiguous() for name, tensor in state.items()},
        documents={CONFIG: _write_config(model)},
        changes=tuple(changes),
        usage=(
            "from safetensors.torch import load_file\n\n"
            "model = DinoVisionTransformer(**arguments)  # `dinov2` in config.json\n"
            'model.load_state_dict(load_file("FOLDER/model.safetensors"))'
        ),
        library="timm",
    )


def _rename(spec: Any, name: str) -> str:
    """Return the authors' name of a tensor."""
    for timm, theirs in _NAMES.items():
        if timm == "reg_token" or spec.mlp == "swiglu_packed":
            name = name.replace(timm, theirs)
    return name


def _write_config(model: Convertible) -> dict[str, Json]:
    spec: Any = model.spec
    images = model.images
    # timm moves the position of the class token into that token if there are registers.
    stored = replace(spec, no_embed_class=spec.registers > 0, proj_bias=True)
    config = write_timm_config(
        stored,
        mean=images.mean,
        std=images.std,
        class_names=(),
        licence=model.licence,
        view=images.view,
    )
    gated = spec.mlp == "swiglu_packed"
    arguments = {
        "img_size": spec.image_size,
        "patch_size": spec.patch_size,
        "in_chans": spec.channels,
        "embed_dim": spec.width,
        "depth": spec.layers,
        "num_heads": spec.heads,
        # Of SwiGLU the authors take two thirds, rounded up to a multiple of 8.
        "mlp_ratio": spec.hidden * 1.5 / spec.width if gated else spec.hidden / spec.width,
        "qkv_bias": spec.qkv_bias,
        "ffn_layer": "swiglufused" if gated else "mlp",
        "init_values": spec.layer_scale,
        "num_register_tokens": spec.registers,
        "block_chunks": 0,
    }
    return {**config, "dinov2": arguments, "learngene": write_record(model, DINOV2)}


def open_files(folder: Path, spec: Spec, images_BCHW: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Open a folder with timm, which converts DINOv2's names, and return its tokens."""
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return {"tokens": model.forward_features(images_BCHW)}
