"""`ViTSpec`: everything that fixes the tensors and the function of a Vision Transformer, as plain numbers.

Below it what follows from these numbers: the table of the tensors, by timm's names and in the order of timm's state_dict; FLOPs by
closed form; and what timm calls the models and their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import spec as common
from learngene_zoo.families.family import NORM_FLOPS, UPSAMPLING_FLOPS, Convention, Table, norm, parameter
from learngene_zoo.families.spec import Segment, Spec, check_between, square
from learngene_zoo.settings import NO_OPTION, Json

Pool = Literal["token", "avg", "avgmax", "max"]

# What each field is called in timm's VisionTransformer. Fields that timm has no argument for are not here.
TIMM_NAMES = {
    **common.TIMM_NAMES,
    "pool": "global_pool",
    "class_token": "class_token",
    "registers": "reg_tokens",
    "qkv_bias": "qkv_bias",
    "proj_bias": "proj_bias",
    "qk_norm": "qk_norm",
    "layer_scale": "init_values",
    "pre_norm": "pre_norm",
    "final_norm": "final_norm",
    "fc_norm": "fc_norm",
    "no_embed_class": "no_embed_class",
    "dynamic_image_size": "dynamic_img_size",
}

MOST_REGISTERS = 256  # far beyond any model that exists, as `LIMITS`
MOST_SEGMENTS = 32


@dataclass(frozen=True, kw_only=True)
class ViTSpec(Spec):
    """A plain Vision Transformer (timm's `VisionTransformer`) with one width, head count and MLP ratio for all blocks.

    Or a stitched one (see modules.py), whose first blocks, the segments in `front`, have other widths. Everything that is
    not the size of a segment all segments share.

    Raises `WrongCall` for numbers that describe no model.
    """

    pool: Pool = "token"
    class_token: bool = True
    registers: int = 0
    qkv_bias: bool = True
    proj_bias: bool = True
    qk_norm: bool = False
    layer_scale: float | None = None
    pre_norm: bool = False
    final_norm: bool = True
    fc_norm: bool | None = None
    no_embed_class: bool = False
    dynamic_image_size: bool = False
    # The segments before the last; none in a plain model.
    front: tuple[Segment, ...] = field(default=(), metadata=NO_OPTION)
    dense: bool = False  # one class per pixel instead of one per image: see modules.py; `pool` then has no effect

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("registers", self.registers, 0, MOST_REGISTERS)
        if self.layer_scale is not None and not 0 < self.layer_scale <= 64:
            raise WrongCall(f"layer_scale is {self.layer_scale}; it must be above 0 and at most 64, or None")
        if self.image_size % self.patch_size and not self.dynamic_image_size:
            raise WrongCall(
                f"patches of {self.patch_size} pixels do not tile an image of {self.image_size}; choose a multiple"
            )
        if self.pool == "token" and not self.class_token:
            raise WrongCall("pool 'token' needs a class token; use pool 'avg'")
        if self.front:
            self._check_front()

    def _check_front(self) -> None:
        if len(self.front) >= MOST_SEGMENTS:
            raise WrongCall(f"there are {len(self.front) + 1} segments; a stitched model has at most {MOST_SEGMENTS}")
        layers = [segment.layers for segment in self.front]
        if min(layers) < 1 or self.layers <= sum(layers):
            raise WrongCall(
                f"the segments in front have {' + '.join(map(str, layers))} of {self.layers} layers; each segment needs "
                "at least one, also the last"
            )
        self.segments  # noqa: B018  each must be a model by itself

    @property
    def segments(self) -> tuple[ViTSpec, ...]:
        """The plain model that each segment is a part of, first to last; a plain model is its only one."""
        return self._cut if self.front else (self,)

    @cached_property
    def _cut(self) -> tuple[ViTSpec, ...]:
        return tuple(replace(self, front=(), layers=s.layers, width=s.width, heads=s.heads) for s in self.sizes)

    @property
    def sizes(self) -> tuple[Segment, ...]:
        """Layers, width and heads of each segment, first to last."""
        last = self.layers - sum(segment.layers for segment in self.front)
        return (*self.front, Segment(layers=last, width=self.width, heads=self.heads))

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: the class token and the registers."""
        return int(self.class_token) + self.registers

    @property
    def tokens(self) -> int:
        """Tokens that every block sees."""
        return self.prefix_tokens + self.patches

    @property
    def positions(self) -> int:
        """Rows of the position embedding."""
        return self.patches if self.no_embed_class else self.tokens

    @property
    def norms_after_pool(self) -> bool:
        """Whether the final norm comes after pooling (timm's `fc_norm`) rather than before it (`norm`)."""
        if not self.final_norm:
            return False
        return self.pool in ("avg", "avgmax", "max") if self.fc_norm is None else self.fc_norm

    @property
    def norms_before_pool(self) -> bool:
        """Whether there is a norm over all tokens after the last block."""
        return self.final_norm and not self.norms_after_pool

    def timm_args(self) -> dict[str, Any]:
        """The arguments that make timm's `vit_base_patch16_224` this model; all of them, so that no default matters.

        A stitched model's also have `front`, which only our own modules understand: layers, width and heads of each segment.
        """
        plain = {timm: getattr(self, ours) for ours, timm in TIMM_NAMES.items()}
        front = [[segment.layers, segment.width, segment.heads] for segment in self.front]
        return {**plain, "front": front} if front else plain


def axis_sizes(spec: ViTSpec) -> dict[str, int]:
    """The size of each axis in the plain model that `spec` describes."""
    return {
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


def _scaled(spec: ViTSpec) -> bool:
    return spec.layer_scale is not None


def _scale(spec: ViTSpec) -> float:
    return spec.layer_scale or 0.0


TABLE = Table(
    prefix="blocks.",
    sizes=axis_sizes,
    stem=(
        parameter("cls_token", "one, one, width", "token", lambda spec: spec.class_token),
        parameter("reg_token", "one, registers, width", "token", lambda spec: spec.registers > 0),
        parameter("pos_embed", "one, positions, width", "positions"),
        parameter("patch_embed.proj.weight", "width, channels, patch, patch", "patches"),
        parameter("patch_embed.proj.bias", "width", "patches", lambda spec: not spec.pre_norm),
        *norm("norm_pre", "width", lambda spec: spec.pre_norm),
    ),
    block=(
        *norm("norm1", "width"),
        parameter("attn.qkv.weight", "qkv heads head_width, width", "matrix"),
        parameter("attn.qkv.bias", "qkv heads head_width", "zero", lambda spec: spec.qkv_bias),
        *norm("attn.q_norm", "head_width", lambda spec: spec.qk_norm),
        *norm("attn.k_norm", "head_width", lambda spec: spec.qk_norm),
        parameter("attn.proj.weight", "width, heads head_width", "matrix"),
        parameter("attn.proj.bias", "width", "zero", lambda spec: spec.proj_bias),
        parameter("ls1.gamma", "width", _scale, _scaled),
        *norm("norm2", "width"),
        parameter("mlp.fc1.weight", "hidden, width", "matrix"),
        parameter("mlp.fc1.bias", "hidden", "zero", lambda spec: spec.proj_bias),
        parameter("mlp.fc2.weight", "width, hidden", "matrix"),
        parameter("mlp.fc2.bias", "width", "zero", lambda spec: spec.proj_bias),
        parameter("ls2.gamma", "width", _scale, _scaled),
    ),
    stitch=(parameter("stitch.weight", "width, before", "matrix"), parameter("stitch.bias", "width", "zero")),
    final_norm=(
        *norm("norm", "width", lambda spec: spec.norms_before_pool),
        *norm("fc_norm", "width", lambda spec: spec.norms_after_pool),
    ),
    head=(
        parameter("head.weight", "classes, width", "matrix", lambda spec: spec.classes > 0),
        parameter("head.bias", "classes", "zero", lambda spec: spec.classes > 0),
    ),
)


def flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model."""
    segments = spec.segments
    blocks = sum(segment.layers * block_flops(segment, convention) for segment in segments)
    stitches = sum(after.tokens * before.width * after.width for before, after in pairwise(segments))
    normed = spec.with_(final_norm=False) if convention == "fvcore" and spec.stitched else spec
    return stem_flops(spec.first, convention) + blocks + stitches + tail_flops(normed, convention)


def stem_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The patch embedding, and the norm before the blocks if there is one."""
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    return embed + (NORM_FLOPS[convention] * spec.tokens * spec.width if spec.pre_norm else 0)


def block_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """One block over all tokens."""
    n, d = spec.tokens, spec.width
    linear = n * (4 * d * d + 2 * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    norms = NORM_FLOPS[convention] * n * d * (4 if spec.qk_norm else 2)
    return linear + attention + norms


def tail_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """The final norm, over all tokens or over what the head sees, and the head.

    The head sees the pooled token; in a dense model every patch, and its logits are then upsampled to the image.
    """
    seen = spec.patches if spec.dense else 1
    normed = spec.tokens if spec.norms_before_pool else seen if spec.norms_after_pool else 0
    upsampled = (spec.classes or spec.width) * spec.image_size**2 if spec.dense else 0
    head = seen * spec.classes * spec.width
    return NORM_FLOPS[convention] * normed * spec.width + head + UPSAMPLING_FLOPS[convention] * upsampled


# The registered timm model that every plain descendant is, with all of its arguments given, so that none of its defaults matters.
ARCHITECTURE = "vit_base_patch16_224"

# Those that dense and stitched descendants are: `import learngene_zoo.timm` registers them.
DENSE_ARCHITECTURE = "learngene_dense_vit"
STITCHED_ARCHITECTURE = "learngene_stitched_vit"
STITCHED_DENSE_ARCHITECTURE = "learngene_stitched_dense_vit"
_OUR_NAMES = {timm: ours for ours, timm in TIMM_NAMES.items()}

# Arguments that change training only, or how a fresh model would start.
_WITHOUT_EFFECT = {
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init"),
}

_SIZES = {"tiny": (192, 3, 12), "small": (384, 6, 12), "base": (768, 12, 12), "large": (1024, 16, 24)}
_USUAL = (("deit", ("tiny", "small", "base")), ("vit", ("tiny", "small", "base", "large")))


def _sized(size: str, **rest: Json) -> ViTSpec:
    width, heads, layers = _SIZES[size]
    return ViTSpec(layers=layers, width=width, heads=heads, **rest)


# Specs that `plan` and `show` know without importing timm and without a download.
ARCHITECTURES: dict[str, ViTSpec] = {
    **{f"{name}_{size}_patch16_224": _sized(size) for name, sizes in _USUAL for size in sizes},
    **{f"vit_{size}_patch32_224": _sized(size, patch_size=32) for size in ("small", "base")},
    "deit_base_patch16_384": _sized("base", image_size=384),
    **{f"vit_{size}_patch16_384": _sized(size, image_size=384) for size in _SIZES},
    **{
        f"deit3_{size}_patch16_224": _sized(size, layer_scale=1e-6, no_embed_class=True)
        for size in ("small", "base", "large")
    },
}

# What the models that modules.py registers are without arguments.
REGISTERED = {
    DENSE_ARCHITECTURE: _sized("base", dense=True),
    STITCHED_ARCHITECTURE: _sized("base"),
    STITCHED_DENSE_ARCHITECTURE: _sized("base", dense=True),
}


def architecture_name(spec: ViTSpec) -> str:
    """The registered model that becomes this one when it is given all arguments."""
    if spec.front:
        return STITCHED_DENSE_ARCHITECTURE if spec.dense else STITCHED_ARCHITECTURE
    return DENSE_ARCHITECTURE if spec.dense else ARCHITECTURE


def spec_values(architecture: str, args: Mapping[str, Json], where: str) -> dict[str, Json]:
    """A model's arguments as fields of a `ViTSpec` in JSON. Raises `BadFile` for an argument that no spec can express."""
    if "front" in args and architecture not in (STITCHED_ARCHITECTURE, STITCHED_DENSE_ARCHITECTURE):
        raise BadFile(f"{where}: model_args has 'front', which {architecture} does not take")
    values = {}
    for name, value in args.items():
        if name in _WITHOUT_EFFECT or (value is None and name not in _OUR_NAMES):  # None: timm's own default
            continue
        if name == "front":
            values[name] = _segments(value, f"{where}: {name}")
            continue
        if name not in _OUR_NAMES:
            raise BadFile(f"{where}: model_args has {name!r}, which is not supported")
        values[_OUR_NAMES[name]] = square(value, f"{where}: {name}") if name in ("img_size", "patch_size") else value
    return values


def _segments(value: Json, where: str) -> Json:
    """The segments in front as `ViTSpec` has them."""
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == 3 for item in value):
        raise BadFile(f"{where}: expected a list of segments, each [layers, width, heads]")
    return [dict(zip(("layers", "width", "heads"), item)) for item in value]
