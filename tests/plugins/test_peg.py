"""PEG: heads and MLPs that are mixtures of others."""

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
from learngene_zoo.testing import make_tiny_ancestry
from lgzoo_baselines.modules.peg import (
    condense_tensors,
    draw_shares,
    expand_tensors,
    list_shapes,
    mix_heads,
    mix_mlps,
    mix_projections,
)

SPEC = make_tiny_ancestry().spec.with_(width=64, heads=4)  # 3 layers, heads of 16


@cache
def extract(**settings: Any) -> lg.Learngene:
    extractor = with_settings(METHODS.load("peg").presets["smoke"], settings)
    ancestry = make_tiny_ancestry(spec=SPEC)
    learngene = extractor([ancestry], [], Run())
    return learngene.with_config(method="peg", ancestries=(ancestry.record,))


def compute_head(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    x: torch.Tensor,
) -> Any:
    """Return scores and values of one head for tokens x (N, D)."""
    parts = [
        x @ weight.T + (0 if bias is None else bias[i])
        for i, weight in enumerate((queries, keys, values))
    ]
    return parts[0] @ parts[1].T, parts[2]


@pytest.mark.parametrize("biased", [True, False])
def test_mixed_scores_and_values_are_those_of_algorithm_1(biased: bool) -> None:
    """For sources whose ranks add up to a head's, the mixed head is sum p_i (Q_i K_i', V_i)."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 3, 6, 8, generator=generator, dtype=torch.float64)
    weights[:2, :, 2:] = 0  # queries and keys of rank 2 each, of 6
    biases = torch.randn(3, 3, 6, generator=generator, dtype=torch.float64) if biased else None
    if biases is not None:
        biases[:2, :, 2:] = 0
    p, x = (
        torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64),
        torch.randn(5, 8, generator=generator).double(),
    )
    mixed, bias = mix_heads(weights, biases, p)
    for target in range(2):
        scores, values = compute_head(
            *mixed[:, target], None if bias is None else bias[:, target], x
        )
        each = [
            compute_head(*weights[:, i], None if biases is None else biases[:, i], x)
            for i in range(3)
        ]
        torch.testing.assert_close(scores, sum(p[target, i] * each[i][0] for i in range(3)))
        torch.testing.assert_close(values, sum(p[target, i] * each[i][1] for i in range(3)))


def test_of_higher_rank_the_mixed_scores_are_the_best_that_a_head_can_have() -> None:
    """Only the singular values beyond the rank of a head are lost (Eckart and Young)."""
    weights = torch.randn(
        3, 4, 3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    p = draw_shares(1, 4, "softmax", 0, "a")
    expected = torch.einsum("h,hcd,hce->de", p[0], weights[0], weights[1])
    mixed, _ = mix_heads(weights, None, p)
    lost = expected - mixed[0, 0].T @ mixed[1, 0]
    values = torch.linalg.svdvals(expected)
    assert lost.norm().item() == pytest.approx(values[3:].norm().item())
    assert mixed[0, 0].norm().item() == pytest.approx(
        mixed[1, 0].norm().item()
    )  # both have the root of each value


def test_shares_are_drawn_by_the_seed_and_sum_to_one() -> None:
    p = draw_shares(3, 5, "softmax", 0, "heads", 1)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert torch.equal(p, draw_shares(3, 5, "softmax", 0, "heads", 1))
    assert not torch.equal(p, draw_shares(3, 5, "softmax", 0, "heads", 2))
    assert not torch.equal(p, draw_shares(3, 5, "softmax", 1, "heads", 1))
    assert torch.equal(
        draw_shares(2, 4, "uniform", 0), torch.full((2, 4), 0.25, dtype=torch.float64)
    )
    ratio = p[0].log() - p[0].log().mean()  # the logarithms are the draws, up to a constant
    many = draw_shares(400, 50, "softmax", 0).log()
    assert (many - many.mean(dim=1, keepdim=True)).std().item() == pytest.approx(1, abs=0.05)
    assert ratio.abs().max() > 0.1


def test_mlps_are_mixed_tensor_by_tensor() -> None:
    mlps = [
        {"mlp.fc1.weight": torch.full((2, 2), float(k)), "mlp.fc1.bias": torch.tensor([1.0, k])}
        for k in (1, 3)
    ]
    (actual,) = mix_mlps(mlps, torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    assert actual["mlp.fc1.weight"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert actual["mlp.fc1.bias"].tolist() == [1.0, 2.5]


def test_what_reads_a_source_is_shared_out_whole() -> None:
    """If all heads have the same output, the mixed ones write the same as the sources."""
    columns = torch.randn(8, 4, 2, generator=torch.Generator().manual_seed(0))
    output = torch.randn(2, generator=torch.Generator().manual_seed(1))
    made_of = mix_projections(columns, draw_shares(3, 4, "softmax", 0))
    assert made_of.shape == (8, 3, 2)
    torch.testing.assert_close((made_of @ output).sum(dim=1), (columns @ output).sum(dim=1))


def test_where_nothing_is_mixed_the_ancestry_model_comes_back() -> None:
    state, images = (
        initialise(SPEC.with_(classes=3), 3, "fan_in"),
        torch.randn(2, 3, SPEC.image_size, SPEC.image_size),
    )
    itself, mlps = torch.eye(4, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    condensed = condense_tensors(state, SPEC, [itself] * 3, mlps)
    again = {
        **expand_tensors(condensed, SPEC, [itself] * 3, mlps),
        **{name: state[name] for name in ("head.weight", "head.bias")},
    }
    actual, full = (build_model(SPEC.with_(classes=3), item)(images) for item in (again, state))
    torch.testing.assert_close(actual, full, atol=1e-4, rtol=1e-4)


def test_what_is_stored() -> None:
    stored = {name: tuple(tensor.shape) for name, tensor in extract().state.items()}
    assert extract().config.details == {
        "heads": 3,
        "mlps": 2,
        "mixing": "softmax",
    }  # 2/3 of 4 heads, half of 3 MLPs
    assert stored["blocks.1.attn.qkv.weight"] == (3 * 3 * 16, 64)
    assert stored["blocks.1.attn.proj.weight"] == (64, 48)
    assert stored["blocks.shared.1.mlp.fc2.weight"] == (64, 256)
    assert stored == list_shapes(SPEC, 3, 2)


def test_descendants_have_the_layers_and_heads_that_are_named() -> None:
    descendant, wide = (
        lg.expand(extract(), layers=2, classes=3),
        lg.expand(extract(), layers=2, heads=6, classes=3),
    )
    assert (descendant.spec.layers, descendant.spec.heads, descendant.spec.attention_width) == (
        2,
        4,
        None,
    )
    assert (wide.spec.heads, wide.spec.attention_width) == (6, 96)
    assert torch.equal(
        descendant.state["blocks.1.norm1.weight"], extract().state["blocks.1.norm1.weight"]
    )
    assert descendant.inherited == {
        name for name in descendant.state if not name.startswith("head.")
    }


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(WrongCall, match="layers is 4; the ancestry model has 3"):
        lg.expand(extract(), layers=4)
    with pytest.raises(WrongCall, match="does not take models with norms of queries and keys"):
        METHODS.load("peg").presets["mini"].outline([SPEC.with_(qk_norm=True)])
    lost = replace(extract().config, details={**extract().config.details, "heads": 9})
    with pytest.raises(BadFile, match="says heads 9 and mlps 2; expected at most 4 and 3"):
        lg.expand(replace(extract(), config=lost), layers=2)
