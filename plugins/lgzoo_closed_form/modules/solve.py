"""A descendant in closed form: copied blocks, then every linear layer solved on its own inputs.

Shapes: B images, N tokens, R recorded rows, D the ancestry model's width, d the descendant's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from learngene_zoo.plugin import (
    Spec,
    StateDict,
    build_model,
    fill_missing_tensors,
    get_state_dict,
    get_table,
    select_tensors,
    show_progress,
    take_blocks,
)
from lgzoo_closed_form.modules.anatomy import Branch, Linear, split_block
from lgzoo_closed_form.modules.head_dims import HeadMaps
from lgzoo_closed_form.modules.narrow_attention import (
    list_channels,
    map_readers,
    narrow_copied_heads,
)
from lgzoo_closed_form.modules.ridge import (
    Rows,
    Sums,
    choose_precision,
    measure_spread,
    select_heads,
    select_neurons,
)
from lgzoo_closed_form.modules.streams import (
    Pictures,
    StreamTeacher,
    embed_images,
    find_turns,
    iterate_batches,
)
from lgzoo_closed_form.modules.width import narrow_parts
from lgzoo_closed_form.work import MIN_COST_ROWS

MIN_SCALE = 1e-6  # of a layer scale's largest channel; smaller ones turn their outputs off


@torch.no_grad()
def measure_costs(teacher: StreamTeacher, rho: float) -> list[list[float]]:
    """Return C[i][j - i], the cost of block i standing for blocks i to j (descendant_size.py)."""
    pictures, costs = teacher.pictures, list[list[float]]()
    depth = teacher.spec.layers
    sums = [teacher.sum_after_block(block) for block in range(depth)]
    weights = [teacher.weigh_channels(block) for block in range(depth)]
    spreads = [
        float(
            (
                weight * measure_spread((compute(rows), w) for rows, w in pictures.iterate_rows())
            ).sum()
        )
        for compute, weight in zip(sums, weights)
    ]
    label, blocks = "measuring how well each block replaces those after it", range(depth)
    for number in show_progress(blocks, label, pictures.has_progress):
        later = range(number + 1, depth)
        targets = [sums[block] for block in later]
        errors_KD = _measure_errors(teacher, number, targets, rho) if later else torch.zeros(0, 1)
        errors = zip(errors_KD, later)
        costs.append(
            [0.0, *(float((weights[block] * row).sum()) / spreads[block] for row, block in errors)]
        )
    return costs


def _measure_errors(
    teacher: StreamTeacher,
    number: int,
    later: Sequence[Callable[[slice], torch.Tensor]],
    rho: float,
) -> torch.Tensor:
    """Return the errors (K, D) that a block's solved fc2 leaves of each later stream.

    Args:
        teacher: the ancestry model with its streams.
        number: of the block.
        later: functions of some rows to each of the K streams (R, D) to reach.
        rho: the relative penalty.
    """
    streams, weights_R = teacher.streams, teacher.pictures.weights
    _, mlp = teacher.split_block(number)
    # A share of the rows is enough to compare runs, and each block is compared with all later ones.
    num_rows = max(MIN_COST_ROWS, 5 * teacher.spec.hidden)
    count = int((weights_R > 0).sum())  # padding of texts has the weight 0
    every = max(count // num_rows, 1)

    def iterate_rows() -> Iterator[Rows]:
        for rows, weights in islice(teacher.pictures.iterate_rows(), None, None, every):
            middle = streams.middle[number][rows]
            targets = torch.cat([compute(rows) - middle for compute in later], dim=1)
            yield mlp.compute_inputs(middle), targets, weights

    centred = mlp.writer.bias is not None
    sums = Sums.from_rows(iterate_rows(), centred=centred, dtype=choose_precision(rho))
    start = mlp.stream_weight
    errors = sums.compute_errors(start.repeat(len(later), 1), rho).unflatten(0, (len(later), -1))
    errors = errors * float(weights_R.sum() / sums.weight)  # as of all rows
    if count >= num_rows:
        return errors
    # Few rows are fitted too well. Generalised cross-validation (Golub, Heath and Wahba, 1979)
    # estimates the error on others; it is relative to that at `num_rows`, so that costs of few and
    # of many rows compare.
    freedom = sums.count_degrees(rho)
    optimism = (1 - freedom / num_rows) / max(1 - freedom / count, 1e-3)
    return errors * optimism**2


def _divide_by_scale(
    branch: Branch, missing_RD: torch.Tensor, inputs_RI: torch.Tensor
) -> torch.Tensor:
    """Return the writer's outputs (R, D) that the layer scale turns into an update.

    In channels whose scale is almost 0 they are the writer's own outputs, so that it stays there.
    """
    gamma = branch.gamma
    if gamma is None:
        return missing_RD
    is_off_D = gamma.abs() <= MIN_SCALE * gamma.abs().max()
    targets_RD = missing_RD / gamma.masked_fill(is_off_D, 1.0)
    if is_off_D.any():
        targets_RD[:, is_off_D] = branch.writer(inputs_RI)[:, is_off_D]
    return targets_RD


class CopiedBlocks(NamedTuple):
    """The copied tensors of a descendant, and what each block keeps of the ancestry model's."""

    state: StateDict
    heads: list[list[int]]  # the selected heads
    neurons: list[list[int]]  # the selected hidden neurons
    maps: list[HeadMaps | None]  # to fewer channels of the heads; None if they keep all


@torch.no_grad()
def copy_blocks(
    teacher: StreamTeacher, spec: Spec, runs: Sequence[int], P_dD: torch.Tensor | None
) -> CopiedBlocks:
    """Return a descendant's copied tensors, and the selected heads and neurons of every block.

    Args:
        teacher: the ancestry model with its streams.
        spec: the shape of the descendant.
        runs: the block that each of its blocks is copied from.
        P_dD: the projection of the stream. None copies whole blocks with stem and final norm. With
            a projection the norms of the stream are plain, and are not among the tensors.
    """
    heads, neurons = list(range(teacher.spec.heads)), list(range(teacher.spec.hidden))
    count = len(runs)
    if P_dD is None:
        blocks = copy_whole_blocks(teacher.state, teacher.spec, runs)
        return CopiedBlocks(blocks, [heads] * count, [neurons] * count, [None] * count)
    selected_heads = [_select_heads(teacher, source, P_dD, spec.heads) for source in runs]
    selected_neurons = [_select_neurons(teacher, source, spec.hidden) for source in runs]
    parts = dict(
        narrow_parts(teacher.state, teacher.spec, P_dD, runs, selected_heads, selected_neurons)
    )
    maps: list[HeadMaps | None] = [None] * count
    if spec.head_width != teacher.spec.head_width:
        maps = [
            narrow_copied_heads(parts, number, teacher, source, selected, spec.head_width)
            for number, (source, selected) in enumerate(zip(runs, selected_heads))
        ]
    return CopiedBlocks(parts, selected_heads, selected_neurons, maps)


def copy_whole_blocks(state: StateDict, spec: Spec, runs: Sequence[int]) -> StateDict:
    """Return the first block of each run, with stem and final norm.

    Norms after the MLPs come from the last block of each run: the sum that such a norm reads is
    solved towards that of the last block.

    Args:
        state: the ancestry model's tensors.
        spec: its shape.
        runs: the first block of each run.
    """
    table, blocks = get_table(spec), dict(take_blocks(state, spec, runs))
    if table.norms_after(spec):
        norm = table.branches(spec)[-1].norm
        for number, end in enumerate([*runs[1:], spec.layers]):
            for part in ("weight", "bias"):
                last = table.block_name(end - 1, f"{norm}.{part}")
                blocks[table.block_name(number, f"{norm}.{part}")] = state[last]
    return blocks


def _select_heads(teacher: StreamTeacher, source: int, P_dD: torch.Tensor, count: int) -> list[int]:
    """Return the heads that explain best the update of the narrow stream by all heads."""
    outputs = teacher.streams.heads[source]
    sums = Sums.from_rows(
        (outputs[rows], outputs[rows, :0], weights)
        for rows, weights in teacher.pictures.iterate_rows()
    )
    attention, _ = teacher.split_block(source)
    writer_dA = P_dD.float() @ attention.stream_weight
    return select_heads(sums.gram, writer_dA, count, teacher.spec.heads)


def _select_neurons(teacher: StreamTeacher, source: int, count: int) -> list[int]:
    """Return the hidden neurons of a block that change the stream most."""
    _, mlp = teacher.split_block(source)
    middle = teacher.streams.middle[source]
    variance_H = measure_spread(
        (mlp.compute_inputs(middle[rows]), weights)
        for rows, weights in teacher.pictures.iterate_rows()
    )
    return select_neurons(variance_H, mlp.stream_weight, count)


@torch.no_grad()
def solve_descendant(
    teacher: StreamTeacher,
    spec: Spec,
    runs: Sequence[int],
    P_dD: torch.Tensor | None,
    *,
    rho: float,
    solve: bool = True,
) -> StateDict:
    """Return the inherited tensors of a descendant: copy its blocks, then solve their layers.

    Args:
        teacher: the ancestry model with its streams.
        spec: the shape of the descendant.
        runs: the first block of each run; block k of the descendant stands for run k.
        P_dD: the projection that turns and narrows the stream (see width.py); None leaves it.
        rho: the relative penalty of every regression.
        solve: whether layers are solved, or stay as they are copied.
    """
    copies = copy_blocks(teacher, spec, runs, P_dD)
    if not solve:
        return copies.state
    pictures, streams = teacher.pictures, teacher.streams
    model = build_model(spec, fill_missing_tensors(spec, copies.state, seed=0))
    tokens_BNd = embed_images(model, pictures.images)
    turns = find_turns(model, pictures.images)
    ends = [*runs[1:], teacher.spec.layers]
    blocks = enumerate(zip(turns, runs, ends))
    for number, (turn, source, end) in show_progress(
        blocks, "solving blocks", pictures.has_progress
    ):
        attention, mlp = split_block(model, number, turn)
        if P_dD is None and _is_unchanged(teacher.spec, runs, number):
            for first, batch in iterate_batches(tokens_BNd):
                batch.copy_(mlp(attention(batch, first)))
            continue
        teacher_attention, teacher_mlp = teacher.split_block(source)
        before, middle = streams.before[source], streams.middle[source]
        sums = teacher.sum_after_attention(source), teacher.sum_after_block(end - 1)
        after_attention, after_block = (_narrow(compute, P_dD) for compute in sums)
        solve_branch(
            BranchProblem(
                attention,
                teacher_attention.norm,
                _select_readers(teacher, teacher_attention, copies, number),
                before,
                after_attention,
            ),
            pictures,
            rho,
            tokens_BNd,
        )
        solve_branch(
            BranchProblem(
                mlp,
                teacher_mlp.norm,
                [reader.select_outputs(copies.neurons[number]) for reader in teacher_mlp.readers],
                middle,
                after_block,
            ),
            pictures,
            rho,
            tokens_BNd,
        )
    names = set(copies.state)
    return select_tensors(get_state_dict(model), names.__contains__)


def _select_readers(
    teacher: StreamTeacher, attention: Branch, copies: CopiedBlocks, number: int
) -> Sequence[Linear]:
    """Return the ancestry model's queries, keys and values that a block is solved towards.

    Args:
        teacher: the ancestry model.
        attention: of the block that this block is copied from.
        copies: the copied blocks.
        number: of the block.
    """
    heads, maps, head_dim = copies.heads[number], copies.maps[number], teacher.spec.head_width
    if maps is not None:
        return map_readers(attention.readers, heads, head_dim, maps)
    channels = list_channels(heads, head_dim)
    return [reader.select_outputs(channels) for reader in attention.readers]


def _narrow(
    compute: Callable[[slice], torch.Tensor], P_dD: torch.Tensor | None
) -> Callable[[slice], torch.Tensor]:
    """Return a function that gives some rows (R, d) of the narrowed stream."""
    return lambda rows: compute(rows) if P_dD is None else compute(rows) @ P_dD.float().T


def _is_unchanged(spec: Spec, runs: Sequence[int], number: int) -> bool:
    """Return whether all blocks so far are the ancestry model's, each for itself.

    Then nothing is left to solve.
    """
    ends = [*runs[1:], spec.layers]
    return list(runs[: number + 1]) == list(range(number + 1)) and ends[number] == number + 1


@dataclass(frozen=True)
class BranchProblem:
    """A branch of a descendant's block, and the targets of its layers."""

    branch: Branch
    teacher_norm: nn.Module  # of the teacher's branch
    sources: Sequence[Linear]  # the layers after it whose outputs the readers are solved towards
    inputs: torch.Tensor  # the stream (R, D) that this norm reads
    # Some rows (R, d) of the stream after the branch, before a norm that comes after the sum
    target: Callable[[slice], torch.Tensor]


def solve_branch(
    problem: BranchProblem, pictures: Pictures, rho: float, tokens_BNd: torch.Tensor
) -> None:
    """Solve the readers of a branch, then its writer, and advance the stream to after the branch.

    Args:
        problem: the branch and its targets.
        pictures: which tokens enter the equations, and their weights.
        rho: the relative penalty.
        tokens_BNd: the descendant's stream, which is changed in place.
    """
    branch, rows_Rd = problem.branch, pictures.select_rows(tokens_BNd)
    _solve_readers(problem, pictures, rho, rows_Rd)
    inputs_BNI = inputs_RI = None
    if branch.mixes:  # attention needs all tokens of an image, not only the recorded ones
        batches = iterate_batches(tokens_BNd)
        inputs_BNI = torch.cat([branch.compute_inputs(batch, first) for first, batch in batches])
        inputs_RI = pictures.select_rows(inputs_BNI)

    def compute_inputs(rows: slice) -> torch.Tensor:
        return branch.compute_inputs(rows_Rd[rows])

    def iterate_rows() -> Iterator[Rows]:
        for rows, weights in pictures.iterate_rows():
            missing = problem.target(rows) - rows_Rd[rows]
            inputs = compute_inputs(rows) if inputs_RI is None else inputs_RI[rows]
            yield inputs, _divide_by_scale(branch, missing, inputs), weights

    solve_layers([branch.writer], iterate_rows(), rho)
    for first, batch in iterate_batches(tokens_BNd):
        inputs = (
            branch.compute_inputs(batch, first)
            if inputs_BNI is None
            else inputs_BNI[first : first + len(batch)]
        )
        batch.copy_(branch.add(batch, inputs))


def _solve_readers(
    problem: BranchProblem, pictures: Pictures, rho: float, rows_Rd: torch.Tensor
) -> None:
    """Solve the readers of a branch towards the values of the teacher's.

    Readers with a bias and readers without have separate sums.
    """
    branch, pairs = problem.branch, list(zip(problem.branch.readers, problem.sources))

    def iterate_rows(sources: Sequence[Linear]) -> Iterator[Rows]:
        for rows, weights in pictures.iterate_rows():
            inputs = problem.teacher_norm(problem.inputs[rows])
            targets = torch.cat([source(inputs) for source in sources], dim=1)
            yield branch.norm(rows_Rd[rows]), targets, weights

    for has_bias in (True, False):
        group = [pair for pair in pairs if (pair[0].bias is not None) == has_bias]
        if group:
            rows = iterate_rows([source for _, source in group])
            solve_layers([reader for reader, _ in group], rows, rho)


@torch.no_grad()
def solve_layers(layers: Sequence[Linear], parts: Iterable[Rows], rho: float) -> None:
    """Set layers with the same inputs to the solution that is drawn towards their weights.

    Args:
        layers: either all with a bias or all without; their outputs are solved together.
        parts: inputs, targets (the outputs of all layers, one after the other) and weights.
        rho: the relative penalty.
    """
    biases = [layer.bias for layer in layers if layer.bias is not None]
    start_OI = torch.cat([layer.weight for layer in layers])
    start_O = torch.cat(biases) if biases else None
    sums = Sums.from_rows(parts, centred=start_O is not None, dtype=choose_precision(rho))
    weight, bias = sums.solve(start_OI, start_O, rho)
    sizes = [len(layer.weight) for layer in layers]
    for layer, solution in zip(layers, weight.split(sizes)):
        layer.weight.copy_(solution)
    for layer_bias, solution in zip(biases, () if bias is None else bias.split(sizes)):
        layer_bias.copy_(solution)
