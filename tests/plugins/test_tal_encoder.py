"""The encoder equals the released code's numbers; edge bias and task layer equal their formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tal_vectors import MODES, NAMES, TARGET, load_vectors
from torch.testing import assert_close

from learngene_zoo.errors import WrongCall
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.encoder import Layer, TaskLayer
from lgzoo_tal.modules.graph import Graph, build_graph
from lgzoo_tal.modules.hypernet import Hypernet, build_frozen_hypernet

SPEC = HypernetSpec(
    hidden=16, layers=2, heads=2, decoder="low_rank", rank=4, widest=64, chunk=1024, task=6
)


def build_target_graph(msa: bool = True) -> Graph:
    return build_graph(TARGET, msa=msa)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_node_features_are_the_released_codes(name: str, mode: str) -> None:
    vectors, read = load_vectors(name), build_target_graph(mode == "msa")
    hypernet = build_frozen_hypernet(vectors.spec, vectors.state())
    expected = vectors.within(f"{mode}/")
    first = hypernet.gnn[0]
    assert isinstance(first, Layer)
    features = hypernet.embed(read.types) + hypernet.shape_enc(read)
    close = {"rtol": 1e-5, "atol": 1e-5}
    assert_close(features, expected["x0"], **close)
    assert_close(first.embed_places(features, read), expected["placed"], **close)
    assert_close(
        first.attn.compute_edge_bias(read).permute(1, 2, 0)[:5], expected["edges"], **close
    )
    assert_close(hypernet.encode(read, vectors.tensors.get("task")), expected["nodes"], **close)


def test_the_edge_bias_is_the_pairs_own() -> None:
    attention = Hypernet(SPEC, seed=3).gnn[0].attn
    read = build_graph(TARGET.with_(layers=3), sink=(7, 48))
    embedded = attention.edge_embed["embed"](read.distances + 2)
    pairs = torch.cat((embedded, embedded.transpose(0, 1)), dim=2)
    assert_close(attention.compute_edge_bias(read), attention.proj_e(pairs).permute(2, 0, 1))


def test_a_fresh_task_layer_changes_nothing_and_a_trained_one_does() -> None:
    plain, tasked = Hypernet(SPEC.with_(task=None), seed=1), Hypernet(SPEC, seed=1)
    task = torch.linspace(-1, 1, 6)
    assert_close(
        tasked.encode(build_target_graph(), task),
        plain.encode(build_target_graph()),
        rtol=0,
        atol=0,
    )
    torch.nn.init.normal_(
        tasked.gnn[1].TEN.fc_gamma.weight, generator=torch.Generator().manual_seed(0)
    )
    assert (
        tasked.encode(build_target_graph(), task) - plain.encode(build_target_graph())
    ).abs().max() > 1e-3


@pytest.mark.parametrize(("form", "offset"), [("residual", 1.0), ("plain", 0.0)])
def test_the_task_layer_scales_and_shifts(form: Any, offset: float) -> None:
    layer = TaskLayer(SPEC.with_(task_form=form))
    nodes, task = torch.randn(5, 16), torch.randn(6)
    gamma, beta = task @ layer.fc_gamma.weight.T, task @ layer.fc_beta.weight.T
    if form == "residual":
        gamma, beta = gamma + layer.fc_gamma.bias, beta + layer.fc_beta.bias
    else:
        assert layer.fc_gamma.bias is None
    assert_close(layer(nodes, task), (offset + gamma) * nodes + beta)


def test_the_task_layer_may_stand_once_before_the_first_layer() -> None:
    hypernet = Hypernet(SPEC.with_(task_form="plain", task_place="graph"), seed=2)
    assert [hasattr(layer, "TEN") for layer in hypernet.gnn] == [True, False]
    read, task, first = build_target_graph(), torch.randn(6), hypernet.gnn[0]
    nodes = first.TEN(
        first.embed_places(hypernet.embed(read.types) + hypernet.shape_enc(read), read), task
    )
    bias = first.attn.compute_edge_bias(read)
    for layer in hypernet.gnn:
        nodes = layer(nodes, bias, None)
    assert_close(hypernet.encode(read, task), hypernet.ln(nodes))
    torch.nn.init.zeros_(first.TEN.fc_gamma.weight)
    torch.nn.init.zeros_(first.TEN.fc_beta.weight)
    same = hypernet.encode(read, task)
    assert_close(same, same[:1].expand_as(same))  # gamma 0 and beta 0 leave nothing of any node


@pytest.mark.parametrize(
    ("spec", "task", "message"),
    [
        (SPEC, None, r"expected a task embedding of shape \(6,\)"),
        (SPEC, torch.zeros(5), r"of shape \(6,\), got \(5,\)"),
        (SPEC, torch.zeros(1, 6), r"got \(1, 6\)"),
        (SPEC.with_(task=None), torch.zeros(6), "no task layer"),
    ],
)
def test_a_task_embedding_that_does_not_fit(
    spec: HypernetSpec, task: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(WrongCall, match=message):
        Hypernet(spec, seed=0).encode(build_target_graph(), task)
