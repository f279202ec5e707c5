"""Stochastic depth (Huang et al. 2016) set on a model for as long as it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from learngene_zoo.errors import WrongCall

PLACES = ("drop_path1", "drop_path2")


@contextmanager
def stochastic_depth(module: nn.Module, rate: float) -> Iterator[None]:
    """Inside, block i of L of every ViT in `module` drops its updates with probability rate * i / (L - 1).

    With rate 0 everything stays as it is. Raises `WrongCall` if there is no block to drop.
    """
    if not rate:
        yield
        return
    before = [(block, place, getattr(block, place)) for block, place, _ in _places(module, rate)]
    if not before:
        raise WrongCall("drop_path needs blocks with drop_path1 and drop_path2, as timm's ViTs have; leave it 0")
    from timm.layers import DropPath

    try:
        for block, place, probability in list(_places(module, rate)):
            setattr(block, place, DropPath(probability) if probability else nn.Identity())
        yield
    finally:
        for block, place, layer in before:
            setattr(block, place, layer)


def _places(module: nn.Module, rate: float) -> Iterator[tuple[nn.Module, str, float]]:
    """Every place a `DropPath` can be, with its probability. A layer may hold several blocks (a routed one holds two)."""
    for vit in module.modules():
        layers = getattr(vit, "blocks", None)
        if not isinstance(layers, (nn.Sequential, nn.ModuleList)):
            continue
        for i, layer in enumerate(layers):
            for block in layer.modules():
                for place in PLACES:
                    if hasattr(block, place):
                        yield block, place, rate * i / max(len(layers) - 1, 1)
