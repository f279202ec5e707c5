"""Random draws by number: published results depend on all of them."""

from __future__ import annotations

import random

import numpy as np
import torch

from learngene_zoo.seeds import derive_seed, draw_bits, draw_noise, draw_uniform, seed_step


def test_seeds_never_change() -> None:
    assert derive_seed(7) == 4359823973405836615
    assert derive_seed(0, "part", "search") == 1207019832299010806
    assert derive_seed(0, "part", 1) == derive_seed(0, "part/1") != derive_seed(0, "part", 2)
    assert max(derive_seed(number) for number in range(100)).bit_length() == 63


def test_draws_never_change() -> None:
    assert draw_bits(5, [0, 9], 2).tolist() == [
        [18074882946671919669, 1952936728445087881],
        [10162353609191618084, 14368328503134740528],
    ]
    assert draw_uniform(5, [0, 9], 2).astype(np.float64).round(9).tolist() == [
        [0.979841352, 0.105868876],
        [0.550902247, 0.778908610],
    ]
    assert draw_noise(5, [3], 8).tolist() == [[146, 81, 13, 71, 97, 19, 205, 198]]


def test_a_draw_depends_on_its_key_its_index_and_its_stream_alone() -> None:
    full = draw_uniform(1, range(1000), 3)
    assert np.array_equal(draw_uniform(1, [999, 4], 3), full[[999, 4]])
    assert np.array_equal(draw_uniform(1, range(1000), 1), full[:, :1])
    assert not (draw_uniform(2, range(1000), 3) == full).any()
    assert 0 <= full.min() < 0.01 < 0.99 < full.max() < 1
    assert abs(full.mean() - 0.5) < 0.02


def test_a_step_seeds_every_generator() -> None:
    value = derive_seed(3, "step", 4, 1)
    seed_step(3, 4, 1)
    assert torch.initial_seed() == value
    assert np.random.rand() == np.random.RandomState(value % 2**32).rand()
    assert random.random() == random.Random(value).random()
