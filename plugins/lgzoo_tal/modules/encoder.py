"""The encoder: from a model's graph to node embeddings. A Graphormer, optionally with task layers.

GHN-3 (Knyazev et al., 2023); LoGAH and TAL use the same one. Letters: N nodes, h width of the
encoder, H heads, D the shortest paths, E the edge embedding.

    x   = type + (out channels | in channels | height | width)
          + in degree + out degree + distance from the input
    e   = W2 ReLU(W1 (E[D + 2] | E[D^T + 2]))           (N, N, H), the same in every layer
    x  <- x + Wo softmax(Q K^T / sqrt(h / H) + e) V     of LN1(x), or of (1 + gamma) LN1(x) + beta
                                                        in a task layer
    x  <- x + W4 GELU(W3 LN2(x))

The parameters have the released code's names.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from learngene_zoo.plugin import WrongCall
from lgzoo_tal.hypernet_spec import DEGREES, EDGES, INPUT_DISTANCES, HypernetSpec
from lgzoo_tal.modules.forms import compute_distances, interpolate_places
from lgzoo_tal.modules.graph import Graph

# The row of the edge embedding for two nodes without a path; a path of n edges has row n + 2.
NO_PATH = 2


def build_table(rows: int, width: int) -> nn.Embedding:
    """Build an uninitialised embedding.

    Initialising one on the meta device would import compilers, which takes a second.
    """
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


# Sizes of vocabularies that are channels in LoGAH's hypernetwork for texts.
VOCABULARIES = (32000, 50257, 128256)


@lru_cache(maxsize=32)
def build_channel_grid(classes: int, of_texts: bool = False) -> tuple[int, ...]:
    """Return the numbers of channels that have a row of the embedding, ascending (released code).

    The number of classes is one of them, and for texts those of well-known vocabularies are.
    """
    sizes = {1, 3, classes, *range(8, 64, 8), *range(64, 4096, 16), *range(4096, 8193, 32)}
    return tuple(sorted(sizes.union(VOCABULARIES if of_texts else ())))


@lru_cache(maxsize=8)
def build_spatial_grid(spatial: int) -> tuple[int, ...]:
    """Return the kernel heights and widths that have a row of the embedding, ascending.

    `spatial` is the largest kernel.
    """
    return tuple(sorted({*range(1, max(11, spatial - 1) + 1, 2), 14, 16}))


@lru_cache(maxsize=4096)
def find_indices(
    shape: tuple[int, ...] | None, classes: int, spatial: int, of_texts: bool = False
) -> tuple[int, int, int, int]:
    """Return the rows of a parameter's output and input channels, kernel height and width.

    Args:
        shape: of the parameter; None, no parameter, has the rows after the last.
        classes: the number of classes, which has a row.
        spatial: the largest kernel.
        of_texts: whether the sizes of vocabularies have rows.
    """
    channels, kernels = build_channel_grid(classes, of_texts), build_spatial_grid(spatial)
    if shape is None:
        return len(channels), len(channels), len(kernels), len(kernels)
    out_channels, in_channels, high, wide = (*shape, 1, 1, 1)[:4]  # an absent axis has length 1
    rows = find_channel_index(out_channels, channels), find_channel_index(in_channels, channels)
    return *rows, find_kernel_index(high, kernels), find_kernel_index(wide, kernels)


def find_channel_index(size: int, grid: tuple[int, ...]) -> int:
    """Return the row of a number of channels: 4 to 7 count as 8 unless they are on the grid."""
    return _find_nearest(8 if 4 <= size < 8 and size not in grid else size, grid)


def find_kernel_index(size: int, grid: tuple[int, ...]) -> int:
    """Return the row of a kernel's height or width: 2 counts as 3."""
    return _find_nearest(3 if size == 2 else size, grid)


def _find_nearest(size: int, grid: tuple[int, ...]) -> int:
    """Return the row of the nearest size, the smaller of two equally near ones.

    Beyond the grid it is the last row.
    """
    return min(range(len(grid)), key=lambda row: abs(grid[row] - size))


class ShapeEmbedding(nn.Module):
    """Embed the shape of a node's parameter.

    Output and input channels, kernel height and width have a quarter of the width each.
    """

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        self.classes, self.spatial = spec.classes, spec.spatial
        self.of_texts = spec.inputs == "texts"
        self.embed_spatial = build_table(
            len(build_spatial_grid(spec.spatial)) + 1, spec.hidden // 4
        )
        self.embed_channel = build_table(
            len(build_channel_grid(spec.classes, self.of_texts)) + 1, spec.hidden // 4
        )

    def forward(self, graph: Graph) -> Tensor:
        """Return (N, h), the embeddings of the shapes of a graph's nodes."""
        rows = [
            find_indices(shape, self.classes, self.spatial, self.of_texts) for shape in graph.shapes
        ]
        rows_N4 = torch.tensor(rows, device=self.embed_channel.weight.device)
        embedded = self.embed_channel(rows_N4[:, :2]), self.embed_spatial(rows_N4[:, 2:])
        return torch.cat(embedded, dim=1).flatten(1)


class TaskLayer(nn.Module):
    """Scale and shift node features by linear functions of the task embedding (TAL, eq. 2, 3)."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        assert spec.task is not None
        self.residual = spec.task_form == "residual"
        self.fc_gamma = nn.Linear(spec.task, spec.hidden, bias=self.residual)
        self.fc_beta = nn.Linear(spec.task, spec.hidden, bias=self.residual)

    def forward(self, nodes: Tensor, task: Tensor) -> Tensor:
        """Return (1 + gamma) f + beta, as released, or gamma f + beta, as printed.

        The setting `residual` chooses between them.
        """
        gamma, beta = self.fc_gamma(task), self.fc_beta(task)
        return torch.addcmul(beta, 1 + gamma if self.residual else gamma, nodes)


class Attention(nn.Module):
    """Self-attention over all nodes. The first layer also computes the edge bias of all."""

    def __init__(self, spec: HypernetSpec, first: bool) -> None:
        super().__init__()
        h, self.heads = spec.hidden, spec.heads
        self.to_qkv = nn.Linear(h, 3 * h, bias=False)
        self.to_out = nn.Sequential(nn.Linear(h, h))
        if first:
            self.edge_embed = nn.ModuleDict({"embed": build_table(EDGES, h)})
            self.proj_e = nn.Sequential(nn.Linear(2 * h, h), nn.ReLU(), nn.Linear(h, spec.heads))

    def forward(self, nodes: Tensor, bias_HNN: Tensor) -> Tensor:
        """Return (N, h), the mixed nodes."""
        count, hidden = nodes.shape
        q, k, v = (
            self.to_qkv(nodes)
            .view(1, count, 3, self.heads, hidden // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        values = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias_HNN[None].to(q.dtype)
        )
        return self.to_out(values.transpose(1, 2).reshape(count, hidden))

    def compute_edge_bias(self, graph: Graph) -> Tensor:
        """Return (H, N, N), added to the attention logits of every layer.

        At most one of two nodes leads to the other, so a pair is described by one signed distance,
        D - D^T. The network runs once per distance instead of once per pair: 67 times instead of
        26,896 for 12 blocks.
        """
        longest = int(graph.distances.max())
        paths = torch.arange(-longest, longest + 1, device=graph.distances.device)
        embed = self.edge_embed["embed"]
        pairs = embed(paths.clamp(min=0) + NO_PATH), embed(paths.neg().clamp(min=0) + NO_PATH)
        table_SH = self.proj_e(torch.cat(pairs, dim=1))
        return functional.embedding(
            graph.distances - graph.distances.T + longest, table_SH
        ).permute(2, 0, 1)


class FeedForward(nn.Module):
    """The MLP of a layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        # The identity stands where the released code has a dropout, which counts in the parameters'
        # names.
        self.net = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Identity(), nn.Linear(4 * hidden, hidden)
        )


class Layer(nn.Module):
    """A layer of the Graphormer. The first one also embeds the places of nodes in the graph."""

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
            self.centrality_embed_in = build_table(DEGREES, h)
            self.centrality_embed_out = build_table(DEGREES, h)
            self.input_dist_embed = build_table(INPUT_DISTANCES, h)

    def embed_places(self, nodes: Tensor, graph: Graph) -> Tensor:
        """Add the embeddings of the nodes' degrees and of their places to `nodes` (N, h)."""
        in_degrees = self.centrality_embed_in(graph.in_degree.clamp(max=DEGREES - 1))
        out_degrees = self.centrality_embed_out(graph.out_degree.clamp(max=DEGREES - 1))
        if self.places == "relative":
            return (
                nodes
                + in_degrees
                + out_degrees
                + interpolate_places(graph, self.input_dist_embed.weight)
            )
        return (
            nodes
            + in_degrees
            + out_degrees
            + self.input_dist_embed(
                compute_distances(graph, self.form).clamp(max=INPUT_DISTANCES - 1)
            )
        )

    def forward(self, nodes: Tensor, bias_HNN: Tensor, task: Tensor | None) -> Tensor:
        """Return (N, h), the nodes after the layer.

        Args:
            nodes: (N, h) the nodes before the layer.
            bias_HNN: the edge bias.
            task: the task embedding, for a task layer.
        """
        normed = self.ln1(nodes)
        if self.modulated:
            normed = self.TEN(normed, task)
        nodes = nodes + self.attn(normed, bias_HNN)
        return nodes + self.ff.net(self.ln2(nodes))


class Graphormer(nn.ModuleList):
    """All layers of the encoder."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__(Layer(spec, index) for index in range(spec.layers))
        self.task, self.normalised = spec.task, spec.task_normalised
        self.once = spec.task is not None and spec.task_place == "graph"

    def forward(self, nodes: Tensor, graph: Graph, task: Tensor | None = None) -> Tensor:
        """Return (N, h), the nodes after all layers.

        Args:
            nodes: (N, h) the embeddings of types and shapes.
            graph: the graph of the nodes.
            task: the task embedding, for a hypernetwork with a task layer.

        Raises:
            WrongCall: for a task embedding that does not fit.
        """
        self._check_task(task)
        if task is not None and self.normalised:
            task = task / task.square().mean().sqrt()
        first = self[0]
        assert isinstance(first, Layer)
        nodes = first.embed_places(nodes, graph)
        bias_HNN = first.attn.compute_edge_bias(graph)
        if self.once:
            nodes = first.TEN(nodes, task)
        for layer in self:
            nodes = layer(nodes, bias_HNN, task)
        return nodes

    def _check_task(self, task: Tensor | None) -> None:
        if self.task is None and task is not None:
            raise WrongCall(
                "got a task embedding, but this hypernetwork has no task layer; leave it out"
            )
        if self.task is not None and task is None:
            raise WrongCall(
                "this hypernetwork has a task layer; expected a task embedding of shape "
                f"({self.task},)"
            )
        if task is not None and tuple(task.shape) != (self.task,):
            raise WrongCall(
                f"expected a task embedding of shape ({self.task},), got {tuple(task.shape)}"
            )
