"""Cut heads and hidden neurons out of a model, and let the layers that read them absorb the loss.

Of a block, the writer of the attention (`attn.proj` in timm) reads the outputs of its heads, and
that of the MLP (`mlp.fc2`) its hidden neurons. With the kept inputs k and the removed inputs r of
such a layer, over the tokens of some unlabelled images or texts,

    a_r ~ B a_k + c                         by weighted ridge regression on the whole model's inputs
    W_k <- W_k + W_r B,   b <- b + W_r c    if the layer has a bias; else a_r ~ B a_k

so that W_k a_k + b is the best estimate from the kept inputs, as far as the ridge allows. Only sums
over the tokens are in memory (ridge.py), never all inputs of a layer. CORP (Zhang and Yang, arXiv
2602.05243) does so with hidden neurons; the same with whole heads is ours. The means of removed
heads and neurons are constants, which the bias of the layer takes, so models without biases of
queries, keys and values lose nothing by that.

With narrower heads (head_dims.py) the kept inputs are T a instead of a_k. The weight W_0 that
factors each head by itself is corrected towards the outputs of all heads together:

    W <- W_0 + (W_old G T' - W_0 T G T') (T G T' + lambda)^-1,   b <- b + (W_old - W T) mean(a)

Shapes: R recorded tokens, L blocks, H heads, A the width of all heads together, M hidden neurons,
D width, O outputs of a layer, C channels of a head, c of a narrower one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import torch
from torch import nn

from learngene_zoo.plugin import (
    Model,
    Spec,
    StateDict,
    find_axis_of_layers,
    get_blocks,
    get_table,
    map_axes,
    select_tensors,
    show_progress,
)
from lgzoo_closed_form.modules.anatomy import Linear, split_block
from lgzoo_closed_form.modules.head_dims import narrow_heads
from lgzoo_closed_form.modules.ridge import Damping, Sums, choose_penalty, factor
from lgzoo_closed_form.modules.streams import (
    Pictures,
    embed_images,
    find_turns,
    iterate_batches,
)


@dataclass(frozen=True)
class Selection:
    """The heads and the hidden neurons that each block keeps, ascending."""

    heads: list[list[int]]
    hidden: list[list[int]]
    blocks: list[int] | None = None  # the blocks to keep, ascending; None: all

    def list_channels(self, block: int, head_width: int) -> list[int]:
        """Return the inputs of the block's projection that belong to its heads."""
        return [
            head * head_width + channel
            for head in self.heads[block]
            for channel in range(head_width)
        ]


def select_best(scores_LN: torch.Tensor, counts: Sequence[int]) -> list[list[int]]:
    """Return the most important indices of each block, ascending; of equal ones the first."""
    orders = scores_LN.argsort(dim=1, descending=True, stable=True).tolist()
    return [sorted(order[:count]) for order, count in zip(orders, counts)]


@dataclass(frozen=True)
class Absorption:
    """How the layers behind the cuts are solved."""

    rho: float  # the relative penalty
    damping: Damping = "mean"  # that the penalty is relative to
    head_dim: int | None = None  # channels of each kept head; None: all


def cut_model(state: StateDict, spec: Spec, selection: Selection) -> StateDict:
    """Return the model's tensors without the heads and neurons that are not selected.

    Learned rotary frequencies have numbers for each head of each block; they need the same number
    of heads in all blocks.
    """
    table, parts = get_table(spec), dict(state)
    for name in state:
        axis = find_axis_of_layers(table, name)
        if axis is not None:
            layer = spec.with_(layers=1)
            slices = [
                map_axes({name: state[name].narrow(axis, block, 1)}, layer, {"heads": heads})[name]
                for block, heads in enumerate(selection.heads)
            ]
            parts[name] = torch.cat(slices, dim=axis)
    for number in range(spec.layers):
        names = {name for name in state if table.block_of(name) == number}
        block = select_tensors(state, names.__contains__)
        axes = {"heads": selection.heads[number], "hidden": selection.hidden[number]}
        parts |= map_axes(block, spec, axes)
    return parts


@torch.no_grad()
def compensate_model(
    model: Model,
    state: StateDict,
    spec: Spec,
    selection: Selection,
    pictures: Pictures,
    absorption: Absorption,
) -> StateDict:
    """Return the model's tensors, cut, with compensated layers behind the cuts.

    Args:
        model: the whole model.
        state: its tensors.
        spec: its shape.
        selection: the heads and neurons to keep.
        pictures: the images, and which of their tokens are recorded.
        absorption: penalty, and channels of the kept heads.
    """
    table, parts = get_table(spec), dict(cut_model(state, spec, selection))
    names = table.branches(spec)
    reads_qkv = absorption.head_dim is not None
    recordings_by_block = groupby(
        record_blocks(model, pictures, reads_qkv=reads_qkv), key=attrgetter("block")
    )
    for number, recordings in recordings_by_block:
        attention, mlp = split_block(model, number)
        writers = attention.writer, mlp.writer
        sums = [Sums(writer.weight.shape[1], centred=writer.bias is not None) for writer in writers]
        logits = HeadSums(spec.heads_width)
        for recording in recordings:
            for layer_sums, rows in zip(sums, (recording.outputs, recording.hidden)):
                layer_sums.add(rows, rows[:, :0], recording.weights)
            if recording.qkv is not None:
                logits.add(recording.qkv, recording.weights)
        inputs = (selection.list_channels(number, spec.head_width), selection.hidden[number])
        for branch, writer, layer_sums, indices in zip(names, writers, sums, inputs):
            if branch.mixes and absorption.head_dim is not None:
                attn: Model = get_blocks(model)[number].get_submodule("attn")
                narrowed, weight, bias = narrow_attention(
                    attn,
                    attention.stream_weight,
                    logits,
                    layer_sums,
                    selection.heads[number],
                    absorption,
                )
                parts |= {
                    table.block_name(number, f"{branch.readers[0]}.{part}"): narrowed[part]
                    for part in narrowed
                }
            else:
                weight, bias = absorb_inputs(
                    writer, layer_sums, indices, absorption.rho, absorption.damping
                )
            name = table.block_name(number, f"{branch.writer}.weight")
            kind = table.find(name)
            assert kind is not None, name
            # The matrix of transformers' `Conv1D` has its inputs first.
            parts[name] = weight if kind.reads else weight.T.contiguous()
            if bias is not None:
                parts[table.block_name(number, f"{branch.writer}.bias")] = bias
    return parts


def absorb_inputs(
    layer: nn.Linear | Linear,
    sums: Sums,
    indices: Sequence[int],
    rho: float,
    damping: Damping = "mean",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weight (O, kept inputs) and bias (O,) of a layer that lost its other inputs.

    Args:
        layer: the layer with all inputs. With all of them kept it stays as it is.
        sums: over all its inputs; centred if the layer has a bias.
        indices: the inputs to keep.
        rho: the relative penalty.
        damping: that it is relative to.
    """
    removed = sorted(set(range(layer.weight.shape[1])) - set(indices))
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if not removed:
        return weight, bias
    k, gram = list(indices), sums.gram
    G_kk, G_kr = gram[k][:, k], gram[k][:, removed]
    G_kk.diagonal().add_(choose_penalty(G_kk, rho, damping))
    B_rk = torch.cholesky_solve(G_kr, factor(G_kk)).T
    c_r = sums.mean_I[removed] - B_rk @ sums.mean_I[k]
    W_Or = weight[:, removed].double()
    W_Ok = (weight[:, k] + W_Or @ B_rk).to(weight.dtype)
    return W_Ok, None if bias is None else (bias + W_Or @ c_r).to(bias.dtype)


class HeadSums:
    """Gram matrices (A, A) of the queries, and of the keys around their mean."""

    def __init__(self, width: int) -> None:
        self.queries, self.keys = Sums(width, centred=False), Sums(width)

    def add(self, qkv_R3A: torch.Tensor, weights_R: torch.Tensor) -> None:
        """Add queries and keys of some tokens; values are not read."""
        queries_RA, keys_RA, _ = qkv_R3A.chunk(3, dim=1)
        self.queries.add(queries_RA, queries_RA[:, :0], weights_R)
        self.keys.add(keys_RA, keys_RA[:, :0], weights_R)


def narrow_attention(
    attn: Model,
    stream_weight_DA: torch.Tensor,
    logits: HeadSums,
    sums: Sums,
    heads: Sequence[int],
    absorption: Absorption,
) -> tuple[StateDict, torch.Tensor, torch.Tensor | None]:
    """Return an attention with narrower heads.

    Args:
        attn: timm's attention, with all heads.
        stream_weight_DA: from the outputs of its heads to the stream, layer scale included.
        logits: sums over its queries and keys.
        sums: over the inputs of its projection.
        heads: the heads to keep.
        absorption: the penalty, and the channels of the heads.

    Returns:
        Weight and bias of `qkv`, under these names, and weight and bias of `proj`.
    """
    assert absorption.head_dim is not None
    index = list(heads)
    proj, (num_heads, channels) = attn.proj, (attn.num_heads, attn.head_dim)
    W_DA = proj.weight.detach().double()
    queries_HCC, keys_HCC, outputs_HCC = (
        _take_diagonal_blocks(gram_AA, num_heads)[index]
        for gram_AA in (logits.queries.gram, logits.keys.gram, sums.gram)
    )
    old_HDC, update_HDC = (
        weight_DA.unflatten(1, (num_heads, channels)).movedim(1, 0)[index]
        for weight_DA in (W_DA, stream_weight_DA.double())
    )
    maps = narrow_heads(queries_HCC, keys_HCC, outputs_HCC, update_HDC, absorption.head_dim)
    qkv: dict[str, torch.Tensor] = {}
    for name, tensor in (("weight", attn.qkv.weight), ("bias", attn.qkv.bias)):
        if tensor is not None:
            rows_3HCI = tensor.detach().double().reshape(3, num_heads, channels, -1)[:, index]
            mapped = torch.stack([maps.queries, maps.keys, maps.values]) @ rows_3HCI
            qkv[name] = mapped.flatten(0, 2).reshape(-1, *tensor.shape[1:]).to(tensor.dtype)
    T_kA = torch.zeros(len(index) * absorption.head_dim, num_heads * channels, dtype=W_DA.dtype)
    T_kA.view(len(index), absorption.head_dim, num_heads, channels)[range(len(index)), :, index] = (
        maps.values
    )
    # As the columns in `maps`, without the layer scale.
    start_HDk = old_HDC @ outputs_HCC @ maps.values.mT
    start_Dk = start_HDk.movedim(0, 1).flatten(1)
    cross_kA = T_kA @ sums.gram
    G_kk = cross_kA @ T_kA.T
    missing_Dk = W_DA @ cross_kA.T - start_Dk @ G_kk
    G_kk.diagonal().add_(choose_penalty(G_kk, absorption.rho, absorption.damping))
    W_Dk = start_Dk + torch.cholesky_solve(missing_Dk.T, factor(G_kk)).T
    bias = proj.bias
    if bias is not None:
        bias = (bias.detach() + (W_DA - W_Dk @ T_kA) @ sums.mean_I).to(bias.dtype)
    return qkv, W_Dk.to(proj.weight.dtype), bias


def _take_diagonal_blocks(gram_AA: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the Gram matrix (H, C, C) of each head."""
    return torch.stack(
        [gram_AA.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))[h, :, h] for h in range(heads)]
    )


@dataclass(frozen=True)
class BlockRecording:
    """Inputs of the writers of a block's attention and MLP at some recorded tokens."""

    block: int
    outputs: torch.Tensor  # of its heads (R, A)
    hidden: torch.Tensor  # its hidden neurons (R, M)
    weights: torch.Tensor  # of these tokens (R,)
    qkv: torch.Tensor | None = None  # its queries, keys and values (R, 3 A), if they are recorded


@torch.no_grad()
def record_blocks(
    model: Model, pictures: Pictures, *, reads_qkv: bool = False
) -> Iterator[BlockRecording]:
    """Yield recordings of every block in turn, a few images at a time.

    Args:
        model: the whole model.
        pictures: the images, and which of their tokens are recorded.
        reads_qkv: whether queries, keys and values are recorded, too.
    """
    tokens_BND, turns = embed_images(model, pictures.images), find_turns(model, pictures.images)
    weights_BK = pictures.weights.view_as(pictures.tokens)
    blocks = show_progress(enumerate(turns), "passing through blocks", pictures.has_progress)
    for number, turn in blocks:
        attention, mlp = split_block(model, number, turn)
        after = []
        for first, batch_BND in iterate_batches(tokens_BND):
            outputs_BNA = attention.compute_inputs(batch_BND, first)
            middle_BND = attention.add(batch_BND, outputs_BNA)
            hidden_BNM = mlp.compute_inputs(middle_BND, first)
            after.append(mlp.add(middle_BND, hidden_BNM))
            qkv = None
            if reads_qkv:
                attn: Model = get_blocks(model)[number].get_submodule("attn")
                qkv = attn.qkv(pictures.select_rows(attention.norm(batch_BND), first))
            yield BlockRecording(
                number,
                pictures.select_rows(outputs_BNA, first),
                pictures.select_rows(hidden_BNM, first),
                weights_BK[first : first + len(batch_BND)].flatten(),
                qkv,
            )
        tokens_BND = torch.cat(after)
