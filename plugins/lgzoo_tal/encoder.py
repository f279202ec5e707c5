"""The encoder: what a target's graph becomes before any decoder reads it. A Graphormer, with a task layer where asked for.

GHN-3 (Knyazev et al., 2023, section 3.2), which LoGAH and TAL take over. Letters: N nodes, h width of the encoder, H heads,
D the shortest paths, E the edge embedding.

    x   = type + (out channels | in channels | height | width) + in degree + out degree + distance from the input
    e   = W2 ReLU(W1 (E[D + 2] | E[D^T + 2]))                     (N, N, H), the same in every layer
    x  <- x + Wo softmax(Q K^T / sqrt(h / H) + e) V               of LN1(x), or of (1 + gamma) LN1(x) + beta under a task
    x  <- x + W4 GELU(W3 LN2(x))

The parameters have the released code's names.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from learngene_zoo.plugin import WrongCall
from lgzoo_tal.centred import places
from lgzoo_tal.graph import Graph
from lgzoo_tal.grid import channel_grid, indices, spatial_grid
from lgzoo_tal.variants import DEGREES, EDGES, INPUT_DISTANCES, HypernetSpec

NO_PATH = 2  # the row of the edge embedding for two nodes without a path; a path of n edges has row n + 2


def table(rows: int, width: int) -> nn.Embedding:
    """An embedding without first numbers: on the meta device drawing them would import a second's worth of compilers."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class ShapeEmbedding(nn.Module):
    """A node's parameter by its shape; a quarter of the width for each axis."""

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
    """TAL's equations 2 and 3: scale and shift the nodes' features f by two linear functions of the task embedding."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__()
        assert spec.task is not None
        self.residual = spec.task_form == "residual"
        self.fc_gamma = nn.Linear(spec.task, spec.hidden, bias=self.residual)
        self.fc_beta = nn.Linear(spec.task, spec.hidden, bias=self.residual)

    def forward(self, nodes: Tensor, task: Tensor) -> Tensor:
        """(1 + gamma) * f + beta, as released, where `residual`; else gamma * f + beta, as printed."""
        gamma, beta = self.fc_gamma(task), self.fc_beta(task)
        return torch.addcmul(beta, 1 + gamma if self.residual else gamma, nodes)


class Attention(nn.Module):
    """Every node reads every node. The first layer's holds what makes the edge bias, which all layers add."""

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
        """(H, N, N), what the logits of every layer get.

        Of two nodes at most one leads to the other, so all there is to a pair is one signed distance D - D^T. The network
        runs once per distance instead of once per pair: 67 times for 12 blocks instead of 26 896.
        """
        longest = int(graph.distances.max())
        if longest + NO_PATH >= EDGES:
            raise WrongCall(
                f"a path of {longest} edges; the encoder knows up to {EDGES - NO_PATH - 1}: take fewer layers"
            )
        paths = torch.arange(-longest, longest + 1, device=graph.distances.device)
        embed = self.edge_embed["embed"]
        both = embed(paths.clamp(min=0) + NO_PATH), embed(paths.neg().clamp(min=0) + NO_PATH)
        table_SH = self.proj_e(torch.cat(both, dim=1))
        return functional.embedding(graph.distances - graph.distances.T + longest, table_SH).permute(2, 0, 1)


class FeedForward(nn.Module):
    """Each node by itself."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        # Nothing at place 2: the released code has its dropout there, and the parameters' names count it.
        self.net = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Identity(), nn.Linear(4 * hidden, hidden))


class Layer(nn.Module):
    """One layer of the Graphormer. The first one also holds the embeddings of a node's place in the graph."""

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
            self.form = spec.form
            self.centrality_embed_in = table(DEGREES, h)
            self.centrality_embed_out = table(DEGREES, h)
            self.input_dist_embed = table(INPUT_DISTANCES, h)

    def placed(self, nodes: Tensor, graph: Graph) -> Tensor:
        """(N, h) nodes that know their degrees and how far they are from the input, node 0."""
        into = self.centrality_embed_in(graph.in_degree.clamp(max=DEGREES - 1))
        out = self.centrality_embed_out(graph.out_degree.clamp(max=DEGREES - 1))
        return nodes + into + out + self.input_dist_embed(places(graph, self.form).clamp(max=INPUT_DISTANCES - 1))

    def forward(self, nodes: Tensor, bias_HNN: Tensor, task: Tensor | None) -> Tensor:
        """(N, h)"""
        read = self.ln1(nodes)
        if self.modulated:
            read = self.TEN(read, task)
        nodes = nodes + self.attn(read, bias_HNN)
        return nodes + self.ff.net(self.ln2(nodes))


class Graphormer(nn.ModuleList):
    """All layers."""

    def __init__(self, spec: HypernetSpec) -> None:
        super().__init__(Layer(spec, index) for index in range(spec.layers))
        self.task = spec.task
        self.once = spec.task is not None and spec.task_place == "graph"

    def forward(self, nodes: Tensor, graph: Graph, task: Tensor | None = None) -> Tensor:
        """(N, h) from the embeddings of types and shapes. Raises `WrongCall` for a task embedding that does not fit."""
        self._check(task)
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
            raise WrongCall("a task embedding was given, but this hypernetwork has no task layer; leave it out")
        if self.task is not None and task is None:
            raise WrongCall(f"this hypernetwork has a task layer; give the task's embedding, {self.task} numbers")
        if task is not None and tuple(task.shape) != (self.task,):
            raise WrongCall(f"the task embedding has shape {tuple(task.shape)}; ({self.task},) is wanted")
