"""One descendant in closed form: the copied start, then every linear layer solved on the descendant's own inputs.

Shapes: B images, N tokens, R recorded rows, D the ancestry model's width, d the descendant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from learngene_zoo.plugin import Model, Spec, StateDict, filled, model_of, only, state_of, table_of, take_blocks
from lgzoo_closed_form.ridge import Ridge, best_heads, best_neurons, fit, spread
from lgzoo_closed_form.streams import Pictures, Streams, embedded, inputs_of, some
from lgzoo_closed_form.width import narrowed, narrowed_stem, projection


@dataclass(frozen=True)
class Teacher:
    """The ancestry model with what was recorded of it."""

    spec: Spec
    state: StateDict
    model: Model
    shown: Pictures
    streams: Streams


@torch.no_grad()
def costs_of_runs(teacher: Teacher, rho: float) -> list[list[float]]:
    """C[i][j - i], the cost of block i standing for the blocks i to j (see depth.py)."""
    streams, weights, costs = teacher.streams, teacher.shown.weights, []
    for number, block in enumerate(teacher.model.blocks):
        middle = streams.middle[number]
        with inputs_of(block.mlp.fc2) as hidden:
            block.mlp(block.norm2(middle))
        fc2, gamma = block.mlp.fc2, getattr(block.ls2, "gamma", torch.ones(1))
        ridge = Ridge.on(hidden[0], weights, rho)
        outputs = streams.before[number + 2 :]
        missed = [
            ridge.missed(output - middle, gamma[:, None] * fc2.weight) / spread(output, weights) for output in outputs
        ]
        costs.append([0.0, *missed])
    return costs


@torch.no_grad()
def start(
    teacher: Teacher, spec: Spec, runs: Sequence[int], columns_DD: torch.Tensor
) -> tuple[StateDict, list[list[int]], list[list[int]]]:
    """The copied tensors of a descendant, and of every block the heads and the neurons that were kept.

    At full width these are the blocks of the ancestry model that `runs` names, with stem and final norm. A narrower one
    has the projected blocks; norms of the stream are plain there, and are not among the tensors.
    """
    heads, neurons = list(range(teacher.spec.heads)), list(range(teacher.spec.hidden))
    if spec.width == teacher.spec.width:
        return take_blocks(teacher.state, teacher.spec, runs), [heads] * len(runs), [neurons] * len(runs)
    table, P_dD, weights = table_of(spec), projection(columns_DD, spec.width), teacher.shown.weights
    made = dict(narrowed_stem(teacher.state, teacher.spec, P_dD))
    kept_heads, kept_neurons = [], []
    for number, source in enumerate(runs):
        block = teacher.model.blocks[source]
        with inputs_of(block.mlp.fc2) as hidden:
            block.mlp(block.norm2(teacher.streams.middle[source]))
        writer = P_dD.float() @ block.attn.proj.weight
        kept_heads.append(best_heads(teacher.streams.heads[source], writer, weights, spec.heads, teacher.spec.heads))
        kept_neurons.append(best_neurons(hidden[0], block.mlp.fc2.weight, weights, spec.hidden))
        inner = {table.inner_name(n): teacher.state[n] for n in teacher.state if table.block_of(n) == source}
        cut = narrowed(inner, teacher.spec, P_dD, kept_heads[-1], kept_neurons[-1])
        made.update({table.block_name(number, name): tensor for name, tensor in cut.items()})
    return made, kept_heads, kept_neurons


@torch.no_grad()
def solved(
    teacher: Teacher, spec: Spec, runs: Sequence[int], columns_DD: torch.Tensor, *, rho: float, solve: bool = True
) -> StateDict:
    """The inherited tensors of a descendant whose block k stands for the run that begins with block runs[k]."""
    copied, heads, neurons = start(teacher, spec, runs, columns_DD)
    if not solve:
        return copied
    model, shown, streams = model_of(spec, filled(spec, copied, seed=0)), teacher.shown, teacher.streams
    P_dD = (
        torch.eye(teacher.spec.width)
        if spec.width == teacher.spec.width
        else projection(columns_DD, spec.width).float()
    )
    tokens_BND = embedded(model, shown.images)
    ends = [*runs[1:], teacher.spec.layers]
    for number, (block, source, end) in enumerate(zip(model.blocks, runs, ends)):
        if _unchanged(spec, teacher.spec, runs, number):
            tokens_BND = torch.cat([block(one) for _, one in some(tokens_BND)])
            continue
        old, at = teacher.model.blocks[source], _Place(shown, rho)
        entering, middle = streams.before[source], streams.middle[source]
        rows = _channels(teacher.spec, heads[number])
        readers = [(block.attn.qkv, old.attn.qkv(old.norm1(entering))[:, rows])]
        tokens_BND = at.branch(
            block.norm1, block.attn, readers, block.attn.proj, block.ls1, middle @ P_dD.T, tokens_BND
        )
        readers = [
            (getattr(block.mlp, name), layer(old.norm2(middle))[:, _neurons(layer, old.mlp.fc2, neurons[number])])
            for name, layer in old.mlp.named_children()
            if name.startswith("fc1")
        ]
        leaving = streams.before[end] @ P_dD.T
        tokens_BND = at.branch(block.norm2, block.mlp, readers, block.mlp.fc2, block.ls2, leaving, tokens_BND)
    names = set(copied)
    return only(state_of(model), names.__contains__)


def _unchanged(spec: Spec, whole: Spec, runs: Sequence[int], number: int) -> bool:
    """Whether all blocks so far are the ancestry model's own, so that nothing is left to solve."""
    ends = [*runs[1:], whole.layers]
    return (
        spec.width == whole.width and list(runs[: number + 1]) == list(range(number + 1)) and ends[number] == number + 1
    )


def _channels(spec: Spec, heads: Sequence[int]) -> list[int]:
    """The outputs of the layer for queries, keys and values that belong to these heads."""
    wide = spec.head_width
    return [part * spec.width + head * wide + channel for part in range(3) for head in heads for channel in range(wide)]


def _neurons(first: nn.Linear, last: nn.Linear, chosen: Sequence[int]) -> list[int]:
    """The outputs of a first layer of an MLP that belong to these hidden neurons: of a packed gate two each."""
    return [
        part * last.in_features + neuron for part in range(first.out_features // last.in_features) for neuron in chosen
    ]


@dataclass(frozen=True)
class _Place:
    """The pictures on which layers are solved, and the ridge."""

    shown: Pictures
    rho: float

    def branch(
        self,
        norm: nn.Module,
        layers: nn.Module,
        readers: Sequence[tuple[nn.Linear, torch.Tensor]],
        writer: nn.Linear,
        scale: nn.Module,
        target_Rd: torch.Tensor,
        tokens_BNd: torch.Tensor,
    ) -> torch.Tensor:
        """Solve a branch of a block, what reads the stream before what writes into it; the stream (B, N, d) after it.

        Each reader comes with its values at the recorded tokens (R, O); `target_Rd` is the stream that is to be reached.
        """
        rows_Rd, weights = self.shown.rows(tokens_BNd), self.shown.weights
        for reader, values_RO in readers:
            fit(reader, norm(rows_Rd), values_RO, weights, self.rho)
        read = []
        for _, one in some(tokens_BNd):
            with inputs_of(writer) as inputs:
                layers(norm(one))
            read.append(inputs[0])
        inputs_BNH = torch.cat(read)
        missing_Rd = (target_Rd - rows_Rd) / getattr(scale, "gamma", torch.ones(1))
        fit(writer, self.shown.rows(inputs_BNH), missing_Rd, weights, self.rho)
        return torch.cat([one + scale(writer(inputs_BNH[first : first + len(one)])) for first, one in some(tokens_BNd)])
