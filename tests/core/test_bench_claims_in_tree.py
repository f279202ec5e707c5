"""The claims in the tree can be run, and the exact ones have these results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo.bench.claims import file
from learngene_zoo.bench.claims.arms import check_arms
from learngene_zoo.bench.claims.cells import list_cells, list_tuning_cells
from learngene_zoo.bench.claims.file import (
    compute_planned_effect,
    find_claim,
    list_claims,
    load_claim,
)
from learngene_zoo.bench.claims.run import read_verdict
from learngene_zoo.bench.claims.verdict import judge
from learngene_zoo.bench.results.rows import read_rows
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import to_json


@pytest.mark.parametrize("name", list_claims())
@pytest.mark.parametrize("budget", ["standard", "full"])
def test_every_claim_in_tree_can_be_run(name: str, budget: Any) -> None:
    claim = load_claim(name, budget)
    check_arms(claim, find_claim(name), offline=True)
    cells = [*list_tuning_cells(claim), *list_cells(claim)]
    assert bool(cells) == (claim.compare.kind != "exact")
    assert "" not in (claim.says, claim.estimand, claim.where)


@pytest.mark.slow
def test_every_claim_in_tree_sees_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # They were filed with all of their data on the machine.
    monkeypatch.setattr("learngene_zoo.bench.claims.file.is_installed", lambda task: True)
    for claim in map(load_claim, list_claims()):
        if claim.compare.kind != "exact":
            assert 0 < compute_planned_effect(claim) <= claim.power.sees + 0.05


def test_no_extraction_of_a_claim_sees_the_left_out_tasks() -> None:
    for claim in map(load_claim, list_claims()):
        for name, arm in claim.arms.items():
            assert not {"wings", "petals"} & set(arm.tasks), f"{claim.name}: {name}"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lsamd-storage", [95.41]),
        ("lsamd-training-cost", [1.0]),
        ("pool-smaller", [3.05, 4.38, 5.72]),
        ("pool-storage", [59.60, 40.14]),
        ("pool-training-cost", [6.75, 10.125]),
    ],
)
def test_the_exact_claims_are_these_sums(name: str, values: list[float]) -> None:
    """The figure of 1.36 times less training is only in the paper: its two sums of epochs are
    equal.
    """
    verdict = judge(load_claim(name), [])
    results = [finding.value for finding in verdict.findings if finding.outcome]
    assert [round(value, 3 if value == 10.125 else 2) for value in results] == values
    assert verdict.verdict == ("refuted" if name == "lsamd-training-cost" else "holds")


def test_arms_of_one_name_are_one_arm_in_every_claim() -> None:
    told: dict[str, Any] = {}
    for claim in map(load_claim, list_claims()):
        for name, arm in claim.arms.items():
            own = to_json(
                replace(arm, sizes=())
            )  # beside which of a claim's sizes they stand is the claim's own
            assert told.setdefault(name, own) == own, (
                f"{claim.name} tells the arm {name!r} otherwise"
            )


@pytest.mark.parametrize(("method", "hours"), [("lsamd", 17), ("pool", 3), ("tal", 11)])
def test_all_claims_on_a_method_are_planned_for_a_night(method: str, hours: float) -> None:
    claims = [load_claim(name) for name in list_claims() if name.startswith(method)]
    assert 0 < sum(claim.minutes for claim in claims) < 60 * hours


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lsamd-scratch", "pool-18", "tal-parts"])
def test_kept_rows_give_the_kept_verdict(name: str, checkout: Path) -> None:
    """So the keys of cells, by which rows are looked up, and the statistics are unchanged since
    then.
    """
    kept = checkout / "benchmarks" / "results" / "claims"
    claim, before = read_verdict(kept / f"{name}.json")
    found = judge(claim, read_rows(kept / "results.jsonl"))
    numbers = [
        [(finding.what, finding.value, finding.low, finding.high) for finding in verdict.findings]
        for verdict in (before, found)
    ]
    assert numbers[0] == numbers[1]
    assert (before.verdict, before.cells, before.means) == (found.verdict, found.cells, found.means)


def test_a_verdict_of_an_earlier_version_opens_in_four_words(
    checkout: Path, tmp_path: Path
) -> None:
    """Earlier versions had one word for everything below the smallest effect; the intervals
    determine which of the four it is.
    """
    kept = checkout / "benchmarks" / "results" / "claims" / "pool-levels-wide.json"
    data = json.loads(kept.read_text())
    data["claim"]["expected"] = data["verdict"]["verdict"] = "does not hold"
    (finding,) = data["verdict"]["findings"]
    for low, high, word in (
        (-3.0, -1.0, "refuted"),
        (-0.5, 0.5, "negligible"),
        (-3.0, 0.5, "undecided"),
    ):
        changed = {**finding, "low": low, "high": high, "outcome": "does not hold"}
        path = tmp_path / f"{word}.json"
        path.write_text(json.dumps({**data, "verdict": {**data["verdict"], "findings": [changed]}}))
        claim, verdict = read_verdict(path)
        assert (verdict.verdict, verdict.findings[0].outcome, claim.expected) == (
            word,
            word,
            "refuted",
        )


def test_what_the_learngene_saves_is_the_papers_sum() -> None:
    verdict = judge(load_claim("lsamd-storage"), [])
    assert verdict.verdict == "holds"
    assert round(verdict.findings[0].value, 2) == 95.41
    claim = load_claim("lsamd-storage")
    with pytest.raises(WrongCall, match="no descendant with 4 layers"):
        judge(replace(claim, exact=(replace(claim.exact[0], layers=(4, 5)),)), [])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"paper": None}, "no [[exact]] table has the paper's value"),
        ({"instead_work": ()}, "has the quantity 'times', which needs instead_work"),
        ({"instead_work": ((0.0,),)}, "divides by the products of instead_work; one is 0"),
        ({"quantity": "stored"}, "has the quantity 'stored', which needs sizes"),
    ],
)
def test_sums_that_cannot_be_decided_are_refused(changes: dict[str, Any], problem: str) -> None:
    exact = replace(load_claim("pool-training-cost").exact[0], **changes)
    assert problem in str(file._find_problem_of_sums([exact]))


def test_a_size_that_no_descendant_has_is_named() -> None:
    claim = load_claim("pool-storage")
    exact = replace(claim.exact[0], sizes=({"layers": 99},))
    with pytest.raises(WrongCall, match=r"has no descendant of the size \{'layers': 99\}"):
        judge(replace(claim, exact=(exact,)), [])
