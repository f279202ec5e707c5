"""`Run`: how and where to compute, never what.

A run owns a folder (`learngene.run` beside `learngene`) with its settings, its metrics, its checkpoints, and the
results of its finished parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from learngene_zoo.errors import WrongCall, unknown
from learngene_zoo.seeds import derive_seed

Precision = Literal["fp32", "bf16", "fp16"]
DEVICES = ("cpu", "cuda", "mps")
MOST_THREADS = 1024  # also of processes that load images; systems refuse far more, each in its own way


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a computation that does not change its meaning.

    `seed` is the only field that changes the numbers; `device`, `precision` and `threads` change their last digits.
    """

    folder: Path | None = None  # None: keep nothing (no checkpoints, no metrics file)
    seed: int = 0
    device: str = "cpu"
    precision: Precision = "fp32"
    threads: int | None = None
    workers: int = 0
    resume: bool = False
    progress: bool = False
    tracker: str | None = None
    offline: bool = False
    ancestry: str | None = None  # the user's own path of the ancestry model that an artifact records
    shared: Path | None = None  # folder of parts that other runs may need as well; None: parts are not shared
    plan: str = ""  # a fingerprint of what is computed, for checkpoints; empty where nothing is kept
    name: str = ""  # of the part; empty for the whole run

    def part(self, name: str) -> Run:
        """A sub-run with its own seed, folder and checkpoints. The name may contain slashes."""
        return replace(
            self,
            folder=self.folder / "parts" / name if self.folder else None,
            seed=derive_seed(self.seed, "part", name),
            name=f"{self.name}/{name}" if self.name else name,
        )


def check_device(name: str) -> None:
    """Raises `WrongCall` for what is not the name of a device, on this machine or any other."""
    kind, colon, number = name.partition(":")
    if kind not in DEVICES:
        raise unknown("device", name, DEVICES)
    if colon and not (kind == "cuda" and number.isascii() and number.isdigit() and len(number) < 4):
        raise WrongCall(f"no device named {name!r}; expected cpu, cuda, cuda:<number> or mps")
