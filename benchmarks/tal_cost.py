"""What the claims' meta-trainings took: whether all had the same time, and what each made of it.

    python benchmarks/tal_cost.py        seconds, after `python benchmarks/run_claims.py`

Reads benchmarks/results/claims/results.jsonl: of every hypernetwork the seconds of its extraction, stage 1 included where another one's
was used, and the images that it was shown, means over seeds. The paper's: 28.47 hours for stage 1 and 7.72 for stage 2.
Writes the table of docs/methods/tal.md.
"""

from __future__ import annotations

from statistics import mean

from run_claims import KEPT
from shelf import ROOT, between

from learngene_zoo.bench.cell import Row
from learngene_zoo.bench.results import RESULTS, read_rows

METHODS = ("tal", "logah", "ghn3")
LEFT_OUT = (", untrained", " shuffled")  # the same extractions once more


def main() -> None:
    """Print and keep the table."""
    rows = [row for row in read_rows(KEPT / RESULTS) if row.method in METHODS and row.error is None]
    arms = dict.fromkeys(row.arm for row in rows if not row.arm.endswith(LEFT_OUT))
    table = markdown({arm: [row for row in rows if row.arm == arm] for arm in arms})
    print(table)
    between(ROOT / "docs" / "methods" / "tal.md", "cost", table)


def markdown(arms: dict[str, list[Row]]) -> str:
    """One line per arm, the quickest first."""
    lines = ["| | trainings | seconds | images | images a second | numbers kept |", "|---|---:|---:|---:|---:|---:|"]
    found = {arm: list({row.seed: row for row in rows}.values()) for arm, rows in arms.items()}
    for arm, rows in sorted(found.items(), key=lambda item: mean(row.extraction_seconds for row in item[1])):
        seconds, images = mean(row.extraction_seconds for row in rows), mean(row.extraction_images for row in rows)
        stored = max(row.stored_params for row in rows)
        lines.append(f"| {arm} | {len(rows)} | {seconds:.0f} | {images:,.0f} | {images / seconds:.0f} | {stored:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
