"""`lgzoo bench --claim NAME`: choose learning rates, run the claim's cells, write the verdict.

All claims of one folder share its results file and its learngenes: a cell of two claims is computed
once.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.claims.cells import choose_rates, list_cells, list_tuning_cells, make_space
from learngene_zoo.bench.claims.contrasts import Finding, decide_outcome
from learngene_zoo.bench.claims.file import Claim, ClaimBudget, compute_planned_effect
from learngene_zoo.bench.claims.verdict import Verdict, judge
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.grid import open_own_data, stamp_own_data
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.results.statistics import find_extremes
from learngene_zoo.bench.running.executors import Executor
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.errors import BadFile
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks.catalogue import get_version
from learngene_zoo.terminal import format_table
from learngene_zoo.text import count_noun, format_seconds

SHOWN_MISSING = 12  # missing cells that are listed


def run_claim(
    claim: Claim,
    out: Path,
    run: Run,
    executor: Executor | None = None,
    say: Callable[[str], None] = lambda text: None,
    *,
    budget: ClaimBudget = "standard",
) -> Verdict:
    """Run the cells that a claim still needs, decide it, and write its verdict.

    First come the tuning cells, which use validation images only; then the claim's own. The file is
    `out/NAME.json`, or `NAME.full.json` with the larger budget. An incomplete claim leaves no file;
    its verdict names the cells that failed.

    Args:
        claim: the claim.
        out: the bench's folder, which holds the rows and the learngenes.
        run: how to compute.
        executor: where the jobs run; None for this process.
        say: receives each line of progress.
        budget: the budget with which the claim was loaded.
    """
    if claim.power is not None:
        say(f"{claim.name}: planned to see gains from {compute_planned_effect(claim):.1f} points")
    own = [*claim.targets, *(task for arm in claim.arms.values() for task in arm.tasks)]
    claim = replace(claim, data=stamp_own_data(open_own_data(own, run.offline)))
    tried = {row.key: row for row in read_rows(out / RESULTS) if row.error is None}
    while tuning := list_tuning_cells(claim, tried.values(), make_config_reader(out)):
        say(f"{claim.name}: {describe_phase(claim, tuning)} on validation images")
        tried |= {row.key: row for row in run_grid(tuning, out, run, executor, say)}
    choices, missing = choose_rates(claim, tried.values(), make_config_reader(out))
    if not missing:
        cells = list_cells(claim, choices)
        if cells:
            say(f"{claim.name}: {count_noun(len(cells), 'cell')}")
            run_grid(cells, out, run, executor, say)
    verdict = judge(claim, read_rows(out / RESULTS), make_config_reader(out))
    if verdict.verdict != "incomplete":
        write_verdict(claim, verdict, locate_verdict(claim, out, budget))
    return verdict


def describe_phase(claim: Claim, tuning: Sequence[Cell]) -> str:
    """Return which settings the tuning cells try, and their number."""
    first = make_space(claim).augments[0]
    augments = sorted({cell.recipe.augment for cell in tuning})
    phase = "learning rates" if augments == [first] else f"augmentation {' and '.join(augments)}"
    return f"tuning, {phase}: {count_noun(len(tuning), 'cell')}"


def write_verdict(claim: Claim, verdict: Verdict, path: Path) -> None:
    """Write a verdict with its claim, and with the versions of the claim's tasks.

    Later versions of a task have other test images.
    """
    versions = {task: get_version(task) for task in (*claim.targets, *claim.where_installed)}
    claim = replace(claim, versions={**versions, **claim.versions})
    with new_file(path, force=True) as draft:
        write_json(draft, {"claim": to_json(claim), "verdict": to_json(verdict)})


def locate_verdict(claim: Claim, out: Path, budget: ClaimBudget = "standard") -> Path:
    """Return the file of the verdict on a claim."""
    return out / (f"{claim.name}.json" if budget == "standard" else f"{claim.name}.{budget}.json")


def read_verdict(path: Path) -> tuple[Claim, Verdict]:
    """Return the claim and the verdict in a file.

    Raises:
        BadFile: the file is not a verdict.
    """
    data = read_json(path)
    for key in ("claim", "verdict"):
        if key not in data:
            raise BadFile(
                f"{path} is not a verdict: the key {key!r} is missing; run `lgzoo bench --claim` "
                "again"
            )
    data = _upgrade_outcomes(data)
    tasks = (*data["claim"].get("targets", ()), *data["claim"].get("where_installed", ()))
    # Earlier verdicts know one version
    data["claim"].setdefault("versions", dict.fromkeys(tasks, 1))
    return (
        from_json(Claim, data["claim"], f"{path}: claim"),
        from_json(Verdict, data["verdict"], f"{path}: verdict"),
    )


def _upgrade_outcomes(data: dict[str, Any]) -> dict[str, Any]:
    """Replace "does not hold" in the verdict of an earlier version by today's outcomes.

    That version had one word for *refuted*, *negligible* and *undecided*.
    """
    if "does not hold" not in json.dumps(data):
        return data
    claim, verdict = dict(data["claim"]), dict(data["verdict"])
    if claim.get("expected") == "does not hold":
        claim["expected"] = "refuted"
    exact, smallest = claim["compare"]["kind"] == "exact", claim.get("smallest", 1.0)
    for part in ("findings", "beside"):
        verdict[part] = [
            {
                **finding,
                "outcome": "refuted"
                if exact
                else decide_outcome(finding["low"], finding["high"], smallest),
            }
            if finding.get("outcome") == "does not hold"
            else finding
            for finding in verdict.get(part, ())
        ]
    if verdict["verdict"] == "does not hold":
        outcomes = {finding.get("outcome") for finding in verdict["findings"]}
        verdict["verdict"] = next(
            (word for word in ("refuted", "negligible") if word in outcomes), "undecided"
        )
    return {**data, "claim": claim, "verdict": verdict}


def make_config_reader(out: Path) -> Callable[[Cell], LearngeneConfig]:
    """Return a function that reads the config of a cell's learngene."""
    read = cache(read_config)  # each file once
    return lambda cell: read(cell.extraction.folder(out))


def format_verdict(claim: Claim, verdict: Verdict) -> list[str]:
    """Return the lines that the command prints: claim, results by task, intervals and verdict."""
    more = len(verdict.missing) - SHOWN_MISSING
    missing = [*verdict.missing[:SHOWN_MISSING], *([f"and {more} more"] if more > 0 else [])]
    return [
        f"{claim.name}: {verdict.verdict}",
        "",
        f"Paper      {claim.says} ({claim.paper}, {claim.where})",
        f"Estimand   {claim.estimand}",
        *(
            [f"Predicted  {claim.expected}. {claim.note}".rstrip()]
            if claim.expected or claim.note
            else []
        ),
        *([f"Measured   {_describe_design(claim)}"] if claim.targets else []),
        *_format_table(verdict),
        *_format_block(
            "Decides", [_format_finding(finding, claim) for finding in verdict.findings]
        ),
        *_format_block(
            "Also measured", [_format_finding(finding, claim) for finding in verdict.beside]
        ),
        *_format_block(
            "One task left out",
            [_format_range_without_one(finding) for finding in verdict.findings if finding.without],
        ),
        *_format_block(
            "Learning rates and augmentations, chosen on validation images",
            list(_describe_choices(verdict)),
        ),
        *_format_block("Notes", list(verdict.notes)),
        *_format_block(
            f"Missing: {count_noun(len(verdict.missing), 'cell')}; run the claim again", missing
        ),
        "",
        *_format_last_lines(claim, verdict),
    ]


def _describe_design(claim: Claim) -> str:
    """Return in one line which tasks, sizes, seeds and budgets are measured."""
    sizes = (
        count_noun(len(claim.sizes), "size")
        if claim.sizes
        else f"{_join_numbers(claim.layers)} layers"
    )
    sizes = f"{count_noun(len(claim.targets), 'task')}, {sizes}, {count_noun(claim.seeds, 'seed')}"
    if claim.measure == "extraction":
        return f"{sizes}; the extraction itself"
    budgets = sorted({claim.epochs_of(name) for name in claim.arms})
    epochs = "epoch" if budgets == [1] else "epochs"
    images = f"{claim.recipe.images} images" if claim.recipe.images else "all images"
    return (
        f"{sizes}; {_join_numbers(budgets)} {epochs} of {images} in batches of "
        f"{claim.recipe.batch_size}"
    )


def _join_numbers(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _format_block(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _format_last_lines(claim: Claim, verdict: Verdict) -> Iterator[str]:
    if verdict.verdict == "incomplete":
        yield f"No verdict on {claim.name} until every cell has a result."
        return
    if claim.compare.kind != "exact":
        over = "tasks and seeds" if claim.scope == "tasks" else "seeds only"
        yield f"95 % intervals over {over}; smallest relevant effect: {claim.smallest:g} points."
        yield (
            f"{count_noun(verdict.cells, 'cell')}, {format_seconds(verdict.seconds)} of extraction "
            f"and training; {'; '.join(verdict.machines)}"
        )
    yield f"Verdict: {claim.name} {_sentence(verdict)}."


def _sentence(verdict: Verdict) -> str:
    detectable = max(
        (finding.detectable for finding in verdict.findings if finding.detectable is not None),
        default=None,
    )
    if verdict.verdict != "undecided" or detectable is None:
        return verdict.verdict
    return (
        f"is undecided; a true gain of {detectable:.1f} points would have been detected with 80 % "
        "power"
    )


def _format_finding(finding: Finding, claim: Claim) -> str:
    if claim.compare.kind == "exact":
        text = f"{finding.what}: {sum_text(finding)}"
    else:
        text = f"{finding.what}: {finding.value:+.1f} points {format_interval(finding)}"
        if claim.scope == "tasks":
            text += _format_interval_over_seeds(finding)
    if claim.compare.kind == "ordering" and finding.p is not None:
        text += f", p = {finding.p:.3f} (Holm)"
    return f"{text}: {finding.outcome}" if finding.outcome else text


def _format_interval_over_seeds(finding: Finding) -> str:
    """Return the interval over seeds only, which is the same one if there is one task."""
    if len(finding.tasks) == 1:
        return " (one task: over seeds)"
    interval = format_interval(replace(finding, low=finding.low_here, high=finding.high_here))
    return f", over seeds only {interval}"


def sum_text(finding: Finding) -> str:
    """Return an exact sum with its unit."""
    return f"{finding.value:.2f} {finding.unit or '%'}"


def format_interval(finding: Finding) -> str:
    """Return the interval of a finding, in points."""
    if finding.low is None or finding.high is None:
        return "[no interval: one unit]"
    # More digits would be below the error of the draws.
    return f"[{finding.low:+.1f}, {finding.high:+.1f}]"


def _format_range_without_one(finding: Finding) -> str:
    (low_task, lowest), (high_task, highest) = find_extremes(finding.without)
    return (
        f"{finding.what}: {lowest:+.1f} (without {low_task}) to {highest:+.1f} (without "
        f"{high_task})"
    )


def _describe_choices(verdict: Verdict) -> Iterator[str]:
    for choice in verdict.choices.values():
        tried = ", ".join(f"{rate}: {mean:.1f} %" for rate, mean in choice.means.items())
        if tried:
            augments = ", ".join(f"{name}: {mean:.1f} %" for name, mean in choice.augments.items())
            augmentation = f"; augmentation {choice.augment} (of {augments})" if augments else ""
            yield f"{choice.arm}: {choice.lr:g} (of {tried}){augmentation}"


def _format_table(verdict: Verdict) -> list[str]:
    """Return for each task every arm's mean in per cent, and the mean difference that decides."""
    if not verdict.means:
        return []
    findings, tasks = (
        list(verdict.findings),
        list(dict.fromkeys(task for by_task in verdict.means.values() for task in by_task)),
    )
    differences = (
        ["difference"]
        if len(findings) == 1
        else [f"finding {number + 1}" for number in range(len(findings))]
    )
    rows = []
    for task in tasks:
        means = [f"{means[task]:.1f}" if task in means else "" for means in verdict.means.values()]
        rows.append(
            [
                task,
                *means,
                *(
                    f"{finding.tasks[task]:+.1f}" if task in finding.tasks else ""
                    for finding in findings
                ),
            ]
        )
    columns = ["task", *verdict.means, *differences]
    return ["", *format_table(columns, rows, right=range(1, len(columns))).splitlines()]
