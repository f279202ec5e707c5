"""Decide every claim, and put the verdicts and what they cost into docs/claims.md.

    python benchmarks/run_claims.py                about four hours of two cores; resumable: run it again after a stop
    python benchmarks/run_claims.py NAME ...       some of them, in this order
    python benchmarks/run_claims.py --workers 8    so many cells at once, each with one thread; two unless told
    python benchmarks/run_claims.py --tables       only the tables, from what is there

Works in build/claims, where claims share cells; verdicts and rows are kept in benchmarks/results/claims.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from learngene_zoo.bench import claim_cost
from learngene_zoo.bench import verdict_text as telling
from learngene_zoo.bench.claims import load_claim, names, run_claim, tell, verdict_path
from learngene_zoo.bench.executors import Workers
from learngene_zoo.bench.results import RESULTS
from learngene_zoo.runs.run import Run

ROOT = Path(__file__).resolve().parent.parent
BUILD, KEPT, PAGE = ROOT / "build" / "claims", ROOT / "benchmarks" / "results" / "claims", ROOT / "docs" / "claims.md"


def main() -> None:
    """Decide the claims asked for, or all, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims; all unless named")
    parser.add_argument("--workers", type=int, default=2, help="cells at once")
    parser.add_argument("--tables", action="store_true", help="decide nothing, write the tables")
    asked = parser.parse_args()
    for name in [] if asked.tables else asked.names or names():
        decide(name, asked.workers)
    tables()


def decide(name: str, workers: int) -> None:
    """Run one claim, tell its verdict, and keep it."""
    claim = load_claim(name)
    verdict = run_claim(claim, BUILD, Run(threads=1), Workers(workers), lambda text: print(text, file=sys.stderr))
    print("\n".join([*tell(claim, verdict), ""]))
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in (verdict_path(claim, BUILD), BUILD / RESULTS):
        if path.is_file():
            shutil.copyfile(path, KEPT / path.name)


def tables() -> None:
    """Write both tables of docs/claims.md."""
    prices = claim_cost.prices(map(load_claim, names()))
    found = {"claims-cost": claim_cost.markdown(prices), "claims": telling.markdown(telling.read_all(KEPT))}
    for name, table in found.items():
        PAGE.write_text(telling.between(PAGE, name, table), encoding="utf-8")


if __name__ == "__main__":
    main()
