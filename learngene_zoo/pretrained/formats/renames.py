"""Tables of names: a module in timm's Vision Transformers, and the same module in another layout.

Tables have separate rows for queries, keys and values (`attn.q`, `attn.k`, `attn.v`), which timm
stores as one matrix: `split_matrices` and `join_matrices` convert. A name in a table is that of a
module, of which `weight` and `bias` are renamed, or of a single tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

_BLOCK = re.compile(r"blocks\.(\d+)\.")
_JOINT = {
    "attn.qkv": ("attn.q", "attn.k", "attn.v"),
    "attn_pool.kv": ("attn_pool.k", "attn_pool.v"),
}


@dataclass(frozen=True)
class Names:
    """The names of another layout.

    Attributes:
        block: prefix of a block's names, with `{}` for its number.
        inside: names within a block, by timm's.
        outside: all other names, by timm's.
    """

    block: str
    inside: Mapping[str, str]
    outside: Mapping[str, str]

    def rename(self, name: str) -> str:
        """Return the other name of a tensor. Raises `KeyError` if the layout has none."""
        match = _BLOCK.match(name)
        if match is None:
            return _rename(self.outside, name)
        return self.block.format(match[1]) + _rename(self.inside, name[match.end() :])

    def restore(self, name: str) -> str:
        """Return timm's name of a tensor; the name unchanged if it is not in the table."""
        match = self._pattern.match(name)
        try:
            if match is None:
                return _rename(self._outside, name)
            return f"blocks.{match[1]}.{_rename(self._inside, name[match.end() :])}"
        except KeyError:
            return name

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.block).replace(r"\{\}", r"(\d+)"))

    @cached_property
    def _outside(self) -> dict[str, str]:
        return {theirs: timm for timm, theirs in self.outside.items()}

    @cached_property
    def _inside(self) -> dict[str, str]:
        return {theirs: timm for timm, theirs in self.inside.items()}


def _rename(table: Mapping[str, str], name: str) -> str:
    """Return the name of a tensor by a table of modules and tensors."""
    if name in table:
        return table[name]
    module, _, tensor = name.rpartition(".")
    return f"{table[module]}.{tensor}"


_ATTENTION = {
    "attn.q": "attention.attention.query",
    "attn.k": "attention.attention.key",
    "attn.v": "attention.attention.value",
    "attn.proj": "attention.output.dense",
}
_PROJECTIONS = {
    "norm1": "layer_norm1",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.proj": "self_attn.out_proj",
    "norm2": "layer_norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_EMBEDDINGS = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
VIT = Names(
    "encoder.layer.{}.",
    {
        "norm1": "layernorm_before",
        **_ATTENTION,
        "norm2": "layernorm_after",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    },
    _EMBEDDINGS,
)
_DINOV2_BLOCK = {
    "norm1": "norm1",
    **_ATTENTION,
    "ls1.gamma": "layer_scale1.lambda1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "ls2.gamma": "layer_scale2.lambda1",
}
_REGISTERS = {"reg_token": "embeddings.register_tokens"}
DINOV2 = Names("encoder.layer.{}.", _DINOV2_BLOCK, {**_EMBEDDINGS, **_REGISTERS})
DINOV2_GATED = Names(
    "encoder.layer.{}.",
    {**_DINOV2_BLOCK, "mlp.fc1": "mlp.weights_in", "mlp.fc2": "mlp.weights_out"},
    DINOV2.outside,
)
DINOV3 = Names(
    "layer.{}.",
    {
        "gamma_1": "layer_scale1.lambda1",
        "gamma_2": "layer_scale2.lambda1",
        "norm1": "norm1",
        "attn.q": "attention.q_proj",
        "attn.k": "attention.k_proj",
        "attn.v": "attention.v_proj",
        "attn.proj": "attention.o_proj",
        "norm2": "norm2",
        "mlp.gate": "mlp.gate_proj",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
    },
    {
        "cls_token": "embeddings.cls_token",
        **_REGISTERS,
        "patch_embed.proj": "embeddings.patch_embeddings",
        "norm": "norm",
    },
)
SIGLIP = Names(
    "encoder.layers.{}.",
    _PROJECTIONS,
    {
        "patch_embed.proj": "embeddings.patch_embedding",
        "pos_embed": "embeddings.position_embedding.weight",
        "norm": "post_layernorm",
        "attn_pool.latent": "head.probe",
        "attn_pool.qkv.weight": "head.attention.in_proj_weight",
        "attn_pool.qkv.bias": "head.attention.in_proj_bias",
        "attn_pool.proj": "head.attention.out_proj",
        "attn_pool.norm": "head.layernorm",
        "attn_pool.mlp.fc1": "head.mlp.fc1",
        "attn_pool.mlp.fc2": "head.mlp.fc2",
    },
)
CLIP = Names(
    "encoder.layers.{}.",
    _PROJECTIONS,
    {
        "cls_token": "embeddings.class_embedding",
        "pos_embed": "embeddings.position_embedding.weight",
        "patch_embed.proj": "embeddings.patch_embedding",
        "norm_pre": "pre_layrnorm",
        "norm": "post_layernorm",
        "head": "visual_projection",
    },
)
OPEN_CLIP = Names(
    "transformer.resblocks.{}.",
    {
        "norm1": "ln_1",
        "attn.qkv.weight": "attn.in_proj_weight",
        "attn.qkv.bias": "attn.in_proj_bias",
        "attn.proj": "attn.out_proj",
        "ls1.gamma": "ls_1.gamma",
        "norm2": "ln_2",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
        "ls2.gamma": "ls_2.gamma",
    },
    {
        "cls_token": "class_embedding",
        "pos_embed": "positional_embedding",
        "patch_embed.proj": "conv1",
        "norm_pre": "ln_pre",
        "norm": "ln_post",
        "head.weight": "proj",
    },
)


def split_matrices(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state with separate tensors for queries, keys and values of the blocks."""
    split: dict[str, torch.Tensor] = {}
    for name in state:
        if ".attn.qkv." not in name:
            split[name] = state[name]
            continue
        for part, tensor in zip("qkv", state[name].chunk(3)):
            split[name.replace(".attn.qkv.", f".attn.{part}.")] = tensor
    return split


def join_matrices(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state with one tensor for queries, keys and values, where all three are present."""
    joint = dict(state)
    for name in [name for name in joint if ".attn.q." in name]:
        names = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        if all(part in joint for part in names):
            tensors = [joint.pop(part) for part in names]
            joint[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(tensors)
    return joint


def rename_state(names: Names, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state by the names of another layout. Raises `KeyError` as `Names.rename` does."""
    return {names.rename(name): tensor for name, tensor in state.items()}


# Changes of tensors that leave the function of a model as it is.


def fold_layer_scale(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Multiply the last layers of attention and MLP by their layer scales, which are removed."""
    folded = dict(state)
    for scale, layer in ((".ls1.gamma", ".attn.proj"), (".ls2.gamma", ".mlp.fc2")):
        for name in [name for name in folded if name.endswith(scale)]:
            gamma_D = folded.pop(name)
            module = name.removesuffix(scale) + layer
            folded[f"{module}.weight"] = folded[f"{module}.weight"] * gamma_D[:, None]
            if f"{module}.bias" in folded:
                folded[f"{module}.bias"] = folded[f"{module}.bias"] * gamma_D
    return folded


def add_layer_scale(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Add layer scales of 1 to every block that has none."""
    scaled = dict(state)
    for name in state:
        if name.endswith(".norm1.weight") and f"{name[:-13]}.ls1.gamma" not in state:
            for scale in (".ls1.gamma", ".ls2.gamma"):
                scaled[name[:-13] + scale] = torch.ones_like(state[name])
    return scaled


def add_biases(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Add biases of 0 to the linear layers of the blocks that have none."""
    filled = dict(state)
    for name in state:
        bias = name.removesuffix("weight") + "bias"
        is_linear = _BLOCK.match(name) and name.endswith(".weight") and state[name].dim() == 2
        if is_linear and bias not in state:
            filled[bias] = state[name].new_zeros(len(state[name]))
    return filled


def embed_prefix(
    state: Mapping[str, torch.Tensor], num_registers: int, has_positions: bool
) -> dict[str, torch.Tensor]:
    """Give the class token a position and registers none.

    In transformers the class token always has a position and registers never have one. In timm
    either all tokens before the patches have one or none of them does.

    Args:
        state: the tensors.
        num_registers: the number of registers.
        has_positions: whether all tokens before the patches have a position.
    """
    embedded = dict(state)
    positions = embedded["pos_embed"]
    if not has_positions:
        first = positions.new_zeros(1, 1, positions.shape[-1])
        embedded["pos_embed"] = torch.cat([first, positions], dim=1)
    elif num_registers:
        end = 1 + num_registers
        embedded["reg_token"] = embedded["reg_token"] + positions[:, 1:end]
        embedded["pos_embed"] = torch.cat([positions[:, :1], positions[:, end:]], dim=1)
    return embedded
