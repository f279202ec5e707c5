"""`Hypernet`: reads a ViT's graph and writes all its parameters. GHN-3, LoGAH and TAL are the same but for two parts.

    nodes    = LN(Graphormer(type + shape + place in the graph; task))     one vector per node: encoder.py
    blocks   = decoder(nodes)                                              conv_decoder.py or low_rank_decoder.py
    tensors  = copies of the normalised blocks                             fitting.py

What it makes is a differentiable function of its own parameters. These have the released code's names and shapes; those
tensors of the released files that nothing reads are left out.

Two parts of a ViT are no nodes of the graph: the class token and its row of the position embedding. The released code
leaves the token at zero and draws the row anew at every call; here the row is a fixed one (class_position.py), so that a
prediction is a function of the hypernetwork, the spec and the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from learngene_zoo.plugin import BadFile, StateDict, empty, initial, shapes, shapes_in, uninitialised
from lgzoo_tal.centred import POSITIONS, VECTORS, activation, is_interleaved, sorted_rows
from lgzoo_tal.class_position import class_position
from lgzoo_tal.conv_decoder import MatrixDecoder, VectorDecoder
from lgzoo_tal.encoder import Graphormer, ShapeEmbedding, table
from lgzoo_tal.fitting import Blocks, factor, fill, fitted, squashed
from lgzoo_tal.graph import SINK, Graph
from lgzoo_tal.low_rank_decoder import LowRankDecoder
from lgzoo_tal.requests import Request, is_vector, requests_for
from lgzoo_tal.starting import start
from lgzoo_tal.variants import NODE_TYPES, HypernetSpec

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

Made = Iterator[tuple[Request, Blocks, float]]


class Hypernet(nn.Module):
    """A hypernetwork of any of the papers' kinds, with fresh parameters.

    `seed` None leaves them without memory, for `hypernet_of`, which loads them.
    """

    def __init__(self, spec: HypernetSpec, seed: int | None = 0) -> None:
        super().__init__()
        self.spec = spec
        with torch.device("meta"):
            self.embed = table(NODE_TYPES, spec.hidden)
            self.shape_enc = ShapeEmbedding(spec)
            self.gnn = Graphormer(spec)
            self.ln = nn.LayerNorm(spec.hidden)
            self.decoder = LowRankDecoder(spec) if spec.decoder == "low_rank" else MatrixDecoder(spec)
            if spec.decoder == "conv":
                self.decoder_1d = VectorDecoder(spec)
                self.bias_class = nn.Sequential(activation(spec.form), nn.Linear(spec.widest, spec.classes))
        if seed is not None:
            self.to_empty(device="cpu")
            start(self, spec, seed)

    def encode(self, graph: Graph, task: Tensor | None = None) -> Tensor:
        """(N, h) the embeddings of the graph's nodes. Raises `WrongCall` for a task embedding that does not fit."""
        graph = graph if graph.types.device == self.embed.weight.device else graph.to(self.embed.weight.device)
        return self.ln(self.gnn(self.embed(graph.types) + self.shape_enc(graph), graph, task))

    def forward(
        self,
        graph: Graph,
        *,
        task: Tensor | None = None,
        normalise: bool = True,
        head: bool = True,
        noise: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Every parameter of the graph's model by timm's name, and its sink's; differentiable.

        `task` is the task's embedding, `normalise` False leaves the decoder's numbers as they are, `head` False leaves the
        head's out, and with `noise` the class token's position is drawn instead of fixed. Raises `WrongCall`.

        GHN-3 makes as many classes as it was trained with; for other numbers its head is cropped, or repeated.
        """
        made: dict[str, Tensor] = {}
        for request, blocks, scale in self.blocks(graph, task, normalise, head):
            tensors = fitted(blocks, *_plane(request), scale)
            for name, tensor in zip(request.names, tensors):
                whole = tensor[:, 0] if is_vector(request) else tensor
                made[name] = sorted_rows(whole) if is_interleaved(name, self.spec.form) else whole
        row_d = class_position(graph.spec.width, noise).to(made["pos_embed"])
        made["pos_embed"] = torch.cat((row_d[None], made["pos_embed"]))[None]
        made["cls_token"] = torch.zeros_like(row_d)[None, None]
        return {name: made[name] for name in _shapes(graph) if name in made}

    @torch.no_grad()
    def predict(
        self,
        graph: Graph,
        *,
        task: Tensor | None = None,
        normalise: bool = True,
        head: bool = True,
        noise: torch.Generator | None = None,
    ) -> StateDict:
        """What `forward` returns, without gradients: each tensor in memory of its own, ready to be a model's."""
        wanted = {name: shape for name, shape in _shapes(graph).items() if head or not _is_head(graph, name)}
        device = self.embed.weight.device
        if device.type == "cpu":
            made = uninitialised(wanted, torch.float32)
        else:
            made = {name: torch.empty(shape, device=device) for name, shape in wanted.items()}
        made["cls_token"].zero_()
        made["pos_embed"][0, 0] = class_position(graph.spec.width, noise)
        for request, blocks, scale in self.blocks(graph, task, normalise, head):
            for name, block in zip(request.names, blocks):
                whole = made[name][0, 1:] if request.role == "positions" else made[name]
                fill(whole[:, None] if is_vector(request) else whole, block, scale)
                if is_interleaved(name, self.spec.form):
                    whole.copy_(sorted_rows(whole))
        return made

    def blocks(self, graph: Graph, task: Tensor | None = None, normalise: bool = True, head: bool = True) -> Made:
        """For each request its blocks as they are copied, and what they are multiplied by before.

        (L, o, 1) of vectors, (1, patches, i) of positions, else (L, o, i, ...). Decoders always compute in float32.
        """
        positions, vectors = (POSITIONS, VECTORS) if self.spec.form == "centred" else (1, 1)
        nodes = self.encode(graph, task)
        with torch.autocast(nodes.device.type, enabled=False):
            for request, blocks in self._decoded(nodes.float(), requests_for(graph, head)):
                if isinstance(blocks, Tensor) and is_vector(request):
                    yield request, (squashed(blocks * vectors, request.role) if normalise else blocks)[:, :, None], 1
                elif isinstance(blocks, Tensor) and request.role == "positions":
                    yield request, blocks[:, 0].flatten(2).mT, positions if normalise else 1
                else:
                    yield request, blocks, factor(request.shape) if normalise else 1

    def _decoded(self, nodes: Tensor, wanted: list[Request]) -> Iterator[tuple[Request, Blocks]]:
        """What the decoders make, as they make it."""
        if isinstance(self.decoder, LowRankDecoder):
            yield from self.decoder(nodes, wanted)
            return
        yield from self.decoder_1d(nodes, [request for request in wanted if is_vector(request)], self.bias_class)
        yield from self.decoder(nodes, [request for request in wanted if not is_vector(request)])


def hypernet_of(spec: HypernetSpec, state: StateDict, *, trainable: bool = False) -> Hypernet:
    """A hypernetwork with these tensors: frozen and sharing their memory, or `trainable` and with memory of its own.

    Raises `BadFile` if a tensor is missing, extra or of another shape.
    """
    hypernet = Hypernet(spec, seed=None)
    wanted, found = {name: tuple(tensor.shape) for name, tensor in hypernet.state_dict().items()}, shapes_in(state)
    for name, shape in wanted.items():
        if found.get(name) != shape:
            told = f"has shape {found[name]}" if name in found else "is missing"
            raise BadFile(f"the hypernetwork's tensor {name} {told}; {shape} is wanted: take a file of this variant")
    extra = next((name for name in found if name not in wanted), None)
    if extra is not None:
        raise BadFile(f"there is a tensor {extra}, which this hypernetwork does not have: take a file of this variant")
    tensors = {name: state[name].float() for name in wanted}
    if trainable:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    hypernet.load_state_dict(tensors, strict=True, assign=True)
    return hypernet.requires_grad_(trainable).train(trainable)


def model_from(
    hypernet: Hypernet,
    graph: Graph,
    *,
    task: Tensor | None = None,
    head: bool = True,
    seed: int = 0,
    noise: torch.Generator | None = None,
) -> VisionTransformer:
    """The graph's model with the predicted parameters, in eval mode. Without `head` its head starts afresh, by `seed`."""
    made = hypernet.predict(graph, task=task, head=head, noise=noise)
    state = {name: tensor for name, tensor in made.items() if name not in SINK}
    if not head:
        fresh = initial(graph.spec, seed, names=[graph.class_weight, graph.class_bias])
        state |= {name: tensor.to(state["cls_token"]) for name, tensor in fresh.items()}
    model = empty(graph.spec)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def _shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Of every parameter that is made, in timm's order; the sink's last."""
    sink = {name: shape for name, shape in zip(graph.names, graph.shapes) if name in SINK and shape is not None}
    return shapes(graph.spec) | {str(name): shape for name, shape in sink.items()}


def _is_head(graph: Graph, name: str) -> bool:
    return name in (graph.class_weight, graph.class_bias)


def _plane(request: Request) -> tuple[int, int]:
    """Rows and columns that blocks are copied over."""
    if request.role == "positions":
        return request.shape[2] * request.shape[3], request.shape[1]
    return request.shape[0], 1 if is_vector(request) else request.shape[1]
