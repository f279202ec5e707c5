"""Pure operations on tensors by name: State -> State. No argument is mutated; tensors that do not change are shared.

What an operation reads of a state on disk is only what it keeps, and that once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.families.vit.table import axis_sizes, block_of, inner_name, is_head, is_last_norm, is_stem, kind_of
from learngene_zoo.seeds import derive_seed
from learngene_zoo.storage import StateDict


def rename(state: StateDict, new_name: Callable[[str], str]) -> StateDict:
    """The same tensors under other names. Raises `WrongCall` if two get one name."""
    names = {name: new_name(name) for name in state}
    if len(set(names.values())) < len(names):
        raise WrongCall("two tensors would get the same name")
    return {new: state[name] for name, new in names.items()}


def only(state: StateDict, keep: Callable[[str], bool]) -> StateDict:
    """The tensors whose names `keep` accepts."""
    return {name: state[name] for name in state if keep(name)}


def stem(state: StateDict) -> StateDict:
    """What comes before the blocks: tokens, positions, patch embedding, the norm before the blocks."""
    return only(state, is_stem)


def tail(state: StateDict) -> StateDict:
    """What comes after the blocks: the last norm and the head."""
    return only(state, lambda name: is_head(name) or is_last_norm(name))


def without_head(state: StateDict) -> StateDict:
    """Everything but the classification head."""
    return only(state, lambda name: not is_head(name))


def with_head(state: StateDict, head: StateDict) -> StateDict:
    """`state` with the head of `head`."""
    return {**without_head(state), **only(head, is_head)}


def split_blocks(state: StateDict) -> tuple[StateDict, ...]:
    """The tensors of each block, block 0 first, by their names inside the block (`attn.qkv.weight`)."""
    blocks: dict[int, dict[str, torch.Tensor]] = {}
    for name in state:
        block = block_of(name)
        if block is not None:
            blocks.setdefault(block, {})[inner_name(name)] = state[name]
    return tuple(blocks[block] for block in sorted(blocks))


def take_blocks(state: StateDict, sources: Sequence[int]) -> StateDict:
    """Stem and tail as they are; block `i` of the result is block `sources[i]` of `state`, shared where repeated.

    `take_blocks(state, range(layers))` is `state`, and taking from what was taken composes. Raises `WrongCall` if
    `state` lacks a block.
    """
    names: dict[int, list[str]] = {}
    for name in state:
        block = block_of(name)
        if block is not None:
            names.setdefault(block, []).append(inner_name(name))
    absent = [source for source in sources if source not in names]
    if absent:
        raise WrongCall(f"there is no block {absent[0]} to take; there are {', '.join(map(str, sorted(names)))}")
    read = {f"blocks.{i}.{inner}": state[f"blocks.{i}.{inner}"] for i in sorted(set(sources)) for inner in names[i]}
    taken = {
        f"blocks.{i}.{inner}": read[f"blocks.{source}.{inner}"]
        for i, source in enumerate(sources)
        for inner in names[source]
    }
    before = only(state, lambda name: block_of(name) is None and is_stem(name))
    after = only(state, lambda name: block_of(name) is None and not is_stem(name))
    return {**before, **taken, **after}


def select(state: StateDict, spec: ViTSpec, indices: Mapping[str, Sequence[int]]) -> StateDict:
    """Every tensor cut along named axes (`width`, `heads`, `head_width`, `hidden`, ...) to the given indices.

    `spec` is what `state` belongs to. A narrower model is `{"width": ..., "heads": ..., "hidden": ...}` at once, because
    the width is the heads' widths together. Raises `WrongCall` for an axis or an index that is not there, and for a stitched
    model, where an axis has another length in each segment.
    """
    if spec.front:
        raise WrongCall("a stitched model has more than one width; select from its segments, each a model of one width")
    sizes = axis_sizes(spec)
    for axis, chosen in indices.items():
        if axis not in sizes:
            raise unknown("axis", axis, sizes)
        outside = [index for index in chosen if not 0 <= index < sizes[axis]]
        if outside or not chosen:
            raise WrongCall(
                f"{axis} has indices 0 to {sizes[axis] - 1}; {outside[0] if outside else 'none'} was chosen"
            )
    return {name: _selected(name, state[name], sizes, indices) for name in state}


def _selected(
    name: str, tensor: torch.Tensor, sizes: Mapping[str, int], indices: Mapping[str, Sequence[int]]
) -> torch.Tensor:
    kind = kind_of(name)
    parts = [part for axis in kind.axes for part in axis] if kind else []
    if kind is None or not set(parts) <= set(sizes):
        raise WrongCall(f"{name} is no tensor of this ViT; its axes are unknown")
    if not set(parts) & set(indices):
        return tensor
    apart = tensor.reshape([sizes[part] for part in parts])
    for dimension, part in enumerate(parts):
        if part in indices:
            apart = apart.index_select(dimension, torch.tensor(list(indices[part])))
    left = {**sizes, **{axis: len(chosen) for axis, chosen in indices.items()}}
    return apart.reshape([math.prod(left[part] for part in axis) for axis in kind.axes])


def resize_positions(state: StateDict, spec_from: ViTSpec, spec_to: ViTSpec) -> StateDict:
    """The position embedding resampled to the patch grid of `spec_to` (timm's bicubic `resample_abs_pos_embed`).

    Equal grids leave everything as it is. Raises `WrongCall` if the two count the tokens before the patches differently.
    """
    if "pos_embed" not in state or _grid(spec_from) == _grid(spec_to):
        return {name: state[name] for name in state}
    before = [spec.positions - spec.patches for spec in (spec_from, spec_to)]
    if before[0] != before[1]:
        raise WrongCall(f"positions of {before[0]} tokens before the patches cannot serve {before[1]}")
    from timm.layers import resample_abs_pos_embed

    positions = resample_abs_pos_embed(
        state["pos_embed"],
        new_size=[_grid(spec_to)] * 2,
        old_size=[_grid(spec_from)] * 2,
        num_prefix_tokens=before[0],
    )
    return {name: positions if name == "pos_embed" else state[name] for name in state}


def _grid(spec: ViTSpec) -> int:
    return spec.image_size // spec.patch_size


def shuffled(state: StateDict, names: Iterable[str], seed: int) -> StateDict:
    """The named tensors with their entries permuted, each by a permutation that is a function of seed and name.

    What stays of a tensor is its distribution: the control that tells inherited knowledge from inherited scale.
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
