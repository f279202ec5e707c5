"""Tensors of `cluster_lg.py`: attention distances of heads, and models whose heads are copies.

Shapes: B images, H heads, P patches, C channels of a head, D width, c centroids, h heads of a
descendant.
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
    Run,
    Spec,
    StateDict,
    Task,
    gather_values,
    get_shapes,
    get_table,
    require_pictures,
    sample_images,
)

if TYPE_CHECKING:
    from lgzoo_baselines.heads.clusters import Clusters, HeadClustering

BATCH_SIZE = 50  # images in one pass
QKV, PROJ, MLP = "attn.qkv.", "attn.proj.weight", "mlp."


def measure_distances(
    settings: HeadClustering, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Return no tensors, and `distances`: for every block those of its heads, in pixels, step 1.

    Args:
        settings: the number of images.
        ancestry: the model whose heads are measured.
        task: its validation images are used in their order.
        run: gives the device, the seed and the workers.
    """
    model = ancestry.model()
    loader = sample_images(
        task,
        "validation",
        ancestry.input_format,
        run,
        images=settings.images,
        batch_size=BATCH_SIZE,
    )
    with record_distances(model, ancestry.spec) as distances_LBH, torch.no_grad():
        for batch in loader.epoch(0):
            model(batch.inputs)
    means = []
    for distances_BH in distances_LBH:
        rows = [rows for part in gather_values(distances_BH) for rows in part]
        means.append(torch.cat(rows).mean(dim=0).tolist())
    return {}, {"distances": means, "images": loader.images}


@contextmanager
def record_distances(model: nn.Module, spec: Spec) -> Iterator[list[list[torch.Tensor]]]:
    """Record the attention distances of all heads while the context is open.

    Yields for every block a list, to which every pass of the model appends the distances (B, H).
    """
    apart_PP = measure_patch_distances(spec)
    distances: list[list[torch.Tensor]] = [[] for _ in range(spec.layers)]
    with ExitStack() as hooks:
        for block, rows in zip(model.blocks, distances):  # type: ignore[arg-type]

            def record(
                attention: Any,
                inputs: tuple[torch.Tensor, ...],
                rows: list[torch.Tensor] = rows,
            ) -> None:
                attention_BHNN = compute_attention(attention, inputs[0])
                rows.append(average_distances(attention_BHNN, apart_PP, spec.prefix_tokens))

            hooks.callback(block.attn.register_forward_pre_hook(record).remove)
        yield distances


def measure_patch_distances(spec: Spec) -> torch.Tensor:
    """Return the distance between the centres of any two patches, in pixels, (P, P)."""
    spec = require_pictures(spec)
    centres = torch.arange(spec.grid, dtype=torch.float32) * spec.patch_size
    centres_P2 = torch.cartesian_prod(centres, centres)
    return torch.cdist(centres_P2, centres_P2)


def compute_attention(attention: Any, tokens_BND: torch.Tensor) -> torch.Tensor:
    """Return the attention (B, H, N, N) of timm's layer for its input."""
    heads = attention.num_heads
    qkv = attention.qkv(tokens_BND).unflatten(2, (3, heads, -1))
    queries, keys, _ = qkv.permute(2, 0, 3, 1, 4)
    queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    return (attention.scale * queries @ keys.mT).softmax(dim=-1)


def average_distances(
    attention_BHNN: torch.Tensor, apart_PP: torch.Tensor, prefix: int
) -> torch.Tensor:
    """Return the mean over patches of the distance that each attends to, (B, H).

    Args:
        attention_BHNN: attention between all tokens.
        apart_PP: the distances between patches.
        prefix: the number of tokens before the patches, which are left out.
    """
    return (attention_BHNN[:, :, prefix:, prefix:] * apart_PP).sum(dim=-1).mean(dim=-1)


def select_centroids(
    state: StateDict, spec: Spec, clusters: Sequence[Clusters], mlps: Sequence[int]
) -> StateDict:
    """Return the tensors of the learngene.

    They are those of the ancestry model without its head; of queries, keys and values those of the
    centroids, and each MLP once.

    Args:
        state: the tensors of the ancestry model.
        spec: its shape.
        clusters: of every block.
        mlps: for every layer the one whose MLP it has.
    """
    table, selected = get_table(spec), dict[str, torch.Tensor]()
    for name in list_shapes(spec, clusters, mlps):
        block, tensor = table.block_of(name), state[name]
        if block is not None and table.inner_name(name).startswith(QKV):
            centroids = [cluster[0] for cluster in clusters[block]]
            tensor = tensor.unflatten(0, (3, spec.heads, -1))[:, centroids].flatten(0, 2)
        selected[name] = tensor
    return selected


def list_shapes(
    spec: Spec, clusters: Sequence[Clusters], mlps: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a learngene's tensors by name; arguments as in `select_centroids`."""
    table, stored = get_table(spec), dict[str, tuple[int, ...]]()
    for name, shape in get_shapes(spec).items():
        block = table.block_of(name)
        inner = "" if block is None else table.inner_name(name)
        is_shared = block is not None and inner.startswith(MLP) and mlps[block] != block
        if table.is_head(name) or is_shared:
            continue
        rows = shape[0]
        if block is not None and inner.startswith(QKV):
            rows = 3 * len(clusters[block]) * spec.head_width
        stored[name] = (rows, *shape[1:])
    return stored


def share_centroids(
    state: StateDict,
    spec: Spec,
    clusters: Sequence[Clusters],
    mlps: Sequence[int],
    heads: int,
    projection: Literal["clusters", "places"],
) -> StateDict:
    """Return the tensors of a model with `heads` heads in every block, step 4.

    Args:
        state: the tensors of a learngene.
        spec: the shape of the model, with the ancestry model's number of heads.
        clusters: of every block.
        mlps: for every layer the one whose MLP it has.
        heads: of the descendant.
        projection: whether a head is read by the projections of its cluster, or by that of the
            ancestry model's head with its index.
    """
    table, shared = get_table(spec), dict(state)
    for block, groups in enumerate(clusters):
        centroids = [head % len(groups) for head in range(heads)]
        for name in state:
            if table.block_of(name) == block and table.inner_name(name).startswith(QKV):
                rows = state[name].unflatten(0, (3, len(groups), -1))
                shared[name] = rows[:, centroids].flatten(0, 2)
        name = table.block_name(block, PROJ)
        columns_DHC = state[name].unflatten(1, (spec.heads, -1))
        if projection == "clusters":
            readers_hH = build_cluster_readers(groups, centroids, spec.heads)
        else:
            readers_hH = build_index_readers(heads, spec.heads)
        columns_DhC = torch.einsum("dhc,gh->dgc", columns_DHC, readers_hH.to(columns_DHC))
        shared[name] = columns_DhC.flatten(1)
        for name in [name for name in state if table.block_of(name) == mlps[block] != block]:
            if table.inner_name(name).startswith(MLP):
                shared[table.block_name(block, table.inner_name(name))] = state[name].clone()
    return shared


def build_cluster_readers(clusters: Clusters, centroids: Sequence[int], heads: int) -> torch.Tensor:
    """Return (h, H): each head reads an equal part of the output of its cluster's heads.

    Args:
        clusters: of the block.
        centroids: for each head of the descendant the index of its cluster.
        heads: of the ancestry model.
    """
    readers_hH = torch.zeros(len(centroids), heads)
    for head, cluster in enumerate(centroids):
        readers_hH[head, list(clusters[cluster])] = 1 / centroids.count(cluster)
    return readers_hH


def build_index_readers(heads: int, ancestry_heads: int) -> torch.Tensor:
    """Return (h, H): head i reads as the ancestry model's head i mod H."""
    return torch.eye(ancestry_heads)[[head % ancestry_heads for head in range(heads)]]
