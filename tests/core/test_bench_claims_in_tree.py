"""The claims that are in the tree, what they cost, and what the exact ones say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claims_toy import written

from learngene_zoo.bench.claim_cells import cells_of, tuning_cells
from learngene_zoo.bench.claim_cost import markdown as cost_table
from learngene_zoo.bench.claim_cost import prices
from learngene_zoo.bench.claim_file import Claim, load_claim, names
from learngene_zoo.bench.verdict import judge
from learngene_zoo.bench.verdict_text import between
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import to_json


@pytest.fixture
def toy(tmp_path: Path) -> Claim:
    """The claim of `claims_toy.FILE`."""
    return load_claim(written(tmp_path))


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("budget", ["standard", "full"])
def test_every_claim_in_tree_can_be_run(name: str, budget: Any) -> None:
    claim = load_claim(name, budget)
    cells = [*tuning_cells(claim), *cells_of(claim)]
    assert bool(cells) == (claim.compare.kind != "exact")
    assert "" not in (claim.says, claim.estimand, claim.where)


def test_arms_of_one_name_are_one_arm_in_every_claim() -> None:
    told: dict[str, Any] = {}
    for claim in map(load_claim, names()):
        for name, arm in claim.arms.items():
            own = to_json(replace(arm, sizes=()))  # beside which of a claim's sizes they stand is the claim's own
            assert told.setdefault(name, own) == own, f"{claim.name} tells the arm {name!r} otherwise"


@pytest.mark.parametrize(("method", "hours"), [("lsamd", 1), ("pool", 1), ("tal", 2)])
def test_all_claims_on_a_method_fit_in_a_few_hours_of_two_cores(method: str, hours: float) -> None:
    claims = [load_claim(name) for name in names() if name.startswith(method)]
    found = prices(claims)
    assert sum(price.seconds for price in found.values()) < 2 * 3900 * hours
    for claim in claims:
        assert claim.minutes == pytest.approx(found[claim.name].seconds / 120, abs=0.06), claim.name


def test_the_page_says_what_the_claims_cost(checkout: Path) -> None:
    page = checkout / "docs" / "claims.md"
    assert between(page, "claims-cost", cost_table(prices(map(load_claim, names())))) == page.read_text(
        encoding="utf-8"
    )


def test_what_claims_share_is_paid_once(toy: Claim) -> None:
    once, again = (list(prices([replace(toy, name=name) for name in names]).values()) for names in ("a", "ab"))
    assert again[0] == once[0]
    assert (once[0].cells, again[1].cells, again[1].seconds) == (6 + 36, 0, 0.0)
    assert cost_table({"a": once[0]}).splitlines()[-1].startswith("| together | 42 | 0 |")


def test_what_the_learngene_saves_is_the_papers_sum() -> None:
    verdict = judge(load_claim("lsamd-storage"), [])
    assert verdict.verdict == "holds"
    assert round(verdict.findings[0].value, 2) == 95.41
    claim = load_claim("lsamd-storage")
    with pytest.raises(WrongCall, match="no descendant with 4 layers"):
        judge(replace(claim, exact=(replace(claim.exact[0], layers=(4, 5)),)), [])
