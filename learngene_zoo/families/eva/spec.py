"""`EvaSpec`: all numbers that fix the tensors and the function of a model of timm's class `Eva`.

These are DINOv3, EVA and EVA02, Perception Encoder and the ViTs with rotary positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.families import spec as common
from learngene_zoo.families.picture_spec import (
    SegmentedSpec,
    write_segment,
)
from learngene_zoo.families.spec import (
    LIMITS,
    Segment,
    check_between,
)
from learngene_zoo.settings import NO_OPTION, OMIT_DEFAULT

# The argument of timm's Eva for each field. Only `norm_eps` has none: the architecture sets it.
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
NORM_EPS = (1e-6, 1e-5)  # the values for which timm has an architecture


@dataclass(frozen=True, kw_only=True)
class EvaSpec(SegmentedSpec):
    """A model of timm's class `Eva`; as in timm, a field has no effect if its part is absent.

    Blocks from which heads or hidden neurons were removed have other sizes, see modules.py.

    Raises `WrongCall` for numbers that describe no model.
    """

    family: Literal["eva"] = "eva"
    # `map` is attention of one learned query over the tokens.
    pool: Literal["token", "avg", "avgmax", "max", "map"] = "avg"
    pool_heads: int | None = None  # of `map`; None: as many as the blocks have
    pool_mlp_ratio: float | None = None  # of `map`; None: that of the blocks
    class_token: bool = True
    registers: int = 0
    # timm's EvaAttention, whose keys have no bias, or its AttentionRope
    attention: Literal["eva", "rope"] = "eva"
    qkv_bias: bool = True
    qkv_fused: bool = True  # one matrix for queries, keys and values, or three
    attention_norm: bool = False  # a norm before the attention's last matrix
    swiglu: bool = False
    swiglu_multiple: int = 0  # the hidden width is rounded up to a multiple of it; 0: not rounded
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
    # Side of the patch grid to which the positions of all other grids are scaled
    rope_reference: int | None = None
    post_norm: bool = False  # norms after attention and MLP instead of before
    pre_norm: bool = False
    final_norm: bool = False  # over all tokens, before pooling
    fc_norm: bool = True  # after pooling
    dynamic_image_size: bool = False
    norm_eps: float = 1e-6
    # One class per pixel instead of one per image (see families/dense.py); `pool` has no effect
    dense: bool = False
    # Of pruned models: the segments before the last one, and the channels of all heads together
    front: tuple[Segment, ...] = field(default=(), metadata={**NO_OPTION, **OMIT_DEFAULT})
    attention_width: int | None = field(default=None, metadata={**NO_OPTION, **OMIT_DEFAULT})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("registers", self.registers, 0, 256)
        check_between("swiglu_multiple", self.swiglu_multiple, 0, 4096)
        check_between("rope_temperature", self.rope_temperature, 1e-6, 1e9)
        if self.norm_eps not in NORM_EPS:
            raise WrongCall(
                f"norm_eps is {self.norm_eps}; models of the family 'eva' have 1e-06 or 1e-05"
            )
        if self.layer_scale is not None and not 0 < self.layer_scale <= 64:
            raise WrongCall(
                f"layer_scale is {self.layer_scale}; it must be above 0 and at most 64, or None"
            )
        lacks = (self.layer_scale, self.rope_reference) == (None, None) and not self.post_norm
        if self.norm_eps == 1e-5 and self.scales_positions and lacks:
            raise WrongCall(
                "timm has no model of norm_eps 1e-05 with rope_type 'cat' and neither layer_scale"
                " nor rope_reference; use norm_eps 1e-06"
            )
        self.check_tiled()
        if self.pool == "token" and not self.class_token:
            raise WrongCall("pool 'token' needs a class token; use pool 'avg'")
        self._check_heads()
        if self.front:
            self._check_segments()

    def _check_segments(self) -> None:
        if self.post_norm:
            raise WrongCall("post_norm needs blocks of equal size")
        if self.frequencies:
            raise WrongCall(
                "rope_type 'mixed' has learned frequencies for each head, which need blocks of "
                "equal size"
            )
        if self.stitched:
            raise WrongCall("models of the family 'eva' have no stitches between segments")
        if any(size.width != self.width for size in self.front):
            raise WrongCall("all segments of a model of the family 'eva' have the same width")
        self.check_front()
        if any(part.head_width != self.head_width for part in self.segments):
            raise WrongCall(
                "all heads of a model of the family 'eva' have the same number of channels"
            )

    def _check_heads(self) -> None:
        if self.attention_width is not None:
            check_between("attention_width", self.attention_width, 1, LIMITS["width"])
            if self.post_norm:
                raise WrongCall("post_norm needs heads that together are as wide as the model")
        if self.rotary and self.head_width % 4:
            raise WrongCall(
                f"rotary positions need a multiple of 4 channels per head, but {self.heads} heads"
                f" of a width of {self.heads_width} have {self.head_width}; choose other heads"
            )
        if self.rotary and self.rope_type == "mixed" and self.rope_half:
            raise WrongCall(
                "rope_type 'mixed' rotates neighbouring channels; rope_half must be false"
            )
        if self.pool_heads is not None:
            check_between("pool_heads", self.pool_heads, 1, 512)
        if self.pools_by_attention and self.width % self.heads_of_pool:
            raise WrongCall(
                f"the pooling has {self.heads_of_pool} heads, which do not divide a width of"
                f" {self.width}; choose a width that is a multiple"
            )

    @property
    def hidden(self) -> int:
        """The width of the hidden layer of each MLP; of a SwiGLU that of its gate."""
        hidden = super().hidden
        return hidden + (
            -hidden % self.swiglu_multiple if self.swiglu_split and self.swiglu_multiple else 0
        )

    @property
    def swiglu_split(self) -> bool:
        """Whether gate and values of a SwiGLU have separate matrices."""
        return self.swiglu and (self.mlp_norm or (self.swiglu_multiple > 0 and not self.post_norm))

    @property
    def scaled(self) -> bool:
        """Whether the blocks have layer scales; timm's post-norm blocks never do."""
        return self.layer_scale is not None and not self.post_norm

    @property
    def supports_rotary(self) -> bool:
        """Whether models of this family may have rotary positions."""
        return True

    @property
    def frequencies(self) -> bool:
        """Whether the rotary frequencies are learned."""
        return self.rotary and self.rope_type == "mixed"

    @property
    def scales_positions(self) -> bool:
        """Whether `rope_reference` has an effect: timm's other rotary positions have none."""
        return self.rotary and self.rope_type == "cat"

    @property
    def heads_of_pool(self) -> int:
        """The number of attention heads of the pooling `map`."""
        return self.pool_heads or self.heads

    @property
    def hidden_of_pool(self) -> int:
        """The width of the hidden layer of the pooling `map`."""
        return int(self.width * (self.pool_mlp_ratio or self.mlp_ratio))

    def timm_args(self) -> dict[str, Any]:
        """Return the arguments with which a timm architecture of this `norm_eps` builds this model.

        All arguments are given. For those that are None timm uses the architecture's default, which
        `names.choose_architecture` therefore compares. The arguments of a dense or pruned model
        include `norm_eps` and sizes of blocks, which only our modules accept.
        """
        arguments = {timm: getattr(self, ours) for ours, timm in TIMM_NAMES.items()}
        if self.dense or not self.plain:
            arguments["norm_eps"] = self.norm_eps
        if self.attention_width is not None:
            arguments["attention_width"] = self.attention_width
        if self.front:
            arguments["front"] = [write_segment(segment) for segment in self.front]
        return arguments
