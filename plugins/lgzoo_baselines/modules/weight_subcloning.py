"""Sums of the absolute values of a model's neurons, for weight subcloning."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch

from learngene_zoo.plugin import (
    Spec,
    Tokens,
    compute_logits,
    gather_values,
    get_blocks,
    get_table,
)


class Magnitudes(NamedTuple):
    """Sums of absolute values over images and tokens, float64."""

    stream: torch.Tensor  # (D,) over the inputs of all blocks and the output of the last
    heads: torch.Tensor  # (L, A) of the outputs of the heads, as the next layer reads them
    hidden: torch.Tensor  # (L, M) of the hidden neurons, as the next layer reads them


@torch.no_grad()
def sum_magnitudes(model: Any, spec: Spec, batches: Iterable[Any]) -> Magnitudes:
    """Return the sums over all batches, without the padding of texts.

    Processes share the batches; each returns the sums of all.

    Args:
        model: the model.
        spec: its shape.
        batches: its inputs.
    """
    attention, mlp = get_table(spec).branches(spec)
    blocks: Any = get_blocks(model)
    stream_D = torch.zeros(spec.width, dtype=torch.float64)
    heads_LA, hidden_LM = (
        torch.zeros(len(blocks), size, dtype=torch.float64)
        for size in (spec.heads_width, spec.hidden)
    )
    mask_BN: torch.Tensor | None = None

    def add_to(total: torch.Tensor) -> Any:
        def hook(_: Any, arguments: Any, *output: Any) -> None:
            values = (output or arguments)[0].double().abs()
            if mask_BN is not None:
                values = values * mask_BN[:, :, None]
            total.add_(values.flatten(0, -2).sum(dim=0))

        return hook

    with ExitStack() as stack:
        stack.callback(blocks[-1].register_forward_hook(add_to(stream_D)).remove)
        for block, heads_A, hidden_M in zip(blocks, heads_LA, hidden_LM):
            stack.callback(block.register_forward_pre_hook(add_to(stream_D)).remove)
            for branch, total in ((attention, heads_A), (mlp, hidden_M)):
                writer = block.get_submodule(branch.writer)
                stack.callback(writer.register_forward_pre_hook(add_to(total)).remove)
        for inputs in batches:
            if len(inputs):
                mask_BN = inputs.mask if isinstance(inputs, Tokens) else None
                compute_logits(model, inputs)
    return Magnitudes(*(_sum_over_processes(total) for total in (stream_D, heads_LA, hidden_LM)))


def _sum_over_processes(total: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sum(gather_values(total.numpy()), axis=0))
