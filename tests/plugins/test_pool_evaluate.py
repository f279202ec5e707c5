"""Every path evaluated in one pass: the same results as separately, at lower cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stitching_toy import images, stitched
from torch import nn

from learngene_zoo.errors import TrainingFailed
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.evaluate import evaluate
from lgzoo_pool.modules.network import (
    StitchedNetwork,
    build_forward_each,
    evaluate_paths,
    measure_paths,
)
from lgzoo_pool.paths import Path

TASK, VIEW = make_tiny_task(classes=4), make_tiny_ancestry(0).input_format
FAMILIES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((3, 3), {}),
    ((2, 4), {"window": 1}),
    ((2, 3, 2), {}),
    ((2, 2, 2), {"nearest": False}),
]


class Alone(nn.Module):
    """One path as a separate model."""

    def __init__(self, network: StitchedNetwork, path: Path) -> None:
        super().__init__()
        self.network, self.path = network, path

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self.network(images_BCHW, self.path)


@pytest.mark.parametrize(("depths", "options"), FAMILIES)
def test_the_logits_of_every_path_are_its_own_to_the_last_bit(
    depths: tuple[int, ...], options: dict[str, Any]
) -> None:
    network, details = stitched(depths, **options)
    paths = details.layout.paths[::-1]
    with torch.no_grad():
        every = list(build_forward_each(network, paths)(images()))
        assert len(every) == len(paths) > 2
        for path, logits in zip(paths, every):
            assert torch.equal(logits, network(images(), path))


def test_what_paths_share_is_computed_once() -> None:
    network, details = stitched((3, 3))
    ran: list[tuple[int, int]] = []
    for anchor in range(2):
        for number, block in enumerate(network.get_anchor(anchor).blocks):
            block.register_forward_hook(lambda *_, at=(anchor, number): ran.append(at))
    evaluate_paths(network, details.layout.paths, TASK, "validation", VIEW, Run(), images=8)
    # Pairs (j, k) with |j - k| <= 1: two end in block 0, three in 1, two in 2; and the end anchor
    # runs by itself.
    assert {at: ran.count(at) for at in set(ran)} == {
        **dict.fromkeys([(0, 0), (0, 1), (0, 2)], 1),
        (1, 0): 3,
        (1, 1): 6,
        (1, 2): 8,
    }


@pytest.mark.parametrize("batch_size", [None, 5])
def test_every_path_does_as_its_own_model_does(batch_size: int | None) -> None:
    network, details = stitched((2, 2))
    paths = details.layout.paths[::-1]
    result = evaluate_paths(network, paths, TASK, "test", VIEW, Run(), batch_size=batch_size)
    assert result == tuple(
        evaluate(Alone(network, path), TASK, "test", VIEW, Run()) for path in paths
    )
    assert len({item.correct for item in result}) > 1  # so that an order mistaken would show


def test_rows_hold_the_settings_and_what_was_found() -> None:
    network, details = stitched((2, 2))
    settings = [{"config": number} for number in range(len(details.layout.paths))]
    rows = measure_paths(network, settings, TASK, VIEW, Run(), images=10)["paths"]
    values = evaluate_paths(
        network, details.layout.paths, TASK, "validation", VIEW, Run(), images=10
    )
    assert rows == [
        {"config": i, "accuracy": item.value, "images": 10} for i, item in enumerate(values)
    ]
    assert measure_paths(network, settings, TASK, VIEW, Run(), images=0) == {}
    every = measure_paths(network, settings, TASK, VIEW, Run())["paths"]
    assert {row["images"] for row in every} == {TASK.sizes["validation"]}


def test_a_broken_path_is_an_error() -> None:
    network, details = stitched((2, 2))
    network.get_stitch(details.layout.paths[-1].stitches[0]).weight.data.fill_(float("nan"))
    with pytest.raises(TrainingFailed, match="not finite for 8 of 8 images"):
        evaluate_paths(network, details.layout.paths, TASK, "validation", VIEW, Run(), images=8)
