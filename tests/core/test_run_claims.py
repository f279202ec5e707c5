"""`benchmarks/run_claims.py` keeps the rows of an interrupted claim, and continues from them in a
folder without any.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claims_toy import gains, ran, row, write_claim

from learngene_zoo.bench.claims.cells import list_tuning_cells
from learngene_zoo.bench.claims.file import load_claim
from learngene_zoo.bench.claims.verdict import judge
from learngene_zoo.bench.results.rows import RESULTS, Row, read_rows
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


def write_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(to_json(row)) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def test_another_result_of_a_kept_cell_is_refused_and_nothing_is_copied(tmp_path: Path) -> None:
    """The key of a cell does not name the version of its method."""
    claim = load_claim(write_claim(tmp_path))
    first, second, *_ = list_tuning_cells(claim)
    kept, build = tmp_path / "kept", tmp_path / "build"
    write_rows(kept / RESULTS, [row(first, 0.5)])
    write_rows(build / RESULTS, [row(first, 0.6), row(second, 0.5)])
    run_claims.write_verdict(claim, judge(claim, []), build / "toy.json")
    with pytest.raises(
        SystemExit, match=r"1 cells of .* have other results in .*: 0\.6 on"
    ) as info:
        run_claims.keep_results(claim, build, kept)
    assert "\n" not in str(info.value)
    assert sorted(path.name for path in kept.iterdir()) == [RESULTS]
    assert [row.value for row in read_rows(kept / RESULTS)] == [0.5]
    write_rows(build / RESULTS, [row(first, 0.5), row(second, 0.5)])
    run_claims.keep_results(claim, build, kept)
    assert [row.key for row in read_rows(kept / RESULTS)] == [first.key, second.key]
    assert (kept / "toy.json").is_file()


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_verdict_is_judged_again_from_its_own_rows_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_digest: bool
) -> None:
    claim = replace(load_claim(write_claim(tmp_path)), protocol=1)
    rows = ran(claim, gains(0.03))
    verdict = judge(claim, rows)
    assert verdict.digest
    before = verdict if has_digest else replace(verdict, digest="")
    path = tmp_path / "kept" / "toy.json"
    path.parent.mkdir()

    def judge_again(rows: list[Row]) -> Any:
        run_claims.write_verdict(claim, replace(before, seconds=1.0), path)
        write_rows(path.parent / RESULTS, rows)
        run_claims.rejudge_claims(path.parent)
        ((_, verdict),) = run_claims.read_verdicts(path.parent)
        return verdict

    assert judge_again(rows) == verdict, "with the current statistics, and with a digest"
    assert capsys.readouterr().err == ""
    tuned = {cell.key for cell in list_tuning_cells(claim)}
    for changed in (rows[0], rows[-1]):
        assert (changed.key in tuned) == (changed is rows[0])
        others = [replace(row, value=0.0005) if row is changed else row for row in rows]
        assert judge_again(others) == replace(before, seconds=1.0)
        assert "toy: the rows of its cells in results.jsonl are not" in capsys.readouterr().err


def test_rows_of_decided_claims_are_not_used(tmp_path: Path) -> None:
    """They may be of an earlier version of a method, whose settings have the same names."""
    claim = load_claim(write_claim(tmp_path))
    kept, build = tmp_path / "kept", tmp_path / "build"
    kept.mkdir()
    row_of_old = row(list_tuning_cells(claim)[0], 0.5)
    (kept / RESULTS).write_text(json.dumps(to_json(row_of_old)) + "\n", encoding="utf-8")
    run_claims.restore_results(claim, kept, build)
    assert not (build / RESULTS).exists()
