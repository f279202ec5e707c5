"""A linear layer that is asked for in parts is the same layer, forwards and backwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lgzoo_tal.partial_linear import LinearParts, cuts

SLICES = (slice(0, 4), slice(2, 7), slice(2, 7), slice(6, 7), slice(9, 11))  # 7, 8 and 11 are never asked for


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def asked(layer: nn.Linear, shown: list[Tensor], *, at_once: bool) -> Tensor:
    parts = LinearParts(layer)
    made = [
        parts(inputs, rows) if at_once else functional.linear(inputs, layer.weight[rows], layer.bias[rows])
        for inputs, rows in zip(shown, SLICES, strict=True)
    ]
    return torch.cat([part.sin().flatten() for part in made]).square().sum()


def test_a_layer_in_parts_has_the_gradients_of_its_slices() -> None:
    layer = nn.Linear(3, 12)
    shown = [draw(count, 3).requires_grad_() for count in (2, 1, 4, 3, 2)]
    wanted = torch.autograd.grad(asked(layer, shown, at_once=False), [layer.weight, layer.bias, *shown])
    loss = asked(layer, shown, at_once=True)
    for _ in range(2):  # a second time over the same graph: nothing is left of the first
        found = torch.autograd.grad(loss, [layer.weight, layer.bias, *shown], retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
    assert not found[0][7:9].any()
    assert not found[1][11].any()


def test_a_part_that_no_loss_needs_adds_nothing() -> None:
    layer, shown = nn.Linear(3, 12), draw(2, 3)
    parts = LinearParts(layer)
    needed, _ = parts(shown, slice(0, 4)), parts(shown, slice(2, 8))
    needed.sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    torch.testing.assert_close(layer.weight.grad[:4], shown.sum(dim=0).expand(4, 3))
    assert not layer.weight.grad[4:].any()
    assert layer.bias.grad.tolist() == [2.0] * 4 + [0.0] * 8


def test_gradients_of_cuts_that_overlap_are_added() -> None:
    weight = draw(4, 3).requires_grad_()
    where = [slice(0, 3), slice(2, 4), (slice(1, 3), slice(0, 2)), slice(0, 4)]
    made = cuts(weight, where)
    assert all(torch.equal(part, weight[cut]) for part, cut in zip(made, where, strict=True))
    for needed in (made, made[:2], made[1:3]):
        loss = torch.stack([(number + 1) * part.sin().sum() for number, part in enumerate(needed)]).sum()
        plain = [weight[cut] for cut, part in zip(where, made, strict=True) if any(part is one for one in needed)]
        wanted = torch.stack([(number + 1) * part.sin().sum() for number, part in enumerate(plain)]).sum()
        (found,), (right,) = (torch.autograd.grad(one, weight, retain_graph=True) for one in (loss, wanted))
        torch.testing.assert_close(found, right)


def test_a_frozen_layer_in_parts_passes_gradients_on() -> None:
    layer, shown = nn.Linear(3, 12).requires_grad_(False), draw(2, 3).requires_grad_()
    LinearParts(layer)(shown, slice(2, 7)).sum().backward()
    torch.testing.assert_close(shown.grad, layer.weight[2:7].sum(dim=0).expand(2, 3))
