"""Reading what an extraction wrote into a learngene's `details` (listed in `method.py`). Cold.

A learngene may come from anywhere, so nothing in it is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learngene_zoo.plugin import BadFile, Json, LearngeneConfig


@dataclass(frozen=True, kw_only=True)
class Path:
    """What one data set's search found, per layer of the ancestry model."""

    task: str
    base: tuple[bool, ...]  # whether the base block is preferred
    shares: tuple[float, ...]  # by which share of the validation images
    accuracy: float  # of the super net on the validation images


def kept_blocks(config: LearngeneConfig) -> tuple[int, ...]:
    """The kept blocks a config names, counted from 1. Raises `BadFile` if it names none that can be."""
    kept = config.details.get("kept")
    inside = isinstance(kept, Sequence) and all(type(i) is int and 1 <= i <= config.spec.layers for i in kept)
    if not inside or not kept or list(kept) != sorted(set(kept)):
        raise BadFile(
            f"the learngene's details name the kept blocks {str(kept)[:60]}; wanted are ascending numbers "
            f"from 1 to {config.spec.layers}; extract it again"
        )
    return tuple(kept)


def fewest(config: LearngeneConfig) -> int:
    """How many blocks are kept: the fewest layers of a descendant. 1 where only a search will tell. Raises `BadFile`."""
    if config.details.get("kept") is not None:
        return len(kept_blocks(config))
    top = config.details.get("top", 1)
    if type(top) is not int or not 1 <= top <= config.spec.layers:
        raise BadFile(
            f"the learngene's details say top {str(top)[:60]}; wanted is 1 to {config.spec.layers}; extract it again"
        )
    return top


def paths(config: LearngeneConfig) -> list[Path]:
    """The path of every data set, in the order of the searches; none if there was no search. Raises `BadFile`."""
    found = config.details.get("datasets") or {}
    if not isinstance(found, Mapping):
        raise BadFile("the learngene's details hold no table of data sets; extract it again")
    return [_path(str(task), record, config.spec.layers) for task, record in found.items()]


def usage(config: LearngeneConfig) -> tuple[int, ...]:
    """G: how many data sets prefer the base block of each layer, counted from their paths."""
    return tuple(sum(path.base[layer] for path in paths(config)) for layer in range(config.spec.layers))


def threshold(config: LearngeneConfig) -> float | None:
    """The threshold that was applied; None where `top` or `keep` decided, or no threshold selected anything."""
    value = config.details.get("threshold")
    return float(value) if value is not None and _is_number(value) else None


def _path(task: str, record: Json, layers: int) -> Path:
    record = record if isinstance(record, Mapping) else {}
    base, shares, accuracy = record.get("paths"), record.get("shares"), record.get("validation_accuracy")
    lists = [isinstance(row, Sequence) and len(row) == layers and all(map(_is_number, row)) for row in (base, shares)]
    if not all(lists) or not _is_number(accuracy):
        raise BadFile(f"the learngene's details hold no path over {layers} layers for {task}; extract it again")
    return Path(task=task, base=tuple(map(bool, base)), shares=tuple(map(float, shares)), accuracy=float(accuracy))


def _is_number(value: Json) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
