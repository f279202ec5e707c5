"""Checkpoints of a training: `checkpoint-<step>` folders of safetensors and JSON, written whole or not at all.

A checkpoint holds the objective's weights, AdamW's moments, the moving average and the step. No state of any random
number generator: the loop draws as a function of the step.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from learngene_zoo.errors import BadFile, Refused
from learngene_zoo.folder import State, Tensors, new_folder, read_json, write_json, write_tensors
from learngene_zoo.settings import Json

log = logging.getLogger(__name__)

FORMAT = 1
PREFIX = "checkpoint-"
TENSORS, RECORD = "state.safetensors", "checkpoint.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A training after `step` steps. `training` says which training this is; `tensors` has a state for each part."""

    step: int
    training: Mapping[str, Json]
    tensors: Mapping[str, State]  # "weights", "ema", "exp_avg", ...
    scaler: Mapping[str, Json] = field(default_factory=dict)  # of fp16's loss scale


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint into a run's folder; afterwards it is the only one there."""
    place = folder / f"{PREFIX}{checkpoint.step}"
    flat = {f"{part}/{name}": t for part, state in checkpoint.tensors.items() for name, t in state.items()}
    with new_folder(place, force=True) as draft:
        write_tensors(draft / TENSORS, flat)
        record = {"format": FORMAT, "step": checkpoint.step, "training": dict(checkpoint.training)}
        write_json(draft / RECORD, {**record, "scaler": dict(checkpoint.scaler)})
    for other in _folders(folder):
        if other != place:
            shutil.rmtree(other, ignore_errors=True)


def newest(folder: Path, training: Mapping[str, Json]) -> Checkpoint | None:
    """The newest checkpoint that can be read whole; None if there is none.

    Raises `Refused` if it belongs to another training.
    """
    for place in sorted(_folders(folder), key=_step_of, reverse=True):
        try:
            checkpoint = _read(place)
        except BadFile as error:
            log.warning("passing over a checkpoint that cannot be read: %s", error)
            continue
        if dict(checkpoint.training) != dict(training):
            raise Refused(
                f"{place} belongs to another training ({_named(checkpoint.training)}) than this one "
                f"({_named(training)}); start over without --resume, or give each training a part of its own"
            )
        return checkpoint
    return None


def _named(training: Mapping[str, Json]) -> str:
    return ", ".join(f"{key} {value}" for key, value in training.items())


def _read(place: Path) -> Checkpoint:
    record = read_json(place / RECORD)
    if record.get("format") != FORMAT:
        raise BadFile(f"{place} is a checkpoint of format {record.get('format')}; {FORMAT} is understood")
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in Tensors(place / TENSORS).items():
        part, _, inner = name.partition("/")
        tensors.setdefault(part, {})[inner] = tensor
    try:
        return Checkpoint(
            step=int(record["step"]), training=record["training"], tensors=tensors, scaler=record["scaler"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{place / RECORD} lacks or garbles {error}") from error


def forget(folder: Path) -> None:
    """Remove every checkpoint, and the drafts of checkpoints that a kill left behind."""
    for place in _folders(folder):
        shutil.rmtree(place, ignore_errors=True)
    forget_drafts(folder)


def forget_drafts(folder: Path) -> None:
    """Remove the drafts that a kill left behind."""
    for suffix in ("tmp", "old"):
        for place in folder.glob(f".{PREFIX}*.{suffix}"):
            shutil.rmtree(place, ignore_errors=True)


def _folders(folder: Path) -> Iterator[Path]:
    return iter([place for place in folder.glob(f"{PREFIX}*") if place.is_dir() and _step_of(place) >= 0])


def _step_of(place: Path) -> int:
    number = place.name.removeprefix(PREFIX)
    return int(number) if number.isascii() and number.isdigit() else -1
