"""A linear layer that is asked for in parts is the same layer, forwards and backwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.modules.conv_decoder import cut_weight
from lgzoo_tal.modules.low_rank_decoder import LinearParts

SLICES = (
    slice(0, 4),
    slice(2, 7),
    slice(2, 7),
    slice(6, 7),
    slice(9, 11),
)  # 7, 8 and 11 are never asked for


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def compute_loss(layer: nn.Linear, inputs_KI: list[Tensor], *, at_once: bool) -> Tensor:
    parts = LinearParts(layer)
    outputs = [
        parts(inputs, rows)
        if at_once
        else functional.linear(inputs, layer.weight[rows], layer.bias[rows])
        for inputs, rows in zip(inputs_KI, SLICES, strict=True)
    ]
    return torch.cat([part.sin().flatten() for part in outputs]).square().sum()


def test_a_layer_in_parts_has_the_gradients_of_its_slices() -> None:
    layer = nn.Linear(3, 12)
    inputs_KI = [draw(count, 3).requires_grad_() for count in (2, 1, 4, 3, 2)]
    expected = torch.autograd.grad(
        compute_loss(layer, inputs_KI, at_once=False), [layer.weight, layer.bias, *inputs_KI]
    )
    loss = compute_loss(layer, inputs_KI, at_once=True)
    for _ in range(2):  # a second time over the same graph: nothing is left of the first
        gradients = torch.autograd.grad(
            loss, [layer.weight, layer.bias, *inputs_KI], retain_graph=True
        )
        for actual, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(actual, other)
    assert not gradients[0][7:9].any()
    assert not gradients[1][11].any()


def test_a_part_that_no_loss_needs_adds_nothing() -> None:
    layer, inputs_KI = nn.Linear(3, 12), draw(2, 3)
    parts = LinearParts(layer)
    needed, _ = parts(inputs_KI, slice(0, 4)), parts(inputs_KI, slice(2, 8))
    needed.sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    torch.testing.assert_close(layer.weight.grad[:4], inputs_KI.sum(dim=0).expand(4, 3))
    assert not layer.weight.grad[4:].any()
    assert layer.bias.grad.tolist() == [2.0] * 4 + [0.0] * 8


def test_gradients_of_cuts_that_overlap_are_added() -> None:
    weight = draw(4, 3).requires_grad_()
    slices = [slice(0, 3), slice(2, 4), (slice(1, 3), slice(0, 2)), slice(0, 4)]
    parts = cut_weight(weight, slices)
    assert all(torch.equal(part, weight[cut]) for part, cut in zip(parts, slices, strict=True))
    for needed in (parts, parts[:2], parts[1:3]):
        loss = torch.stack(
            [(number + 1) * part.sin().sum() for number, part in enumerate(needed)]
        ).sum()
        plain = [
            weight[cut]
            for cut, part in zip(slices, parts, strict=True)
            if any(part is item for item in needed)
        ]
        expected = torch.stack(
            [(number + 1) * part.sin().sum() for number, part in enumerate(plain)]
        ).sum()
        (actual,), (reference,) = (
            torch.autograd.grad(item, weight, retain_graph=True) for item in (loss, expected)
        )
        torch.testing.assert_close(actual, reference)


def test_a_frozen_layer_in_parts_passes_gradients_on() -> None:
    layer, inputs_KI = nn.Linear(3, 12).requires_grad_(False), draw(2, 3).requires_grad_()
    LinearParts(layer)(inputs_KI, slice(2, 7)).sum().backward()
    torch.testing.assert_close(inputs_KI.grad, layer.weight[2:7].sum(dim=0).expand(2, 3))
