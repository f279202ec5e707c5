"""An ancestry model with its recorded streams, and the sums that layers are solved towards.

Shapes: R recorded rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from learngene_zoo.plugin import Model, Spec, StateDict
from lgzoo_closed_form.modules.anatomy import Branch, split_block
from lgzoo_closed_form.modules.streams import Pictures, Streams


@dataclass(frozen=True)
class StreamTeacher:
    """The ancestry model with its recorded streams."""

    spec: Spec
    state: StateDict
    model: Model
    pictures: Pictures
    streams: Streams

    def split_block(self, block: int) -> tuple[Branch, Branch]:
        """Return attention and MLP of a block.

        The attention does not turn queries and keys, so its `inner` must not be used.
        """
        return split_block(self.model, block)

    def sum_after_attention(self, block: int) -> Callable[[slice], torch.Tensor]:
        """Return a function of some rows to the sum (R, D) of a block's attention and its input.

        It is the stream after the attention, unless a norm comes after the sum.
        """
        attention, _ = self.split_block(block)
        if attention.norm_after is None:
            return lambda rows: self.streams.middle[block][rows]
        before, heads = self.streams.before[block], self.streams.heads[block]
        return lambda rows: before[rows] + attention.compute_update(heads[rows])

    def sum_after_block(self, block: int) -> Callable[[slice], torch.Tensor]:
        """Return a function of some rows to the sum (R, D) of a block's MLP and its input.

        It is the stream after the block, unless a norm comes after the sum.
        """
        _, mlp = self.split_block(block)
        if mlp.norm_after is None:
            return lambda rows: self.streams.before[block + 1][rows]
        middle = self.streams.middle[block]

        def compute(rows: slice) -> torch.Tensor:
            inputs = middle[rows]
            return inputs + mlp.compute_update(mlp.compute_inputs(inputs))

        return compute

    def weigh_channels(self, block: int) -> torch.Tensor | float:
        """Return the weight of an error in each channel of the sum after a block.

        It is 1 unless a norm comes after the sum, which multiplies the channels by its gains.
        """
        _, mlp = self.split_block(block)
        if mlp.norm_after is None:
            return 1.0
        gains_D: torch.Tensor = mlp.norm_after.get_parameter("weight").detach().double()
        return gains_D.square()
