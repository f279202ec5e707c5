"""One descendant in closed form: the copied start, then every linear layer solved on the descendant's own inputs.

Shapes: B images, N tokens, R recorded rows, D the ancestry model's width, d the descendant's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from learngene_zoo.plugin import Model, Spec, StateDict, filled, model_of, only, progress, state_of, take_blocks
from lgzoo_closed_form.anatomy import Branch, Linear, branches, stem
from lgzoo_closed_form.ridge import Rows, Sums, explaining, most_heard, spread
from lgzoo_closed_form.streams import Pictures, Streams, embedded, some
from lgzoo_closed_form.width import narrowed_parts


@dataclass(frozen=True)
class Teacher:
    """The ancestry model with what was recorded of it."""

    spec: Spec
    state: StateDict
    model: Model
    shown: Pictures
    streams: Streams

    def branches(self, block: int) -> tuple[Branch, Branch]:
        """Attention and MLP of a block; of the attention only what does not turn queries and keys may be used."""
        return branches(self.model.blocks[block])


@torch.no_grad()
def costs_of_runs(teacher: Teacher, rho: float) -> list[list[float]]:
    """C[i][j - i], the cost of block i standing for the blocks i to j (see depth.py)."""
    streams, shown, costs = teacher.streams, teacher.shown, []
    spreads = [float(spread((stream[rows], w) for rows, w in shown.parts()).sum()) for stream in streams.before]
    for number in progress(range(teacher.spec.layers), "trying each block in place of those after it", shown.bars):
        _, mlp = teacher.branches(number)
        later = range(number + 2, len(spreads))
        missed_KD = _missed(teacher, number, mlp, later, rho) if later else torch.zeros(0, 1)
        costs.append([0.0, *(float(missed) / spreads[end] for missed, end in zip(missed_KD.sum(dim=1), later))])
    return costs


def _missed(teacher: Teacher, number: int, mlp: Branch, later: Sequence[int], rho: float) -> torch.Tensor:
    """What the solved last layer of a block's MLP leaves of each later stream (K, D), from one pass over the rows."""
    streams = teacher.streams

    def parts() -> Iterator[Rows]:
        for rows, weights in teacher.shown.parts():
            middle = streams.middle[number][rows]
            yield mlp.read(middle), torch.cat([streams.before[end][rows] - middle for end in later], dim=1), weights

    start = mlp.writer.weight if mlp.gamma is None else mlp.gamma[:, None] * mlp.writer.weight
    return Sums.over(parts()).missed(start.repeat(len(later), 1), rho).unflatten(0, (len(later), -1))


@torch.no_grad()
def start(
    teacher: Teacher, spec: Spec, runs: Sequence[int], P_dD: torch.Tensor | None
) -> tuple[StateDict, list[list[int]], list[list[int]]]:
    """The copied tensors of a descendant, and of every block the heads and the neurons that were kept.

    At full width these are the blocks of the ancestry model that `runs` names, with stem and final norm. A narrower one
    has the projected blocks; norms of the stream are plain there, and are not among the tensors.
    """
    heads, neurons = list(range(teacher.spec.heads)), list(range(teacher.spec.hidden))
    if P_dD is None:
        return take_blocks(teacher.state, teacher.spec, runs), [heads] * len(runs), [neurons] * len(runs)
    kept_heads = [_heads(teacher, source, P_dD, spec.heads) for source in runs]
    kept_neurons = [_neurons(teacher, source, spec.hidden) for source in runs]
    made = narrowed_parts(teacher.state, teacher.spec, P_dD, runs, kept_heads, kept_neurons)
    return made, kept_heads, kept_neurons


def _heads(teacher: Teacher, source: int, P_dD: torch.Tensor, count: int) -> list[int]:
    """The heads of a block that explain best what all of them add to the narrow stream."""
    read = teacher.streams.heads[source]
    sums = Sums.over((read[rows], read[rows, :0], weights) for rows, weights in teacher.shown.parts())
    attention, _ = teacher.branches(source)
    return explaining(sums.gram, P_dD.float() @ attention.writer.weight, count, teacher.spec.heads)


def _neurons(teacher: Teacher, source: int, count: int) -> list[int]:
    """The hidden neurons of a block that are heard most."""
    _, mlp = teacher.branches(source)
    middle = teacher.streams.middle[source]
    variance_H = spread((mlp.read(middle[rows]), weights) for rows, weights in teacher.shown.parts())
    return most_heard(variance_H, mlp.writer.weight, count)


@torch.no_grad()
def solved(
    teacher: Teacher, spec: Spec, runs: Sequence[int], P_dD: torch.Tensor | None, *, rho: float, solve: bool = True
) -> StateDict:
    """The inherited tensors of a descendant whose block k stands for the run that begins with block runs[k].

    `P_dD` turns and narrows the stream (see width.py); None: it stays as it is.
    """
    copied, heads, neurons = start(teacher, spec, runs, P_dD)
    if not solve:
        return copied
    model, shown, streams = model_of(spec, filled(spec, copied, seed=0)), teacher.shown, teacher.streams
    tokens_BND, (_, turns) = embedded(model, shown.images), stem(model, shown.images[:1])
    ends, wide = [*runs[1:], teacher.spec.layers], spec.head_width
    places = enumerate(zip(model.blocks, turns, runs, ends))
    for number, (block, turn, source, end) in progress(places, "solving blocks", shown.bars):
        attention, mlp = branches(block, turn)
        if P_dD is None and _unchanged(teacher.spec, runs, number):
            for _, one in some(tokens_BND):
                one.copy_(mlp(attention(one)))
            continue
        old_attention, old_mlp = teacher.branches(source)
        channels = [head * wide + channel for head in heads[number] for channel in range(wide)]
        entering, middle, leaving = streams.before[source], streams.middle[source], streams.before[end]
        _Place(attention, old_attention, channels, entering, _narrow(middle, P_dD)).solve(shown, rho, tokens_BND)
        _Place(mlp, old_mlp, neurons[number], middle, _narrow(leaving, P_dD)).solve(shown, rho, tokens_BND)
    names = set(copied)
    return only(state_of(model), names.__contains__)


def _narrow(stream_RD: torch.Tensor, P_dD: torch.Tensor | None) -> Callable[[slice], torch.Tensor]:
    """Some rows (R, d) of a stream that is to be reached."""
    return lambda rows: stream_RD[rows] if P_dD is None else stream_RD[rows] @ P_dD.float().T


def _unchanged(whole: Spec, runs: Sequence[int], number: int) -> bool:
    """Whether all blocks so far are the ancestry model's own, so that nothing is left to solve."""
    ends = [*runs[1:], whole.layers]
    return list(runs[: number + 1]) == list(range(number + 1)) and ends[number] == number + 1


@dataclass(frozen=True)
class _Place:
    """A branch of a descendant's block, and what it is solved towards."""

    branch: Branch
    old: Branch  # the ancestry model's
    chosen: Sequence[int]  # the outputs of each of its readers that were kept
    entering: torch.Tensor  # the stream (R, D) that it reads
    target: Callable[[slice], torch.Tensor]  # some rows (R, d) of the stream that is to be reached

    def solve(self, shown: Pictures, rho: float, tokens_BNd: torch.Tensor) -> None:
        """Solve what reads the stream (B, N, d), then what writes into it; the stream goes on to after the branch."""
        rows_Rd, branch = shown.rows(tokens_BNd), self.branch
        self._solve_readers(shown, rho, rows_Rd)
        read_BNI = torch.cat([branch.read(one) for _, one in some(tokens_BNd)]) if branch.mixes else None
        read_RI = None if read_BNI is None else shown.rows(read_BNI)

        def parts() -> Iterator[Rows]:
            for rows, weights in shown.parts():
                missing = self.target(rows) - rows_Rd[rows]
                read = branch.read(rows_Rd[rows]) if read_RI is None else read_RI[rows]
                yield read, missing if branch.gamma is None else missing / branch.gamma, weights

        fit([branch.writer], parts(), rho)
        for first, one in some(tokens_BNd):
            one.add_(branch.added(branch.read(one) if read_BNI is None else read_BNI[first : first + len(one)]))

    def _solve_readers(self, shown: Pictures, rho: float, rows_Rd: torch.Tensor) -> None:
        """Towards the ancestry model's values; those with a bias and those without have sums of their own."""
        pairs = [(new, old.only(self.chosen)) for new, old in zip(self.branch.readers, self.old.readers)]

        def parts(layers: Sequence[Linear]) -> Iterator[Rows]:
            for rows, weights in shown.parts():
                inputs = self.old.norm(self.entering[rows])
                yield self.branch.norm(rows_Rd[rows]), torch.cat([old(inputs) for old in layers], dim=1), weights

        for biased in (True, False):
            chosen = [(new, old) for new, old in pairs if (new.bias is not None) == biased]
            if chosen:
                fit([new for new, _ in chosen], parts([old for _, old in chosen]), rho)


@torch.no_grad()
def fit(layers: Sequence[Linear], parts: Iterable[Rows], rho: float) -> None:
    """Set layers with the same inputs, their outputs one after the other, to the solution that starts from their own weights."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    start_OI = torch.cat([layer.weight for layer in layers])
    start_O = torch.cat(biases) if biases else None
    weight, bias = Sums.over(parts, centred=start_O is not None).solve(start_OI, start_O, rho)
    sizes = [len(layer.weight) for layer in layers]
    for layer, solution in zip(layers, weight.split(sizes)):
        layer.weight.copy_(solution)
    for own, solution in zip(biases, () if bias is None else bias.split(sizes)):
        own.copy_(solution)
