"""DAD, LSAMD's router: its equations by number, ties, noise, and the vote of a batch."""

from __future__ import annotations

import math

import pytest
import torch

from lgzoo_lsamd.modules.supernet import BASE, SPECIFIC, Router, prefers_base, vote


def softmax(a: float, b: float) -> tuple[float, float]:
    return math.exp(a) / (math.exp(a) + math.exp(b)), math.exp(b) / (math.exp(a) + math.exp(b))


def softplus(z: float) -> float:
    return math.log1p(math.exp(z))


@pytest.fixture
def router() -> Router:
    """x W1 is (1, 2) and x W2 (0.5, -1) for x = (1, 1)."""
    router = Router(2)
    router.preference.data = torch.tensor([[0.25, 1.5], [0.75, 0.5]])
    router.spread.data = torch.tensor([[0.5, -2.0], [0.0, 1.0]])
    return router


ONES = torch.ones(1, 2)


def test_the_printed_equation(router: Router) -> None:
    router.noise = "printed"
    expected = softmax(1 + softplus(0.5), 2 + softplus(-1))
    for mode in (True, False):
        assert router.train(mode)(ONES)[0].tolist() == pytest.approx(expected)


def test_without_noise(router: Router) -> None:
    router.noise = "none"
    assert router.train()(ONES)[0].tolist() == pytest.approx(softmax(1, 2))


def test_gaussian_noise_is_scaled_by_softplus_and_drawn_in_training_only(router: Router) -> None:
    assert router.eval()(ONES)[0].tolist() == pytest.approx(softmax(1, 2))
    torch.manual_seed(7)
    first, second = torch.randn(1, 2)[0].tolist()
    torch.manual_seed(7)
    expected = softmax(1 + first * softplus(0.5), 2 + second * softplus(-1))
    assert router.train()(ONES)[0].tolist() == pytest.approx(expected)


def test_noise_is_drawn_for_every_image_and_block(router: Router) -> None:
    torch.manual_seed(0)
    p_B2 = router.train()(torch.ones(64, 2)).detach()
    assert len(p_B2[:, 0].unique()) == 64
    logits_B = (p_B2[:, 0] / p_B2[:, 1]).log()
    assert float(logits_B.std()) == pytest.approx(math.hypot(softplus(0.5), softplus(-1)), rel=0.25)


def test_a_new_router_is_undecided_and_a_tie_goes_to_the_base_block() -> None:
    p_B2 = Router(8).eval()(torch.randn(5, 8))
    assert p_B2.tolist() == [[0.5, 0.5]] * 5
    assert prefers_base(p_B2).all()
    assert vote(p_B2) == BASE


def test_a_tie_can_count_against_the_base_block() -> None:
    assert prefers_base(
        torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.4, 0.6]]), strictly=True
    ).tolist() == [
        False,
        False,
        True,
    ]


def ballots(specific: int, base: int) -> torch.Tensor:
    return torch.tensor([[0.9, 0.1]] * specific + [[0.2, 0.8]] * base)


@pytest.mark.parametrize(
    ("specific", "base", "winner"),
    [
        (3, 1, SPECIFIC),
        (2, 2, BASE),
        (1, 3, BASE),
        (1, 0, SPECIFIC),
        (0, 1, BASE),
        (33, 31, SPECIFIC),
    ],
)
def test_more_than_half_of_a_batch_decides(specific: int, base: int, winner: int) -> None:
    assert vote(ballots(specific, base)) == winner


def test_the_vote_counts_images_and_not_probabilities() -> None:
    # Two images lean to the specific block, one is sure of the base block.
    assert vote(torch.tensor([[0.51, 0.49], [0.51, 0.49], [0.01, 0.99]])) == SPECIFIC


def test_the_column_order_is_the_papers() -> None:
    assert (SPECIFIC, BASE) == (0, 1)
    assert prefers_base(torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.4, 0.6]])).tolist() == [
        True,
        False,
        True,
    ]
