"""Match the blocks of a descendant with those of its ancestry model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learngene_zoo.settings import Json


def match_blocks(
    layers: int, teacher_layers: int, count: int, provenance: Mapping[str, Json]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return numbers of blocks of the student, and of the teacher's block for each, from 0.

    The blocks are those before the last, whose stream the losses of the last tokens cover.

    Args:
        layers: the number of blocks of the student.
        teacher_layers: the number of blocks of the teacher.
        count: the largest number of blocks to match; they are evenly spaced.
        provenance: records of the student, of which `runs` (the first block of each run of the
            teacher's blocks that a block stands for) and `teacher_depth` (the number of the
            teacher's blocks that the student stands for) are used, if they are possible.
    """
    count = min(count, layers - 1)
    chosen = sorted({round((i + 1) * layers / (count + 1)) - 1 for i in range(count)})
    ends = _list_ends(layers, teacher_layers, provenance)
    return tuple(chosen), tuple(ends[block] for block in chosen)


def compose_blocks(
    teacher_layers: int,
    middle_layers: int,
    layers: int,
    middle: Mapping[str, Json],
    provenance: Mapping[str, Json],
) -> dict[str, Json]:
    """Return records of a student relative to a teacher from those of two steps.

    Args:
        teacher_layers: the number of blocks of the teacher.
        middle_layers: the number of blocks of a model whose blocks stand for the teacher's.
        layers: the number of blocks of the student, whose blocks stand for that model's.
        middle: the records of that model, as for `match_blocks`.
        provenance: the records of the student relative to that model.

    Returns:
        The records `runs` and `teacher_depth`.
    """
    outer = _list_ends(middle_layers, teacher_layers, middle)
    ends = [outer[end] for end in _list_ends(layers, middle_layers, provenance)]
    return {"runs": [0, *(end + 1 for end in ends[:-1])], "teacher_depth": ends[-1] + 1}


def _list_ends(layers: int, teacher_layers: int, provenance: Mapping[str, Json]) -> list[int]:
    """Return for each block of the student the teacher's last block that it stands for."""
    recorded: Any = provenance.get("teacher_depth")
    is_possible = type(recorded) is int and 1 <= recorded <= teacher_layers
    depth = recorded if is_possible else teacher_layers
    runs: Any = provenance.get("runs")
    if isinstance(runs, (list, tuple)) and _are_runs(runs, layers, depth):
        return [start - 1 for start in (*runs[1:], depth)]
    return [max(0, round((block + 1) * depth / layers) - 1) for block in range(layers)]


def _are_runs(runs: Any, layers: int, depth: int) -> bool:
    return (
        len(runs) == layers
        and all(type(start) is int for start in runs)
        and runs[0] == 0
        and list(runs) == sorted(set(runs))
        and runs[-1] < depth
    )
