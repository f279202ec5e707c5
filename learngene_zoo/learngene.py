"""`Learngene`: what an extraction leaves and every expansion starts from. Cold at its top.

A folder with `config.json` (this file's `LearngeneConfig`), `model.safetensors` and `README.md` (its card). The folder
on disk, on the zoo's shelf and on the Hub is the same folder. Nothing is inferred from a tensor's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.folder import CONFIG, WEIGHTS, State, Tensors, new_folder, read_json, write_json, write_tensors
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.spec import ViTSpec

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class AncestryRecord:
    """Where an ancestry model came from, exactly."""

    source: str  # as it was asked for: "timm:deit_base_patch16_224.fb_in1k"
    spec: ViTSpec
    revision: str | None = None  # 40 hexadecimal digits on the Hub; None for a local file
    sha256: str | None = None  # of its weights file
    licence: str = "unknown"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # the normalisation it was trained with
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """Which data an extraction saw, exactly."""

    name: str
    source: str
    kind: str = "classification"
    classes: int = 0
    images: int = 0  # training images
    revision: str | None = None
    licence: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class LearngeneConfig:
    """Everything about a learngene but its tensors.

    `spec` is the shape that a target's silent fields are taken from (mostly the ancestry's). `details` is the method's
    own, documented by the method. `settings` rebuild the extractor.
    """

    method: str
    spec: ViTSpec
    format: int = FORMAT
    settings: Mapping[str, Any] = field(default_factory=dict)
    ancestries: tuple[AncestryRecord, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def licence(self) -> str:
        """The licence of what this was made from; "unknown" if any part's is."""
        licences = {record.licence for record in self.ancestries}
        return "unknown" if not licences or "unknown" in licences else " AND ".join(sorted(licences))

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel that descendants expect of their images."""
        if self.ancestries:
            return self.ancestries[0].mean, self.ancestries[0].std
        return (0.5,) * self.spec.channels, (0.5,) * self.spec.channels


@dataclass(frozen=True, kw_only=True)
class Learngene:
    """A config and its tensors; the tensors of a loaded one are read from disk when they are used."""

    config: LearngeneConfig
    state: State
    folder: Path | None = None  # where it was loaded from

    def with_config(self, **changes: Any) -> Learngene:
        """A copy whose config has other values."""
        return replace(self, config=replace(self.config, **changes))

    def save(self, path: Path, force: bool = False) -> Path:
        """Write the folder, whole or not at all. Raises `Refused` if it exists and `force` is not set."""
        from learngene_zoo.card import learngene_card

        with new_folder(path, force) as draft:
            write_json(draft / CONFIG, to_json(self.config))
            write_tensors(draft / WEIGHTS, self.state)
            (draft / "README.md").write_text(learngene_card(self.config), encoding="utf-8")
        return path


def read_config(folder: Path) -> LearngeneConfig:
    """The config of a learngene folder; no tensor is touched. Raises `BadFile`."""
    path = folder / CONFIG
    data: dict[str, Json] = read_json(path)
    if "architecture" in data and "method" not in data:
        raise BadFile(f"{folder} holds a model, not a learngene; `lgzoo finetune` and `lgzoo evaluate` take models")
    if data.get("format") != FORMAT:
        raise BadFile(
            f"{path}: format is {data.get('format')!r}; this version reads format {FORMAT}; upgrade learngene-zoo, or make it again"
        )
    return from_json(LearngeneConfig, data, str(path))


def load(folder: Path) -> Learngene:
    """Open a learngene folder. Raises `WrongCall` if there is none and `BadFile` if it cannot be trusted."""
    if not folder.is_dir():
        raise WrongCall(
            f"there is no learngene at {folder}; make one with `lgzoo extract`, see `lgzoo list learngenes`"
        )
    return Learngene(config=read_config(folder), state=Tensors(folder / WEIGHTS), folder=folder)
