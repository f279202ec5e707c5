"""`ViTSpec`: everything that fixes the tensors and the function of a Vision Transformer, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Pool, Segment, Spec, check_between
from learngene_zoo.settings import NO_OPTION, YOUNG

Norm = Literal["layer", "rms"]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Mlp = Literal["mlp", "swiglu", "swiglu_packed"]

MOST_REGISTERS = 256  # far beyond any model that exists, as `LIMITS`
MOST_SEGMENTS = 32
NORM_EPS = (1e-6, 1e-5)  # those of timm's models


@dataclass(frozen=True, kw_only=True)
class ViTSpec(Spec):
    """A plain Vision Transformer (timm's `VisionTransformer`) with one width, head count and MLP ratio for all blocks.

    Or a stitched one (see modules.py), whose first blocks, the segments in `front`, have other widths. Everything that is
    not the size of a segment all segments share.

    `pool`: what the head reads: the class token; a mean or maximum of the patches; or with `map` (SigLIP) what an attention
    layer with one learned query makes of them. `mlp`: two layers; or SwiGLU, whose first layer is two, one the gate of the
    other, as two tensors (`swiglu`, AIMv2) or as one (`swiglu_packed`, DINOv2's largest: there `mlp_ratio` counts both).

    An image whose sides are no multiple of the patch is cut at its right and lower edges, as timm does.

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
    norm: Norm = field(default="layer", metadata=YOUNG)  # of every norm: LayerNorm or RMSNorm
    norm_eps: float = field(default=1e-6, metadata=YOUNG)
    activation: Activation = field(default="gelu", metadata=YOUNG)
    mlp: Mlp = field(default="mlp", metadata=YOUNG)
    embed_norm: bool = field(default=False, metadata=YOUNG)  # a norm of every patch's embedding
    scale_norms: bool = field(default=False, metadata=YOUNG)  # norms within attention and MLP, before their last layers
    post_norm: bool = field(default=False, metadata=YOUNG)  # norms after attention and MLP instead of before
    pool_prefix: bool = field(default=False, metadata=YOUNG)  # pooling sees class token and registers too

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("registers", self.registers, 0, MOST_REGISTERS)
        if self.layer_scale is not None and not 0 < self.layer_scale <= 64:
            raise WrongCall(f"layer_scale is {self.layer_scale}; it must be above 0 and at most 64, or None")
        if not self.grid:
            raise WrongCall(f"no patch of {self.patch_size} pixels fits into an image of {self.image_size}")
        if self.pool == "token" and not self.class_token:
            raise WrongCall("pool 'token' needs a class token; use pool 'avg'")
        self._check_layers()
        if self.post_norm:
            self._check_post_norm()
        if self.front:
            self._check_front()

    def _check_layers(self) -> None:
        """Combinations of layers that timm cannot build, and those that no model has."""
        if self.norm_eps not in NORM_EPS:
            raise WrongCall(f"norm_eps is {self.norm_eps}; it must be one of {', '.join(map(str, NORM_EPS))}")
        if self.mlp == "swiglu_packed" and int(self.width * self.mlp_ratio) % 2:
            raise WrongCall(
                f"mlp 'swiglu_packed' needs an even hidden width; {self.width} x {self.mlp_ratio} "
                f"gives {int(self.width * self.mlp_ratio)}; choose another width or mlp_ratio"
            )
        if self.mlp == "swiglu_packed" and self.pool == "map":
            raise WrongCall("pool 'map' has no mlp 'swiglu_packed'; use mlp 'swiglu'")
        usual = (self.norm, self.norm_eps) in (("layer", 1e-6), ("rms", 1e-6), _OWN_NORM[self.mlp])
        if not usual or (self.embed_norm and self.norm_eps != 1e-6 and self.mlp != "swiglu"):
            raise WrongCall(
                f"timm has no model with mlp {self.mlp!r} and norm {self.norm!r} of norm_eps {self.norm_eps}"
                f"{', embed_norm' if usual else ''}; use norm_eps 1e-06"
            )

    def _check_post_norm(self) -> None:
        if (self.mlp, self.norm_eps) != ("mlp", 1e-6) or self.layer_scale is not None or self.front:
            raise WrongCall(
                "post_norm goes with an mlp of two layers and norm_eps 1e-06, without layer_scale, unstitched"
            )

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

    def with_pool(self, pool: str | None) -> ViTSpec:
        """This spec with another pooling, its final norm where it is, which timm would else choose by the pooling."""
        changed = super().with_pool(pool)
        other = replace(changed, fc_norm=None)
        return (
            other
            if other.norms_after_pool == self.norms_after_pool
            else replace(changed, fc_norm=self.norms_after_pool)
        )

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
    def hidden(self) -> int:
        """Width of the hidden layer of each MLP, after the gate if it has one."""
        return super().hidden // (2 if self.mlp == "swiglu_packed" else 1)

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
    def pools_by_attention(self) -> bool:
        """Whether an attention layer pools; a dense model has no pooling."""
        return self.pool == "map" and not self.dense

    @property
    def norms_after_pool(self) -> bool:
        """Whether the final norm comes after pooling (timm's `fc_norm`) rather than before it (`norm`)."""
        if not self.final_norm:
            return False
        return self.usual_fc_norm if self.fc_norm is None else self.fc_norm

    @property
    def usual_fc_norm(self) -> bool:
        """What timm takes an `fc_norm` of None for."""
        return self.pool in ("avg", "avgmax", "max")

    @property
    def norms_before_pool(self) -> bool:
        """Whether there is a norm over all tokens after the last block."""
        return self.final_norm and not self.norms_after_pool


# The norm, besides those of eps 1e-6, that some model of timm's has with each kind of MLP.
_OWN_NORM = {"mlp": ("layer", 1e-5), "swiglu": ("rms", 1e-5), "swiglu_packed": ("layer", 1e-6)}
