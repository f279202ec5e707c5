"""Sums of the absolute values of a model's neurons, for weight subcloning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from learngene_zoo.plugin import Spec, get_blocks, get_table


@contextmanager
def record_magnitudes(
    model: Any,
    spec: Spec,
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]]:
    """Sum absolute values over images and tokens while the context is open.

    Yields the sums of the stream (D,), over the inputs of all blocks and the output of the last;
    and for every block those of the outputs of its heads (A,) and of its hidden neurons (M,), as
    the layers after them read them.

    Args:
        model: the model.
        spec: its shape.
    """
    attention, mlp = get_table(spec).branches(spec)
    blocks: Any = get_blocks(model)
    stream = torch.zeros(spec.width, dtype=torch.float64)
    heads, hidden = (
        [torch.zeros(size, dtype=torch.float64) for _ in blocks]
        for size in (spec.heads_width, spec.hidden)
    )

    def add_to(total: torch.Tensor) -> Any:
        def hook(_: Any, arguments: Any, *output: Any) -> None:
            total.add_((output or arguments)[0].double().abs().flatten(0, -2).sum(dim=0))

        return hook

    handles = [blocks[-1].register_forward_hook(add_to(stream))]
    for block, of_heads, of_hidden in zip(blocks, heads, hidden):
        handles.append(block.register_forward_pre_hook(add_to(stream)))
        for branch, total in ((attention, of_heads), (mlp, of_hidden)):
            writer = block.get_submodule(branch.writer)
            handles.append(writer.register_forward_pre_hook(add_to(total)))
    try:
        yield stream, heads, hidden
    finally:
        for handle in handles:
            handle.remove()
