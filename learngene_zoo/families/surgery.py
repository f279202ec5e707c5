"""Pure operations on tensors by name: StateDict -> StateDict. No argument is mutated; tensors that do not change are shared.

What the names and axes mean is said by the table of the spec that a state belongs to. An operation reads of a state on disk
only what it keeps, and reads it once.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.families.family import table_of
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.table import Table
from learngene_zoo.seeds import derive_seed
from learngene_zoo.storage import StateDict


def only(state: StateDict, keep: Callable[[str], bool]) -> StateDict:
    """The tensors whose names `keep` accepts."""
    return {name: state[name] for name in state if keep(name)}


def without_head(state: StateDict, spec: Spec) -> StateDict:
    """Everything but the classification head."""
    table = table_of(spec)
    return only(state, lambda name: not table.is_head(name))


def take_blocks(state: StateDict, spec: Spec, sources: Sequence[int]) -> StateDict:
    """Block `i` of the result is block `sources[i]` of `state`, shared where repeated; all other tensors as they are.

    `spec` is of the family of `state`. `take_blocks(state, spec, range(layers))` is `state`, and taking from what was taken
    composes. Raises `WrongCall` if `state` lacks a block.
    """
    table = table_of(spec)
    inner: dict[int, list[str]] = {}
    for name in state:
        block = table.block_of(name)
        if block is not None:
            inner.setdefault(block, []).append(table.inner_name(name))
    absent = [source for source in sources if source not in inner]
    if absent:
        raise WrongCall(f"there is no block {absent[0]} to take; there are {', '.join(map(str, sorted(inner)))}")
    read = {(i, name): state[table.block_name(i, name)] for i in sorted(set(sources)) for name in inner[i]}
    taken = {
        table.block_name(i, name): read[source, name] for i, source in enumerate(sources) for name in inner[source]
    }
    before = only(state, table.is_stem)
    after = only(state, lambda name: table.block_of(name) is None and not table.is_stem(name))
    return {**before, **taken, **after}


def select(state: StateDict, spec: Spec, indices: Mapping[str, Sequence[int]]) -> StateDict:
    """Every tensor cut along named axes (`width`, `heads`, `head_width`, `hidden`, ...) to the given indices.

    `spec` is what `state` belongs to. For a narrower model select `width`, `heads` and `hidden` in one call, because the
    width is that of all heads together. Raises `WrongCall` for an axis or an index that does not exist, and for a stitched
    model, where an axis has another size in each segment.
    """
    if spec.stitched:
        raise WrongCall("a stitched model has more than one width; select from each of its segments instead")
    table = table_of(spec)
    sizes = table.sizes(spec)
    for axis, chosen in indices.items():
        if axis not in sizes:
            raise unknown("axis", axis, sizes)
        outside = [index for index in chosen if not 0 <= index < sizes[axis]]
        if outside or not chosen:
            raise WrongCall(
                f"{axis} has indices 0 to {sizes[axis] - 1}; {outside[0] if outside else 'none'} was chosen"
            )
    return {name: _selected(table, name, state[name], sizes, indices) for name in state}


def _selected(
    table: Table, name: str, tensor: torch.Tensor, sizes: Mapping[str, int], indices: Mapping[str, Sequence[int]]
) -> torch.Tensor:
    kind = table.find(name)
    parts = [part for axis in kind.axes for part in axis] if kind else []
    if kind is None or not set(parts) <= set(sizes):
        raise WrongCall(f"{name} is not a tensor of this model; its axes are unknown")
    if not set(parts) & set(indices):
        return tensor
    apart = tensor.reshape([sizes[part] for part in parts])
    for dimension, part in enumerate(parts):
        if part in indices:
            apart = apart.index_select(dimension, torch.tensor(list(indices[part])))
    left = {**sizes, **{axis: len(chosen) for axis, chosen in indices.items()}}
    return apart.reshape([math.prod(left[part] for part in axis) for axis in kind.axes])


def resize_positions(state: StateDict, spec_from: Spec, spec_to: Spec) -> StateDict:
    """The position embedding resampled to the patch grid of `spec_to` (timm's bicubic `resample_abs_pos_embed`).

    Equal grids, and a model without position embedding, leave everything as it is. Raises `WrongCall` if the two specs have
    position embeddings for different numbers of tokens before the patches.
    """
    table = table_of(spec_from)
    name = table.named("positions")
    if name is None or name not in state or spec_from.grid == spec_to.grid:
        return {name: state[name] for name in state}
    before, after = (table.sizes(spec)["positions"] - spec.patches for spec in (spec_from, spec_to))
    if before != after:
        raise WrongCall(f"positions of {before} tokens before the patches cannot serve {after}")
    from timm.layers import resample_abs_pos_embed

    positions = resample_abs_pos_embed(
        state[name], new_size=[spec_to.grid] * 2, old_size=[spec_from.grid] * 2, num_prefix_tokens=before
    )
    return {other: positions if other == name else state[other] for other in state}


def shuffled(state: StateDict, names: Iterable[str], seed: int) -> StateDict:
    """The named tensors with their entries permuted, each by a permutation that is a function of seed and name.

    A tensor keeps only its distribution: the control that separates inherited knowledge from inherited scale.
    """
    chosen = set(names)
    return {name: _permuted(state[name], name, seed) if name in chosen else state[name] for name in state}


def _permuted(tensor: torch.Tensor, name: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "shuffled", name))
    return tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].view(tensor.shape)


def cast(state: StateDict, dtype: torch.dtype) -> StateDict:
    """Floating point tensors in another precision; tensors that are shared stay shared."""
    tensors = {name: state[name] for name in state}
    converted = {id(tensor): tensor.to(dtype) for tensor in tensors.values() if tensor.is_floating_point()}
    return {name: converted.get(id(tensor), tensor) for name, tensor in tensors.items()}
