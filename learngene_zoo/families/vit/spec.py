"""`ViTSpec`: all numbers that fix the tensors and the function of a Vision Transformer.

From it follow the tensors, by timm's names and in the order of timm's state_dict (`TABLE`), and the
FLOPs in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import (
    NORM_FLOPS,
    UPSAMPLING_FLOPS,
    BranchNames,
    Condition,
    Convention,
    ParameterSpec,
    Start,
    Table,
    make_row,
)
from learngene_zoo.families.picture_spec import Pool, SegmentedSpec
from learngene_zoo.families.spec import (
    LIMITS,
    Segment,
    check_between,
)
from learngene_zoo.settings import NO_OPTION, OMIT_DEFAULT

if TYPE_CHECKING:
    import torch

Norm = Literal["layer", "rms"]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Mlp = Literal["mlp", "swiglu", "swiglu_packed"]

MAX_REGISTERS = 256  # far more than in any existing model, as `LIMITS`
NORM_EPS = (1e-6, 1e-5)  # the values in timm's models


@dataclass(frozen=True, kw_only=True)
class ViTSpec(SegmentedSpec):
    """A Vision Transformer (timm's `VisionTransformer`) with blocks of one or several sizes.

    A plain model has the same width, heads and MLP ratio in all blocks. Otherwise the first blocks,
    the segments in `front`, have other sizes (see modules.py): the model is stitched if widths
    differ, or was pruned unevenly. All other values are the same in all segments.

    An image whose sides are not multiples of the patch size is cropped at its right and lower
    edges, as in timm; with `dynamic_image_size` timm refuses it, and so does the spec. Raises
    `WrongCall` for numbers that describe no model.

    Attributes:
        pool: the input of the head: the class token, a mean or maximum of the patches, or with
            `map` (SigLIP) the output of an attention layer with one learned query.
        mlp: two layers (`mlp`), or SwiGLU with separate matrices for gate and values (`swiglu`,
            AIMv2) or a common one (`swiglu_packed`, the largest DINOv2, where `mlp_ratio` counts
            both).
        attention_width: channels of all heads together, if heads were removed and the rest of the
            block kept its width.
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
    # The segments before the last one; empty for a plain model
    front: tuple[Segment, ...] = field(default=(), metadata=NO_OPTION)
    # One class per pixel instead of one per image (see modules.py); `pool` has no effect
    dense: bool = False
    # LayerNorm or RMSNorm, for all norms
    norm: Norm = field(default="layer", metadata=OMIT_DEFAULT)
    norm_eps: float = field(default=1e-6, metadata=OMIT_DEFAULT)
    activation: Activation = field(default="gelu", metadata=OMIT_DEFAULT)
    mlp: Mlp = field(default="mlp", metadata=OMIT_DEFAULT)
    # A norm of the embedding of every patch
    embed_norm: bool = field(default=False, metadata=OMIT_DEFAULT)
    # Norms within attention and MLP, before their last layers
    scale_norms: bool = field(default=False, metadata=OMIT_DEFAULT)
    # Norms after attention and MLP instead of before
    post_norm: bool = field(default=False, metadata=OMIT_DEFAULT)
    # Pooling includes class token and registers
    pool_prefix: bool = field(default=False, metadata=OMIT_DEFAULT)
    attention_width: int | None = field(default=None, metadata=OMIT_DEFAULT)  # None: the width
    # Heads and MLP ratio of the pooling `map`. None: those of the blocks
    pool_heads: int | None = field(default=None, metadata={**NO_OPTION, **OMIT_DEFAULT})
    pool_mlp_ratio: float | None = field(default=None, metadata={**NO_OPTION, **OMIT_DEFAULT})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("registers", self.registers, 0, MAX_REGISTERS)
        if self.layer_scale is not None and not 0 < self.layer_scale <= 64:
            raise WrongCall(
                f"layer_scale is {self.layer_scale}; it must be above 0 and at most 64, or None"
            )
        if not self.grid:
            raise WrongCall(
                f"no patch of {self.patch_size} pixels fits into an image of {self.image_size}"
            )
        if self.dynamic_image_size:
            self.check_tiled()
        if self.pool == "token" and not self.class_token:
            raise WrongCall("pool 'token' needs a class token; use pool 'avg'")
        self._check_layers()
        if self.attention_width is not None:
            check_between("attention_width", self.attention_width, 1, LIMITS["width"])
            if self.pools_by_attention and self.pool_heads is None:
                raise WrongCall(
                    "pool 'map' needs heads that together are as wide as the model; use pool 'avg',"
                    " name pool_heads, or no attention_width"
                )
        if self.tail is not self:
            check_between("pool_heads", self.tail.heads, 1, LIMITS["heads"])
        if self.post_norm:
            self._check_post_norm()
        if self.front:
            self.check_front()

    def _check_layers(self) -> None:
        """Check that timm can build this combination of layers."""
        if self.norm_eps not in NORM_EPS:
            raise WrongCall(
                f"norm_eps is {self.norm_eps}; it must be one of {', '.join(map(str, NORM_EPS))}"
            )
        if self.mlp == "swiglu_packed" and int(self.width * self.mlp_ratio) % 2:
            raise WrongCall(
                f"mlp 'swiglu_packed' needs an even hidden width; {self.width} x {self.mlp_ratio} "
                f"gives {int(self.width * self.mlp_ratio)}; choose another width or mlp_ratio"
            )
        if self.mlp == "swiglu_packed" and self.pool == "map":
            raise WrongCall("pool 'map' does not support mlp 'swiglu_packed'; use mlp 'swiglu'")
        usual = (self.norm, self.norm_eps) in (
            ("layer", 1e-6),
            ("rms", 1e-6),
            _MLP_NORM[self.mlp],
        )
        if not usual or (self.embed_norm and self.norm_eps != 1e-6 and self.mlp != "swiglu"):
            raise WrongCall(
                f"timm has no model with mlp {self.mlp!r} and norm {self.norm!r} of norm_eps"
                f" {self.norm_eps}{', embed_norm' if usual else ''}; use norm_eps 1e-06"
            )

    def _check_post_norm(self) -> None:
        if (
            (self.mlp, self.norm_eps) != ("mlp", 1e-6)
            or self.layer_scale is not None
            or self._several
        ):
            raise WrongCall(
                "post_norm needs mlp 'mlp', norm_eps 1e-06, no layer_scale and blocks of equal size"
            )

    @property
    def _several(self) -> bool:
        """Whether timm's class lacks an argument for the sizes of the blocks."""
        return bool(self.front) or self.heads_width != self.width

    def with_pool(self, pool: str | None) -> ViTSpec:
        """Return this spec with another pooling and the same norms; None leaves it unchanged.

        timm would otherwise choose the position of the final norm by the pooling.
        """
        changed = super().with_pool(pool)
        other = replace(changed, fc_norm=None)
        return (
            other
            if other.norms_after_pool == self.norms_after_pool
            else replace(changed, fc_norm=self.norms_after_pool)
        )

    @property
    def plain(self) -> bool:
        """Whether all blocks, and the pooling, have the same sizes."""
        return super().plain and self.tail is self

    @property
    def tail(self) -> ViTSpec:
        """The plain model whose sizes the layers after the blocks have."""
        if not self.pools_by_attention or (self.pool_heads, self.pool_mlp_ratio) == (None, None):
            return self
        return replace(
            self,
            front=(),
            heads=self.pool_heads or self.heads,
            attention_width=None,
            mlp_ratio=self.pool_mlp_ratio or self.mlp_ratio,
            pool_heads=None,
            pool_mlp_ratio=None,
        )

    @property
    def hidden(self) -> int:
        """The width of the hidden layer of each MLP, after the gate if it has one."""
        return super().hidden // (2 if self.mlp == "swiglu_packed" else 1)

    @property
    def norms_after_pool(self) -> bool:
        """Whether the final norm comes after pooling (timm's `fc_norm`), not before it (`norm`)."""
        if not self.final_norm:
            return False
        return self.usual_fc_norm if self.fc_norm is None else self.fc_norm

    @property
    def usual_fc_norm(self) -> bool:
        """The value that timm uses for an `fc_norm` of None."""
        return self.pool in ("avg", "avgmax", "max")

    @property
    def norms_before_pool(self) -> bool:
        """Whether there is a norm over all tokens after the last block."""
        return self.final_norm and not self.norms_after_pool


# For each kind of MLP the norm that models of timm have, besides those with eps 1e-6.
_MLP_NORM = {"mlp": ("layer", 1e-5), "swiglu": ("rms", 1e-5), "swiglu_packed": ("layer", 1e-6)}


# Tensors and FLOPs.


def list_axis_sizes(spec: ViTSpec) -> dict[str, int]:
    """Return the size of each axis in the plain model of `spec`."""
    return {
        "one": 1,
        "kv": 2,
        "qkv": 3,
        "halves": 2 if spec.mlp == "swiglu_packed" else 1,
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


def make_norm_rows(
    name: str, axis: str, present: Condition = lambda spec: True
) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the rows of a norm: LayerNorm has both, RMSNorm only the first."""
    return (
        make_row(f"{name}.weight", axis, "one", present),
        make_row(f"{name}.bias", axis, "zero", lambda spec: spec.norm == "layer" and present(spec)),
    )


def _make_layer_rows(
    name: str, axes: str, present: Condition, start: Start = "zero"
) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the rows of a linear layer of an MLP; `start` is the initialisation of its bias."""
    return (
        make_row(f"{name}.weight", axes, "matrix", present),
        make_row(
            f"{name}.bias",
            axes.partition(",")[0],
            start,
            lambda spec: spec.proj_bias and present(spec),
        ),
    )


def _make_pool_rows() -> tuple[ParameterSpec, ...]:
    """Return the rows of the attention layer that pools.

    Its biases do not depend on those of the blocks.
    """
    layers = {
        "q": "heads head_width, width",
        "kv": "kv heads head_width, width",
        "proj": "width, heads head_width",
        "mlp.fc1": "hidden, width",
        "mlp.fc2": "width, hidden",
    }
    parameters = [
        make_row(
            "attn_pool.latent", "one, one, width", "latent", lambda spec: spec.pools_by_attention
        )
    ]
    for name, axes in layers.items():
        if name == "mlp.fc1":
            parameters += make_norm_rows(
                "attn_pool.norm", "width", lambda spec: spec.pools_by_attention
            )
        parameters += [
            make_row(
                f"attn_pool.{name}.weight", axes, "matrix", lambda spec: spec.pools_by_attention
            ),
            make_row(
                f"attn_pool.{name}.bias",
                axes.partition(",")[0],
                "zero",
                lambda spec: spec.pools_by_attention,
            ),
        ]
    return tuple(parameters)


def _has_layer_scale(spec: ViTSpec) -> bool:
    return spec.layer_scale is not None


def _scale(spec: ViTSpec) -> float:
    return spec.layer_scale or 0.0


def _list_branches(spec: ViTSpec) -> tuple[BranchNames, ...]:
    """Return attention and MLP of a block."""
    gated = spec.mlp == "swiglu"
    scales = ("ls1.gamma", "ls2.gamma") if spec.layer_scale is not None else (None, None)
    return (
        BranchNames(
            norm="norm1", readers=("attn.qkv",), writer="attn.proj", scale=scales[0], mixes=True
        ),
        BranchNames(
            norm="norm2",
            readers=("mlp.fc1_g", "mlp.fc1_x") if gated else ("mlp.fc1",),
            writer="mlp.fc2",
            scale=scales[1],
            mixes=False,
        ),
    )


_NEAR_ZERO = 1e-6  # standard deviation of the weights of a gate in timm
_POST_NORM = 1e-5  # value of the norms of timm's post-norm architecture


def _draw_gate(
    spec: ViTSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    return tensor.normal_(std=_NEAR_ZERO, generator=generator)


def _draw_first_layer(
    spec: ViTSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    """Draw N(0, 0.02), and values near zero for the second half of a packed SwiGLU."""
    tensor.normal_(std=0.02, generator=generator)
    if spec.mlp == "swiglu_packed":
        tensor[len(tensor) // 2 :] *= _NEAR_ZERO / 0.02
    return tensor


def _fill_first_bias(
    spec: ViTSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    """Fill in zeros, and ones for the second half of a packed SwiGLU."""
    tensor.zero_()
    if spec.mlp == "swiglu_packed":
        tensor[len(tensor) // 2 :] = 1.0
    return tensor


def _fill_norm(
    spec: ViTSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    return tensor.fill_(_POST_NORM if spec.post_norm else 1.0)


TABLE = Table(
    prefix="blocks.",
    sizes=list_axis_sizes,
    stem=(
        make_row("cls_token", "one, one, width", "token", lambda spec: spec.class_token),
        make_row("reg_token", "one, registers, width", "token", lambda spec: spec.registers > 0),
        make_row("pos_embed", "one, positions, width", "positions"),
        make_row("patch_embed.proj.weight", "width, channels, patch, patch", "patches"),
        make_row("patch_embed.proj.bias", "width", "patches", lambda spec: not spec.pre_norm),
        *make_norm_rows("patch_embed.norm", "width", lambda spec: spec.embed_norm),
        *make_norm_rows("norm_pre", "width", lambda spec: spec.pre_norm),
    ),
    block=(
        *make_norm_rows("norm1", "width", lambda spec: not spec.post_norm),
        make_row("attn.qkv.weight", "qkv heads head_width, width", "matrix"),
        make_row("attn.qkv.bias", "qkv heads head_width", "zero", lambda spec: spec.qkv_bias),
        *make_norm_rows("attn.q_norm", "head_width", lambda spec: spec.qk_norm),
        *make_norm_rows("attn.k_norm", "head_width", lambda spec: spec.qk_norm),
        *make_norm_rows("attn.norm", "heads head_width", lambda spec: spec.scale_norms),
        make_row("attn.proj.weight", "width, heads head_width", "matrix"),
        make_row("attn.proj.bias", "width", "zero", lambda spec: spec.proj_bias),
        make_row("ls1.gamma", "width", _scale, _has_layer_scale),
        *make_norm_rows("norm1", "width", lambda spec: spec.post_norm),
        *make_norm_rows("norm2", "width", lambda spec: not spec.post_norm),
        *_make_layer_rows("mlp.fc1", "halves hidden, width", lambda spec: spec.mlp != "swiglu"),
        *_make_layer_rows("mlp.fc1_g", "hidden, width", lambda spec: spec.mlp == "swiglu", "one"),
        *_make_layer_rows("mlp.fc1_x", "hidden, width", lambda spec: spec.mlp == "swiglu"),
        *make_norm_rows("mlp.norm", "hidden", lambda spec: spec.scale_norms),
        *_make_layer_rows("mlp.fc2", "width, hidden", lambda spec: True),
        make_row("ls2.gamma", "width", _scale, _has_layer_scale),
        *make_norm_rows("norm2", "width", lambda spec: spec.post_norm),
    ),
    stitch=(
        make_row("stitch.weight", "width, before", "matrix"),
        make_row("stitch.bias", "width", "zero"),
    ),
    final_norm=(
        *make_norm_rows("norm", "width", lambda spec: spec.norms_before_pool),
        *_make_pool_rows(),
        *make_norm_rows("fc_norm", "width", lambda spec: spec.norms_after_pool),
    ),
    head=(
        make_row("head.weight", "classes, width", "matrix", lambda spec: spec.classes > 0),
        make_row("head.bias", "classes", "zero", lambda spec: spec.classes > 0),
    ),
    branches=_list_branches,
    norms_after=lambda spec: spec.post_norm,
    draws_by_name={
        "mlp.fc1_g.weight": _draw_gate,
        "mlp.fc1.weight": _draw_first_layer,
        "mlp.fc1.bias": _fill_first_bias,
        "norm1.weight": _fill_norm,
        "norm2.weight": _fill_norm,
    },
)


def count_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the model for one image."""
    segments = spec.segments
    blocks = sum(segment.layers * count_block_flops(segment, convention) for segment in segments)
    stitches = sum(
        size.stitch * after.tokens * before.width * after.width
        for size, (before, after) in zip(spec.front, pairwise(segments))
    )
    normed = spec.with_(final_norm=False) if convention == "fvcore" and spec.stitched else spec
    return (
        count_stem_flops(spec.first, convention)
        + blocks
        + stitches
        + count_tail_flops(normed, convention)
    )


def count_stem_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the patch embedding and the norms before the blocks."""
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    normed = spec.patches * spec.embed_norm + spec.tokens * spec.pre_norm
    return embed + NORM_FLOPS[convention] * normed * spec.width


def count_block_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of one block for all tokens."""
    n, d, a = spec.tokens, spec.width, spec.heads_width
    layers = 2 if spec.mlp == "mlp" else 3  # the first layer of a gated MLP counts twice
    linear = n * (4 * d * a + layers * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * a
    norms = n * (2 * d + 2 * a * spec.qk_norm + (a + spec.hidden) * spec.scale_norms)
    return linear + attention + NORM_FLOPS[convention] * norms


def count_tail_flops(spec: ViTSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the final norm, the pooling by attention and the head.

    The final norm applies to all tokens or to the input of the head. The head reads the pooled
    token; in a dense model it reads every patch, and its logits are upsampled to the image.
    """
    positions = spec.patches if spec.dense else 1
    normed = spec.tokens if spec.norms_before_pool else positions if spec.norms_after_pool else 0
    upsampled = (spec.classes or spec.width) * spec.image_size**2 if spec.dense else 0
    head = positions * spec.classes * spec.width
    pool = _pool_flops(spec, convention) if spec.pools_by_attention else 0
    return (
        NORM_FLOPS[convention] * normed * spec.width
        + pool
        + head
        + UPSAMPLING_FLOPS[convention] * upsampled
    )


def _pool_flops(spec: ViTSpec, convention: Convention) -> int:
    """Return the multiply-adds of pooling by attention.

    One projected query attends to the keys and values of the tokens; a projection, a norm and an
    MLP of one token follow.
    """
    n, d = spec.tokens if spec.pool_prefix else spec.patches, spec.width
    linear = 2 * n * d * d + 2 * d * d + 2 * d * spec.tail.hidden
    attention = 0 if convention == "thop" else 2 * n * d
    return linear + attention + NORM_FLOPS[convention] * d
