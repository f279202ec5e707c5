"""Checkpoints of a training: folders `checkpoint-<step>` with safetensors and JSON.

Folders are written atomically. A checkpoint contains the values that change in training: the
objective's weights, AdamW's moments, the moving average and the step. It contains no state of a
random number generator, since every draw is a function of the step.

After Ctrl-C the current step is completed and saved (`defer_interrupts`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.atomic import is_draft, new_folder
from learngene_zoo.errors import BadFile, Refused, TrainingFailed
from learngene_zoo.ownership import remove_draft, remove_marked
from learngene_zoo.settings import Json, from_json
from learngene_zoo.storage import StateDict, Tensors, read_json, write_json, write_tensors
from learngene_zoo.text import escape_controls, name_option

if TYPE_CHECKING:
    from timm.utils import ModelEmaV3

log = logging.getLogger(__name__)
FORMAT = 1
PREFIX = "checkpoint-"
TENSORS, RECORD = "state.safetensors", "checkpoint.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
INTERRUPTED = "\ninterrupted: saving after this step; a second Ctrl-C stops at once\n"


def suggest_lower_rate() -> str:
    """Return the remedy for a training whose loss or weights are not finite."""
    return f"try a lower {name_option('lr')}, or {name_option('clip', 1)}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A training after `step` steps.

    `training` identifies the training; `tensors` has one state per part.
    """

    step: int
    training: Mapping[str, Json]
    tensors: Mapping[str, StateDict]  # "weights", "ema", "exp_avg", ...
    scaler: Mapping[str, Json] = field(default_factory=dict)  # of fp16's loss scale


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The content of `checkpoint.json`."""

    format: int
    step: int
    training: Mapping[str, Any]
    scaler: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to a run's folder, then remove all others there."""
    path = folder / f"{PREFIX}{checkpoint.step}"
    flat = {
        f"{part}/{name}": t
        for part, state in checkpoint.tensors.items()
        for name, t in state.items()
    }
    with new_folder(path, force=True) as draft:
        write_tensors(draft / TENSORS, flat)
        record = {"format": FORMAT, "step": checkpoint.step, "training": dict(checkpoint.training)}
        write_json(draft / RECORD, {**record, "scaler": dict(checkpoint.scaler)})
    for other in _iterate_folders(folder):
        if other != path:
            remove_marked(other)


def load_newest(folder: Path, training: Mapping[str, Json]) -> Checkpoint | None:
    """Return the newest checkpoint that is complete and valid, or None.

    Raises `Refused` if it belongs to another training.
    """
    for path in sorted(_iterate_folders(folder), key=_step_of, reverse=True):
        try:
            checkpoint = _read(path)
        except BadFile as error:
            log.warning(
                "a checkpoint that cannot be read is skipped: %s", escape_controls(str(error))
            )
            continue
        if dict(checkpoint.training) != dict(training):
            raise Refused(
                f"{path} belongs to another training ({_name_parameters(checkpoint.training)}) than"
                f" this one ({_name_parameters(training)}); start over without"
                " Run(resume=True), or use a separate part for each training"
            )
        return checkpoint
    return None


def find_newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, valid or not; 0 if there is none."""
    return max(map(_step_of, _iterate_folders(folder)), default=0)


def _name_parameters(training: Mapping[str, Json]) -> str:
    return ", ".join(f"{key} {value}" for key, value in training.items())


def _read(place: Path) -> Checkpoint:
    record = read_json(place / RECORD)
    if record.get("format") != FORMAT:
        raise BadFile(
            f"{place} is a checkpoint of format {record.get('format')}; expected format {FORMAT}"
        )
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in Tensors(place / TENSORS).items():
        part, _, inner = name.partition("/")
        tensors.setdefault(part, {})[inner] = tensor
    loaded = from_json(_Record, record, str(place / RECORD))
    if loaded.step != _step_of(place):
        raise BadFile(f"{place / RECORD} has step {loaded.step}; expected step {_step_of(place)}")
    return Checkpoint(
        step=loaded.step, training=loaded.training, tensors=tensors, scaler=loaded.scaler
    )


def forget(folder: Path) -> None:
    """Remove all checkpoints and their drafts."""
    for path in _iterate_folders(folder):
        remove_marked(path)
    forget_drafts(folder)


def forget_drafts(folder: Path) -> None:
    """Remove the drafts of checkpoints that a killed process left behind."""
    for path in folder.glob(f".{PREFIX}*"):
        if is_draft(path.name):
            remove_draft(path)


def _iterate_folders(folder: Path) -> Iterator[Path]:
    return iter(
        [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and _step_of(path) >= 0]
    )


def _step_of(place: Path) -> int:
    number = place.name.removeprefix(PREFIX)
    return int(number) if number.isascii() and number.isdigit() else -1


class TrainingState:
    """The objective, its optimizer, its moving average (or None), and fp16's scaler (or None)."""

    def __init__(
        self, objective: nn.Module, optimizer: torch.optim.AdamW, average: ModelEmaV3 | None
    ) -> None:
        self.objective = objective
        self.optimizer = optimizer
        self.average = average
        self.scaler: Any = None

    def capture(self, step: int, training: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint that shares memory with this state.

        Raises `TrainingFailed` if a weight is not finite.
        """
        tensors: dict[str, StateDict] = {"weights": self.objective.state_dict(), **self._moments()}
        if self.average is not None:
            tensors["ema"] = self.average.module.state_dict()
        for name, tensor in tensors["weights"].items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise TrainingFailed(
                    f"the weight {name} is not finite after step {step}; {suggest_lower_rate()}"
                )
        return Checkpoint(
            step=step,
            training=training,
            tensors=tensors,
            scaler=self.scaler.state_dict() if self.scaler else {},
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint.

        Raises `Refused` if its tensors belong to another objective.
        """
        self._load(self.objective, checkpoint.tensors.get("weights", {}))
        if self.average is not None:
            self._load(self.average.module, checkpoint.tensors.get("ema", {}))
        trained = self._list_trained()
        for moment in MOMENTS:
            for name, tensor in checkpoint.tensors.get(moment, {}).items():
                parameter = trained.get(name)
                shape = torch.Size() if moment == "step" or parameter is None else parameter.shape
                if parameter is None or tensor.shape != shape or not tensor.is_floating_point():
                    raise Refused(
                        f"the checkpoint is not of the model being trained: {moment} of {name} does"
                        " not fit; start over without Run(resume=True)"
                    )
                self.optimizer.state[parameter][moment] = tensor.to(parameter.device)

    def keep_average(self) -> None:
        """Replace the weights by their moving average, if there is one."""
        if self.average is not None:
            self.objective.load_state_dict(self.average.module.state_dict())

    def _load(self, module: nn.Module, state: StateDict) -> None:
        try:
            module.load_state_dict(dict(state))
        except RuntimeError as error:
            raise Refused(
                f"the checkpoint is not of the model being trained: {error}; start over without"
                " Run(resume=True)"
            ) from error

    def _list_trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.objective.named_parameters() if p.requires_grad}

    def _moments(self) -> dict[str, StateDict]:
        moments: dict[str, dict[str, torch.Tensor]] = {moment: {} for moment in MOMENTS}
        for name, parameter in self._list_trained().items():
            for moment, tensor in self.optimizer.state.get(parameter, {}).items():
                moments[moment][name] = tensor
        return dict(moments)


@contextmanager
def defer_interrupts(is_wanted: bool, is_announced: bool = False) -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C in the body of the `with`; a second one acts immediately.

    Nothing changes if interrupts are ignored, end the process, or go to another thread.

    Args:
        is_wanted: False leaves the handling of Ctrl-C unchanged.
        is_announced: print on stderr that the first Ctrl-C arrived, and what happens next.

    Yields:
        A function that returns whether a Ctrl-C arrived.

    Raises:
        KeyboardInterrupt: at the end of the body, if a Ctrl-C arrived.
    """
    arrived: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: FrameType | None) -> None:
        if arrived and callable(previous):
            arrived.clear()
            signal.signal(signal.SIGINT, previous)
            previous(number, frame)
            return
        arrived.append(number)
        if is_announced:
            # Not `print`: the interrupt may have arrived within it, and it is not reentrant.
            os.write(2, INTERRUPTED.encode())

    if (
        not is_wanted
        or not callable(previous)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(arrived)
    except KeyboardInterrupt:
        arrived.clear()
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
        if arrived:  # in the last step, or before an early end of the training
            raise KeyboardInterrupt
