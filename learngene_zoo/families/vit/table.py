"""The tensors of a Vision Transformer, by timm's names and in the order of timm's state_dict."""

from learngene_zoo.families.table import Table, norm, parameter
from learngene_zoo.families.vit.spec import ViTSpec


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
