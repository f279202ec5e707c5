"""`lgzoo bench --claim NAME`: choose the learning rates, run the claim's cells, decide it, and say so.

All claims of one folder share its results file and its learngenes: a cell of two claims is computed once.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.artifacts.shelf import read_config
from learngene_zoo.atomic import new_file
from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.claim_cells import cells_of, rates_of, tuning_cells
from learngene_zoo.bench.claim_file import Claim, ClaimBudget, planned_effect
from learngene_zoo.bench.contrasts import Finding, decided
from learngene_zoo.bench.executors import Executor
from learngene_zoo.bench.results import RESULTS, read_rows
from learngene_zoo.bench.runner import run_grid
from learngene_zoo.bench.statistics import extremes
from learngene_zoo.bench.verdict import Verdict, judge
from learngene_zoo.errors import BadFile
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks.catalogue import version_of
from learngene_zoo.text import counted, human_seconds, text_table

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
    """Run the cells that a claim still needs, decide it, and write `out/NAME.json` (`NAME.full.json` with the larger budget).

    First come the tuning cells, which see validation images only; then the claim's own. An incomplete claim leaves no file; its
    verdict names the cells that failed.
    """
    if claim.power is not None:
        say(f"{claim.name}: planned to see gains from {planned_effect(claim):.1f} points")
    tried = {row.key: row for row in read_rows(out / RESULTS) if row.error is None}
    while tuning := tuning_cells(claim, tried.values(), config_of(out)):
        say(f"{claim.name}: learning rates, {counted(len(tuning), 'cell')} on validation images")
        tried |= {row.key: row for row in run_grid(tuning, out, run, executor, say)}
    choices, missing = rates_of(claim, tried.values(), config_of(out))
    if not missing:
        cells = cells_of(claim, choices)
        if cells:
            say(f"{claim.name}: {counted(len(cells), 'cell')}")
            run_grid(cells, out, run, executor, say)
    verdict = judge(claim, read_rows(out / RESULTS), config_of(out))
    if verdict.verdict != "incomplete":
        write_verdict(claim, verdict, verdict_path(claim, out, budget))
    return verdict


def write_verdict(claim: Claim, verdict: Verdict, path: Path) -> None:
    """Write a verdict with the claim that it is on, and with the versions of its tasks: later ones have other test images."""
    versions = {task: version_of(task) for task in (*claim.targets, *claim.where_installed)}
    claim = replace(claim, versions={**versions, **claim.versions})
    with new_file(path, force=True) as draft:
        write_json(draft, {"claim": to_json(claim), "verdict": to_json(verdict)})


def verdict_path(claim: Claim, out: Path, budget: ClaimBudget = "standard") -> Path:
    """The file of the verdict on a claim."""
    return out / (f"{claim.name}.json" if budget == "standard" else f"{claim.name}.{budget}.json")


def read_verdict(path: Path) -> tuple[Claim, Verdict]:
    """The content of a verdict's file. Raises `BadFile`."""
    data = read_json(path)
    for key in ("claim", "verdict"):
        if key not in data:
            raise BadFile(f"{path} is not a verdict: the key {key!r} is missing; run `lgzoo bench --claim` again")
    data = _in_four_words(data)
    tasks = (*data["claim"].get("targets", ()), *data["claim"].get("where_installed", ()))
    data["claim"].setdefault("versions", dict.fromkeys(tasks, 1))  # there was one only
    return (from_json(Claim, data["claim"], f"{path}: claim"), from_json(Verdict, data["verdict"], f"{path}: verdict"))


def _in_four_words(data: dict[str, Any]) -> dict[str, Any]:
    """A verdict of an earlier version, which had one word for *refuted*, *negligible* and what was not shown to be either."""
    if "does not hold" not in json.dumps(data):
        return data
    claim, verdict = dict(data["claim"]), dict(data["verdict"])
    if claim.get("expected") == "does not hold":
        claim["expected"] = "refuted"
    exact, smallest = claim["compare"]["kind"] == "exact", claim.get("smallest", 1.0)
    for part in ("findings", "beside"):
        verdict[part] = [
            {**one, "outcome": "refuted" if exact else decided(one["low"], one["high"], smallest)}
            if one.get("outcome") == "does not hold"
            else one
            for one in verdict.get(part, ())
        ]
    if verdict["verdict"] == "does not hold":
        outcomes = {one.get("outcome") for one in verdict["findings"]}
        verdict["verdict"] = next((word for word in ("refuted", "negligible") if word in outcomes), "undecided")
    return {**data, "claim": claim, "verdict": verdict}


def config_of(out: Path) -> Callable[[Cell], LearngeneConfig]:
    """A function that reads the config of a cell's learngene."""
    read = cache(read_config)  # each file once
    return lambda cell: read(cell.extraction.folder(out))


def verdict_text(claim: Claim, verdict: Verdict) -> list[str]:
    """The lines that the command prints: the claim, the results by task, the intervals, and the verdict."""
    more = len(verdict.missing) - SHOWN_MISSING
    missing = [*verdict.missing[:SHOWN_MISSING], *([f"and {more} more"] if more > 0 else [])]
    return [
        f"{claim.name}: {verdict.verdict}",
        "",
        f"Paper      {claim.says} ({claim.paper}, {claim.where})",
        f"Estimand   {claim.estimand}",
        *([f"Predicted  {claim.expected}. {claim.note}".rstrip()] if claim.expected or claim.note else []),
        *([f"Measured   {_design(claim)}"] if claim.targets else []),
        *_table(verdict),
        *_block("Decides", [_line(found, claim) for found in verdict.findings]),
        *_block("Also measured", [_line(found, claim) for found in verdict.beside]),
        *_block("One task left out", [_without(found) for found in verdict.findings if found.without]),
        *_block("Learning rates and augmentations, chosen on validation images", list(_rates(verdict))),
        *_block("Notes", list(verdict.notes)),
        *_block(f"Missing: {counted(len(verdict.missing), 'cell')}; run the claim again", missing),
        "",
        *_last(claim, verdict),
    ]


def _design(claim: Claim) -> str:
    """What is measured, in one line."""
    sizes = counted(len(claim.sizes), "size") if claim.sizes else f"{_listed(claim.layers)} layers"
    sizes = f"{counted(len(claim.targets), 'task')}, {sizes}, {counted(claim.seeds, 'seed')}"
    if claim.measure == "extraction":
        return f"{sizes}; the extraction itself"
    budgets = sorted({claim.epochs_of(name) for name in claim.arms})
    images = f"{claim.recipe.images} images" if claim.recipe.images else "all images"
    return f"{sizes}; {_listed(budgets)} epochs of {images} in batches of {claim.recipe.batch_size}"


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _last(claim: Claim, verdict: Verdict) -> Iterator[str]:
    if verdict.verdict == "incomplete":
        yield f"No verdict on {claim.name} until every cell has a result."
        return
    if claim.compare.kind != "exact":
        over = "tasks and seeds" if claim.scope == "tasks" else "seeds only"
        yield f"95 % intervals over {over}; smallest relevant effect: {claim.smallest:g} points."
        yield f"{counted(verdict.cells, 'cell')}, {human_seconds(verdict.seconds)} of extraction and training; {'; '.join(verdict.machines)}"
    yield f"Verdict: {claim.name} {_sentence(verdict)}."


def _sentence(verdict: Verdict) -> str:
    least = max((found.detectable for found in verdict.findings if found.detectable is not None), default=None)
    if verdict.verdict != "undecided" or least is None:
        return verdict.verdict
    return f"is undecided; a true gain of {least:.1f} points would have been detected with 80 % power"


def _line(found: Finding, claim: Claim) -> str:
    if claim.compare.kind == "exact":
        text = f"{found.what}: {sum_text(found)}"
    else:
        text = f"{found.what}: {found.value:+.1f} points {interval_text(found)}"
        here = interval_text(replace(found, low=found.low_here, high=found.high_here))
        text += f", over seeds only {here}" if claim.scope == "tasks" else ""
    if claim.compare.kind == "ordering" and found.p is not None:
        text += f", p = {found.p:.3f} (Holm)"
    return f"{text}: {found.outcome}" if found.outcome else text


def sum_text(found: Finding) -> str:
    """An exact sum with its unit."""
    return f"{found.value:.2f} {found.unit or '%'}"


def interval_text(found: Finding) -> str:
    """The interval of a finding, in points."""
    if found.low is None or found.high is None:
        return "[no interval: one unit]"
    return f"[{found.low:+.1f}, {found.high:+.1f}]"  # finer than the error of the draws it would be no number


def _without(found: Finding) -> str:
    (low, least), (high, most) = extremes(found.without)
    return f"{found.what}: {least:+.1f} (without {low}) to {most:+.1f} (without {high})"


def _rates(verdict: Verdict) -> Iterator[str]:
    for choice in verdict.choices.values():
        tried = ", ".join(f"{rate}: {mean:.1f} %" for rate, mean in choice.means.items())
        if tried:
            augments = ", ".join(f"{name}: {mean:.1f} %" for name, mean in choice.augments.items())
            own = f"; augmentation {choice.augment} (of {augments})" if augments else ""
            yield f"{choice.arm}: {choice.lr:g} (of {tried}){own}"


def _table(verdict: Verdict) -> list[str]:
    """Per task: every arm's mean in per cent, and the mean difference that decides."""
    if not verdict.means:
        return []
    found, tasks = list(verdict.findings), list(dict.fromkeys(task for of in verdict.means.values() for task in of))
    differences = ["difference"] if len(found) == 1 else [f"finding {number + 1}" for number in range(len(found))]
    rows = []
    for task in tasks:
        means = [f"{means[task]:.1f}" if task in means else "" for means in verdict.means.values()]
        rows.append([task, *means, *(f"{one.tasks[task]:+.1f}" if task in one.tasks else "" for one in found)])
    columns = ["task", *verdict.means, *differences]
    return ["", *text_table(columns, rows, right=range(1, len(columns))).splitlines()]
