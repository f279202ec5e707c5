"""`Learngene`: what an extraction leaves and every expansion starts from.

A folder with `config.json` (`LearngeneConfig`), `model.safetensors` and `README.md` (its card). The folder
on disk, on the zoo's shelf and on the Hub is the same folder. Nothing is inferred from a tensor's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.records import CONTROLS, FORMAT, LearngeneConfig, check_metrics
from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.storage import (
    CONFIG,
    WEIGHTS,
    StateDict,
    Tensors,
    fingerprint_of_state,
    read_json,
    write_json,
    write_tensors,
)


@dataclass(frozen=True, kw_only=True)
class Learngene:
    """A config and its tensors; the tensors of a loaded one are read from disk when they are used."""

    config: LearngeneConfig
    state: StateDict
    folder: Path | None = None  # where it was loaded from

    @property
    def identity(self) -> Json:
        """What distinguishes it from other learngenes: its method, shape, details and tensors."""
        config = self.config
        return [config.method, to_json(config.spec), to_json(config.details), fingerprint_of_state(self.state)]

    def with_config(self, **changes: Any) -> Learngene:
        """A copy whose config has other values."""
        return replace(self, config=replace(self.config, **changes))

    def save(self, path: Path, force: bool = False, before: Callable[[Path], None] | None = None) -> Path:
        """Write the folder, whole or not at all; `before` sees it just before it takes its place.

        Raises `Refused` if it exists and `force` is not set.
        """
        from learngene_zoo.artifacts.card import learngene_card

        with new_folder(path, force, before) as draft:
            config = to_json(self.config)
            if self.config.control is None:
                del config["control"]  # earlier versions know no such key, and need it for nothing
            write_json(draft / CONFIG, config)
            write_tensors(draft / WEIGHTS, self.state)
            (draft / "README.md").write_text(learngene_card(self.config), encoding="utf-8")
        return path


def read_config(folder: Path) -> LearngeneConfig:
    """The config of a learngene folder; no tensor is touched. Raises `BadFile`."""
    path = folder / CONFIG
    data: dict[str, Json] = read_json(path)
    if "architecture" in data and "method" not in data:
        raise BadFile(f"{folder} is a model, not a learngene; use it with `lgzoo finetune` and `lgzoo evaluate`")
    check_format(data, path)
    config = _upgraded(from_json(LearngeneConfig, data, str(path)), str(path))
    check_metrics(config.metrics, f"{path}: metrics")
    return config


def check_format(data: Json, path: Path) -> None:
    """Raises `BadFile` for the config of a format that this version does not read."""
    if data.get("format") != FORMAT:
        raise BadFile(
            f"{path}: format is {data.get('format')!r}; this version reads format {FORMAT}; upgrade learngene-zoo, or create it again"
        )


def _upgraded(config: LearngeneConfig, where: str) -> LearngeneConfig:
    """The config as this version writes it.

    Controls once were methods, `shuffled` and `stem`, whose learngenes held another one: it is that one, under that control.
    """
    if config.method not in CONTROLS or "config" not in config.details:
        return config
    held = from_json(LearngeneConfig, config.details["config"], f"{where}: details: config")
    return replace(held, control=config.method)


def load_learngene(folder: Path) -> Learngene:
    """Open a learngene folder. Raises `WrongCall` if there is none and `BadFile` if it cannot be trusted."""
    if not folder.is_dir():
        raise WrongCall(f"no learngene at {folder}; make one with `lgzoo extract`, or see `lgzoo list learngenes`")
    config, state = read_config(folder), Tensors(folder / WEIGHTS)
    for name in state:
        if not state.floating(name):
            raise BadFile(f"{state.path}: the tensor {name} does not hold floating-point numbers; create it again")
    return Learngene(config=config, state=state, folder=folder)
