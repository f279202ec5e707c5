"""How far the heads of a model attend, and a model whose heads are copies of some: what `cluster_lg.py` does with tensors.

Shapes: B images, H heads, P patches, C channels of a head, D width, c centroids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from learngene_zoo.plugin import (
    Ancestry,
    Json,
    Loader,
    Run,
    Spec,
    StateDict,
    Task,
    derive_seed,
    gathered,
    join,
    shapes,
    table_of,
)

if TYPE_CHECKING:
    from lgzoo_baselines.head_clusters import Clusters, Looking

AT_ONCE = 50  # images in one pass
QKV, PROJ, MLP = "attn.qkv.", "attn.proj.weight", "mlp."


def measured(settings: Looking, ancestry: Ancestry, task: Task, run: Run) -> tuple[StateDict, Json]:
    """No tensors, and `distances`: for every block those of its heads, in pixels."""
    join(run.device_name)
    model = ancestry.model()
    loader = Loader(
        task,
        "validation",
        ancestry.input_format,
        batch_size=AT_ONCE,
        seed=derive_seed(run.seed, "data"),
        images=settings.images,
        shuffle=False,
        drop_last=False,
        workers=run.workers,
    )
    with watched(model, ancestry.spec) as found_LBH, torch.no_grad():
        for batch in loader.epoch(0):
            model(batch.images)
    means = [
        torch.cat([rows for part in gathered(found_BH) for rows in part]).mean(dim=0).tolist() for found_BH in found_LBH
    ]
    return {}, {"distances": means, "images": loader.images}


@contextmanager
def watched(model: nn.Module, spec: Spec) -> Iterator[list[list[torch.Tensor]]]:
    """For every block, lists that fill themselves with the distances (B, H) of its heads, while the model runs."""
    apart_PP = apart(spec)
    found: list[list[torch.Tensor]] = [[] for _ in range(spec.layers)]
    with ExitStack() as hooks:
        for block, into in zip(model.blocks, found):  # type: ignore[arg-type]

            def look(attention: Any, inputs: tuple[torch.Tensor, ...], into: list[torch.Tensor] = into) -> None:
                into.append(distances(attention_of(attention, inputs[0]), apart_PP, spec.prefix_tokens))

            hooks.callback(block.attn.register_forward_pre_hook(look).remove)
        yield found


def apart(spec: Spec) -> torch.Tensor:
    """The distance between the middles of any two patches, in pixels, (P, P)."""
    along = torch.arange(spec.grid, dtype=torch.float32) * spec.patch_size
    places_P2 = torch.cartesian_prod(along, along)
    return torch.cdist(places_P2, places_P2)


def attention_of(attention: Any, tokens_BND: torch.Tensor) -> torch.Tensor:
    """The attention (B, H, N, N) of timm's layer for its input."""
    heads = attention.num_heads
    queries, keys, _ = attention.qkv(tokens_BND).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    return (attention.scale * queries @ keys.mT).softmax(dim=-1)


def distances(attention_BHNN: torch.Tensor, apart_PP: torch.Tensor, prefix: int) -> torch.Tensor:
    """The mean over patches of how far each attends, (B, H); what goes to and from tokens that are no patches is left out."""
    return (attention_BHNN[:, :, prefix:, prefix:] * apart_PP).sum(dim=-1).mean(dim=-1)


def centroids_of(state: StateDict, spec: Spec, clusters: Sequence[Clusters], mlps: Sequence[int]) -> StateDict:
    """What the learngene holds: a ViT's tensors without its head, of queries, keys and values the centroids' alone, and each MLP once."""
    table, kept = table_of(spec), dict[str, torch.Tensor]()
    for name in expected(spec, clusters, mlps):
        block, tensor = table.block_of(name), state[name]
        if block is not None and table.inner_name(name).startswith(QKV):
            tensor = tensor.unflatten(0, (3, spec.heads, -1))[:, [group[0] for group in clusters[block]]].flatten(0, 2)
        kept[name] = tensor
    return kept


def expected(spec: Spec, clusters: Sequence[Clusters], mlps: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of these tensors."""
    table, found = table_of(spec), dict[str, tuple[int, ...]]()
    for name, shape in shapes(spec).items():
        block = table.block_of(name)
        inner = "" if block is None else table.inner_name(name)
        if table.is_head(name) or (block is not None and inner.startswith(MLP) and mlps[block] != block):
            continue
        rows = 3 * len(clusters[block]) * spec.head_width if block is not None and inner.startswith(QKV) else shape[0]
        found[name] = (rows, *shape[1:])
    return found


def shared(
    state: StateDict,
    spec: Spec,
    clusters: Sequence[Clusters],
    mlps: Sequence[int],
    heads: int,
    projection: Literal["clusters", "places"],
) -> StateDict:
    """The tensors of a model with `heads` heads in every block, from those of a learngene; `spec` has the ancestry model's heads."""
    table, made = table_of(spec), dict(state)
    for block, groups in enumerate(clusters):
        which = [head % len(groups) for head in range(heads)]
        for name in state:
            if table.block_of(name) == block and table.inner_name(name).startswith(QKV):
                made[name] = state[name].unflatten(0, (3, len(groups), -1))[:, which].flatten(0, 2)
        name = table.block_name(block, PROJ)
        columns_DHC = state[name].unflatten(1, (spec.heads, -1))
        readers_hH = readers(groups, which, spec.heads) if projection == "clusters" else in_place(heads, spec.heads)
        made[name] = torch.einsum("dhc,gh->dgc", columns_DHC, readers_hH.to(columns_DHC)).flatten(1)
        for name in [name for name in state if table.block_of(name) == mlps[block] != block]:
            if table.inner_name(name).startswith(MLP):
                made[table.block_name(block, table.inner_name(name))] = state[name].clone()
    return made


def readers(groups: Clusters, which: Sequence[int], heads: int) -> torch.Tensor:
    """(heads of the descendant, heads of the ancestry): each reads an equal part of what its cluster's heads wrote together."""
    table = torch.zeros(len(which), heads)
    for place, cluster in enumerate(which):
        table[place, list(groups[cluster])] = 1 / which.count(cluster)
    return table


def in_place(heads: int, known: int) -> torch.Tensor:
    """Each head reads as the ancestry's head in its place; beyond them the places are counted anew."""
    return torch.eye(known)[[head % known for head in range(heads)]]
