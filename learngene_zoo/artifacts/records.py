"""What artifacts record: ancestry models, tasks, and everything about a learngene but its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, get_args

from learngene_zoo.families.spec import Spec
from learngene_zoo.version import __version__

FORMAT = 1

Control = Literal["shuffled", "stem"]  # see controls.py
CONTROLS: tuple[Control, ...] = get_args(Control)


@dataclass(frozen=True, kw_only=True)
class AncestryRecord:
    """Where an ancestry model came from, exactly."""

    source: str  # as it was given: "timm:deit_base_patch16_224.fb_in1k"
    spec: Spec
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

    `spec` is the default shape of descendants (mostly the ancestry's). `details` is the method's own record, documented by the
    method. `settings` rebuild the extractor. `control` is the one that descendants are built under unless the user names one.
    """

    method: str
    spec: Spec
    format: int = FORMAT
    settings: Mapping[str, Any] = field(default_factory=dict)
    ancestries: tuple[AncestryRecord, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = None

    @property
    def licence(self) -> str:
        """The licence of the ancestry models; "unknown" if any of theirs is."""
        return joint_licence(record.licence for record in self.ancestries)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel that descendants expect of their images."""
        if self.ancestries:
            return self.ancestries[0].mean, self.ancestries[0].std
        return (0.5,) * self.spec.channels, (0.5,) * self.spec.channels


def joint_licence(licences: Iterable[str]) -> str:
    """The licence of what is made of several works; "unknown" if that of any is, or if there is none."""
    found = set(licences)
    return "unknown" if not found or "unknown" in found else " AND ".join(sorted(found))


_PACKAGES = ("torch", "timm", "safetensors", "accelerate", "datasets")


def versions() -> dict[str, str]:
    """The versions of this package and of those whose numerics it depends on, as far as they are installed."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"learngene_zoo": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
