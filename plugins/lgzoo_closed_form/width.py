"""A narrower residual stream in which LayerNorm stays exact.

Let U (D, d - 1) hold the principal directions of all streams, each token centred over its D channels and divided by their standard
deviation, as LayerNorm does. U is orthogonal to the vector of ones, so with V (d, d - 1), an orthonormal basis of what is
orthogonal to the ones of the narrow space, P = V U' maps a stream so that its narrow channels have mean 0, too. As far as a
centred token lies in the span of U, it keeps its length, and

    P LayerNorm_D(x) = sqrt(D / d) LayerNorm_d(P x).

What reads the stream through a LayerNorm takes the factor, the norm's weight and its bias into its own weights; what writes into
the stream is multiplied by P. Of a layer scale one number is left for all channels, its root mean square. The model stays a plain one. What is lost is the variance outside of U.

Shapes: D width, d narrow width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from learngene_zoo.plugin import Along, Spec, StateDict, Table, mapped, only, table_of
from lgzoo_closed_form.streams import Pictures, Streams


def directions(streams: Streams, shown: Pictures) -> tuple[torch.Tensor, torch.Tensor]:
    """The principal directions (D, D), columns by falling variance, the last the vector of ones; and these variances, in sum 1."""
    width = streams.before[0].shape[1]
    moment_DD = torch.zeros(width, width, dtype=torch.float64)
    for stream_RD in (*streams.before, *streams.middle):
        for rows, weights_R in shown.parts():
            tokens = stream_RD[rows].double()
            tokens = tokens - tokens.mean(dim=1, keepdim=True)
            tokens = tokens / (tokens.var(dim=1, keepdim=True, unbiased=False) + 1e-6).sqrt()
            moment_DD.addmm_(tokens.T, tokens * weights_R[:, None])
    variances, columns = torch.linalg.eigh(moment_DD)
    order = variances.argsort(descending=True)
    variances, columns = variances[order].clamp_min(0), columns[:, order]
    signs = columns.gather(0, columns.abs().argmax(dim=0)[None]).sign()  # eigenvectors have no sign of their own
    return columns * signs, variances / variances.sum()


def projection(columns_DD: torch.Tensor, narrow: int, group: int | None = None) -> torch.Tensor:
    """P (d, D), float64, from the principal directions, made orthonormal again: they may have been stored in half precision.

    With groups of channels (d is a multiple of `group`), the P of a narrower model is the first rows of a wider one's. Each group
    then has the mean 0 by itself, and one direction less than channels.
    """
    basis_dK = complement(narrow) if group is None else torch.block_diag(*[complement(group)] * (narrow // group))
    columns = columns_DD[:, : basis_dK.shape[1]].double()
    exact, triangle = torch.linalg.qr(columns - columns.mean(dim=0))
    return basis_dK @ (exact * triangle.diagonal().sign()).T


def complement(narrow: int) -> torch.Tensor:
    """V (d, d - 1): orthonormal columns, each of sum 0 (the rows of a Helmert matrix)."""
    made = torch.zeros(narrow, narrow - 1, dtype=torch.float64)
    for column in range(narrow - 1):
        made[: column + 1, column] = 1.0
        made[column + 1, column] = -(column + 1.0)
        made[:, column] /= ((column + 1.0) * (column + 2.0)) ** 0.5
    return made


def narrowed_parts(
    state: StateDict,
    spec: Spec,
    P_dD: torch.Tensor,
    runs: Sequence[int],
    heads: Sequence[Sequence[int]],
    neurons: Sequence[Sequence[int]],
) -> StateDict:
    """Stem and blocks for the narrow stream; block k is the block runs[k], with the heads and neurons chosen for it."""
    table = table_of(spec)
    made = dict(narrowed_stem(state, spec, P_dD))
    for name in made:
        kind = table.find(name)
        if kind is not None and ("layers",) in kind.axes:  # learned rotary frequencies: of each block, and of each head
            axis, one = kind.axes.index(("layers",)), spec.with_(layers=1)
            parts = [made[name].narrow(axis, source, 1) for source in runs]
            kept = [mapped({name: part}, one, {"heads": chosen})[name] for part, chosen in zip(parts, heads)]
            made[name] = torch.cat(kept, dim=axis)
    for number, source in enumerate(runs):
        inner = {table.inner_name(name): state[name] for name in state if table.block_of(name) == source}
        cut = narrowed(inner, spec, P_dD, heads[number], neurons[number])
        made.update({table.block_name(number, name): tensor for name, tensor in cut.items()})
    return made


def narrowed(
    block: Mapping[str, torch.Tensor], spec: Spec, P_dD: torch.Tensor, heads: Sequence[int], neurons: Sequence[int]
) -> StateDict:
    """A block's tensors, by their names within the block, for the narrow stream; its norms of the stream are plain there."""
    table, factor = table_of(spec), (spec.width / len(P_dD)) ** 0.5
    plain = folded({table.block_name(0, inner): tensor.double() for inner, tensor in block.items()}, table)
    mean = torch.full_like(P_dD, 1 / spec.width)  # a layer scale is one number here
    stream = Along(write=P_dD, read=factor * P_dD, scale=mean)
    made = mapped(plain, spec, {"width": stream, "heads": heads, "hidden": neurons})
    return {table.inner_name(name): tensor.float() for name, tensor in made.items()}


def folded(block: StateDict, table: Table) -> StateDict:
    """A block without its norms' weights and biases, which what reads the stream takes over.

    A shift is lost where a reader has no bias. Of a layer scale one number is left, its root mean square; what writes into the
    stream takes the rest.
    """
    made = dict(block)
    for norm, readers in (("norm1", "attn."), ("norm2", "mlp.")):
        gain, shift = (made.pop(table.block_name(0, f"{norm}.{part}")) for part in ("weight", "bias"))
        for name in [name for name in made if table.inner_name(name).startswith(readers) and name.endswith(".weight")]:
            kind = table.find(name)
            if kind is not None and kind.axes[-1] == ("width",):
                _shift(made, name, made[name] @ shift)
                made[name] = made[name] * gain
    for scales, writer in ((("ls1.gamma", "gamma_1"), "attn.proj"), (("ls2.gamma", "gamma_2"), "mlp.fc2")):
        for scale in (table.block_name(0, name) for name in scales):
            if scale in made:
                _level(made, scale, table.block_name(0, writer))
    return made


def _shift(made: dict[str, torch.Tensor], name: str, shift_O: torch.Tensor) -> None:
    """Add to the biases of a layer; Eva's joint queries, keys and values have theirs beside them, the keys none."""
    bias, beside = name.removesuffix("weight") + "bias", [name.replace("qkv.weight", f"{part}_bias") for part in "qkv"]
    parts = [(bias, shift_O)] if bias in made else list(zip(beside, shift_O.chunk(3)))
    for own, part in parts:
        if own in made and own != name:
            made[own] = made[own] + part


def _level(made: dict[str, torch.Tensor], scale: str, writer: str) -> None:
    """Make a layer scale one number, and let what writes into the stream take the rest."""
    gamma = made[scale]
    size = gamma.square().mean().sqrt()
    made[scale] = size.expand(len(gamma))
    for name in (f"{writer}.weight", f"{writer}.bias"):
        if name in made:
            made[name] = (made[name].movedim(0, -1) * (gamma / size)).movedim(-1, 0)


def narrowed_stem(state: StateDict, spec: Spec, P_dD: torch.Tensor) -> StateDict:
    """The stem's tensors, all of which write into the stream, for the narrow one."""
    return mapped(only(state, table_of(spec).is_stem), spec, {"width": P_dD})
