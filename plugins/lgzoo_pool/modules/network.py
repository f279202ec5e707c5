"""Build several anchors and the stitches between them as one module, which runs any path.

Its tensors have the learngene's names: `anchors.0.blocks.3.attn.qkv.weight`, and
`stitches.0.5.weight` for the linear layer of window 5 of the first two anchors that are joined.

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
    build_model,
    derive_seed,
    evaluate_each,
)
from lgzoo_pool.paths import BlockSpan, Path, Stitch, StitchLayout

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from learngene_zoo.plugin import Descendant, Task


class StitchedNetwork(nn.Module):
    """timm's anchors, from narrow to wide, and the stitches of a layout, not initialised."""

    def __init__(self, anchors: Sequence[VisionTransformer], layout: StitchLayout) -> None:
        super().__init__()
        self.layout = layout
        self.anchors = nn.ModuleList(anchors)
        layers: list[list[nn.Module]] = [[] for _ in layout.joints]
        for stitch, _ in layout.stitches:
            front, end = (anchors[number].embed_dim for number in layout.joints[stitch.joint])
            layers[stitch.joint].append(nn.utils.skip_init(nn.Linear, front, end))
        self.stitches = nn.ModuleList(map(nn.ModuleList, layers))

    def forward(self, images_BCHW: torch.Tensor, path: Path) -> torch.Tensor:
        """Return the logits along a path."""
        logits: torch.Tensor = self.get_anchor(path.last).forward_head(
            self.forward_features(images_BCHW, path)
        )
        return logits

    def forward_features(self, images_BCHW: torch.Tensor, path: Path) -> torch.Tensor:
        """Return the tokens (B, N, D) after the last block of a path and the final norm."""
        tokens_BND = self.embed_images(images_BCHW, path.first)
        for stitch, part in zip([None, *path.stitches], path.parts):
            if stitch is not None:
                tokens_BND = self.apply_stitch(tokens_BND, stitch)
            tokens_BND = self.run_blocks(tokens_BND, part)
        return self.apply_norm(tokens_BND, path.last)

    def embed_images(self, images_BCHW: torch.Tensor, anchor: int) -> torch.Tensor:
        """Return the input (B, N, D) of an anchor's first block."""
        model = self.get_anchor(anchor)
        tokens_BND: torch.Tensor = model._pos_embed(model.patch_embed(images_BCHW))
        tokens_BND = model.norm_pre(model.patch_drop(tokens_BND))
        return tokens_BND

    def compute_streams(self, images_BCHW: torch.Tensor, anchor: int) -> list[torch.Tensor]:
        """Return the input (B, N, D) of every block of an anchor, and the last one's output."""
        streams = [self.embed_images(images_BCHW, anchor)]
        for block in self.get_anchor(anchor).blocks:
            streams.append(block(streams[-1]))
        return streams

    def apply_stitch(self, tokens_BND: torch.Tensor, stitch: Stitch) -> torch.Tensor:
        """Return the tokens after a stitch, in the end anchor's width."""
        tokens_BND = self.get_stitch(stitch)(tokens_BND)
        return tokens_BND

    def run_blocks(self, tokens_BND: torch.Tensor, part: BlockSpan) -> torch.Tensor:
        """Return the tokens after consecutive blocks of an anchor."""
        for block in self.get_anchor(part.anchor).blocks[part.start : part.stop]:
            tokens_BND = block(tokens_BND)
        return tokens_BND

    def apply_norm(self, tokens_BND: torch.Tensor, anchor: int) -> torch.Tensor:
        """Return the tokens after an anchor's final norm, if that comes before pooling."""
        tokens_BND = self.get_anchor(anchor).norm(tokens_BND)
        return tokens_BND

    def get_anchor(self, number: int) -> VisionTransformer:
        """Return an anchor."""
        model: Any = self.anchors[number]
        return model

    def get_stitch(self, stitch: Stitch) -> nn.Linear:
        """Return the linear layer of a stitch."""
        layers: Any = self.stitches[stitch.joint]
        layer: nn.Linear = layers[stitch.window]
        return layer

    def set_stitches(self, state: StateDict) -> None:
        """Copy the tensors of all stitches, by the learngene's names."""
        for name, tensor in self.stitches.named_parameters():
            tensor.data.copy_(state[f"stitches.{name}"])


class PathModel:
    """The network along a path, with the methods of a model that objectives call.

    Not a module, so that nothing is trained or saved twice. `path` may change, but always ends in
    the same anchor, whose head is the model's.
    """

    def __init__(self, network: StitchedNetwork, path: Path) -> None:
        self.network, self.path = network, path

    def __call__(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.network(images_BCHW, self.path)
        return logits

    def forward_features(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the tokens (B, N, D)."""
        return self.network.forward_features(images_BCHW, self.path)

    def forward_head(self, tokens_BND: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """Return the logits, or with `pre_logits` the head's input."""
        model = self.network.get_anchor(self.path.last)
        outputs: torch.Tensor = model.forward_head(tokens_BND, pre_logits=pre_logits)
        return outputs

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = self.network.get_anchor(self.path.last).norm
        return norm

    def get_classifier(self) -> nn.Linear:
        """Return the head."""
        head: nn.Linear = self.network.get_anchor(self.path.last).get_classifier()
        return head


def build_network(specs: Sequence[Spec], layout: StitchLayout, state: StateDict) -> StitchedNetwork:
    """Build a network with copies of these tensors, in eval mode, trainable.

    Args:
        specs: the shapes of the anchors.
        layout: of the stitches.
        state: the tensors, under the learngene's names.

    Raises:
        BadFile: for an anchor that does not fit.
    """
    anchors = [
        build_model(spec, select_prefix(f"anchors.{i}.", state)) for i, spec in enumerate(specs)
    ]
    network = StitchedNetwork(anchors, layout)
    network.set_stitches(state)
    return network.eval()


def stitch_anchors(
    anchors: Sequence[Descendant], layout: StitchLayout, stitches: StateDict | int
) -> StitchedNetwork:
    """Build a network of models with these stitches, or with random ones from a seed."""
    specs = [anchor.spec for anchor in anchors]
    state = merge_anchors([anchor.state for anchor in anchors])
    start = draw_stitches(specs, layout, stitches) if isinstance(stitches, int) else stitches
    return build_network(specs, layout, {**state, **start})


def draw_stitches(specs: Sequence[Spec], layout: StitchLayout, seed: int) -> StateDict:
    """Draw random stitches: weights N(0, 1/sqrt(fan in)), biases 0.

    Each tensor is a function of the seed and its name.
    """
    stitches: dict[str, torch.Tensor] = {}
    for name, shape in list_stitch_shapes(specs, layout).items():
        stitches[name] = torch.zeros(shape)
        if len(shape) == 2:
            generator = torch.Generator().manual_seed(derive_seed(seed, "initial", name))
            stitches[name].normal_(std=shape[1] ** -0.5, generator=generator)
    return stitches


def list_stitch_shapes(specs: Sequence[Spec], layout: StitchLayout) -> dict[str, tuple[int, ...]]:
    """Return the shape of every stitch's tensors, in the order of their names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for stitch, _ in layout.stitches:
        front, end = (specs[anchor].width for anchor in layout.joints[stitch.joint])
        shapes |= {f"{stitch.name}.weight": (end, front), f"{stitch.name}.bias": (end,)}
    return shapes


def merge_anchors(states: Sequence[StateDict]) -> StateDict:
    """Return the tensors of complete anchors under the learngene's names."""
    return {f"anchors.{i}.{name}": state[name] for i, state in enumerate(states) for name in state}


def select_prefix(prefix: str, state: StateDict) -> StateDict:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


# Every path in one pass over the images of a split: each image is read once, and the blocks of a
# path's first anchor run once for all paths that begin in it. The logits are bit-equal to those of
# each path by itself.


def measure_paths(
    network: StitchedNetwork,
    settings: Sequence[Mapping[str, Json]],
    task: Task,
    input_format: InputFormat,
    run: Run,
    *,
    images: int | None = None,
) -> dict[str, Json]:
    """Return `paths` of a learngene's metrics, or nothing if `images` is 0.

    Each path has its settings, its metric on validation images, and their number.

    Args:
        network: with the paths.
        settings: the expander's that lead to each path, in the order of the layout's paths.
        task: the data set.
        input_format: of the images.
        run: how to compute.
        images: how many; by default all.
    """
    if images == 0:
        return {}
    results = evaluate_paths(
        network, network.layout.paths, task, "validation", input_format, run, images=images
    )
    rows = [
        {**names, result.metric: result.value, "images": result.images}
        for names, result in zip(settings, results, strict=True)
    ]
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
    """Evaluate every path on a split; each result is equal to that of its model alone.

    Args:
        network: with the paths.
        paths: to evaluate; the results are in their order.
        task: the data set.
        split: of it.
        input_format: of the images.
        run: how to compute.
        batch_size: by default the metric's.
        images: how many; by default all.
    """
    order = sorted(range(len(paths)), key=lambda number: paths[number].first)
    forward_each = build_forward_each(network, [paths[number] for number in order])
    results = evaluate_each(
        forward_each,
        network,
        task,
        split,
        input_format,
        run,
        batch_size=batch_size,
        images=images,
    )
    return tuple(results[order.index(number)].evaluation for number in range(len(paths)))


def build_forward_each(
    network: StitchedNetwork, paths: Sequence[Path]
) -> Callable[[torch.Tensor], Iterator[torch.Tensor]]:
    """Return a function from images (B, C, H, W) to the logits (B, K) along each path in turn.

    Neighbouring paths that begin in the same anchor share its blocks.
    """

    def forward_each(images_BCHW: torch.Tensor) -> Iterator[torch.Tensor]:
        for anchor, neighbours in groupby(paths, key=lambda path: path.first):
            streams = network.compute_streams(images_BCHW, anchor)
            for path in neighbours:
                tokens_BND = streams[path.parts[0].stop]
                for stitch, part in zip(path.stitches, path.parts[1:]):
                    tokens_BND = network.apply_stitch(tokens_BND, stitch)
                    tokens_BND = network.run_blocks(tokens_BND, part)
                tokens_BND = network.apply_norm(tokens_BND, path.last)
                yield network.get_anchor(path.last).forward_head(tokens_BND)

    return forward_each
