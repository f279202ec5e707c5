"""Several anchors and the stitches between them as one module, which runs any path.

Its tensors have the learngene's names: `anchors.0.blocks.3.attn.qkv.weight`, and `stitches.0.5.weight` for the linear
layer of window 5 of the first two anchors that are joined.

Shapes: B images, N tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.plugin import (
    Evaluation,
    InputFormat,
    Json,
    Run,
    Spec,
    StateDict,
    derive_seed,
    evaluate_each,
    model_of,
)
from lgzoo_pool.paths import Layout, Path, Span, Stitch

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import Descendant, Task


class StitchedNetwork(nn.Module):
    """timm's anchors, from narrow to wide, and the stitches of a layout, which are not initialised here."""

    def __init__(self, anchors: Sequence[VisionTransformer], layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.anchors = nn.ModuleList(anchors)
        layers: list[list[nn.Module]] = [[] for _ in layout.joints]
        for stitch, _ in layout.stitches:
            front, end = (anchors[number].embed_dim for number in layout.joints[stitch.joint])
            layers[stitch.joint].append(nn.utils.skip_init(nn.Linear, front, end))
        self.stitches = nn.ModuleList(map(nn.ModuleList, layers))

    def forward(self, images_BCHW: torch.Tensor, path: Path) -> torch.Tensor:
        """The logits along a path."""
        logits: torch.Tensor = self.anchor(path.last).forward_head(self.features(images_BCHW, path))
        return logits

    def features(self, images_BCHW: torch.Tensor, path: Path) -> torch.Tensor:
        """Tokens (B, N, D) after the last block of a path and the final norm."""
        tokens_BND = self.embed(images_BCHW, path.first)
        for stitch, part in zip([None, *path.stitches], path.parts):
            tokens_BND = self.through(tokens_BND if stitch is None else self.joined(tokens_BND, stitch), part)
        return self.normed(tokens_BND, path.last)

    def embed(self, images_BCHW: torch.Tensor, anchor: int) -> torch.Tensor:
        """The input (B, N, D) of an anchor's first block."""
        model = self.anchor(anchor)
        tokens_BND: torch.Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images_BCHW))))
        return tokens_BND

    def streams(self, images_BCHW: torch.Tensor, anchor: int) -> list[torch.Tensor]:
        """The input tokens (B, N, D) of every block of an anchor, and the output of the last one."""
        streams = [self.embed(images_BCHW, anchor)]
        for block in self.anchor(anchor).blocks:
            streams.append(block(streams[-1]))
        return streams

    def joined(self, tokens_BND: torch.Tensor, stitch: Stitch) -> torch.Tensor:
        """Tokens after a stitch, in the end anchor's width."""
        tokens_BND = self.linear(stitch)(tokens_BND)
        return tokens_BND

    def through(self, tokens_BND: torch.Tensor, part: Span) -> torch.Tensor:
        """Tokens after consecutive blocks of an anchor."""
        for block in self.anchor(part.anchor).blocks[part.start : part.stop]:
            tokens_BND = block(tokens_BND)
        return tokens_BND

    def normed(self, tokens_BND: torch.Tensor, anchor: int) -> torch.Tensor:
        """Tokens after an anchor's final norm, where that comes before pooling."""
        tokens_BND = self.anchor(anchor).norm(tokens_BND)
        return tokens_BND

    def anchor(self, number: int) -> VisionTransformer:
        """One anchor."""
        model: Any = self.anchors[number]
        return model

    def linear(self, stitch: Stitch) -> nn.Linear:
        """The linear layer of a stitch."""
        layers: Any = self.stitches[stitch.joint]
        layer: nn.Linear = layers[stitch.window]
        return layer

    def set_stitches(self, state: StateDict) -> None:
        """Copy the tensors of all stitches, by the learngene's names."""
        for name, tensor in self.stitches.named_parameters():
            tensor.data.copy_(state[f"stitches.{name}"])


class Along:
    """The network along a path, as objectives see a model; not a module, so that nothing is trained or saved twice.

    `path` may change, but always ends in the same anchor, whose head is the model's.
    """

    def __init__(self, network: StitchedNetwork, path: Path) -> None:
        self.network, self.path = network, path

    def __call__(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.network(images_BCHW, self.path)
        return logits

    def forward_features(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Tokens (B, N, D)."""
        return self.network.features(images_BCHW, self.path)

    def forward_head(self, tokens_BND: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """Logits, or with `pre_logits` the head's input."""
        out: torch.Tensor = self.network.anchor(self.path.last).forward_head(tokens_BND, pre_logits=pre_logits)
        return out

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = self.network.anchor(self.path.last).norm
        return norm

    def get_classifier(self) -> nn.Linear:
        """The head."""
        head: nn.Linear = self.network.anchor(self.path.last).get_classifier()
        return head


def network_of(specs: Sequence[Spec], layout: Layout, state: StateDict) -> StitchedNetwork:
    """A network with copies of these tensors, in eval mode, trainable. Raises `BadFile` for an anchor that does not fit."""
    anchors = [model_of(spec, under(f"anchors.{i}.", state)) for i, spec in enumerate(specs)]
    network = StitchedNetwork(anchors, layout)
    network.set_stitches(state)
    return network.eval()


def stitched_anchors(anchors: Sequence[Descendant], layout: Layout, stitches: StateDict | int) -> StitchedNetwork:
    """A network of whole models with these stitches, or with random ones from a seed."""
    specs = [anchor.spec for anchor in anchors]
    start = initial_stitches(specs, layout, stitches) if isinstance(stitches, int) else stitches
    return network_of(specs, layout, {**anchors_state([anchor.state for anchor in anchors]), **start})


def initial_stitches(specs: Sequence[Spec], layout: Layout, seed: int) -> StateDict:
    """Random stitches: weights N(0, 1/sqrt(fan in)), each a function of seed and name; biases 0."""
    started: dict[str, torch.Tensor] = {}
    for name, shape in stitch_shapes(specs, layout).items():
        started[name] = torch.zeros(shape)
        if len(shape) == 2:
            generator = torch.Generator().manual_seed(derive_seed(seed, "initial", name))
            started[name].normal_(std=shape[1] ** -0.5, generator=generator)
    return started


def stitch_shapes(specs: Sequence[Spec], layout: Layout) -> dict[str, tuple[int, ...]]:
    """The shape of every stitch's tensors, in the order of their names."""
    found: dict[str, tuple[int, ...]] = {}
    for stitch, _ in layout.stitches:
        front, end = (specs[anchor].width for anchor in layout.joints[stitch.joint])
        found |= {f"{stitch.name}.weight": (end, front), f"{stitch.name}.bias": (end,)}
    return found


def anchors_state(states: Sequence[StateDict]) -> StateDict:
    """The tensors of whole anchors under the learngene's names."""
    return {f"anchors.{i}.{name}": state[name] for i, state in enumerate(states) for name in state}


def under(prefix: str, state: StateDict) -> StateDict:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


# Every path in one pass over the images of a split: each image is read once, and the blocks of a path's first anchor run once
# for all paths that begin in it. The logits are bit-equal to those of each path by itself.


def path_metrics(
    network: StitchedNetwork,
    settings: Sequence[Mapping[str, Json]],
    task: Task,
    input_format: InputFormat,
    run: Run,
    *,
    images: int | None = None,
) -> dict[str, Json]:
    """`paths` of a learngene's metrics: for each its settings, its metric on validation images, and their number.

    `settings` are the expander's that lead to each path, in the order of the layout's paths. Empty if `images` is 0.
    """
    if images == 0:
        return {}
    found = evaluate_paths(network, network.layout.paths, task, "validation", input_format, run, images=images)
    rows = [{**own, one.metric: one.value, "images": one.images} for own, one in zip(settings, found, strict=True)]
    return {"paths": rows}


def evaluate_paths(
    network: StitchedNetwork,
    paths: Sequence[Path],
    task: Task,
    split: str,
    input_format: InputFormat,
    run: Run,
    *,
    batch_size: int | None = None,
    images: int | None = None,
) -> tuple[Evaluation, ...]:
    """Every path's result on a split, in the order of `paths`, equal to what `evaluate` gives for its own model."""
    order = sorted(range(len(paths)), key=lambda number: paths[number].first)
    answers = along_each(network, [paths[number] for number in order])
    found = evaluate_each(answers, network, task, split, input_format, run, batch_size=batch_size, images=images)
    return tuple(found[order.index(number)].evaluation for number in range(len(paths)))


def along_each(network: StitchedNetwork, paths: Sequence[Path]) -> Callable[[torch.Tensor], Iterator[torch.Tensor]]:
    """A function from images (B, C, H, W) to the logits (B, K) along each path, one after the other.

    Neighbouring paths that begin in the same anchor share its blocks.
    """

    def answers(images_BCHW: torch.Tensor) -> Iterator[torch.Tensor]:
        for anchor, beginning in groupby(paths, key=lambda path: path.first):
            streams = network.streams(images_BCHW, anchor)
            for path in beginning:
                tokens_BND = streams[path.parts[0].stop]
                for stitch, part in zip(path.stitches, path.parts[1:]):
                    tokens_BND = network.through(network.joined(tokens_BND, stitch), part)
                yield network.anchor(path.last).forward_head(network.normed(tokens_BND, path.last))

    return answers
