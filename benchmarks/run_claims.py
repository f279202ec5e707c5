"""Which claims of the papers hold? Decide those of benchmarks/claims.

Varied: the arms, sizes and seeds that each claim's file names, written before its results.

Measured: the compared differences in points with their intervals, and the verdict (docs/claims.md
describes how). Claims without a verdict are listed as filed.

Command: more than a day on two cores, resumable; works in build/claims, where claims share cells.

    python benchmarks/run_claims.py
    python benchmarks/run_claims.py NAME ...       some of them, in this order
    python benchmarks/run_claims.py --workers 8    this many cells at once, each with one thread
                                                   (default: 2)
    python benchmarks/run_claims.py --judge        judge every kept claim again, without
                                                   training
    python benchmarks/run_claims.py --table        only the tables, from the verdicts that are there

Results: benchmarks/results/claims: verdicts, each with its claim as it was filed, the rows, and the
config.json of every learngene that they come from. All claims can be judged again from these.
Page: docs/claims.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grids import keep_rows
from learngene_zoo.bench.claims.contrasts import Finding
from learngene_zoo.bench.claims.file import PROTOCOL, Claim, list_claims, load_claim
from learngene_zoo.bench.claims.run import (
    config_of,
    interval_text,
    read_verdict,
    run_claim,
    sum_text,
    verdict_path,
    verdict_text,
    write_verdict,
)
from learngene_zoo.bench.claims.verdict import Verdict, judge
from learngene_zoo.bench.grid.cell import LEARNGENES
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.executors import Workers
from learngene_zoo.errors import ZooError
from learngene_zoo.plotting import (
    COLOURS,
    GREY,
    INK,
    PAPER,
    legend,
    save,
    settle,
    shorten_label,
    style,
    subplots,
)
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import CONFIG
from pages import DOCS, ROOT, replace_between

# By verdict.
COLOUR_OF = {
    "holds": COLOURS[2],
    "refuted": COLOURS[1],
    "negligible": COLOURS[0],
    "undecided": GREY,
}
BUILD, KEPT = ROOT / "build" / "claims", ROOT / "benchmarks" / "results" / "claims"


def main() -> None:
    """Decide the named claims, or all, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="cells at once")
    parser.add_argument("--table", action="store_true", help="decide nothing, write the table")
    parser.add_argument(
        "--judge", action="store_true", help="train nothing, judge what is kept, write the table"
    )
    given = parser.parse_args()
    if given.judge:
        judge_again(KEPT)
    for name in [] if given.table or given.judge else given.names or list_claims():
        decide(name, given.workers)
    verdicts = kept_verdicts(KEPT)
    save(picture(verdicts), DOCS / "images" / "claims.png")
    replace_between(DOCS / "claims.md", "claims", markdown(verdicts))
    decided = {claim.name for claim, _ in verdicts if claim.protocol == PROTOCOL}
    replace_between(
        DOCS / "claims.md",
        "filed",
        filed(load_claim(name) for name in list_claims() if name not in decided),
    )


def decide(name: str, workers: int) -> None:
    """Run one claim, print its verdict, and keep it."""
    claim = load_claim(name)
    verdict = run_claim(
        claim, BUILD, Run(threads=1), Workers(workers), lambda text: print(text, file=sys.stderr)
    )
    print("\n".join([*verdict_text(claim, verdict), ""]))
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in (verdict_path(claim, BUILD), *(BUILD / LEARNGENES).glob(f"*/{CONFIG}")):
        if path.is_file():
            kept = KEPT / path.relative_to(BUILD)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept)
    keep_rows(BUILD / RESULTS, KEPT / RESULTS)


def judge_again(folder: Path) -> None:
    """The kept claims under today's statistics. A verdict whose learngenes are not kept stays as it
    was, in today's words.
    """
    rows = read_rows(folder / RESULTS)
    for claim, before in kept_verdicts(folder):
        try:
            verdict = judge(claim, rows, config_of(folder))
        except ZooError as error:
            print(f"{claim.name}: {error}", file=sys.stderr)
            verdict = before
        if verdict.verdict == "incomplete":
            print(f"{claim.name}: {verdict.missing[0]}", file=sys.stderr)
            verdict = before
        write_verdict(claim, verdict, folder / f"{claim.name}.json")


def kept_verdicts(folder: Path) -> list[tuple[Claim, Verdict]]:
    """Every verdict of the standard budget in a folder, by name."""
    return [
        read_verdict(path)
        for path in sorted(folder.glob("*.json"))
        if not path.name.endswith(".full.json")
    ]


def markdown(verdicts: Iterable[tuple[Claim, Verdict]]) -> str:
    """One line per deciding finding of every claim."""
    lines = [
        (
            "| claim | protocol | the paper says | compared | points | 95 % interval | detectable |"
            " predicted | verdict |"
        ),
        "|---|---:|---|---|---:|---|---:|---|---|",
    ]
    for claim, verdict in verdicts:
        decide: list[Finding | None] = [found for found in verdict.findings if found.outcome]
        for found in decide or [None]:
            exact = claim.compare.kind == "exact"
            cells = [
                f"`{claim.name}`",
                "" if exact else str(claim.protocol),
                f"{claim.says} ({claim.where})",
                *_cells(found, claim),
                claim.expected,
            ]
            lines.append(f"| {' | '.join([*cells, f'**{verdict.verdict}**'])} |")
    return "\n".join(lines)


@style()
def picture(verdicts: Iterable[tuple[Claim, Verdict]]) -> Any:
    """Every deciding finding in points with its interval, by verdict; those of an earlier protocol
    are hollow.
    """
    found = [
        (claim, verdict.verdict, finding)
        for claim, verdict in verdicts
        for finding in verdict.findings
        if finding.outcome and claim.compare.kind != "exact"
    ]
    found.reverse()  # the first one at the top
    made, (panel,) = subplots(1, 1, (9.4, 0.5 + 0.2 * len(found)))
    for height, (claim, word, finding) in enumerate(found):
        fill = COLOUR_OF[word] if claim.protocol == PROTOCOL else PAPER
        if finding.low is not None and finding.high is not None:
            panel.plot(
                [finding.low, finding.high], [height, height], color=COLOUR_OF[word], linewidth=1.6
            )
        panel.plot(
            [finding.value],
            [height],
            "o",
            color=COLOUR_OF[word],
            markerfacecolor=fill,
            markersize=5,
            label=word,
        )
    panel.axvline(0, color=INK, linewidth=0.8)
    panel.set_yticks(
        range(len(found)),
        [f"{claim.name}: {shorten_label(finding.what, 60)}" for claim, _, finding in found],
    )
    panel.tick_params(axis="y", labelsize=7.5, length=0)
    panel.set_ylim(-0.7, len(found) - 0.3)
    panel.set_xlabel("points, with 95 % intervals; hollow: under protocol 1")
    legend(made, [panel], len(COLOUR_OF))
    return settle(made)


def filed(claims: Iterable[Claim]) -> str:
    """One line per claim that is not exact.

    What is compared on what, and which effect it can see.
    """
    lines = [
        "| claim | where | compared | tasks × seeds | over | sees | matters from | predicted |",
        "|---|---|---|---|---|---:|---:|---|",
    ]
    for claim in claims:
        if claim.power is not None:
            first, *others = claim.compare.arms
            against = (
                f" over {' and '.join(others)}"
                if claim.compare.kind in ("over", "ordering")
                else f" ({claim.compare.kind})"
            )
            tasks = len(claim.targets) - len(set(claim.where_installed) & set(claim.targets))
            design = f"{tasks}{'+' if claim.where_installed else ''} × {claim.seeds}"
            numbers = f"{claim.power.sees:.1f} | {claim.smallest:g}"
            lines.append(
                f"| `{claim.name}` | {claim.where} | {first}{against} | {design} | {claim.scope} |"
                f" {numbers} | {claim.expected} |"
            )
    return "\n".join(lines)


def _cells(found: Finding | None, claim: Claim) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    if claim.compare.kind == "exact":
        return [found.what, sum_text(found), "exact", ""]
    detectable = "" if found.detectable is None else f"{found.detectable:.1f}"
    return [found.what, f"{found.value:+.1f}", interval_text(found), detectable]


if __name__ == "__main__":
    main()
