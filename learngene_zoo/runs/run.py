"""`Run`: how and where to compute, never what. Cold.

A run owns a folder of its own (`learngene.run` beside `learngene`): its settings, its metrics, its checkpoints, and the
results of its finished parts. A part that is finished is loaded, not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, fingerprint

if TYPE_CHECKING:
    from learngene_zoo.storage import StateDict

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

    def once(self, compute: Callable[[Run], tuple[StateDict, Json]], depends: Json = None) -> tuple[StateDict, Json]:
        """What `compute(self)` returns: tensors and JSON. If this part is finished already, what it returned then.

        `depends` is all that the result depends on beside this part's seed, as JSON: the ancestry models' checksums, tasks,
        settings. With it, and where this run shares parts, any other run that needs the same takes it from here.
        Under torchrun every process computes (they train together) and the first one writes.
        """
        from learngene_zoo.runs.cache import take_or_make
        from learngene_zoo.runs.distributed import is_first, wait_for_all, world
        from learngene_zoo.storage import load_result, save_result

        if self.shared is not None and depends is not None and world() == 1:
            return take_or_make(self, self.shared, compute, fingerprint([depends, self.seed]))
        if self.folder is None:
            return compute(self)
        done = self.folder / "done"
        if self.resume and done.is_dir():
            return load_result(done)
        state, record = compute(self)
        if is_first():
            save_result(done, state, record)
        wait_for_all()
        return state, record
