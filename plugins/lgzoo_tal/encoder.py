"""The encoder: from a model's graph to node embeddings. A Graphormer, optionally with task layers.

GHN-3 (Knyazev et al., 2023, section 3.2); LoGAH and TAL use the same one. Letters: N nodes, h width of the encoder, H heads,
D the shortest paths, E the edge embedding.

    x   = type + (out channels | in channels | height | width) + in degree + out degree + distance from the input
    e   = W2 ReLU(W1 (E[D + 2] | E[D^T + 2]))                     (N, N, H), the same in every layer
    x  <- x + Wo softmax(Q K^T / sqrt(h / H) + e) V               of LN1(x), or of (1 + gamma) LN1(x) + beta in a task layer
    x  <- x + W4 GELU(W3 LN2(x))

The parameters have the released code's names.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from learngene_zoo.plugin import WrongCall
from lgzoo_tal.graph import Graph
from lgzoo_tal.hypernet_spec import DEGREES, EDGES, INPUT_DISTANCES, HypernetSpec
from lgzoo_tal.places import distances, relative

NO_PATH = 2  # the row of the edge embedding for two nodes without a path; a path of n edges has row n + 2


def table(rows: int, width: int) -> nn.Embedding:
    """An uninitialised embedding: initialising one on the meta device would import compilers, which takes a second."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


@lru_cache(maxsize=32)
def channel_grid(classes: int) -> tuple[int, ...]:
    """The numbers of channels with an embedding of their own, ascending (released code). The number of classes is one of them."""
    return tuple(sorted({1, 3, classes, *range(8, 64, 8), *range(64, 4096, 16), *range(4096, 8193, 32)}))


@lru_cache(maxsize=8)
def spatial_grid(spatial: int) -> tuple[int, ...]:
    """The kernel heights and widths with an embedding of their own, ascending; `spatial` is the largest kernel."""
    return tuple(sorted({*range(1, max(11, spatial - 1) + 1, 2), 14, 16}))


@lru_cache(maxsize=4096)
def indices(shape: tuple[int, ...] | None, classes: int, spatial: int) -> tuple[int, int, int, int]:
    """Rows of a parameter's output and input channels, kernel height and width; those after the last for None, no parameter."""
    channels, kernels = channel_grid(classes), spatial_grid(spatial)
    if shape is None:
        return len(channels), len(channels), len(kernels), len(kernels)
    out, into, high, wide = (*shape, 1, 1, 1)[:4]  # an absent axis has length 1
    rows = channel_index(out, channels), channel_index(into, channels)
    return *rows, kernel_index(high, kernels), kernel_index(wide, kernels)


def channel_index(size: int, grid: tuple[int, ...]) -> int:
    """The row of a number of channels: 4 to 7 count as 8 unless they are on the grid."""
    return _nearest(8 if 4 <= size < 8 and size not in grid else size, grid)


def kernel_index(size: int, grid: tuple[int, ...]) -> int:
    """The row of a kernel's height or width: 2 counts as 3."""
    return _nearest(3 if size == 2 else size, grid)


def _nearest(size: int, grid: tuple[int, ...]) -> int:
    """The row of the nearest size, the smaller of two equally near ones; the last row beyond the grid."""
    return min(range(len(grid)), key=lambda row: abs(grid[row] - size))


class ShapeEmbedding(nn.Module):
    """Embeds the shape of a node's parameter: output and input channels, kernel height and width, a quarter of the width each."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        self.classes, self.spatial = spec.classes, spec.spatial
        self.embed_spatial = table(len(spatial_grid(spec.spatial)) + 1, spec.hidden // 4)
        self.embed_channel = table(len(channel_grid(spec.classes)) + 1, spec.hidden // 4)

    def forward(self, graph: Graph) -> Tensor:
        """(N, h)"""
        rows = [indices(shape, self.classes, self.spatial) for shape in graph.shapes]
        rows_N4 = torch.tensor(rows, device=self.embed_channel.weight.device)
        both = self.embed_channel(rows_N4[:, :2]), self.embed_spatial(rows_N4[:, 2:])
        return torch.cat(both, dim=1).flatten(1)


class TaskLayer(nn.Module):
    """TAL's equations 2 and 3: scales and shifts the node features f by linear functions of the task embedding."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        assert spec.task is not None
        self.residual = spec.task_form == "residual"
        self.fc_gamma = nn.Linear(spec.task, spec.hidden, bias=self.residual)
        self.fc_beta = nn.Linear(spec.task, spec.hidden, bias=self.residual)

    def forward(self, nodes: Tensor, task: Tensor) -> Tensor:
        """(1 + gamma) f + beta, as released, if `residual`; else gamma f + beta, as printed."""
        gamma, beta = self.fc_gamma(task), self.fc_beta(task)
        return torch.addcmul(beta, 1 + gamma if self.residual else gamma, nodes)


class Attention(nn.Module):
    """Self-attention over all nodes. The first layer's one also computes the edge bias, which all layers add."""

    def __init__(self, spec: HypernetSpec, first: bool) -> None:
        super().__init__()
        h, self.heads = spec.hidden, spec.heads
        self.to_qkv = nn.Linear(h, 3 * h, bias=False)
        self.to_out = nn.Sequential(nn.Linear(h, h))
        if first:
            self.edge_embed = nn.ModuleDict({"embed": table(EDGES, h)})
            self.proj_e = nn.Sequential(nn.Linear(2 * h, h), nn.ReLU(), nn.Linear(h, spec.heads))

    def forward(self, nodes: Tensor, bias_HNN: Tensor) -> Tensor:
        """(N, h)"""
        count, hidden = nodes.shape
        q, k, v = self.to_qkv(nodes).view(1, count, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias_HNN[None].to(q.dtype))
        return self.to_out(mixed.transpose(1, 2).reshape(count, hidden))

    def edge_bias(self, graph: Graph) -> Tensor:
        """(H, N, N), added to the attention logits of every layer.

        At most one of two nodes leads to the other, so a pair is described by one signed distance, D - D^T. The network
        runs once per distance instead of once per pair: 67 times instead of 26,896 for 12 blocks.
        """
        longest = int(graph.distances.max())
        paths = torch.arange(-longest, longest + 1, device=graph.distances.device)
        embed = self.edge_embed["embed"]
        both = embed(paths.clamp(min=0) + NO_PATH), embed(paths.neg().clamp(min=0) + NO_PATH)
        table_SH = self.proj_e(torch.cat(both, dim=1))
        return functional.embedding(graph.distances - graph.distances.T + longest, table_SH).permute(2, 0, 1)


class FeedForward(nn.Module):
    """The MLP of a layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        # The identity stands where the released code has a dropout, which counts in the parameters' names.
        self.net = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Identity(), nn.Linear(4 * hidden, hidden))


class Layer(nn.Module):
    """A layer of the Graphormer. The first one also holds the embeddings of a node's place in the graph."""

    def __init__(self, spec: HypernetSpec, index: int) -> None:
        super().__init__()
        h = spec.hidden
        self.modulated = spec.task is not None and spec.task_place == "layers"
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.attn = Attention(spec, first=index == 0)
        self.ff = FeedForward(h)
        if self.modulated or (spec.task is not None and index == 0):
            self.TEN = TaskLayer(spec)
        if index == 0:
            self.form, self.places = spec.form, spec.places
            self.centrality_embed_in = table(DEGREES, h)
            self.centrality_embed_out = table(DEGREES, h)
            self.input_dist_embed = table(INPUT_DISTANCES, h)

    def placed(self, nodes: Tensor, graph: Graph) -> Tensor:
        """(N, h) with the embeddings of the nodes' degrees and of their places added."""
        into = self.centrality_embed_in(graph.in_degree.clamp(max=DEGREES - 1))
        out = self.centrality_embed_out(graph.out_degree.clamp(max=DEGREES - 1))
        if self.places == "relative":
            return nodes + into + out + relative(graph, self.input_dist_embed.weight)
        return nodes + into + out + self.input_dist_embed(distances(graph, self.form).clamp(max=INPUT_DISTANCES - 1))

    def forward(self, nodes: Tensor, bias_HNN: Tensor, task: Tensor | None) -> Tensor:
        """(N, h)"""
        read = self.ln1(nodes)
        if self.modulated:
            read = self.TEN(read, task)
        nodes = nodes + self.attn(read, bias_HNN)
        return nodes + self.ff.net(self.ln2(nodes))


class Graphormer(nn.ModuleList):
    """All layers of the encoder."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__(Layer(spec, index) for index in range(spec.layers))
        self.task, self.normalised = spec.task, spec.task_normalised
        self.once = spec.task is not None and spec.task_place == "graph"

    def forward(self, nodes: Tensor, graph: Graph, task: Tensor | None = None) -> Tensor:
        """(N, h) from the embeddings of types and shapes. Raises `WrongCall` for a task embedding that does not fit."""
        self._check(task)
        if task is not None and self.normalised:
            task = task / task.square().mean().sqrt()
        first = self[0]
        assert isinstance(first, Layer)
        nodes = first.placed(nodes, graph)
        bias_HNN = first.attn.edge_bias(graph)
        if self.once:
            nodes = first.TEN(nodes, task)
        for layer in self:
            nodes = layer(nodes, bias_HNN, task)
        return nodes

    def _check(self, task: Tensor | None) -> None:
        if self.task is None and task is not None:
            raise WrongCall("got a task embedding, but this hypernetwork has no task layer; leave it out")
        if self.task is not None and task is None:
            raise WrongCall(f"this hypernetwork has a task layer; expected a task embedding of shape ({self.task},)")
        if task is not None and tuple(task.shape) != (self.task,):
            raise WrongCall(f"expected a task embedding of shape ({self.task},), got {tuple(task.shape)}")
