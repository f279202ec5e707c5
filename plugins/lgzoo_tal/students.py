"""The models whose weights are predicted: timm's modules without any weights of their own, one for each shape.

Shapes: B images, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from learngene_zoo.plugin import ViTSpec, empty


class _Body(nn.Module):
    """A ViT up to its last norm."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit
        self.names = [name for name, _ in vit.named_parameters()]

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        tokens_BND: torch.Tensor = self.vit.forward_features(images_BCHW)
        return tokens_BND


@lru_cache(maxsize=512)  # a set has at most a few hundred shapes, and a module without weights is small
def _body(spec: ViTSpec) -> _Body:
    return _Body(empty(spec))


def tokens_of(spec: ViTSpec, parameters: Mapping[str, torch.Tensor], images_BCHW: torch.Tensor) -> torch.Tensor:
    """All tokens after the last norm, (B, N, D), of the model with these parameters; gradients flow into them.

    What else is among the parameters, as the head, is left out.
    """
    body = _body(spec.with_(classes=0))  # one module for all tasks
    own = {f"vit.{name}": parameters[name] for name in body.names}
    # All there are, none shared: so nothing has to look through the modules for others, which would take milliseconds.
    tokens_BND: torch.Tensor = functional_call(body, own, (images_BCHW,), tie_weights=False)
    return tokens_BND
