"""What each axis of each tensor of a Vision Transformer means, and how each tensor starts. Cold.

One table. Shapes, initial values and every operation that cuts tensors come from it; names are timm's. An axis that is
made of several is written with its parts from slow to fast: `qkv heads head_width` is (3, heads, head width) flattened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from learngene_zoo.families.vit.spec import ViTSpec

Start = Literal["matrix", "patches", "token", "positions", "scale", "one", "zero"]
Axes = tuple[tuple[str, ...], ...]
Condition = Callable[[ViTSpec], bool]


@dataclass(frozen=True)
class Kind:
    """One kind of tensor: its name (inside its block, if it is in one), its axes, how it starts, which specs have it."""

    name: str
    axes: Axes
    start: Start
    present: Condition

    def shape(self, spec: ViTSpec) -> tuple[int, ...]:
        """The tensor's shape in the model that `spec` describes."""
        sizes = axis_sizes(spec)
        return tuple(math.prod(sizes[part] for part in axis) for axis in self.axes)


def axis_sizes(spec: ViTSpec) -> dict[str, int]:
    """How long each axis is in the model that `spec` describes; of a stitched one in its last segment."""
    before = {"before": spec.front[-1].width} if spec.front else {}  # the width that a stitch comes from
    return {
        **before,
        "one": 1,
        "qkv": 3,
        "width": spec.width,
        "heads": spec.heads,
        "head_width": spec.head_width,
        "hidden": spec.hidden,
        "positions": spec.positions,
        "registers": spec.registers,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "classes": spec.classes,
    }


def _always(spec: ViTSpec) -> bool:
    return True


def _kind(name: str, axes: str, start: Start, present: Condition = _always) -> Kind:
    return Kind(name, tuple(tuple(axis.split()) for axis in axes.split(",")), start, present)


def _norm(name: str, axis: str, present: Condition = _always) -> tuple[Kind, Kind]:
    return _kind(f"{name}.weight", axis, "one", present), _kind(f"{name}.bias", axis, "zero", present)


# In the order of timm's state_dict.
STEM: tuple[Kind, ...] = (
    _kind("cls_token", "one, one, width", "token", lambda spec: spec.class_token),
    _kind("reg_token", "one, registers, width", "token", lambda spec: spec.registers > 0),
    _kind("pos_embed", "one, positions, width", "positions"),
    _kind("patch_embed.proj.weight", "width, channels, patch, patch", "patches"),
    _kind("patch_embed.proj.bias", "width", "patches", lambda spec: not spec.pre_norm),
    *_norm("norm_pre", "width", lambda spec: spec.pre_norm),
)
BLOCK: tuple[Kind, ...] = (
    *_norm("norm1", "width"),
    _kind("attn.qkv.weight", "qkv heads head_width, width", "matrix"),
    _kind("attn.qkv.bias", "qkv heads head_width", "zero", lambda spec: spec.qkv_bias),
    *_norm("attn.q_norm", "head_width", lambda spec: spec.qk_norm),
    *_norm("attn.k_norm", "head_width", lambda spec: spec.qk_norm),
    _kind("attn.proj.weight", "width, heads head_width", "matrix"),
    _kind("attn.proj.bias", "width", "zero", lambda spec: spec.proj_bias),
    _kind("ls1.gamma", "width", "scale", lambda spec: spec.layer_scale is not None),
    *_norm("norm2", "width"),
    _kind("mlp.fc1.weight", "hidden, width", "matrix"),
    _kind("mlp.fc1.bias", "hidden", "zero", lambda spec: spec.proj_bias),
    _kind("mlp.fc2.weight", "width, hidden", "matrix"),
    _kind("mlp.fc2.bias", "width", "zero", lambda spec: spec.proj_bias),
    _kind("ls2.gamma", "width", "scale", lambda spec: spec.layer_scale is not None),
)
# Of the first block of every segment but the first, after all else that the block has.
STITCH: tuple[Kind, ...] = (
    _kind("stitch.weight", "width, before", "matrix"),
    _kind("stitch.bias", "width", "zero"),
)
TAIL: tuple[Kind, ...] = (
    *_norm("norm", "width", lambda spec: spec.norms_before_pool),
    *_norm("fc_norm", "width", lambda spec: spec.norms_after_pool),
    _kind("head.weight", "classes, width", "matrix", lambda spec: spec.classes > 0),
    _kind("head.bias", "classes", "zero", lambda spec: spec.classes > 0),
)
_OUTSIDE = {kind.name: kind for kind in (*STEM, *TAIL)}
_INSIDE = {kind.name: kind for kind in (*STITCH, *BLOCK)}
_STEM_NAMES = frozenset(kind.name for kind in STEM)


def kinds(spec: ViTSpec) -> Iterator[tuple[str, Kind]]:
    """Name and kind of every tensor of the model, in the order of timm's state_dict."""
    yield from ((name, kind) for name, kind, _ in placed(spec))


def placed(spec: ViTSpec) -> Iterator[tuple[str, Kind, ViTSpec]]:
    """Name and kind of every tensor of the model, and the spec that its sizes come from: that of its segment.

    For stitches the segment's spec says with `front` which widths come before.
    """
    yield from ((kind.name, kind, spec.first) for kind in STEM if kind.present(spec))
    inside = [kind for kind in BLOCK if kind.present(spec)]
    block = 0
    for place, segment in enumerate(spec.segments):
        for index in range(segment.layers):
            yield from ((f"blocks.{block + index}.{kind.name}", kind, segment) for kind in inside)
            if place and index == 0:
                before = spec.front[place - 1]
                two = segment.with_(front=(before,), layers=before.layers + segment.layers)
                yield from ((f"blocks.{block}.{kind.name}", kind, two) for kind in STITCH)
        block += segment.layers
    yield from ((kind.name, kind, spec) for kind in TAIL if kind.present(spec))


def kind_of(name: str) -> Kind | None:
    """The kind of a tensor; None if no Vision Transformer has one of that name."""
    block = block_of(name)
    return _OUTSIDE.get(name) if block is None else _INSIDE.get(inner_name(name))


def block_of(name: str) -> int | None:
    """Which block a tensor is in, counted from 0; None for stem and tail."""
    first, index, inner = [*name.split(".", 2), "", ""][:3]
    return int(index) if first == "blocks" and index.isdecimal() and inner else None


def inner_name(name: str) -> str:
    """A block's tensor by its name inside the block: `blocks.3.attn.qkv.weight` is `attn.qkv.weight`."""
    return name.split(".", 2)[2]


def is_head(name: str) -> bool:
    """Whether a tensor belongs to the classification head."""
    return name in ("head.weight", "head.bias")


def is_stem(name: str) -> bool:
    """Whether a tensor comes before the blocks: tokens, positions, patch embedding, the norm before the blocks."""
    return name in _STEM_NAMES


def is_last_norm(name: str) -> bool:
    """Whether a tensor belongs to the norm after the blocks."""
    return name.startswith(("norm.", "fc_norm."))
