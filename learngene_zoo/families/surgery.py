"""Linear maps along the named axes of a model's tensors. Selecting indices is the one-hot case.

The table of a spec defines which tensors have an axis, and whether they write, read or scale the
values along it. Operations are pure, StateDict -> StateDict: no argument is mutated, and tensors
that do not change are shared.

    map_axes(state, spec, {"width": P, "heads": [0, 2], "layers": range(6)})
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from learngene_zoo.errors import WrongCall, refuse_unknown
from learngene_zoo.families.family import ParameterSpec, Table, get_table
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import find_axis_of_layers, take_blocks
from learngene_zoo.storage import StateDict

# The indices to keep, in this order, or a matrix (new size, old size).
Map = Sequence[int] | torch.Tensor
LAYERS = "layers"


@dataclass(frozen=True, kw_only=True)
class Along:
    """The maps along an axis, by the role of the tensors that have it.

    With an orthonormal projection P of the residual stream, a layer that wrote x writes P x, and a
    layer that read it with W reads with W P'.

    Attributes:
        write: for tensors that write along the axis: outputs of linear layers with their biases,
            shifts of norms, tokens, positions.
        read: for the inputs of linear layers. None: `write`.
        scale: for gains of norms and layer scales, which have one number per channel. None: the
            same indices; for a matrix its squared entries, which give the diagonal of P diag(g) P'.
    """

    write: Map
    read: Map | None = None
    scale: Map | None = None


def list_dimensions(spec: Spec) -> dict[str, int]:
    """Return the size of every kind of dimension of a model's tensors, by the names of its factors.

    For example {"qkv heads head_width": 2304, ...}.
    """
    kinds = {kind: sizes for _, kind, sizes in get_table(spec).parameters(spec)}
    axis_sizes = {
        " ".join(axis): (axis, sizes) for kind, sizes in kinds.items() for axis in kind.axes
    }
    return {
        name: math.prod(sizes[part] for part in axis) for name, (axis, sizes) in axis_sizes.items()
    }


def list_axes(spec: Spec) -> dict[str, int]:
    """Return the size of every axis of a model that `map_axes` can map.

    These are the dimensions, their factors ("heads") and "layers".
    """
    return {**list_dimensions(spec), **get_table(spec).sizes(spec), LAYERS: spec.layers}


def map_axes(state: StateDict, spec: Spec, maps: Mapping[str, Map | Along]) -> StateDict:
    """Apply linear maps along named axes to every tensor.

    Indices copy numbers; matrices compute in their own precision, and the result has the tensor's.
    Along a factor, maps keep the other factors apart: "heads" selects the same heads of queries,
    keys and values. A map of all factors of a dimension precedes maps of single factors. Along
    "layers", blocks are selected, or mixed by a matrix. The width is that of all heads together;
    for a narrower model map `width`, `heads` and `hidden` in one call.

    Args:
        state: tensors of a model, or some of them.
        spec: the spec of that model.
        maps: for each axis the indices to keep, a matrix, or an `Along`.

    Raises:
        WrongCall: for an axis or an index that does not exist, for a matrix of another size, and
            for a model of several segments, in which the size of an axis varies.
    """
    if len(spec.segments) > 1:
        raise WrongCall(
            "expected a model whose blocks have equal sizes, got one of several segments; map each"
            " segment by itself"
        )
    plans = {
        axis: how if isinstance(how, Along) else Along(write=how) for axis, how in maps.items()
    }
    axes = list_axes(spec)
    for axis, how in plans.items():
        if axis not in axes:
            raise refuse_unknown("axis", axis, axes)
        for matrix in (how.write, how.read, how.scale):
            _check(axis, matrix, axes[axis])
    table, sizes = get_table(spec), get_table(spec).sizes(spec)
    depth = plans.pop(LAYERS, None)
    if depth is not None:
        state, sizes = _map_layers(state, spec, depth.write), {**sizes, LAYERS: len(depth.write)}
    return {name: _map_tensor(table, name, state[name], sizes, plans) for name in state}


def _check(axis: str, how: Map | None, size: int) -> None:
    if isinstance(how, torch.Tensor):
        if how.dim() != 2 or how.shape[1] != size:
            raise WrongCall(
                f"the matrix for {axis} has shape {tuple(how.shape)}; expected (new size, {size})"
            )
    elif how is not None:
        outside = [index for index in how if not 0 <= index < size]
        if outside or not len(how):
            raise WrongCall(
                f"expected indices of {axis} from 0 to {size - 1}, got"
                f" {outside[0] if outside else 'none'}"
            )


def _map_tensor(
    table: Table,
    name: str,
    tensor: torch.Tensor,
    sizes: Mapping[str, int],
    plans: Mapping[str, Along],
) -> torch.Tensor:
    kind = table.find(name)
    if kind is None or not {part for axis in kind.axes for part in axis} <= set(sizes):
        raise WrongCall(f"{name} is not a tensor of this model; its axes are unknown")
    for dimension, axis in enumerate(kind.axes):
        plan, role = plans.get(" ".join(axis)), _find_role(kind, dimension)
        if plan is not None:
            tensor = _apply_map(_of(plan, role), tensor, dimension)
        elif not plans.keys().isdisjoint(axis):
            apart = tensor.unflatten(dimension, [sizes[part] for part in axis])
            for index, part in enumerate(axis):
                if part in plans:
                    apart = _apply_map(_of(plans[part], role), apart, dimension + index)
            tensor = apart.flatten(dimension, dimension + len(axis) - 1)
    return tensor


Role = Literal["write", "read", "scale"]


def _find_role(kind: ParameterSpec, dimension: int) -> Role:
    """Return whether a tensor writes, reads or scales the values along one of its dimensions."""
    if callable(kind.start) or (kind.start == "one" and not kind.name.endswith("bias")):
        return "scale"
    linear = kind.start in ("matrix", "deep", "head", "patches")
    return "read" if linear and dimension != kind.writes else "write"


def _of(how: Along, role: Role) -> Map:
    chosen: Map | None = getattr(how, role)
    if chosen is not None:
        return chosen
    return (
        how.write.square() if role == "scale" and isinstance(how.write, torch.Tensor) else how.write
    )


def _apply_map(how: Map, tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    if isinstance(how, torch.Tensor):
        moved = torch.tensordot(tensor.to(how.dtype), how, dims=([dimension], [1]))
        return moved.movedim(-1, dimension).to(tensor.dtype).contiguous()
    if list(how) == list(range(tensor.shape[dimension])):
        return tensor
    return tensor.index_select(dimension, torch.tensor(list(how), device=tensor.device))


def _map_layers(state: StateDict, spec: Spec, how: Map) -> StateDict:
    """Return a state with blocks selected, or mixed by a matrix (new layers, old layers)."""
    if not isinstance(how, torch.Tensor):
        return take_blocks(state, spec, how)
    table, whole = get_table(spec), take_blocks(state, spec, range(spec.layers))
    inside = list(
        dict.fromkeys(table.inner_name(name) for name in whole if table.block_of(name) is not None)
    )
    mixed = {
        inner: _apply_map(
            how, torch.stack([whole[table.block_name(i, inner)] for i in range(spec.layers)]), 0
        )
        for inner in inside
    }
    blocks = {
        table.block_name(i, inner): mixed[inner][i] for i in range(len(how)) for inner in inside
    }
    outside = {name: whole[name] for name in whole if table.block_of(name) is None}
    for name in outside:
        axis = find_axis_of_layers(table, name)
        outside[name] = outside[name] if axis is None else _apply_map(how, outside[name], axis)
    before = {name: tensor for name, tensor in outside.items() if table.is_stem(name)}
    return {**before, **blocks, **outside}
