"""Closed form: optimal cuts, ridge regression from sums, selection of heads and neurons."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from learngene_zoo.errors import WrongCall
from lgzoo_closed_form.descendant_size import find_best_cuts, make_monotone
from lgzoo_closed_form.modules.ridge import (
    MAX_SUBSETS,
    Sums,
    measure_spread,
    select_heads,
    select_neurons,
)


def random_costs(seed: int, layers: int = 7) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [[0.0, *generator.random(layers - 1 - first).tolist()] for first in range(layers)]


@pytest.mark.parametrize("seed", range(5))
def test_the_programme_finds_the_best_cut_and_never_rises(seed: int) -> None:
    costs = random_costs(seed)
    hard = make_monotone(costs)

    def objective(starts: Sequence[int]) -> float:
        ends = [*starts[1:], len(costs)]
        return sum(hard[first][end - 1 - first] for first, end in zip(starts, ends))

    cuts = find_best_cuts(costs)
    for runs, (starts, depth, value) in enumerate(cuts, start=1):
        assert depth == len(costs)
        every = [(0, *later) for later in combinations(range(1, len(costs)), runs - 1)]
        assert value == pytest.approx(min(objective(firsts) for firsts in every))
        assert objective(starts) == pytest.approx(value)
    values = [cut.objective for cut in cuts]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0


def test_a_run_is_as_hard_as_its_hardest_part() -> None:
    hard = make_monotone([[0.0, 0.5, 0.1], [0.0, 0.2], [0.0]])
    assert hard == [[0.0, 0.5, 0.5], [0.0, 0.2], [0.0]]


def regression(rho: float) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    inputs, targets, start = (
        torch.randn(*shape, generator=generator) for shape in ((60, 5), (60, 3), (3, 5))
    )
    weights = torch.rand(60, generator=generator).double() + 0.1
    bias = torch.zeros(3)
    weight, offset = Sums.from_rows([(inputs, targets, weights)]).solve(start, bias, rho)
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
    inputs, targets = (
        torch.randn(50, size, generator=generator).double() + mean for size in (600, 3)
    )
    weights = torch.rand(50, generator=generator).double() + 0.1
    weights[1:10] = 0.0  # a part of padding alone
    cuts_at = [0, 1, 10, 20, 50]
    parts = [(inputs[a:b], targets[a:b], weights[a:b]) for a, b in pairwise(cuts_at)]
    sums = Sums.from_rows(parts, centred=centred)
    mean_I, mean_O = (
        (
            (rows * weights[:, None]).sum(0) / weights.sum()
            if centred
            else torch.zeros(rows.shape[1]).double()
        )
        for rows in (inputs, targets)
    )
    rows, centred_targets = inputs - mean_I, targets - mean_O
    torch.testing.assert_close(sums.gram, rows.T @ torch.diag(weights) @ rows)
    torch.testing.assert_close(sums.cross_IO, rows.T @ torch.diag(weights) @ centred_targets)
    torch.testing.assert_close(sums.square_O, weights @ centred_targets.square())
    if centred:
        torch.testing.assert_close(
            measure_spread((part, of) for _, part, of in parts), weights @ centred_targets.square()
        )


def test_equations_without_a_unique_solution_are_refused() -> None:
    inputs, weights = torch.ones(4, 2).double(), torch.ones(4).double()
    inputs[:, 1] = -1.0
    sums = Sums.from_rows([(inputs, inputs[:, :1], weights)], centred=False)
    with pytest.raises(WrongCall, match="more images, or a larger ridge"):
        sums.solve(torch.zeros(1, 2), None, 0.0)


def test_what_a_solution_misses_follows_from_the_sums() -> None:
    inputs, targets, start, weights, weight, offset = regression(0.3)
    residual = inputs @ weight.T + offset - targets
    missed = Sums.from_rows([(inputs, targets, weights)]).compute_errors(start, 0.3)
    torch.testing.assert_close(missed, weights @ residual.square())


def sum_outputs(outputs: torch.Tensor) -> Sums:
    """Return the sums of products of rows of weight 1."""
    weights = torch.ones(len(outputs)).double()
    return Sums.from_rows([(outputs, outputs[:, :0], weights)])


def test_heads_are_chosen_by_what_they_explain() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(200, 8, generator=generator)
    outputs[:, 4:6] = outputs[:, 0:2] + 0.01 * torch.randn(
        200, 2, generator=generator
    )  # head 2 says what head 0 says
    reader = torch.randn(6, 8, generator=generator)
    reader[:, 2:4] *= 0.01  # head 1 is hardly read
    heads = select_heads(sum_outputs(outputs).gram, reader, 2, 4)
    assert 3 in heads
    assert len({0, 2} & set(heads)) == 1


def test_many_heads_are_dropped_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, reader = (
        torch.randn(100, 24, generator=generator),
        torch.randn(5, 24, generator=generator),
    )
    reader[:, [3, 7, 20]] *= 100
    assert MAX_SUBSETS < 2024
    assert select_heads(sum_outputs(outputs).gram, reader, 3, 24) == [3, 7, 20]


def test_neurons_are_chosen_by_variance_and_by_what_reads_them() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(100, 4, generator=generator) * torch.tensor([1.0, 10.0, 2.0, 1.0]) + 50
    reader = torch.tensor([[1.0, 0.01, 1.0, 5.0]])
    assert select_neurons(sum_outputs(outputs).gram.diagonal(), reader, 2) == [2, 3]
