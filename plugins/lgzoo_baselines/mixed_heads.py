"""Heads and MLPs that are mixtures of others, as tensors: what `peg.py` does.

Shapes: T targets, S sources, H heads, C channels of a head, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from learngene_zoo.plugin import Spec, StateDict, derive_seed, shapes, table_of
from lgzoo_baselines.mixed_blocks import below

QKV, PROJ, MLP, SHARED = "attn.qkv", "attn.proj.weight", "mlp.", "blocks.shared"


def shares(targets: int, sources: int, mixing: str, seed: int, *names: object) -> torch.Tensor:
    """p (T, S): the share of each source in each target; rows have the sum 1."""
    if mixing == "uniform":
        return torch.full((targets, sources), 1 / sources, dtype=torch.float64)
    generator = torch.Generator().manual_seed(derive_seed(seed, *names))
    return torch.randn(targets, sources, generator=generator, dtype=torch.float64).softmax(dim=1)


def mixed_heads(
    weight_3HCD: torch.Tensor, bias_3HC: torch.Tensor | None, p_TS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries, keys and values (3, T, C, D) and their biases (3, T, C) of mixed heads: step 1, in the rank of a head.

    Scores are x' M x with x the token and, where there are biases, a 1 behind it. The best M of rank C, by its singular values, is the
    product of the new queries and keys; both get the root of each value.
    """
    whole = weight_3HCD.double()
    if bias_3HC is not None:
        whole = torch.cat([whole, bias_3HC.double()[..., None]], dim=-1)
    queries_HCE, keys_HCE, values_HCE = whole
    scores_TEE = torch.einsum("th,hce,hcf->tef", p_TS, queries_HCE, keys_HCE)
    u_TEE, sigma_TE, v_TEE = torch.linalg.svd(scores_TEE)
    count = whole.shape[2]
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


def mixed_readers(weight_DHC: torch.Tensor, p_TS: torch.Tensor) -> torch.Tensor:
    """(D, T, C): what reads each source goes to the targets in proportion to what they have of it."""
    parts_TS = p_TS / p_TS.sum(dim=0)
    return torch.einsum("ts,dsc->dtc", parts_TS, weight_DHC.double()).to(weight_DHC)


def attention(state: StateDict, block: str, heads: int, p_TS: torch.Tensor) -> StateDict:
    """The tensors of one block's attention with mixed heads; `block` is its name, with the dot."""
    weight, bias = state[f"{block}{QKV}.weight"], state.get(f"{block}{QKV}.bias")
    split = (3, heads, -1)
    made = mixed_heads(weight.unflatten(0, split), None if bias is None else bias.unflatten(0, split), p_TS)
    found = {f"{block}{QKV}.weight": made[0].flatten(0, 2)}
    if made[1] is not None:
        found[f"{block}{QKV}.bias"] = made[1].flatten()
    found[f"{block}{PROJ}"] = mixed_readers(state[f"{block}{PROJ}"].unflatten(1, (heads, -1)), p_TS).flatten(1)
    return found


def mixed_mlps(mlps: Sequence[StateDict], p_TS: torch.Tensor) -> list[StateDict]:
    """Step 2: the sum of every tensor, biases too."""
    return [
        {name: torch.einsum("s,s...->...", row, _stacked(mlps, name)).to(mlps[0][name]) for name in mlps[0]}
        for row in p_TS
    ]


def _stacked(mlps: Sequence[StateDict], name: str) -> torch.Tensor:
    return torch.stack([one[name] for one in mlps]).double()


def condensed(state: StateDict, spec: Spec, by_head: Sequence[torch.Tensor], by_mlp: torch.Tensor) -> StateDict:
    """What the learngene holds: no head, in every block fewer attention heads and no MLP; the MLPs lie under `blocks.shared.`"""
    table = table_of(spec)
    kept = {name: state[name] for name in expected(spec, spec.heads, 0)}
    for layer, p_TS in enumerate(by_head):
        kept |= attention(kept, table.block_name(layer, ""), spec.heads, p_TS)
    mlps = mixed_mlps([_mlp(state, f"blocks.{layer}") for layer in range(spec.layers)], by_mlp)
    return {**kept, **{f"{SHARED}.{number}.{name}": one[name] for number, one in enumerate(mlps) for name in one}}


def expanded(state: StateDict, spec: Spec, by_head: Sequence[torch.Tensor], by_mlp: torch.Tensor) -> StateDict:
    """The tensors of a model with as many blocks as `by_head` has, from those of a learngene; `spec` is the ancestry model's."""
    table, (count, sources) = table_of(spec), by_mlp.shape
    made = {name: state[name] for name in state if not name.startswith(f"{SHARED}.")}
    for layer, p_TS in enumerate(by_head):
        made |= attention(made, table.block_name(layer, ""), p_TS.shape[1], p_TS)
    mlps = mixed_mlps([below(state, f"{SHARED}.{number}") for number in range(sources)], by_mlp)
    return {
        **made,
        **{table.block_name(layer, name): mlps[layer][name] for layer in range(count) for name in mlps[layer]},
    }


def _mlp(state: StateDict, block: str) -> StateDict:
    return {name: tensor for name, tensor in below(state, block).items() if name.startswith(MLP)}


def expected(spec: Spec, heads: int, mlps: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a learngene's tensors with so many attention heads in every block and so many MLPs."""
    table, found = table_of(spec), dict[str, tuple[int, ...]]()
    for name, shape in shapes(spec).items():
        block = table.block_of(name)
        inner = "" if block is None else table.inner_name(name)
        if table.is_head(name):
            continue
        if inner.startswith(MLP):
            if block == 0:
                found |= {f"{SHARED}.{number}.{inner}": shape for number in range(mlps)}
        elif inner.startswith(QKV):
            found[name] = (3 * heads * spec.head_width, *shape[1:])
        else:
            found[name] = (shape[0], heads * spec.head_width) if inner == PROJ else shape
    return found
