"""Sums of the absolute values of a model's neurons, for weight subcloning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def record_magnitudes(
    model: Any,
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]]:
    """Sum absolute values over images and tokens while the context is open.

    Yields the sums of the stream (D,), over the inputs of all blocks and the output of the last;
    and for every block those of the outputs of its heads (A,) and of its hidden neurons (M,), as
    the layers after them read them.
    """
    stream = torch.zeros(model.embed_dim, dtype=torch.float64)
    heads, hidden = (
        [torch.zeros(layer.in_features, dtype=torch.float64) for layer in layers]
        for layers in ([b.attn.proj for b in model.blocks], [b.mlp.fc2 for b in model.blocks])
    )

    def add_to(total: torch.Tensor) -> Any:
        def hook(_: Any, arguments: Any, *output: Any) -> None:
            total.add_((output or arguments)[0].double().abs().flatten(0, -2).sum(dim=0))

        return hook

    handles = [model.blocks[-1].register_forward_hook(add_to(stream))]
    for block, of_heads, of_hidden in zip(model.blocks, heads, hidden):
        handles.append(block.register_forward_pre_hook(add_to(stream)))
        handles.append(block.attn.proj.register_forward_pre_hook(add_to(of_heads)))
        handles.append(block.mlp.fc2.register_forward_pre_hook(add_to(of_hidden)))
    try:
        yield stream, heads, hidden
    finally:
        for handle in handles:
            handle.remove()
