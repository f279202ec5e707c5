"""What a model gives away in a pass that it makes anyway: its logits, and block and attention outputs at the wanted levels.

Shapes: B images, N tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import Batch


@dataclass(frozen=True)
class Features:
    """The outputs of one pass, those of blocks by the block's number, counted from 0."""

    blocks: dict[int, torch.Tensor] = field(default_factory=dict)  # B: after both residuals, (B, N, D)
    attentions: dict[int, torch.Tensor] = field(default_factory=dict)  # A: after proj, before drop path and residual
    answers: list[torch.Tensor] = field(default_factory=list)  # the head's: (B, K), or (B, patches, K) of a dense model

    @property
    def logits(self) -> torch.Tensor:
        """The answer of the one pass that was watched."""
        (logits,) = self.answers
        return logits


Teacher = Callable[["Batch"], Features]


def nobody(batch: Batch) -> Features:
    """In a teacher's place where none is asked."""
    raise AssertionError("there is no teacher to ask")


@contextmanager
def watching(model: VisionTransformer, positions: Collection[int], *, logits: bool) -> Iterator[Features]:
    """Features that fill themselves, within, while `model` runs: those of the blocks at `positions`, and the logits."""
    seen = Features()
    with ExitStack() as hooks:

        def listen(module: nn.Module, keep: Callable[[torch.Tensor], Any]) -> None:
            handle = module.register_forward_hook(lambda module, inputs, output: keep(output))
            hooks.callback(handle.remove)

        for position in positions:
            block = model.blocks[position]
            listen(block, _into(seen.blocks, position))
            listen(block.attn, _into(seen.attentions, position))
        if logits:
            listen(model.get_classifier(), _into_list(seen.answers))
        yield seen


def _into(place: dict[int, torch.Tensor], position: int) -> Callable[[torch.Tensor], None]:
    """A hook must return None: anything else would take the output's place."""

    def keep(output: torch.Tensor) -> None:
        place[position] = output

    return keep


def _into_list(place: list[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    def keep(output: torch.Tensor) -> None:
        place.append(output)

    return keep


class Ancestor:
    """The frozen ancestry model as a teacher: a batch's features at the levels `positions`, and its logits if asked for.

    It runs no further than it must: with no logits asked for, to the last of the positions.
    """

    def __init__(self, model: VisionTransformer, positions: Sequence[int], *, logits: bool = True) -> None:
        self.model = model.eval().requires_grad_(False)
        self.positions, self.logits = tuple(positions), logits

    def __call__(self, batch: Batch) -> Features:
        """The features of one batch, without gradients."""
        return self.asked(batch.images)

    def asked(self, images_BCHW: torch.Tensor) -> Features:
        """The features of images."""
        # Not inference_mode: what the matrices W and M are given must be storable for their backward pass.
        with torch.no_grad(), watching(self.model, self.positions, logits=self.logits) as seen:
            if self.logits:
                self.model(images_BCHW)
            elif self.positions:
                last = [max(self.positions)]
                self.model.forward_intermediates(
                    images_BCHW, indices=last, stop_early=True, output_fmt="NLC", intermediates_only=True
                )
        return seen


def parts_of(features: Features) -> dict[str, torch.Tensor]:
    """The tensors of `features` by name: `logits`, `block.3`, `attention.3`."""
    named = {f"block.{position}": tensor for position, tensor in features.blocks.items()}
    named |= {f"attention.{position}": tensor for position, tensor in features.attentions.items()}
    return named | ({"logits": features.logits} if features.answers else {})


def features_of(parts: Mapping[str, torch.Tensor]) -> Features:
    """The inverse of `parts_of`."""
    made = Features()
    for name, tensor in parts.items():
        kind, _, position = name.partition(".")
        if kind == "logits":
            made.answers.append(tensor)
        else:
            (made.blocks if kind == "block" else made.attentions)[int(position)] = tensor
    return made
