"""`Run`: how and where to compute, never what. Cold.

A run owns a folder of its own (`learngene.run` beside `learngene`): its settings, its metrics, its checkpoints, and the
results of its finished parts. A part that is finished is loaded, not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from learngene_zoo.seeds import derive_seed

Precision = Literal["fp32", "bf16", "fp16"]
MOST_THREADS = 1024  # and processes that load images; systems refuse far more in ways of their own


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a computation that does not change what it means.

    `seed` is the only field that changes numbers; `device`, `precision` and `threads` change their last digits.
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
    shared: Path | None = None  # where parts that other runs need too are kept; None: none are
    name: str = ""  # the part's name, "" for the whole run

    def part(self, name: str) -> Run:
        """A sub-run with its own seed, folder and checkpoints. The name may hold slashes."""
        return replace(
            self,
            folder=self.folder / "parts" / name if self.folder else None,
            seed=derive_seed(self.seed, "part", name),
            name=f"{self.name}/{name}" if self.name else name,
        )
