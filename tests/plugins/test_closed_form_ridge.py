"""Closed form: the programme of the best cut, ridge regression from sums, and which heads and neurons are chosen."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from lgzoo_closed_form.depth import cuts, monotone
from lgzoo_closed_form.ridge import MOST_SUBSETS, Ridge, Sums, best_heads, best_neurons, spread


def random_costs(seed: int, layers: int = 7) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [[0.0, *generator.random(layers - 1 - first).tolist()] for first in range(layers)]


@pytest.mark.parametrize("seed", range(5))
def test_the_programme_finds_the_best_cut_and_never_rises(seed: int) -> None:
    costs = random_costs(seed)
    hard = monotone(costs)

    def objective(starts: Sequence[int]) -> float:
        ends = [*starts[1:], len(costs)]
        return sum(hard[first][end - 1 - first] for first, end in zip(starts, ends))

    found = cuts(costs)
    for runs, (starts, value) in enumerate(found, start=1):
        tried = [(0, *others) for others in combinations(range(1, len(costs)), runs - 1)]
        assert value == pytest.approx(min(objective(one) for one in tried))
        assert objective(starts) == pytest.approx(value)
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0


def test_a_run_is_as_hard_as_its_hardest_part() -> None:
    hard = monotone([[0.0, 0.5, 0.1], [0.0, 0.2], [0.0]])
    assert hard == [[0.0, 0.5, 0.5], [0.0, 0.2], [0.0]]


def regression(rho: float) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    inputs, targets, start = (torch.randn(*shape, generator=generator) for shape in ((60, 5), (60, 3), (3, 5)))
    weights = torch.rand(60, generator=generator).double() + 0.1
    bias = torch.zeros(3)
    weight, offset = Ridge.on(inputs, weights, rho).solve(targets, start, bias)
    assert offset is not None
    return inputs.double(), targets.double(), start.double(), weights, weight, offset


def test_ridge_without_penalty_is_weighted_least_squares() -> None:
    inputs, targets, _, weights, weight, offset = regression(0.0)
    root = weights.sqrt()[:, None]
    wide = torch.cat([inputs, torch.ones(60, 1, dtype=torch.float64)], dim=1)
    expected = torch.linalg.lstsq(root * wide, root * targets).solution
    torch.testing.assert_close(torch.cat([weight.T, offset[None]]), expected)


def test_ridge_minimises_its_objective() -> None:
    rho = 0.3
    inputs, targets, start, weights, weight, offset = regression(rho)
    mean = (inputs * weights[:, None]).sum(dim=0) / weights.sum()
    penalty = rho * ((inputs - mean).square() * weights[:, None]).sum(dim=0).mean()
    weight, offset = weight.clone().requires_grad_(), offset.clone().requires_grad_()
    missed = ((inputs @ weight.T + offset - targets).square().sum(dim=1) * weights).sum()
    (missed + penalty * (weight - start).square().sum()).backward()
    torch.testing.assert_close(weight.grad, torch.zeros_like(weight), atol=1e-9, rtol=0)
    torch.testing.assert_close(offset.grad, torch.zeros_like(offset), atol=1e-9, rtol=0)


def test_a_strong_ridge_keeps_the_start() -> None:
    *_, start, _, weight, _ = regression(1e12)
    torch.testing.assert_close(weight, start)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_sums_of_parts_are_those_of_all_rows(centred: bool, mean: float) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(50, size, generator=generator).double() + mean for size in (600, 3))
    weights = torch.rand(50, generator=generator).double() + 0.1
    cuts_at = [0, 1, 20, 50]
    parts = [(inputs[a:b], targets[a:b], weights[a:b]) for a, b in pairwise(cuts_at)]
    sums = Sums.over(parts, centred=centred)
    mean_I, mean_O = (
        ((rows * weights[:, None]).sum(0) / weights.sum() if centred else torch.zeros(rows.shape[1]).double())
        for rows in (inputs, targets)
    )
    rows, wanted = inputs - mean_I, targets - mean_O
    torch.testing.assert_close(sums.gram, rows.T @ torch.diag(weights) @ rows)
    torch.testing.assert_close(sums.cross_IO, rows.T @ torch.diag(weights) @ wanted)
    torch.testing.assert_close(sums.square_O, weights @ wanted.square())
    if centred:
        torch.testing.assert_close(spread((part, of) for _, part, of in parts), weights @ wanted.square())


def test_what_a_solution_misses_follows_from_the_sums() -> None:
    inputs, targets, start, weights, weight, offset = regression(0.3)
    residual = inputs @ weight.T + offset - targets
    missed = Sums.over([(inputs, targets, weights)]).missed(start, 0.3)
    torch.testing.assert_close(missed, weights @ residual.square())


def test_heads_are_chosen_by_what_they_explain() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(200, 8, generator=generator)
    outputs[:, 4:6] = outputs[:, 0:2] + 0.01 * torch.randn(200, 2, generator=generator)  # head 2 says what head 0 says
    reader = torch.randn(6, 8, generator=generator)
    reader[:, 2:4] *= 0.01  # head 1 is hardly read
    found = best_heads(outputs, reader, torch.ones(200).double(), 2, 4)
    assert 3 in found
    assert len({0, 2} & set(found)) == 1


def test_many_heads_are_dropped_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, reader = torch.randn(100, 24, generator=generator), torch.randn(5, 24, generator=generator)
    reader[:, [3, 7, 20]] *= 100
    assert MOST_SUBSETS < 2024
    assert best_heads(outputs, reader, torch.ones(100).double(), 3, 24) == [3, 7, 20]


def test_neurons_are_chosen_by_variance_and_by_what_reads_them() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(100, 4, generator=generator) * torch.tensor([1.0, 10.0, 2.0, 1.0]) + 50
    reader = torch.tensor([[1.0, 0.01, 1.0, 5.0]])
    assert best_neurons(outputs, reader, torch.ones(100).double(), 2) == [2, 3]
