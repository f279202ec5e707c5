"""A narrower residual stream in which LayerNorm stays exact.

Let U (D, d - 1) hold the principal directions of all streams, each token centred over its D
channels and divided by their standard deviation, as LayerNorm does. U is orthogonal to the vector
of ones, so with V (d, d - 1), an orthonormal basis of the vectors that are orthogonal to the ones
of the narrow space, P = V U' maps a stream so that its narrow channels have mean 0, too. As far as
a centred token lies in the span of U, it keeps its length, and

    P LayerNorm_D(x) = sqrt(D / d) LayerNorm_d(P x).

Layers that read the stream through a LayerNorm take the factor, the norm's weight and its bias into
their own weights; layers that write into the stream are multiplied by P. Of a layer scale one
number is left for all channels, its root mean square. The model stays a plain one. The variance
outside of U is lost.

Shapes: D width, d narrow width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from learngene_zoo.plugin import Along, Spec, StateDict, get_table, map_axes, select_tensors
from lgzoo_closed_form.modules.streams import Pictures, Streams, StreamTeacher


def compute_directions(streams: Streams, pictures: Pictures) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the principal directions (D, D) of the streams, and their variances (D,).

    The directions are columns by falling variance, the last the vector of ones. The sum of the
    variances is 1.
    """
    width = streams.before[0].shape[1]
    moment_DD = torch.zeros(width, width, dtype=torch.float64)
    for stream_RD in (*streams.before, *streams.middle):
        for rows, weights_R in pictures.iterate_rows():
            tokens = torch.nn.functional.layer_norm(stream_RD[rows], (width,), eps=1e-6)
            # Products of some rows in the streams' precision, added up in float64.
            moment_DD.add_(tokens.T @ (tokens * weights_R[:, None].to(tokens)))
    variances, columns = torch.linalg.eigh(moment_DD)
    order = variances.argsort(descending=True)
    variances, columns = variances[order].clamp_min(0), columns[:, order]
    # The sign of an eigenvector is arbitrary: its largest component is made positive.
    signs = columns.gather(0, columns.abs().argmax(dim=0)[None]).sign()
    return columns * signs, variances / variances.sum()


def build_projection(
    columns_DD: torch.Tensor, narrow: int, group: int | None = None
) -> torch.Tensor:
    """Return P (d, D), float64.

    Args:
        columns_DD: the principal directions. They may have been stored in half precision, and are
            made orthonormal again.
        narrow: d, the narrow width.
        group: the size of groups of channels, of which d is a multiple. With them the P of a
            narrower model is the first rows of a wider one's. Each group then has mean 0 by itself,
            and one direction fewer than channels.
    """
    basis_dK = (
        build_basis(narrow)
        if group is None
        else torch.block_diag(*[build_basis(group)] * (narrow // group))
    )
    columns = columns_DD[:, : basis_dK.shape[1]].double()
    exact, triangle = torch.linalg.qr(columns - columns.mean(dim=0))
    return basis_dK @ (exact * triangle.diagonal().sign()).T


def project_stream(
    teacher: StreamTeacher, columns_DD: torch.Tensor, spec: Spec, *, is_nested: bool
) -> torch.Tensor | None:
    """Return P (d, D) of the stream of a descendant; None if it stays as it is.

    Args:
        teacher: the first blocks of the ancestry model, which the descendant replaces.
        columns_DD: the directions of the streams of all blocks.
        spec: the shape of the descendant.
        is_nested: keep these directions, so that streams of several widths are nested.
    """
    if spec.width == len(columns_DD) and not is_nested:
        return None
    if not is_nested:
        columns_DD, _ = compute_directions(teacher.streams, teacher.pictures)
    return build_projection(columns_DD, spec.width, spec.head_width if is_nested else None)


def build_basis(narrow: int) -> torch.Tensor:
    """Return V (d, d - 1): orthonormal columns, each of sum 0 (the rows of a Helmert matrix)."""
    basis = torch.zeros(narrow, narrow - 1, dtype=torch.float64)
    for column in range(narrow - 1):
        basis[: column + 1, column] = 1.0
        basis[column + 1, column] = -(column + 1.0)
        basis[:, column] /= ((column + 1.0) * (column + 2.0)) ** 0.5
    return basis


def narrow_parts(
    state: StateDict,
    spec: Spec,
    P_dD: torch.Tensor,
    runs: Sequence[int],
    heads: Sequence[Sequence[int]],
    neurons: Sequence[Sequence[int]],
) -> StateDict:
    """Return stem and blocks for the narrow stream.

    Args:
        state: the ancestry model's tensors.
        spec: its shape.
        P_dD: the projection of the stream.
        runs: the block that each block of the narrow model comes from.
        heads: the heads to keep of each of these blocks.
        neurons: the hidden neurons to keep of each.
    """
    table = get_table(spec)
    parts = dict(narrow_stem(state, spec, P_dD))
    for name in parts:
        kind = table.find(name)
        # Learned rotary frequencies have numbers for each block and for each head.
        if kind is not None and ("layers",) in kind.axes:
            axis, layer = kind.axes.index(("layers",)), spec.with_(layers=1)
            slices = [parts[name].narrow(axis, source, 1) for source in runs]
            slices = [
                map_axes({name: tensor}, layer, {"heads": selected})[name]
                for tensor, selected in zip(slices, heads)
            ]
            parts[name] = torch.cat(slices, dim=axis)
    for number, source in enumerate(runs):
        block = {
            table.inner_name(name): state[name] for name in state if table.block_of(name) == source
        }
        block = dict(narrow_block(block, spec, P_dD, heads[number], neurons[number]))
        parts.update({table.block_name(number, name): tensor for name, tensor in block.items()})
    return parts


def narrow_block(
    block: Mapping[str, torch.Tensor],
    spec: Spec,
    P_dD: torch.Tensor,
    heads: Sequence[int],
    neurons: Sequence[int],
) -> StateDict:
    """Return a block's tensors for the narrow stream, without its norms of the stream.

    Args:
        block: the tensors, by their names within the block.
        spec: the ancestry model's shape.
        P_dD: the projection of the stream.
        heads: the heads to keep.
        neurons: the hidden neurons to keep.
    """
    table, factor = get_table(spec), (spec.width / len(P_dD)) ** 0.5
    block = {table.block_name(0, name): tensor.double() for name, tensor in block.items()}
    mean = torch.full_like(P_dD, 1 / spec.width)  # a layer scale is one number here
    stream = Along(write=P_dD, read=factor * P_dD, scale=mean)
    plain = fold_norms(block, spec)
    parts = map_axes(plain, spec, {"width": stream, "heads": heads, "hidden": neurons})
    return {table.inner_name(name): tensor.float() for name, tensor in parts.items()}


def fold_norms(block: StateDict, spec: Spec) -> StateDict:
    """Return a block without its norms' weights and biases, which its readers take over.

    A shift is lost where a reader has no bias. Of a layer scale one number is left, its root mean
    square; the layers that write into the stream take the rest.

    Args:
        block: the tensors of block 0 of a model of this shape.
        spec: the shape.
    """
    parts, table = dict(block), get_table(spec)
    for branch in table.branches(spec):
        gain, shift = (
            parts.pop(table.block_name(0, f"{branch.norm}.{part}")) for part in ("weight", "bias")
        )
        for reader in branch.readers:
            name = table.block_name(0, f"{reader}.weight")
            kind = table.find(name)
            assert kind is not None, name
            outputs = parts[name] if kind.reads else parts[name].T
            _add_to_biases(parts, name, outputs @ shift)
            parts[name] = parts[name] * (gain if kind.reads else gain[:, None])
        if branch.scale is not None:
            scale = table.block_name(0, branch.scale)
            _level_scale(parts, scale, table.block_name(0, branch.writer))
    return parts


def _add_to_biases(parts: dict[str, torch.Tensor], name: str, shift_O: torch.Tensor) -> None:
    """Add to the biases of the layer with the weight `name`.

    Eva's joint queries, keys and values have their biases beside them, the keys none.
    """
    bias = name.removesuffix("weight") + "bias"
    beside = [name.replace("qkv.weight", f"{part}_bias") for part in "qkv"]
    shifts = [(bias, shift_O)] if bias in parts else list(zip(beside, shift_O.chunk(3)))
    for bias_name, shift in shifts:
        if bias_name in parts and bias_name != name:
            parts[bias_name] = parts[bias_name] + shift


def _level_scale(parts: dict[str, torch.Tensor], scale: str, writer: str) -> None:
    """Make a layer scale one number, and multiply the layer `writer` by the rest."""
    gamma = parts[scale]
    size = gamma.square().mean().sqrt()
    parts[scale] = size.expand(len(gamma))
    if not size:  # the branch is off
        return
    for name in (f"{writer}.weight", f"{writer}.bias"):
        if name in parts:
            parts[name] = (parts[name].movedim(0, -1) * (gamma / size)).movedim(-1, 0)


def narrow_stem(state: StateDict, spec: Spec, P_dD: torch.Tensor) -> StateDict:
    """Return the stem's tensors, all of which write into the stream, for the narrow one."""
    return map_axes(select_tensors(state, get_table(spec).is_stem), spec, {"width": P_dD})
