"""Attention of a descendant whose heads have fewer channels than the ancestry model's.

The maps of head_dims.py keep the products of queries and keys, and the updates of the descendant's
stream, as well as so many channels can. The copied layers take the maps, and the readers are solved
towards the ancestry model's queries, keys and values under the same maps.

Shapes: R recorded tokens, H selected heads, A the width of all of them, C channels of a head, c of
a narrower one, D width, d the descendant's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from learngene_zoo.plugin import get_table
from lgzoo_closed_form.modules.anatomy import Linear
from lgzoo_closed_form.modules.head_dims import HeadMaps, narrow_heads
from lgzoo_closed_form.modules.ridge import Sums
from lgzoo_closed_form.modules.streams import StreamTeacher


def measure_head_maps(
    teacher: StreamTeacher,
    source: int,
    heads: Sequence[int],
    writer_dA: torch.Tensor,
    channels: int,
) -> HeadMaps:
    """Return the maps of some heads of a block to fewer channels.

    Args:
        teacher: the ancestry model with its streams.
        source: the number of the block.
        heads: the selected heads.
        writer_dA: the weight that writes their outputs into the descendant's stream.
        channels: c.
    """
    attention, _ = teacher.split_block(source)
    outputs, before = teacher.streams.heads[source], teacher.streams.before[source]
    index = list_channels(heads, teacher.spec.head_width)
    queries, keys, _ = (reader.select_outputs(index) for reader in attention.readers)
    width = len(index)
    sums = Sums(width, centred=False), Sums(width), Sums(width)
    for rows, weights in teacher.pictures.iterate_rows():
        inputs = attention.norm(before[rows])
        values = queries(inputs), keys(inputs), outputs[rows][:, index]
        for part, values_RA in zip(sums, values):
            part.add(values_RA, values_RA[:, :0], weights)
    shape = (len(heads), -1)
    queries_HCC, keys_HCC, outputs_HCC = (
        part.gram.unflatten(0, shape).unflatten(2, shape).diagonal(dim1=0, dim2=2).movedim(-1, 0)
        for part in sums
    )
    writer_HdC = writer_dA.unflatten(1, shape).movedim(1, 0)
    return narrow_heads(queries_HCC, keys_HCC, outputs_HCC, writer_HdC, channels)


def list_channels(heads: Sequence[int], head_dim: int) -> list[int]:
    """Return the outputs of queries, of keys or of values that belong to some heads."""
    return [head * head_dim + channel for head in heads for channel in range(head_dim)]


def narrow_copied_heads(
    parts: dict[str, torch.Tensor],
    number: int,
    teacher: StreamTeacher,
    source: int,
    heads: Sequence[int],
    channels: int,
) -> HeadMaps:
    """Narrow the heads of a copied block in place, and return the maps.

    Args:
        parts: the tensors of a descendant.
        number: of its block.
        teacher: the ancestry model with its streams.
        source: the block that it was copied from.
        heads: the selected heads.
        channels: c.
    """
    table = get_table(teacher.spec)
    names = table.branches(teacher.spec)[0]
    writer, (reader,) = table.block_name(number, f"{names.writer}.weight"), names.readers
    kind = table.find(writer)
    assert kind is not None, writer
    weight_dA = parts[writer].double() if kind.reads else parts[writer].double().T
    maps = measure_head_maps(teacher, source, heads, weight_dA, channels)
    weight_dk = maps.writers.movedim(0, 1).flatten(1).to(parts[writer])
    parts[writer] = weight_dk if kind.reads else weight_dk.T.contiguous()
    for name in (f"{reader}.weight", f"{reader}.bias"):
        name = table.block_name(number, name)
        if name in parts:
            outputs_last = not kind.reads and parts[name].dim() == 2
            rows = parts[name].T if outputs_last else parts[name]
            mapped = _apply_maps((maps.queries, maps.keys, maps.values), rows)
            parts[name] = mapped.T.contiguous() if outputs_last else mapped
    return maps


def map_readers(
    readers: Sequence[Linear], heads: Sequence[int], head_dim: int, maps: HeadMaps
) -> tuple[Linear, ...]:
    """Return queries, keys and values of some heads of an ancestry model under maps.

    Args:
        readers: its queries, keys and values.
        heads: the selected heads.
        head_dim: C.
        maps: of these heads.
    """
    index = list_channels(heads, head_dim)
    selected = (reader.select_outputs(index) for reader in readers)
    return tuple(
        Linear(
            _apply_maps([how], reader.weight),
            None if reader.bias is None else _apply_maps([how], reader.bias),
        )
        for reader, how in zip(selected, (maps.queries, maps.keys, maps.values))
    )


def _apply_maps(maps: Sequence[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of one or more layers, heads by heads, under the map (H, c, C) of each."""
    stacked = torch.stack(list(maps))
    parts = rows.double().reshape(*stacked.shape[:2], stacked.shape[3], -1)
    return (stacked @ parts).reshape(-1, *rows.shape[1:]).to(rows)
