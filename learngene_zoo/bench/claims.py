"""`lgzoo bench --claim NAME`: choose the learning rates, run the claim's cells, decide it. Cold.

All claims of one folder share its results file and its learngenes: a cell that two of them name is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.cell import Cell, Row
from learngene_zoo.bench.claim_cells import cells_of, rates_of, tuning_cells
from learngene_zoo.bench.claim_file import Claim, ClaimBudget, claims_folder, load_claim, names
from learngene_zoo.bench.executors import Executor
from learngene_zoo.bench.extraction import Extraction
from learngene_zoo.bench.results import RESULTS, read_rows
from learngene_zoo.bench.runner import run_grid
from learngene_zoo.bench.verdict import Verdict, judge
from learngene_zoo.bench.verdict_text import as_json, tell
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import new_file, write_json

__all__ = ["Claim", "Verdict", "cells_of", "claims_folder", "judge", "load_claim", "names", "run_claim", "tell"]


def run_claim(
    claim: Claim,
    out: Path,
    run: Run,
    executor: Executor | None = None,
    say: Callable[[str], None] = lambda text: None,
    *,
    budget: ClaimBudget = "standard",
) -> Verdict:
    """Run what is missing of a claim, decide it, and write `out/NAME.json` (`NAME.full.json` with the larger budget).

    First the tuning cells, which see validation images only; then the claim's own. Both resume. A claim that stays incomplete
    leaves no file; the verdict names the cells that failed.
    """
    tuning = tuning_cells(claim)
    if tuning:
        say(f"{claim.name}: learning rates, {len(tuning)} cells on validation images")
        run_grid(tuning, out, run, executor, say)
    choices, missing = rates_of(claim, _rows(out), _config_of(out))
    if not missing:
        cells = cells_of(claim, {name: choice.lr for name, choice in choices.items()})
        if cells:
            say(f"{claim.name}: {len(cells)} cells")
            run_grid(cells, out, run, executor, say)
    verdict = judge(claim, _rows(out), _config_of(out))
    if verdict.verdict != "incomplete":
        with new_file(verdict_path(claim, out, budget), force=True) as draft:
            write_json(draft, as_json(claim, verdict))
    return verdict


def verdict_path(claim: Claim, out: Path, budget: ClaimBudget = "standard") -> Path:
    """Where the verdict on a claim is written."""
    return out / (f"{claim.name}.json" if budget == "standard" else f"{claim.name}.{budget}.json")


def _rows(out: Path) -> list[Row]:
    return read_rows(out / RESULTS)


def _config_of(out: Path) -> Callable[[Cell], LearngeneConfig]:
    """Reads the learngene of a cell, each once."""

    @cache
    def read(folder: Path) -> LearngeneConfig:
        return read_config(folder)

    return lambda cell: read(Extraction(arm=cell.extraction, seed=cell.seed).folder(out))
