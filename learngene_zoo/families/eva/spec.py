"""`EvaSpec`: everything that fixes the tensors and the function of a model of timm's class `Eva`, as plain numbers.

DINOv3, EVA and EVA02, Perception Encoder and the ViTs with rotary positions. Below it what follows from these numbers: the table of
the tensors, by timm's names and in the order of timm's state_dict, how timm starts them, and FLOPs by closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.families import spec as common
from learngene_zoo.families.family import (
    NORM_FLOPS,
    UPSAMPLING_FLOPS,
    Convention,
    ParameterSpec,
    Table,
    norm,
    parameter,
)
from learngene_zoo.families.spec import Spec, check_between

if TYPE_CHECKING:
    import torch

# What each field is called in timm's Eva; only `norm_eps` has no argument: it comes with the architecture.
TIMM_NAMES = {
    **common.TIMM_NAMES,
    "pool": "global_pool",
    "pool_heads": "attn_pool_num_heads",
    "pool_mlp_ratio": "attn_pool_mlp_ratio",
    "class_token": "class_token",
    "registers": "num_reg_tokens",
    "attention": "attn_type",
    "qkv_bias": "qkv_bias",
    "qkv_fused": "qkv_fused",
    "attention_norm": "scale_attn_inner",
    "swiglu": "swiglu_mlp",
    "swiglu_multiple": "swiglu_align_to",
    "mlp_norm": "scale_mlp",
    "layer_scale": "init_values",
    "absolute": "use_abs_pos_emb",
    "no_embed_class": "no_embed_class",
    "rotary": "use_rot_pos_emb",
    "rope_type": "rope_type",
    "rope_offset": "rope_grid_offset",
    "rope_indexing": "rope_grid_indexing",
    "rope_temperature": "rope_temperature",
    "rope_half": "rope_rotate_half",
    "rope_reference": "ref_feat_shape",
    "post_norm": "use_post_norm",
    "pre_norm": "use_pre_transformer_norm",
    "final_norm": "use_post_transformer_norm",
    "fc_norm": "use_fc_norm",
    "dynamic_image_size": "dynamic_img_size",
}
NORM_EPS = (1e-6, 1e-5)  # those for which timm has an architecture


@dataclass(frozen=True, kw_only=True)
class EvaSpec(Spec):
    """A model of timm's class `Eva`; as there, a field whose part is absent has no effect.

    Raises `WrongCall` for numbers that describe no model.
    """

    family: Literal["eva"] = "eva"
    pool: Literal["token", "avg", "avgmax", "max", "map"] = "avg"  # map: attention of one learned query over the tokens
    pool_heads: int | None = None  # of `map`; None: as many as the blocks have
    pool_mlp_ratio: float | None = None  # of `map`; None: that of the blocks
    class_token: bool = True
    registers: int = 0
    attention: Literal["eva", "rope"] = "eva"  # timm's EvaAttention, whose keys have no bias, or its AttentionRope
    qkv_bias: bool = True
    qkv_fused: bool = True  # one matrix for queries, keys and values, or three
    attention_norm: bool = False  # a norm before the attention's last matrix
    swiglu: bool = False
    swiglu_multiple: int = 0  # the hidden width is rounded up to a multiple of it; 0: not
    mlp_norm: bool = False  # a norm before the MLP's last matrix
    layer_scale: float | None = None
    absolute: bool = True  # learned position embedding
    no_embed_class: bool = False
    rotary: bool = False
    rope_type: Literal["cat", "mixed", "dinov3"] = "cat"  # mixed: learned frequencies of each block
    rope_offset: float = 0.0
    rope_indexing: Literal["ij", "xy"] = "ij"
    rope_temperature: float = 10000.0
    rope_half: bool = False
    rope_reference: int | None = None  # side of the patch grid whose positions all other grids are scaled to
    post_norm: bool = False  # norms after attention and MLP instead of before
    pre_norm: bool = False
    final_norm: bool = False  # over all tokens, before pooling
    fc_norm: bool = True  # after pooling
    dynamic_image_size: bool = False
    norm_eps: float = 1e-6
    dense: bool = (
        False  # one class per pixel instead of one per image: see families/dense.py; `pool` then has no effect
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("registers", self.registers, 0, 256)
        check_between("swiglu_multiple", self.swiglu_multiple, 0, 4096)
        check_between("rope_temperature", self.rope_temperature, 1e-6, 1e9)
        if self.norm_eps not in NORM_EPS:
            raise WrongCall(f"norm_eps is {self.norm_eps}; models of the family 'eva' have 1e-06 or 1e-05")
        if self.layer_scale is not None and not 0 < self.layer_scale <= 64:
            raise WrongCall(f"layer_scale is {self.layer_scale}; it must be above 0 and at most 64, or None")
        if self.image_size % self.patch_size and not self.dynamic_image_size:
            raise WrongCall(
                f"patches of {self.patch_size} pixels do not tile an image of {self.image_size}; choose a multiple"
            )
        if self.pool == "token" and not self.class_token:
            raise WrongCall("pool 'token' needs a class token; use pool 'avg'")
        self._check_heads()

    def _check_heads(self) -> None:
        if self.rotary and self.head_width % 4:
            raise WrongCall(
                f"rotary positions need heads of a multiple of 4 channels, but {self.heads} heads of a width of {self.width} "
                f"have {self.head_width}"
            )
        if self.rotary and self.rope_type == "mixed" and self.rope_half:
            raise WrongCall("rope_type 'mixed' rotates neighbouring channels; rope_half must be false")
        if self.pool_heads is not None:
            check_between("pool_heads", self.pool_heads, 1, 512)
        if self.pooled and self.width % self.heads_of_pool:
            raise WrongCall(
                f"the pooling has {self.heads_of_pool} heads, which do not divide a width of {self.width}; choose a multiple"
            )

    @property
    def hidden(self) -> int:
        """Width of the hidden layer of each MLP; of a SwiGLU that of its gate."""
        hidden = super().hidden
        return hidden + (-hidden % self.swiglu_multiple if self.swiglu_split and self.swiglu_multiple else 0)

    @property
    def swiglu_split(self) -> bool:
        """Whether gate and values of a SwiGLU have a matrix each."""
        return self.swiglu and (self.mlp_norm or (self.swiglu_multiple > 0 and not self.post_norm))

    @property
    def scaled(self) -> bool:
        """Whether the blocks have layer scales; timm's post-norm blocks never do."""
        return self.layer_scale is not None and not self.post_norm

    @property
    def frequencies(self) -> bool:
        """Whether the rotary frequencies are learned."""
        return self.rotary and self.rope_type == "mixed"

    @property
    def pooled(self) -> bool:
        """Whether an attention layer pools; a dense model has no pooling."""
        return self.pool == "map" and not self.dense

    @property
    def heads_of_pool(self) -> int:
        """Attention heads of the pooling `map`."""
        return self.pool_heads or self.heads

    @property
    def hidden_of_pool(self) -> int:
        """Width of the hidden layer of the pooling `map`."""
        return int(self.width * (self.pool_mlp_ratio or self.mlp_ratio))

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

    def timm_args(self) -> dict[str, Any]:
        """The arguments that make a timm architecture with this `norm_eps` this model; all of them, so that no default matters.

        A dense model's also have `norm_eps`, which only our own module takes.
        """
        plain = {timm: getattr(self, ours) for ours, timm in TIMM_NAMES.items()}
        return {**plain, "norm_eps": self.norm_eps} if self.dense else plain


def axis_sizes(spec: EvaSpec) -> dict[str, int]:
    """The size of each axis in the model that `spec` describes."""
    return {
        "one": 1,
        "two": 2,
        "qkv": 3,
        "layers": spec.layers,
        "width": spec.width,
        "heads": spec.heads,
        "head_width": spec.head_width,
        "pairs": spec.head_width // 2,
        "hidden": spec.hidden,
        "gates": 2 if spec.swiglu else 1,  # in one matrix the gate comes first
        "pool_heads": spec.heads_of_pool,
        "pool_head_width": spec.width // spec.heads_of_pool,
        "pool_hidden": spec.hidden_of_pool,
        "positions": spec.positions,
        "registers": spec.registers,
        "channels": spec.channels,
        "patch": spec.patch_size,
        "classes": spec.classes,
    }


def _projection(name: str, key: bool = False) -> tuple[ParameterSpec, ParameterSpec]:
    """Queries, keys or values where each has a matrix of its own."""
    biased = lambda spec: not spec.qkv_fused and spec.qkv_bias and not (key and spec.attention == "eva")  # noqa: E731
    return (
        parameter(f"attn.{name}.weight", "heads head_width, width", "matrix", lambda spec: not spec.qkv_fused),
        parameter(f"attn.{name}.bias", "heads head_width", "zero", biased),
    )


def _eva_bias(spec: EvaSpec) -> bool:
    return spec.attention == "eva" and spec.qkv_fused and spec.qkv_bias


def _pooled(spec: EvaSpec) -> bool:
    return spec.pooled


def _scale(spec: EvaSpec) -> float:
    return spec.layer_scale or 0.0


def _linear(
    name: str, outputs: str, inputs: str, start: Any = "matrix", present: Any = lambda spec: True
) -> tuple[ParameterSpec, ParameterSpec]:
    """The two rows of a linear layer."""
    return (
        parameter(f"{name}.weight", f"{outputs}, {inputs}", start, present),
        parameter(f"{name}.bias", outputs, "zero", present),
    )


_STEM = (
    parameter("cls_token", "one, one, width", "token", lambda spec: spec.class_token),
    parameter("reg_token", "one, registers, width", "token", lambda spec: spec.registers > 0),
    parameter("pos_embed", "one, positions, width", "positions", lambda spec: spec.absolute),
    parameter("patch_embed.proj.weight", "width, channels, patch, patch", "patches"),
    parameter("patch_embed.proj.bias", "width", "patches", lambda spec: not spec.pre_norm),
    parameter("rope.freqs", "two, layers, heads, pairs", "frequencies", lambda spec: spec.frequencies),
    *norm("norm_pre", "width", lambda spec: spec.pre_norm),
)
_ATTENTION = (
    parameter("attn.q_bias", "heads head_width", "zero", _eva_bias),
    parameter("attn.v_bias", "heads head_width", "zero", _eva_bias),
    parameter("attn.qkv.weight", "qkv heads head_width, width", "matrix", lambda spec: spec.qkv_fused),
    parameter(
        "attn.qkv.bias",
        "qkv heads head_width",
        "zero",
        lambda spec: spec.attention == "rope" and spec.qkv_fused and spec.qkv_bias,
    ),
    *_projection("q_proj"),
    *_projection("k_proj", key=True),
    *_projection("v_proj"),
    *norm("attn.norm", "heads head_width", lambda spec: spec.attention_norm),
    *_linear("attn.proj", "width", "heads head_width", "deep"),
)
_MLP = (
    *_linear("mlp.fc1_g", "hidden", "width", present=lambda spec: spec.swiglu_split),
    *_linear("mlp.fc1_x", "hidden", "width", present=lambda spec: spec.swiglu_split),
    *_linear("mlp.fc1", "gates hidden", "width", present=lambda spec: not spec.swiglu_split),
    *norm("mlp.norm", "hidden", lambda spec: spec.mlp_norm),
    *_linear("mlp.fc2", "width", "hidden", "deep"),
)
_BLOCK = (
    parameter("gamma_1", "width", _scale, lambda spec: spec.scaled),
    parameter("gamma_2", "width", _scale, lambda spec: spec.scaled),
    *norm("norm1", "width", lambda spec: not spec.post_norm),
    *_ATTENTION,
    *norm("norm1", "width", lambda spec: spec.post_norm),
    *norm("norm2", "width", lambda spec: not spec.post_norm),
    *_MLP,
    *norm("norm2", "width", lambda spec: spec.post_norm),
)
_TAIL = (
    *norm("norm", "width", lambda spec: spec.final_norm),
    parameter("attn_pool.latent", "one, one, width", "latent", _pooled),
    *_linear("attn_pool.q", "pool_heads pool_head_width", "width", present=_pooled),
    *_linear("attn_pool.kv", "two pool_heads pool_head_width", "width", present=_pooled),
    *_linear("attn_pool.proj", "width", "pool_heads pool_head_width", present=_pooled),
    *norm("attn_pool.norm", "width", _pooled),
    *_linear("attn_pool.mlp.fc1", "pool_hidden", "width", present=_pooled),
    *_linear("attn_pool.mlp.fc2", "width", "pool_hidden", present=_pooled),
    *norm("fc_norm", "width", lambda spec: spec.fc_norm),
)


def _token(spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None) -> torch.Tensor:
    return tensor.normal_(std=0.02, generator=generator)


def _deep(spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None) -> torch.Tensor:
    """Smaller with depth: block i, counted from 1, by sqrt(2 i)."""
    return tensor.normal_(std=0.02 / math.sqrt(2 * ((block or 0) + 1)), generator=generator)


def _head(spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None) -> torch.Tensor:
    """Nearly zero: timm's `head_init_scale`."""
    return tensor.normal_(std=0.02 * 0.001, generator=generator)


def _latent(spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None) -> torch.Tensor:
    """N(0, 1/width), truncated at two standard deviations."""
    edge = math.erf(math.sqrt(2))
    drawn = tensor.uniform_(-edge, edge, generator=generator).erfinv_().mul_(math.sqrt(2 / spec.width))
    return drawn


def _frequencies(spec: EvaSpec, tensor: torch.Tensor, generator: torch.Generator, block: int | None) -> torch.Tensor:
    """Geometric magnitudes, turned in each head of each block by a random angle (Heo et al., 2024, section 3.2)."""
    turn = tensor.new_empty(spec.layers, spec.heads, 1).uniform_(0, 2 * math.pi, generator=generator)
    exponents = [4 * i / spec.head_width for i in range(spec.head_width // 4)]
    magnitudes = tensor.new_tensor([spec.rope_temperature**-exponent for exponent in exponents])
    half = len(exponents)
    for axis, shift in ((0, 0.0), (1, -math.pi / 2)):  # cos and sin of the angle
        tensor[axis, :, :, :half] = magnitudes * (turn + shift).cos()
        tensor[axis, :, :, half:] = magnitudes * (turn + shift + math.pi / 2).cos()
    return tensor


TABLE = Table(
    prefix="blocks.",
    sizes=axis_sizes,
    stem=_STEM,
    block=_BLOCK,
    final_norm=_TAIL,
    head=_linear("head", "classes", "width", "head", lambda spec: spec.classes > 0),
    draws={"token": _token, "deep": _deep, "head": _head, "latent": _latent, "frequencies": _frequencies},
)


def flops(spec: EvaSpec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model; turning queries and keys counts nothing, as all products of elements."""
    embed = spec.patches * spec.channels * spec.patch_size**2 * spec.width
    before = NORM_FLOPS[convention] * spec.tokens * spec.width if spec.pre_norm else 0
    return embed + before + spec.layers * block_flops(spec, convention) + tail_flops(spec, convention)


def block_flops(spec: EvaSpec, convention: Convention = "exact") -> int:
    """One block over all tokens."""
    n, d, hidden = spec.tokens, spec.width, spec.hidden
    linear = n * (4 * d * d + (3 if spec.swiglu else 2) * d * hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    normed = n * (2 * d + (d if spec.attention_norm else 0) + (hidden if spec.mlp_norm else 0))
    return linear + attention + NORM_FLOPS[convention] * normed


def tail_flops(spec: EvaSpec, convention: Convention = "exact") -> int:
    """The final norms, the pooling and the head.

    The head sees the pooled token; in a dense model every patch, and its logits are then upsampled to the image.
    """
    n, d = spec.tokens, spec.width
    seen = spec.patches if spec.dense else 1
    normed = (n * d if spec.final_norm else 0) + (seen * d if spec.fc_norm else 0)
    upsampled = (spec.classes or d) * spec.image_size**2 if spec.dense else 0
    pooling = 0
    if spec.pooled:
        pooling = 2 * n * d * d + 2 * d * d + 2 * d * spec.hidden_of_pool
        pooling += 0 if convention == "thop" else 2 * n * d
        normed += d
    head = seen * spec.classes * d
    return NORM_FLOPS[convention] * normed + pooling + head + UPSAMPLING_FLOPS[convention] * upsampled
