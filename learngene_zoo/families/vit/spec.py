"""`ViTSpec`: everything that fixes the tensors and the function of a Vision Transformer, as plain numbers.

Cold: nothing here needs torch. `vit.py` builds the module a spec describes and reads the spec off a module.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import NO_OPTION

Pool = Literal["token", "avg", "avgmax", "max"]

# What each field is called in timm's VisionTransformer. Fields that timm has no argument for are not here.
TIMM_NAMES = {
    "layers": "depth",
    "width": "embed_dim",
    "heads": "num_heads",
    "classes": "num_classes",
    "image_size": "img_size",
    "patch_size": "patch_size",
    "channels": "in_chans",
    "mlp_ratio": "mlp_ratio",
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

# The bounds are far beyond any ViT that exists: they catch a config.json that would exhaust the memory.
LIMITS = {
    "layers": 512,
    "width": 16384,
    "heads": 512,
    "classes": 1_000_000,
    "image_size": 8192,
    "patch_size": 512,
    "channels": 64,
    "registers": 256,
}
MOST_SEGMENTS = 32  # of a stitched model; it too is a bound for files


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive blocks of one width."""

    layers: int
    width: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class ViTSpec:
    """A plain Vision Transformer (timm's `VisionTransformer`) with one width, head count and MLP ratio for all blocks.

    Or a stitched one (see stitched.py), whose first blocks, the segments in `front`, have other widths: a linear layer,
    the stitch, leads from each segment to the next. `layers` counts all blocks; `width` and `heads` are those of the last
    segment, which the last norm and the head belong to. What else is here all segments share.

    Raises `WrongCall` for numbers that describe no model (heads that do not divide the width, an image that the patches
    do not cover, sizes beyond `LIMITS`).
    """

    layers: int
    width: int
    heads: int
    classes: int = 1000
    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    mlp_ratio: float = 4.0
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
    dense: bool = False  # one class per pixel instead of one per image: see dense.py; `pool` then has no effect

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            value = getattr(self, name)
            least = 0 if name in ("registers", "classes") else 1
            if not least <= value <= most:
                raise WrongCall(f"{name} is {value}; it must lie between {least} and {most}")
        if not 0.01 <= self.mlp_ratio <= 64:
            raise WrongCall(f"mlp_ratio is {self.mlp_ratio}; it must lie between 0.01 and 64")
        if self.layer_scale is not None and not 0 < self.layer_scale <= 64:
            raise WrongCall(f"layer_scale is {self.layer_scale}; it must lie between 0 and 64, or be left out")
        if self.width % self.heads:
            raise WrongCall(f"{self.heads} heads do not divide a width of {self.width}; try {self._fitting_heads()}")
        if self.image_size % self.patch_size and not self.dynamic_image_size:
            raise WrongCall(
                f"patches of {self.patch_size} pixels do not tile an image of {self.image_size}; take a multiple"
            )
        if self.pool == "token" and not self.class_token:
            raise WrongCall("pool 'token' needs a class token; use pool 'avg'")
        self._check_front()

    def _check_front(self) -> None:
        if not self.front:
            return
        if len(self.front) >= MOST_SEGMENTS:
            raise WrongCall(f"there are {len(self.front) + 1} segments; a stitched model has at most {MOST_SEGMENTS}")
        if any(segment.layers < 1 for segment in self.front) or self.layers <= sum(s.layers for s in self.front):
            told = " + ".join(str(segment.layers) for segment in self.front)
            raise WrongCall(
                f"the segments in front have {told} of {self.layers} layers; each needs one, and so does the last"
            )
        self.segments  # noqa: B018  each must be a model by itself

    @property
    def segments(self) -> tuple[ViTSpec, ...]:
        """The plain model that each segment is a part of, first to last; of a plain model itself alone."""
        return self._cut if self.front else (self,)

    @cached_property
    def _cut(self) -> tuple[ViTSpec, ...]:
        return tuple(replace(self, front=(), layers=s.layers, width=s.width, heads=s.heads) for s in self.sizes)

    @property
    def sizes(self) -> tuple[Segment, ...]:
        """Layers, width and heads of each segment, first to last; of a plain model its own."""
        last = self.layers - sum(segment.layers for segment in self.front)
        return (*self.front, Segment(layers=last, width=self.width, heads=self.heads))

    @property
    def first(self) -> ViTSpec:
        """The plain model that the stem belongs to."""
        return self.segments[0]

    def _fitting_heads(self) -> int:
        """The head count nearest to the one asked for that divides the width."""
        divisors = [n for n in range(1, min(self.width, LIMITS["heads"]) + 1) if self.width % n == 0]
        return min(divisors, key=lambda n: (abs(n - self.heads), n))

    @property
    def head_width(self) -> int:
        """Channels of one attention head."""
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        """Width of the hidden layer of each MLP."""
        return int(self.width * self.mlp_ratio)

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

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
        """Whether the last norm comes after pooling (timm's `fc_norm`) rather than before it (`norm`)."""
        if not self.final_norm:
            return False
        return self.pool in ("avg", "avgmax", "max") if self.fc_norm is None else self.fc_norm

    @property
    def norms_before_pool(self) -> bool:
        """Whether there is a norm over all tokens after the last block."""
        return self.final_norm and not self.norms_after_pool

    def timm_args(self) -> dict[str, Any]:
        """The arguments that make timm's `vit_base_patch16_224` this model; all of them, so that no default matters.

        A stitched model's also have `front`, which ours alone understand: layers, width and heads of each segment.
        """
        plain = {timm: getattr(self, ours) for ours, timm in TIMM_NAMES.items()}
        front = [[segment.layers, segment.width, segment.heads] for segment in self.front]
        return {**plain, "front": front} if front else plain

    def with_(self, **changes: Any) -> ViTSpec:
        """This spec with other values; a value of None leaves the field as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def _plain(width: int, heads: int, layers: int = 12, **rest: Any) -> ViTSpec:
    return ViTSpec(layers=layers, width=width, heads=heads, **rest)


_SIZES = {"tiny": (192, 3, 12), "small": (384, 6, 12), "base": (768, 12, 12), "large": (1024, 16, 24)}

# Specs that `plan` and `show` know without importing timm and without a download.
ARCHITECTURES: dict[str, ViTSpec] = {
    **{
        f"{family}_{size}_patch16_224": _plain(width, heads, layers)
        for family, sizes in {"deit": ("tiny", "small", "base"), "vit": ("tiny", "small", "base", "large")}.items()
        for size in sizes
        for width, heads, layers in [_SIZES[size]]
    },
    **{
        f"vit_{size}_patch32_224": _plain(*_SIZES[size][:2], layers=_SIZES[size][2], patch_size=32)
        for size in ("small", "base")
    },
    **{
        f"{family}_{size}_patch16_384": _plain(*_SIZES[size][:2], layers=_SIZES[size][2], image_size=384)
        for family, sizes in {"deit": ("base",), "vit": ("tiny", "small", "base", "large")}.items()
        for size in sizes
    },
    **{
        f"deit3_{size}_patch16_224": _plain(
            *_SIZES[size][:2], layers=_SIZES[size][2], layer_scale=1e-6, no_embed_class=True
        )
        for size in ("small", "base", "large")
    },
}


def architecture(name: str) -> ViTSpec | None:
    """The spec of a timm architecture by name, its pretrained tag ignored; None if the table does not hold it."""
    return ARCHITECTURES.get(name.split(".", 1)[0])
