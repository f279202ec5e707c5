"""Which claims of the papers hold? Decide those of benchmarks/claims.

Varied: the arms, sizes and seeds that each claim's file names, written before its results.

Measured: the compared differences in points with their intervals, and the verdict (docs/claims.md
describes how). Claims without a verdict are listed as filed.

Command: more than a day on two cores, resumable; works in build/claims, where claims share cells.
An interrupted claim keeps its rows in partial/NAME beside the results, from which the next call
continues, also in another clone.

    python benchmarks/run_claims.py
    python benchmarks/run_claims.py NAME ...       some of them, in this order
    python benchmarks/run_claims.py --workers 8    this many cells at once, each with one thread
                                                   (default: 2)
    python benchmarks/run_claims.py --judge        judge every committed claim again, without
                                                   training
    python benchmarks/run_claims.py --table        only the tables, from the verdicts that are there

Results: benchmarks/results/claims: verdicts, each with its claim as it was filed, the rows, and the
config.json of every learngene that they come from. A claim can be judged again from these while the
presets are those that it was run with, and if its rows are among them; the others keep their
verdicts.
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
    format_interval,
    format_verdict,
    locate_verdict,
    make_config_reader,
    read_verdict,
    run_claim,
    sum_text,
    write_verdict,
)
from learngene_zoo.bench.claims.verdict import Verdict, judge
from learngene_zoo.bench.grid.cell import LEARNGENES
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.executors import Workers
from learngene_zoo.bench.running.extraction import ANCESTRIES
from learngene_zoo.bench.running.runner import claim_workspace
from learngene_zoo.errors import ZooError
from learngene_zoo.plotting import (
    COLOURS,
    GREY,
    INK,
    PAPER,
    draw_legend,
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
PARTIAL = "partial"  # the folder of interrupted claims


def main() -> None:
    """Decide the named claims, or all, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="cells at once")
    parser.add_argument("--table", action="store_true", help="decide nothing, write the table")
    parser.add_argument(
        "--judge", action="store_true", help="train nothing, judge what is kept, write the table"
    )
    args = parser.parse_args()
    if args.judge:
        rejudge_claims(KEPT)
    for name in [] if args.table or args.judge else args.names or list_claims():
        decide_claim(name, args.workers)
    verdicts = read_verdicts(KEPT)
    save(draw_verdicts(verdicts), DOCS / "images" / "claims.png")
    replace_between(DOCS / "claims.md", "claims", make_verdict_table(verdicts))
    decided = {claim.name for claim, _ in verdicts if claim.protocol == PROTOCOL}
    replace_between(
        DOCS / "claims.md",
        "filed",
        make_filed_table(load_claim(name) for name in list_claims() if name not in decided),
    )


def decide_claim(name: str, workers: int) -> None:
    """Run one claim, print its verdict and write it."""
    claim = load_claim(name)
    restore_results(claim, KEPT, BUILD)
    try:
        verdict = run_claim(
            claim,
            BUILD,
            Run(threads=1),
            Workers(workers),
            lambda text: print(text, file=sys.stderr),
        )
    finally:
        keep_results(claim, BUILD, KEPT)
    print("\n".join([*format_verdict(claim, verdict), ""]))


def restore_results(claim: Claim, kept: Path, build: Path) -> None:
    """Copy the rows of an interrupted claim, and the checksums of its ancestry models.

    Rows of other claims may be of earlier versions of a method and are not used.
    """
    claim_workspace(build, anew=False)
    partial = kept / PARTIAL / claim.name
    keep_rows(partial / RESULTS, build / RESULTS)
    if (partial / ANCESTRIES).is_file() and not (build / ANCESTRIES).exists():
        shutil.copyfile(partial / ANCESTRIES, build / ANCESTRIES)


def keep_results(claim: Claim, build: Path, kept: Path) -> None:
    """Copy what is to be committed: the verdict, the rows and the learngenes' configs.

    Without a verdict they are the rows, for the next call.
    """
    partial = kept / PARTIAL / claim.name
    if not locate_verdict(claim, build).is_file():
        keep_rows(build / RESULTS, partial / RESULTS, without=kept / RESULTS)
        if (build / ANCESTRIES).is_file() and partial.is_dir():
            shutil.copyfile(build / ANCESTRIES, partial / ANCESTRIES)
        return
    keep_rows(build / RESULTS, kept / RESULTS)
    for path in (locate_verdict(claim, build), *(build / LEARNGENES).glob(f"*/{CONFIG}")):
        target = kept / path.relative_to(build)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    if partial.is_dir():
        shutil.rmtree(partial)


def rejudge_claims(folder: Path) -> None:
    """Judge the committed claims with the current statistics.

    A verdict whose learngenes or rows are not committed is written again with the current texts.
    """
    rows = read_rows(folder / RESULTS)
    for claim, before in read_verdicts(folder):
        try:
            verdict = judge(claim, rows, make_config_reader(folder))
            problem = find_difference(before, verdict)
        except ZooError as error:
            verdict, problem = before, str(error)
        if problem:
            print(f"{claim.name}: {problem}; its verdict is kept", file=sys.stderr)
            verdict = before
        write_verdict(claim, verdict, folder / f"{claim.name}.json")


def find_difference(before: Verdict, verdict: Verdict) -> str | None:
    """Return how the rows of a new verdict differ from those of an earlier one; None if they do
    not.

    An earlier verdict without a digest is compared by its numbers.
    """
    if verdict.verdict == "incomplete":
        return verdict.missing[0]
    if before.digest:
        is_same = before.digest == verdict.digest
    else:
        is_same = _list_numbers(before) == _list_numbers(verdict)
    return None if is_same else f"the rows of its cells in {RESULTS} are not those of its verdict"


def _list_numbers(verdict: Verdict) -> dict[str, Any]:
    """Return the means of the arms, and those by which their rates were chosen."""
    choices = {
        name: (choice.lr, choice.augment, {**choice.means, **choice.augments})
        for name, choice in verdict.choices.items()
    }
    return {"means": verdict.means, "choices": choices}


def read_verdicts(folder: Path) -> list[tuple[Claim, Verdict]]:
    """Return the verdicts of the standard budget in a folder, by name."""
    return [
        read_verdict(path)
        for path in sorted(folder.glob("*.json"))
        if not path.name.endswith(".full.json")
    ]


def make_verdict_table(verdicts: Iterable[tuple[Claim, Verdict]]) -> str:
    """Return a table with a row for each deciding finding of every claim."""
    lines = [
        (
            "| claim | protocol | the paper says | compared | points | 95 % interval | detectable |"
            " predicted | verdict |"
        ),
        "|---|---:|---|---|---:|---|---:|---|---|",
    ]
    for claim, verdict in verdicts:
        findings: list[Finding | None] = [
            finding for finding in verdict.findings if finding.outcome
        ]
        for finding in findings or [None]:
            exact = claim.compare.kind == "exact"
            cells = [
                f"`{claim.name}`",
                "" if exact else str(claim.protocol),
                f"{claim.says} ({claim.where})",
                *_format_finding(finding, claim),
                claim.expected,
            ]
            lines.append(f"| {' | '.join([*cells, f'**{verdict.verdict}**'])} |")
    return "\n".join(lines)


@style()
def draw_verdicts(verdicts: Iterable[tuple[Claim, Verdict]]) -> Any:
    """Draw the deciding findings in points with their intervals, by verdict.

    Those of an earlier protocol are hollow.
    """
    findings = [
        (claim, verdict.verdict, finding)
        for claim, verdict in verdicts
        for finding in verdict.findings
        if finding.outcome and claim.compare.kind != "exact"
    ]
    findings.reverse()  # the first one at the top
    figure, (panel,) = subplots(1, 1, (9.4, 0.5 + 0.2 * len(findings)))
    for height, (claim, word, finding) in enumerate(findings):
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
        range(len(findings)),
        [f"{claim.name}: {shorten_label(finding.what, 60)}" for claim, _, finding in findings],
    )
    panel.tick_params(axis="y", labelsize=7.5, length=0)
    panel.set_ylim(-0.7, len(findings) - 0.3)
    panel.set_xlabel("points, with 95 % intervals; hollow: under protocol 1")
    draw_legend(figure, [panel], len(COLOUR_OF))
    return settle(figure)


def make_filed_table(claims: Iterable[Claim]) -> str:
    """Return a table with a row for each claim that is not exact: the comparison, and the effect
    that it can detect.
    """
    lines = [
        "| claim | where | compared | tasks × seeds | over | sees | matters from | predicted |",
        "|---|---|---|---|---|---:|---:|---|",
    ]
    for claim in claims:
        if claim.power is not None:
            first, *other_arms = claim.compare.arms
            against = (
                f" over {' and '.join(other_arms)}"
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


def _format_finding(finding: Finding | None, claim: Claim) -> list[str]:
    """Return the cells of a finding; empty ones without a finding."""
    if finding is None:
        return ["", "", "", ""]
    if claim.compare.kind == "exact":
        return [finding.what, sum_text(finding), "exact", ""]
    detectable = "" if finding.detectable is None else f"{finding.detectable:.1f}"
    return [finding.what, f"{finding.value:+.1f}", format_interval(finding), detectable]


if __name__ == "__main__":
    main()
