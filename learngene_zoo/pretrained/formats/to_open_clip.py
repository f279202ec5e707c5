"""The vision tower of a CLIP in the layout of open_clip.

A folder has `open_clip_config.json` and `open_clip_model.safetensors` with the tensors of the tower
(`visual.`), without a text tower. There are two kinds:

- `clip`: open_clip's class `VisionTransformer`, with any sizes. A ViT without a norm before the
  first block fits as well; the bias of its patches becomes part of the positions. The projection
  after the tower is the head of the model, or the identity.
- `timm`: a model of timm's, which open_clip builds by its name alone. It fits only models with
  exactly the sizes of a name in `TOWERS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.timm_config import find_architecture, read_architecture
from learngene_zoo.pretrained.formats import renames
from learngene_zoo.pretrained.formats.features import (
    LAYER_SCALE,
    NO_PRE_NORM,
    NO_REGISTERS,
    PRE_NORM,
    TOKEN,
    find_feature,
)
from learngene_zoo.pretrained.formats.layout import (
    OPEN_CLIP,
    OTHER_FORMATS,
    Convertible,
    LayoutFiles,
    PackageLayout,
    find_common_fault,
    suggest_headless,
    write_record,
)
from learngene_zoo.pretrained.formats.preprocessing import (
    describe_crop,
    find_fault_for_open_clip,
    write_preprocess_cfg,
)
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_ALLOWED = frozenset([TOKEN, NO_REGISTERS, PRE_NORM, NO_PRE_NORM, LAYER_SCALE])
# The timm models of open_clip's own configs that are ViTs, and the usual ViTs of timm.
TOWERS = (
    *(f"vit_base_patch16_siglip_{size}" for size in (224, 256, 384, 512)),
    "vit_base_patch32_siglip_256",
    *(f"vit_large_patch16_siglip_{size}" for size in (256, 384, 512)),
    *(f"vit_so400m_patch14_siglip_{size}" for size in (224, 378, 384)),
    *(f"vit_so400m_patch16_siglip_{size}" for size in (256, 384, 512)),
    *(f"vit_giantopt_patch16_siglip_{size}" for size in (256, 384)),
    "eva02_base_patch16_clip_224",
    "eva02_large_patch14_clip_224",
    "eva02_large_patch14_clip_336",
    "eva02_enormous_patch14_clip_224",
    "eva_giant_patch14_224",
    "vit_large_patch14_clip_224",
    "vit_medium_patch16_gap_256",
    "vit_pe_core_tiny_patch16_384",
    "vit_pe_core_small_patch16_384",
    "vit_pe_core_base_patch16_224",
    "vit_pe_core_large_patch14_336",
    "vit_pe_core_gigantic_patch14_448",
    *(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
)
# A text tower is part of every config; these are open_clip's defaults.
_TEXT: Mapping[str, Json] = {
    "context_length": 77,
    "vocab_size": 49408,
    "width": 512,
    "heads": 8,
    "layers": 12,
}


def choose(model: Convertible, kind: str = "") -> PackageLayout:
    """Return the layout of the named kind; without a name `clip`, or `timm` if only that fits."""
    clip = PackageLayout(
        name=f"{OPEN_CLIP}:clip", find_fault=_find_fault, write=_write, open_files=_open_files
    )
    trunk = PackageLayout(
        name=f"{OPEN_CLIP}:timm",
        find_fault=_find_trunk_fault,
        write=_write_trunk,
        open_files=_open_files,
    )
    if kind:
        return clip if kind == "clip" else trunk
    return trunk if _find_fault(model) and not _find_trunk_fault(model) else clip


def _find_fault(model: Convertible) -> str:
    """Return why open_clip's class cannot express a model, with advice; "" if it can."""
    spec: Any = model.spec
    fault = find_common_fault(spec, "vit")
    if fault:
        return fault
    feature = find_feature(spec, _ALLOWED)
    if feature:
        other = "use the format transformers" if not spec.class_token else OTHER_FORMATS
        return f"it has {feature}, unlike open_clip's VisionTransformer; {other}"
    if spec.channels != 3:
        return f"its images have {spec.channels} channels, and those of open_clip 3"
    if spec.activation not in ("gelu", "gelu_tanh", "quick_gelu"):
        return f"its activation is {spec.activation}; {OTHER_FORMATS}"
    if int(spec.width * (spec.hidden / spec.width)) != spec.hidden:
        return f"its MLPs are {spec.hidden} wide, which no mlp_ratio gives; {OTHER_FORMATS}"
    if spec.classes and model.state["head.bias"].any():
        return f"its head has a bias, which the projection of open_clip lacks; {suggest_headless()}"
    if spec.pool not in ("token", "avg") or (spec.pool == "avg" and spec.pool_prefix):
        return f"it has pool {spec.pool!r}; {OTHER_FORMATS}"
    return find_fault_for_open_clip(model.images)


def _write(model: Convertible) -> LayoutFiles:
    """Return the files of a tower of open_clip's class."""
    spec: Any = model.spec
    changes: list[str] = []
    state = renames.embed_prefix(renames.add_biases(model.state), 0, not spec.no_embed_class)
    if spec.no_embed_class:
        changes.append("a position of zeros is added for the class token")
    if not (spec.qkv_bias and spec.proj_bias):
        changes.append("biases of 0 are added")
    if "patch_embed.proj.bias" in state:
        positions = state["pos_embed"].clone()
        positions[:, 1:] += state.pop("patch_embed.proj.bias")
        state["pos_embed"] = positions
        changes.append("the bias of the patches is added to the positions")
    state["pos_embed"] = state["pos_embed"][0]
    state["cls_token"] = state["cls_token"][0, 0]
    state.pop("head.bias", None)
    if spec.classes:
        state["head.weight"] = state["head.weight"].T
    else:
        state["head.weight"] = torch.eye(spec.width)
        changes.append("a projection is added, the identity")
    renamed = renames.rename_state(renames.OPEN_CLIP, state)
    changes += describe_crop(model.images)
    return _make_files(renamed, _write_config(model, _write_vision_cfg(spec), "clip"), changes)


def _write_vision_cfg(spec: Any) -> dict[str, Json]:
    vision: dict[str, Json] = {
        "image_size": spec.image_size,
        "layers": spec.layers,
        "width": spec.width,
        "head_width": spec.head_width,
        "patch_size": spec.patch_size,
        "mlp_ratio": spec.hidden / spec.width,
    }
    if not spec.pre_norm:
        vision["no_ln_pre"] = True
    if spec.layer_scale is not None:
        vision["ls_init_value"] = spec.layer_scale
    if spec.norm_eps != 1e-5:
        vision["norm_kwargs"] = {"eps": spec.norm_eps}
    if spec.activation == "gelu_tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    if spec.pool == "avg":
        vision["pool_type"] = "avg"
    return vision


def _write_config(model: Convertible, vision: Mapping[str, Json], kind: str) -> dict[str, Json]:
    spec: Any = model.spec
    gelu = {"quick_gelu": True} if getattr(spec, "activation", "") == "quick_gelu" else {}
    return {
        "model_cfg": {
            "embed_dim": spec.classes or spec.width,
            **gelu,
            "vision_cfg": dict(vision),
            "text_cfg": dict(_TEXT),
        },
        "preprocess_cfg": write_preprocess_cfg(model.images),
        "learngene": write_record(model, f"{OPEN_CLIP}:{kind}"),
    }


def _make_files(
    state: StateDict, config: Mapping[str, Json], changes: Sequence[str]
) -> LayoutFiles:
    return LayoutFiles(
        weights=WEIGHTS,
        state={f"visual.{name}": tensor.float().contiguous() for name, tensor in state.items()},
        documents={CONFIG: config},
        changes=tuple(changes),
        usage=(
            "import open_clip\n\n"
            'clip = open_clip.create_model("local-dir:FOLDER", load_weights=False)\n'
            "open_clip.load_checkpoint(\n"
            f'    clip, "FOLDER/{WEIGHTS}", strict=False\n'
            ")\n"
            "tower = clip.visual  # the text tower of `clip` is random"
        ),
        library="open_clip",
    )


# Towers of timm's.


def find_tower(spec: Any) -> str:
    """Return timm's name of a tower that has exactly the sizes of a spec; "" if there is none."""
    for name in TOWERS:
        listed = _read_tower(name)
        if listed.family == spec.family:
            with contextlib.suppress(WrongCall):  # a pooling that the sizes do not allow
                if replace(listed, classes=spec.classes, pool=spec.pool) == spec:
                    return name
    return ""


@cache
def _read_tower(name: str) -> Any:
    """Return the spec of a tower, for which timm builds a model without weights."""
    return find_architecture(name) or read_architecture(name)


def _find_trunk_fault(model: Convertible) -> str:
    spec: Any = model.spec
    fault = find_common_fault(spec)
    if fault:
        return fault
    if not find_tower(spec):
        return (
            f"open_clip builds a tower of timm's by its name alone, and none has {spec.layers} "
            f"layers, width {spec.width} and the other sizes of this model; use the "
            "format transformers or timm"
        )
    return find_fault_for_open_clip(model.images)


def _write_trunk(model: Convertible) -> LayoutFiles:
    """Return the files of a tower of timm's; a head is its projection."""
    spec: Any = model.spec
    vision: dict[str, Json] = {
        "timm_model_name": find_tower(spec),
        "timm_model_pretrained": False,
        "timm_pool": spec.pool,
        "timm_proj": "" if spec.classes else "none",
        "image_size": spec.image_size,
    }
    state = {f"trunk.{name}": model.state[name] for name in model.state}
    config = _write_config(model, vision, "timm")
    return _make_files(state, config, describe_crop(model.images))


def _open_files(folder: Path, spec: Spec, images_BCHW: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Open a folder with open_clip and return the output of its tower.

    Raises `BadFile` if open_clip does not know a tensor or misses one of the tower.
    """
    import open_clip

    clip: Any = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    report = open_clip.load_checkpoint(clip, str(folder / WEIGHTS), strict=False)
    missing = [name for name in report.missing_keys if name.startswith("visual.")]
    if missing or report.unexpected_keys:
        raise BadFile(
            f"open_clip did not read {folder} as it was written: missing {missing[:3]}, "
            f"unexpected {report.unexpected_keys[:3]}"
        )
    with torch.no_grad():
        return {("logits" if spec.classes else "pooled"): clip.visual.eval()(images_BCHW)}
