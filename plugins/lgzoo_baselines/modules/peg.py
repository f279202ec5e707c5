"""Tensors of `peg.py`: heads and MLPs that are mixtures of others.

Shapes: T targets, S sources, H heads, C channels of a head, D width, E width and 1 for a bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from learngene_zoo.plugin import Spec, StateDict, derive_seed, get_shapes, get_table
from lgzoo_baselines.modules.mixed_blocks import select_below

QKV, PROJ, MLP, SHARED = "attn.qkv", "attn.proj.weight", "mlp.", "blocks.shared"


def draw_shares(targets: int, sources: int, mixing: str, seed: int, *names: object) -> torch.Tensor:
    """Return p (T, S): the share of each source in each target; rows have the sum 1.

    Args:
        targets: T.
        sources: S.
        mixing: "uniform", or "softmax" of random numbers.
        seed: of the run.
        names: of the draw; each gives other numbers.
    """
    if mixing == "uniform":
        return torch.full((targets, sources), 1 / sources, dtype=torch.float64)
    generator = torch.Generator().manual_seed(derive_seed(seed, *names))
    return torch.randn(targets, sources, generator=generator, dtype=torch.float64).softmax(dim=1)


def mix_heads(
    weight_3HCD: torch.Tensor, bias_3HC: torch.Tensor | None, p_TS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return queries, keys and values (3, T, C, D) and their biases (3, T, C) of mixed heads.

    This is step 1 in the rank of a head. Scores are x' M x with x the token and, where there are
    biases, a 1 behind it. The best M of rank C, by its singular values, is the product of the new
    queries and keys; both get the root of each value.

    Args:
        weight_3HCD: queries, keys and values of the sources.
        bias_3HC: their biases, if they have any.
        p_TS: the shares.
    """
    weight = weight_3HCD.double()
    if bias_3HC is not None:
        weight = torch.cat([weight, bias_3HC.double()[..., None]], dim=-1)
    queries_HCE, keys_HCE, values_HCE = weight
    scores_TEE = torch.einsum("th,hce,hcf->tef", p_TS, queries_HCE, keys_HCE)
    u_TEE, sigma_TE, v_TEE = torch.linalg.svd(scores_TEE)
    count = weight.shape[2]
    root_TC1 = sigma_TE[:, :count, None].sqrt()
    mixed = torch.stack(
        [
            root_TC1 * u_TEE[:, :, :count].mT,
            root_TC1 * v_TEE[:, :count],
            torch.einsum("th,hce->tce", p_TS, values_HCE),
        ]
    )
    if bias_3HC is None:
        return mixed.to(weight_3HCD), None
    return mixed[..., :-1].to(weight_3HCD), mixed[..., -1].to(bias_3HC)


def mix_projections(weight_DHC: torch.Tensor, p_TS: torch.Tensor) -> torch.Tensor:
    """Return the projections (D, T, C) of mixed heads.

    The projection of each source is divided among the targets in proportion to their shares of it.
    """
    parts_TS = p_TS / p_TS.sum(dim=0)
    return torch.einsum("ts,dsc->dtc", parts_TS, weight_DHC.double()).to(weight_DHC)


def mix_attention(state: StateDict, block: str, heads: int, p_TS: torch.Tensor) -> StateDict:
    """Return the tensors of one block's attention with mixed heads.

    Args:
        state: tensors of a model.
        block: the name of the block, with the dot.
        heads: of the block.
        p_TS: the shares.
    """
    weight, bias = state[f"{block}{QKV}.weight"], state.get(f"{block}{QKV}.bias")
    bias_3HC = None if bias is None else bias.unflatten(0, (3, heads, -1))
    mixed_3TCD, mixed_3TC = mix_heads(weight.unflatten(0, (3, heads, -1)), bias_3HC, p_TS)
    tensors = {f"{block}{QKV}.weight": mixed_3TCD.flatten(0, 2)}
    if mixed_3TC is not None:
        tensors[f"{block}{QKV}.bias"] = mixed_3TC.flatten()
    proj_DHC = state[f"{block}{PROJ}"].unflatten(1, (heads, -1))
    tensors[f"{block}{PROJ}"] = mix_projections(proj_DHC, p_TS).flatten(1)
    return tensors


def mix_mlps(mlps: Sequence[StateDict], p_TS: torch.Tensor) -> list[StateDict]:
    """Return the weighted sums of every tensor, step 2; biases are summed too."""
    return [
        {
            name: torch.einsum("s,s...->...", row, _stack(mlps, name)).to(mlps[0][name])
            for name in mlps[0]
        }
        for row in p_TS
    ]


def _stack(mlps: Sequence[StateDict], name: str) -> torch.Tensor:
    return torch.stack([mlp[name] for mlp in mlps]).double()


def condense_tensors(
    state: StateDict, spec: Spec, head_shares: Sequence[torch.Tensor], mlp_shares: torch.Tensor
) -> StateDict:
    """Return the tensors of a learngene; its MLPs have names below `blocks.shared.`.

    Args:
        state: the tensors of the ancestry model.
        spec: its shape.
        head_shares: p (heads of the learngene, heads of the ancestry model) of every layer.
        mlp_shares: p (MLPs of the learngene, layers of the ancestry model).
    """
    table = get_table(spec)
    condensed = {name: state[name] for name in list_shapes(spec, spec.heads, 0)}
    for layer, p_TS in enumerate(head_shares):
        condensed |= mix_attention(condensed, table.block_name(layer, ""), spec.heads, p_TS)
    layers = [_select_mlp(state, f"blocks.{layer}") for layer in range(spec.layers)]
    for number, mlp in enumerate(mix_mlps(layers, mlp_shares)):
        condensed |= {f"{SHARED}.{number}.{name}": mlp[name] for name in mlp}
    return condensed


def expand_tensors(
    state: StateDict, spec: Spec, head_shares: Sequence[torch.Tensor], mlp_shares: torch.Tensor
) -> StateDict:
    """Return the tensors of a model with as many blocks as there are `head_shares`.

    Args:
        state: the tensors of a learngene.
        spec: the shape of the ancestry model.
        head_shares: p (heads of the model, heads of the learngene) of every layer.
        mlp_shares: p (layers of the model, MLPs of the learngene).
    """
    table, (count, sources) = get_table(spec), mlp_shares.shape
    expanded = {name: state[name] for name in state if not name.startswith(f"{SHARED}.")}
    for layer, p_TS in enumerate(head_shares):
        block = table.block_name(layer, "")
        expanded |= mix_attention(expanded, block, p_TS.shape[1], p_TS)
    stored = [select_below(state, f"{SHARED}.{number}") for number in range(sources)]
    mlps = mix_mlps(stored, mlp_shares)
    for layer in range(count):
        expanded |= {table.block_name(layer, name): mlps[layer][name] for name in mlps[layer]}
    return expanded


def _select_mlp(state: StateDict, block: str) -> StateDict:
    tensors = select_below(state, block)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(MLP)}


def list_shapes(spec: Spec, heads: int, mlps: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a learngene's tensors by name.

    Args:
        spec: the shape of the ancestry model.
        heads: stored attention heads of every block.
        mlps: stored MLPs.
    """
    table, stored = get_table(spec), dict[str, tuple[int, ...]]()
    for name, shape in get_shapes(spec).items():
        block = table.block_of(name)
        inner = "" if block is None else table.inner_name(name)
        if table.is_head(name):
            continue
        if inner.startswith(MLP):
            if block == 0:
                stored |= {f"{SHARED}.{number}.{inner}": shape for number in range(mlps)}
        elif inner.startswith(QKV):
            stored[name] = (3 * heads * spec.head_width, *shape[1:])
        else:
            stored[name] = (shape[0], heads * spec.head_width) if inner == PROJ else shape
    return stored
