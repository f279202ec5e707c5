"""Learngenes: their config, their tensors, and their folder.

A learngene is a folder with `config.json` (`LearngeneConfig`), `model.safetensors` and `README.md`
(its card). The folder is the same on disk, on the shelf and on the Hub. Nothing is inferred from a
tensor's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.records import (
    CONTROLS,
    LearngeneConfig,
    check_format,
    check_metrics,
    check_not_transformers,
    is_model_config,
)
from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.families.transformers_config import (
    check_tokenizer,
    read_tokenizer_files,
)
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


@dataclass(frozen=True, kw_only=True, repr=False)
class Learngene:
    """A config and its tensors; those of a loaded learngene are read when they are used."""

    config: LearngeneConfig
    state: StateDict
    # Written beside config and weights: the tokenizer of a text model.
    files: Mapping[str, str] = field(default_factory=dict, compare=False)
    folder: Path | None = None  # where it was loaded from

    def __repr__(self) -> str:
        config, where = self.config, f", folder={str(self.folder)!r}" if self.folder else ""
        sources = ", ".join(record.source for record in config.ancestries)
        return (
            f"Learngene({config.method} from {sources or 'no ancestry model'}, "
            f"{len(self.state)} tensors{where})"
        )

    @property
    def identity(self) -> Json:
        """Return its method, shape, details and a hash of its tensors."""
        config = self.config
        return [
            config.method,
            to_json(config.spec),
            to_json(config.details),
            fingerprint_of_state(self.state),
        ]

    def list_warnings(self) -> list[str]:
        """Return the warnings of the trainings of its extraction, each with the training's name.

        They are the first part of each `warning` in the metrics. The advice after the semicolon
        names options of `finetune`.
        """
        return [
            f"{', '.join([self.config.method, *names])}: {text.partition('; ')[0]}"
            for names, text in _find_warnings(self.config.metrics)
        ]

    def with_config(self, **changes: Any) -> Learngene:
        """Return a copy whose config has other values."""
        return replace(self, config=replace(self.config, **changes))

    def save(
        self, path: str | Path, force: bool = False, before: Callable[[Path], None] | None = None
    ) -> Path:
        """Write the folder atomically; `before` is called with the finished draft.

        Raises `Refused` if the folder exists and `force` is not set, and `WrongCall` if the config
        does not name its method.
        """
        from learngene_zoo.artifacts.card import render_learngene_card

        if not self.config.method:
            raise WrongCall(
                "a learngene that names no method is not saved; lg.extract names it, or "
                "with_config(method=...)"
            )
        with new_folder(Path(path), force, before) as draft:
            config = to_json(replace(self.config, tensors=tuple(sorted(self.state))))
            for name in ("control", "purpose", "device", "card"):
                if not config[name]:
                    del config[name]
            write_json(draft / CONFIG, config)
            write_tensors(draft / WEIGHTS, self.state)
            for name, text in {
                "README.md": render_learngene_card(self.config),
                **self.files,
            }.items():
                (draft / name).write_text(text, encoding="utf-8")
        return Path(path)


def read_config(folder: Path) -> LearngeneConfig:
    """Read the config of a learngene folder without its tensors. Raises `BadFile`."""
    path = folder / CONFIG
    data: dict[str, Json] = read_json(path)
    check_not_transformers(data, path)
    if is_model_config(data) and "method" not in data:
        raise BadFile(
            f"{folder} is a model, not a learngene; "
            "use it with `lgzoo finetune` and `lgzoo evaluate`"
        )
    check_format(data, str(path))
    if "method" not in data:
        raise BadFile(f"{path}: the key 'method' is missing")
    config = _upgrade_config(from_json(LearngeneConfig, data, str(path)), str(path))
    check_metrics(config.metrics, f"{path}: metrics")
    return config


def _upgrade_config(config: LearngeneConfig, where: str) -> LearngeneConfig:
    """Return the config as this version writes it.

    Controls once were methods, `shuffled` and `stem`, whose learngenes held another config: the
    result is that config, with the control.
    """
    if config.method not in CONTROLS or "config" not in config.details:
        return config
    inner = from_json(LearngeneConfig, config.details["config"], f"{where}: details: config")
    return replace(inner, control=config.method)


def load_learngene(folder: Path) -> Learngene:
    """Open a learngene folder.

    Raises `WrongCall` if there is none and `BadFile` if it cannot be trusted.
    """
    if not folder.is_dir():
        raise WrongCall(
            f"no learngene at {folder}; "
            "make one with `lgzoo extract`, or see `lgzoo list learngenes`"
        )
    config, state = read_config(folder), Tensors(folder / WEIGHTS)
    # An expander may initialise tensors that it does not find, which would go unnoticed.
    for name in config.tensors:
        if name not in state:
            raise BadFile(
                f"{state.path} lacks the tensor {name}, which its {CONFIG} names; "
                "extract or fetch it again"
            )
    for name in state:
        if not state.is_floating(name):
            raise BadFile(
                f"{state.path}: the tensor {name} does not hold floating-point numbers; "
                "create it again"
            )
    files: dict[str, str] = {}
    if isinstance(config.spec, TextSpec):
        files = read_tokenizer_files(folder)
        check_tokenizer(files, config.spec, str(folder))
    return Learngene(config=config, state=state, files=files, folder=folder)


def _find_warnings(record: Any, *names: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the warnings in nested records, with the keys of the records that have them."""
    if isinstance(record, list | tuple):
        record = {str(number): inner for number, inner in enumerate(record, start=1)}
    if not isinstance(record, Mapping):
        return
    if isinstance(text := record.get("warning"), str):
        yield names, text
    for name, inner in record.items():
        yield from _find_warnings(inner, *names, name)
