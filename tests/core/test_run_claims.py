"""`benchmarks/run_claims.py` keeps the rows of an interrupted claim, and continues from them in a
folder without any.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from claims_toy import row, write_claim

from learngene_zoo.bench.claims.cells import list_tuning_cells
from learngene_zoo.bench.claims.file import load_claim
from learngene_zoo.bench.claims.verdict import judge
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.extraction import ANCESTRIES
from learngene_zoo.settings import to_json

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
run_claims = pytest.importorskip("run_claims")


def test_an_interrupted_claim_continues_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = load_claim(write_claim(tmp_path))
    first, second, failed, *_ = list_tuning_cells(claim)
    kept, build = tmp_path / "kept", tmp_path / "build"
    seen: list[set[str]] = []

    def interrupt(claim: Any, out: Path, *args: Any) -> Any:
        """Stand for a run that is interrupted after one cell and one failure."""
        seen.append({row.key for row in read_rows(out / RESULTS)})
        if not seen[1:]:
            (out / ANCESTRIES).write_text('{"ancestry": "abc"}', encoding="utf-8")
        cell = second if seen[0] != seen[-1] else first
        rows = [row(cell, 0.5), row(failed, 0.0, error="out of memory")]
        with (out / RESULTS).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(to_json(row)) + "\n" for row in rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_claims, "load_claim", lambda name: claim)
    monkeypatch.setattr(run_claims, "run_claim", interrupt)
    monkeypatch.setattr(run_claims, "KEPT", kept)
    for folder in (build, tmp_path / "another"):
        monkeypatch.setattr(run_claims, "BUILD", folder)
        with pytest.raises(KeyboardInterrupt):
            run_claims.decide_claim("toy", 1)

    assert seen == [set(), {first.key}]
    partial = kept / run_claims.PARTIAL / "toy"
    assert [row.key for row in read_rows(partial / RESULTS)] == [first.key, second.key]
    assert run_claims.read_verdicts(kept) == []
    assert not (kept / RESULTS).exists()
    continued = tmp_path / "another"
    assert (continued / ANCESTRIES).read_text(encoding="utf-8") == '{"ancestry": "abc"}', (
        "a changed ancestry model is refused there"
    )
    verdict = judge(claim, [])
    run_claims.write_verdict(claim, verdict, continued / "toy.json")
    run_claims.keep_results(claim, continued, kept)
    ((kept_claim, kept_verdict),) = run_claims.read_verdicts(kept)
    assert (kept_claim.name, kept_verdict) == ("toy", verdict)
    assert [row.key for row in read_rows(kept / RESULTS)] == [first.key, second.key]
    assert not partial.exists()


def test_rows_of_decided_claims_are_not_used(tmp_path: Path) -> None:
    """They may be of an earlier version of a method, whose settings have the same names."""
    claim = load_claim(write_claim(tmp_path))
    kept, build = tmp_path / "kept", tmp_path / "build"
    kept.mkdir()
    row_of_old = row(list_tuning_cells(claim)[0], 0.5)
    (kept / RESULTS).write_text(json.dumps(to_json(row_of_old)) + "\n", encoding="utf-8")
    run_claims.restore_results(claim, kept, build)
    assert not (build / RESULTS).exists()
