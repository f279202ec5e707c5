"""Cluster-Learngene: attention distances, clusters, and descendants with other numbers of heads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_baselines.heads.clusters import RELEASED, RELEASED_MLPS, Clusters, cluster_heads
from lgzoo_baselines.modules.cluster_lg import (
    average_distances,
    build_cluster_readers,
    build_index_readers,
    compute_attention,
    list_shapes,
    measure_patch_distances,
    record_distances,
    select_centroids,
    share_centroids,
)

SPEC = make_tiny_ancestry().spec.with_(width=64, heads=4)  # heads of 16
CLUSTERS: tuple[Clusters, ...] = (((2, 0, 1), (3,)), ((0,), (1,), (2,), (3,)), ((1, 3), (2, 0)))
DEIT = {192: 3, 384: 6, 768: 12}


@cache
def extract(**settings: Any) -> lg.Learngene:
    extractor = with_settings(METHODS.load("cluster_lg").presets["smoke"], settings)
    ancestry = make_tiny_ancestry(spec=SPEC)
    learngene = extractor([ancestry], [make_tiny_task()], Run())
    return learngene.with_config(method="cluster_lg", ancestries=(ancestry.record,))


# Steps 1 to 3.


def test_a_head_that_sees_all_patches_alike_sees_as_far_as_they_lie_apart() -> None:
    spec = SPEC.with_(image_size=8, patch_size=4)
    between = measure_patch_distances(spec)
    assert between[0].tolist() == pytest.approx([0, 4, 4, 32**0.5])
    alike, itself = torch.full((1, 1, 5, 5), 1 / 4), torch.eye(5)[None, None]
    both = average_distances(torch.cat([alike, itself], dim=1), between, prefix=1)
    assert both.tolist() == [pytest.approx([(4 + 4 + 32**0.5) / 4, 0.0])]


def test_tokens_that_are_no_patches_count_neither_as_near_nor_as_far() -> None:
    """The sum, written out, for two tokens before four patches."""
    generator = torch.Generator().manual_seed(0)
    between = measure_patch_distances(SPEC.with_(image_size=8, patch_size=4))
    attention = torch.randn(1, 1, 6, 6, generator=generator).softmax(dim=-1)
    far = [sum(attention[0, 0, 2 + q, 2 + k] * between[q, k] for k in range(4)) for q in range(4)]
    assert average_distances(attention, between, prefix=2).item() == pytest.approx(
        float(sum(far)) / 4, rel=1e-5
    )


def test_attention_is_that_of_the_model() -> None:
    ancestry = make_tiny_ancestry(spec=SPEC)
    attention = ancestry.model().blocks[0].attn
    tokens = torch.randn(2, SPEC.tokens, SPEC.width, generator=torch.Generator().manual_seed(0))
    actual = compute_attention(attention, tokens)
    assert actual.shape == (2, SPEC.heads, SPEC.tokens, SPEC.tokens)
    values = (
        attention.qkv(tokens)[..., 2 * SPEC.width :].unflatten(2, (SPEC.heads, -1)).transpose(1, 2)
    )
    torch.testing.assert_close(
        attention.proj((actual @ values).transpose(1, 2).flatten(2)), attention(tokens)
    )


def test_every_block_is_watched_and_left_as_it_was() -> None:
    model, images = (
        make_tiny_ancestry(spec=SPEC).model(),
        torch.randn(3, 3, SPEC.image_size, SPEC.image_size),
    )
    with record_distances(model, SPEC) as recorded, torch.no_grad():
        model(images)
        model(images[:1])
    assert [[tuple(item.shape) for item in block] for block in recorded] == [
        [(3, 4), (1, 4)]
    ] * SPEC.layers
    assert not [module for module in model.modules() if module._forward_pre_hooks]


def test_gaps_divide_clusters_and_larger_ones_come_first() -> None:
    """By hand: 1 2 4 | 9 | 20 21, with gaps of at most 3; means 7/3, 9, 20.5."""
    assert cluster_heads([20.0, 4.0, 9.0, 1.0, 21.0, 2.0], 3.0) == ((5, 1, 3), (0, 4), (2,))
    assert cluster_heads([20.0, 4.0, 9.0, 1.0, 21.0, 2.0], 0.0) == (
        (0,),
        (1,),
        (2,),
        (3,),
        (4,),
        (5,),
    )
    assert cluster_heads([20.0, 4.0, 9.0, 1.0, 21.0, 2.0], 11.0) == ((2, 0, 1, 3, 4, 5),)
    assert cluster_heads([5.0, 2.0], 3.0) == ((0, 1),)  # a gap of eps divides nothing


def test_eps_is_in_proportion_to_the_image() -> None:
    measured = extract().config.metrics["distances"]
    actual = extract(eps=4.0).config.details["clusters"]
    assert actual == [
        [list(group) for group in cluster_heads(block, 4.0 * SPEC.image_size / 224)]
        for block in measured
    ]


def test_the_published_centroids_and_what_they_take() -> None:
    """Of DeiT-Base 43 of 144 heads and 9 of 12 MLPs, by the list in the authors' code."""
    assert {width: len(blocks) for width, blocks in RELEASED.items()} == dict.fromkeys(DEIT, 12)
    assert [sum(map(len, RELEASED[width])) for width in DEIT] == [27, 30, 43]
    assert [len(set(RELEASED_MLPS[width])) for width in DEIT] == [10, 10, 9]
    spec = SPEC.with_(layers=12, width=768, heads=12, image_size=224, patch_size=16)
    config = with_settings(METHODS.load("cluster_lg").presets["paper"], {"released": True}).outline(
        [spec]
    )
    assert config.details["clusters"][4] == [[5], [2], [1], [8], [10]]
    assert config.details["mlps"] == [0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 9, 9]
    shapes = list_shapes(
        spec, [tuple((head,) for head in block) for block in RELEASED[768]], RELEASED_MLPS[768]
    )
    assert shapes["blocks.4.attn.qkv.weight"] == (3 * 5 * 64, 768)
    assert "blocks.10.mlp.fc1.weight" not in shapes
    with pytest.raises(WrongCall, match="leave out released"):
        with_settings(METHODS.load("cluster_lg").presets["paper"], {"released": True}).outline(
            [SPEC]
        )


# Step 4.


def share(
    heads: int, projection: Any = "clusters", mlps: tuple[int, ...] = (0, 1, 2)
) -> dict[str, torch.Tensor]:
    state = initialise(SPEC, 3, "fan_in")
    return dict(
        share_centroids(
            select_centroids(state, SPEC, CLUSTERS, mlps), SPEC, CLUSTERS, mlps, heads, projection
        )
    )


@pytest.mark.parametrize("heads", [1, 3, 4, 6])
def test_head_i_is_centroid_i_mod_c(heads: int) -> None:
    state, actual = initialise(SPEC, 3, "fan_in"), share(heads)
    for block, centroids in enumerate(([2, 3], [0, 1, 2, 3], [1, 2])):
        for name in (f"blocks.{block}.attn.qkv.weight", f"blocks.{block}.attn.qkv.bias"):
            full, shared_rows = (
                state[name].unflatten(0, (3, 4, 16)),
                actual[name].unflatten(0, (3, heads, 16)),
            )
            for head in range(heads):
                assert torch.equal(shared_rows[:, head], full[:, centroids[head % len(centroids)]])


def test_heads_of_clusters_of_one_each_are_the_ancestry_model() -> None:
    """Without merging nothing is lost, with as many heads and with twice as many."""
    state, images = (
        initialise(SPEC.with_(classes=3), 3, "fan_in"),
        torch.randn(2, 3, SPEC.image_size, SPEC.image_size),
    )
    alone: tuple[Clusters, ...] = (((2,), (0,), (3,), (1,)),) * SPEC.layers
    mlps = tuple(range(SPEC.layers))
    full = build_model(SPEC.with_(classes=3), state)
    for heads in (4, 8):
        actual = share_centroids(
            select_centroids(state, SPEC, alone, mlps), SPEC, alone, mlps, heads, "clusters"
        )
        head = {name: tensor for name, tensor in state.items() if name.startswith("head.")}
        size = SPEC.with_(
            classes=3, heads=heads, attention_width=None if heads == 4 else 16 * heads
        )
        torch.testing.assert_close(
            build_model(size, {**actual, **head})(images), full(images), atol=1e-5, rtol=1e-4
        )


def test_a_centroid_stands_for_its_cluster() -> None:
    """The projection writes the same as if every head of a cluster had the centroid's output."""
    state = initialise(SPEC, 3, "fan_in")
    for heads in (2, 4, 5):
        actual = share(heads)
        for block, groups in enumerate(CLUSTERS):
            if heads < len(groups):
                continue
            name = f"blocks.{block}.attn.proj.weight"
            output = torch.randn(len(groups), 16, generator=torch.Generator().manual_seed(block))
            cluster_of = {head: number for number, group in enumerate(groups) for head in group}
            before = state[name] @ output[[cluster_of[head] for head in range(4)]].flatten()
            after = actual[name] @ output[[head % len(groups) for head in range(heads)]].flatten()
            torch.testing.assert_close(after, before)


def test_projections_in_their_places_are_the_first_columns() -> None:
    state, fewer, more = initialise(SPEC, 3, "fan_in"), share(3, "places"), share(6, "places")
    name = "blocks.0.attn.proj.weight"
    assert torch.equal(fewer[name], state[name][:, :48])
    assert torch.equal(more[name], torch.cat([state[name], state[name][:, :32]], dim=1))
    assert build_index_readers(3, 2).tolist() == [[1, 0], [0, 1], [1, 0]]
    assert build_cluster_readers(((1, 2), (0,)), [0, 1, 0], 3).tolist() == [
        [0, 0.5, 0.5],
        [1, 0, 0],
        [0, 0.5, 0.5],
    ]


def test_layers_share_an_mlp() -> None:
    state, actual = initialise(SPEC, 3, "fan_in"), share(4, mlps=(0, 0, 2))
    assert torch.equal(actual["blocks.1.mlp.fc1.weight"], state["blocks.0.mlp.fc1.weight"])
    assert torch.equal(actual["blocks.1.norm2.weight"], state["blocks.1.norm2.weight"])
    learngene = extract(mlps=(0, 0, 2))
    assert "blocks.1.mlp.fc2.bias" not in learngene.state
    descendant = lg.expand(learngene, layers=2, heads=2, classes=3)
    assert torch.equal(
        descendant.state["blocks.1.mlp.fc2.bias"], learngene.state["blocks.0.mlp.fc2.bias"]
    )


def test_a_descendant_has_the_first_blocks_and_heads_as_wide_as_before() -> None:
    descendant = lg.expand(extract(), layers=2, heads=3, classes=3)
    assert (
        descendant.spec.layers,
        descendant.spec.heads,
        descendant.spec.attention_width,
        descendant.spec.width,
    ) == (
        2,
        3,
        48,
        64,
    )
    assert (
        descendant.provenance["heads"]
        == [[group[0] for group in block] for block in extract().config.details["clusters"]][:2]
    )
    plain = lg.expand(extract(), classes=3)
    assert (plain.spec.heads, plain.spec.attention_width) == (4, None)


@pytest.mark.parametrize("mlps", [(0, 0), (0, 2, 2), (0, 0, 1), (1, 1, 2)])
def test_mlps_of_no_such_layers_are_refused(mlps: tuple[int, ...]) -> None:
    with pytest.raises(
        WrongCall, match=r"mlps is .*; expected for each of 3 layers itself, or an earlier layer"
    ):
        extract(mlps=mlps)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(WrongCall, match="layers is 5; the ancestry model has 3"):
        lg.expand(extract(), layers=5)
    lost = replace(
        extract().config, details={**extract().config.details, "clusters": [[[0, 1, 2, 3]]]}
    )
    with pytest.raises(BadFile, match="clusters of 1 and MLPs of 3 layers"):
        lg.expand(replace(extract(), config=lost), layers=2)
    centroids = replace(extract().config, details={**extract().config.details, "whole": False})
    with pytest.raises(WrongCall, match=r"use projection=.places."):
        lg.expand(replace(extract(), config=centroids), layers=2, projection="clusters")
    assert lg.expand(replace(extract(), config=centroids), layers=2).spec.layers == 2
