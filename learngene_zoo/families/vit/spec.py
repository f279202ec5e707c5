"""`ViTSpec`: everything that fixes the tensors and the function of a Vision Transformer, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.families import spec as common
from learngene_zoo.families.spec import Segment, Spec, check_between
from learngene_zoo.settings import NO_OPTION

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
