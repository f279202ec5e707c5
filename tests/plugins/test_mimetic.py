"""Mimetic initialisation: products of attention weights reach their targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry
from lgzoo_baselines.trained.scratch import ScratchExtractor
from lgzoo_baselines.weights.mimetic import build_sinusoids, draw_product, factorise

SPEC = ViTSpec(layers=2, width=48, heads=3, image_size=32, patch_size=8, classes=3)
EYE = torch.eye(48)


@cache
def build(**settings: Any) -> Descendant:
    ancestry = make_tiny_ancestry(spec=SPEC)
    learngene = ScratchExtractor()([ancestry], [], Run())
    learngene = learngene.with_config(method="mimetic", ancestries=(ancestry.record,))
    return lg.expand(learngene, **settings)


def multiply(model: Descendant, block: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return W_Q W_K' of every head, and W_V W_proj of all heads together."""
    qkv, proj = (model.state[f"blocks.{block}.attn.{name}.weight"] for name in ("qkv", "proj"))
    queries, keys, values = qkv.chunk(3)
    heads = [q.T @ k for q, k in zip(queries.split(16), keys.split(16))]
    return heads, values.T @ proj.T


def test_values_and_projection_are_exactly_noise_less_the_identity() -> None:
    for diagonal in (0.0, 0.4):
        _, product = multiply(build(vp_diagonal=diagonal), 1)
        noise = (product + diagonal * EYE) / 0.4
        assert noise.std().item() == pytest.approx(48**-0.5, rel=0.05)
        assert noise.mean().item() == pytest.approx(0, abs=0.01)
    both = [multiply(build(vp_diagonal=diagonal), 1)[1] for diagonal in (0.0, 0.4)]
    torch.testing.assert_close(both[0] - both[1], 0.4 * EYE, atol=1e-5, rtol=0)


def test_queries_and_keys_are_the_best_product_of_the_rank_of_a_head() -> None:
    heads, _ = multiply(build(), 0)
    assert not torch.allclose(heads[0], heads[1])
    for product in heads:
        assert torch.linalg.matrix_rank(product) == 16
        assert product.diagonal().mean() > 0.25
    without_noise, _ = multiply(build(qk_noise=0.0), 0)
    for product in without_noise:  # a projection, times beta
        torch.testing.assert_close(product @ product, 0.7 * product, atol=1e-5, rtol=0)
        assert product.trace().item() == pytest.approx(0.7 * 16, rel=1e-5)


def test_the_factors_are_of_the_singular_values() -> None:
    matrix = draw_product(12, 0.7, 0.7, torch.Generator().manual_seed(0))
    left, right = factorise(matrix, 12)
    torch.testing.assert_close(left @ right.T, matrix)
    torch.testing.assert_close(left.T @ left, right.T @ right)  # shared out equally
    left, right = factorise(matrix, 5)
    missed = torch.linalg.matrix_norm(matrix - left @ right.T)
    assert missed.item() == pytest.approx(torch.linalg.svdvals(matrix)[5:].norm().item())


def test_the_positions_are_sines_and_cosines_of_row_and_column() -> None:
    actual = build_sinusoids(SPEC)
    assert actual.shape == (1, 17, 48)
    assert not actual[0, 0].any(), "the class token has no place"
    row, column = actual[0, 1 + 4 * 2 + 3].split(24)  # row 2, column 3
    for part, place in ((row, 2), (column, 3)):
        rates = 10_000.0 ** (-torch.arange(12) / 12)
        torch.testing.assert_close(part, torch.cat([(place * rates).sin(), (place * rates).cos()]))
    assert torch.equal(build().state["pos_embed"], actual)
    assert build(positions="drawn").state["pos_embed"].std().item() == pytest.approx(0.02, rel=0.1)
    with pytest.raises(WrongCall, match="width is 46; sinusoidal positions need a multiple of 4"):
        build_sinusoids(SPEC.with_(width=46, heads=2))


def test_everything_else_is_drawn_as_in_scratch_and_nothing_is_inherited() -> None:
    from lgzoo_baselines.trained.scratch import SCRATCH

    ancestry = make_tiny_ancestry(spec=SPEC)
    learngene = SCRATCH.extractor([ancestry], [], Run())
    scratch = lg.expand(learngene.with_config(method="scratch", ancestries=(ancestry.record,)))
    model = build()
    differ = {
        name for name in model.state if not torch.equal(model.state[name], scratch.state[name])
    }
    assert differ == {
        "pos_embed",
        *(f"blocks.{i}.attn.{name}.weight" for i in (0, 1) for name in ("qkv", "proj")),
    }
    assert not model.inherited
    assert not torch.equal(multiply(model, 0)[1], multiply(model, 1)[1])
