"""Does TAL depend on its ancestry model?

Varied: the ancestry model that guides the meta-training of the claim `tal-parts`: the bundled one
(12 layers of width 96, a million images of the source task), one trained here with the same recipe
(6 layers of width 128, 300,000 images), or none for the same time.

Measured: the accuracy of untrained models of six sizes on the test images of four tasks, three
seeds, and that of both ancestry models on the source task. The rows of the bundled ancestry model
and of none are the claims' (benchmarks/results/claims).

Command: about 35 minutes on one core, resumable.

    python benchmarks/archive/tal_ancestries.py
    python benchmarks/archive/tal_ancestries.py --table    write the table from the rows

Results: benchmarks/results/tal_ancestries.jsonl, the ancestry models in tal_ancestries.json.
Page: docs/results/tal.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.bench.claims.cells import choose_rates, list_cells
from learngene_zoo.bench.claims.contrasts import Finding
from learngene_zoo.bench.claims.file import ArmComparison, Claim
from learngene_zoo.bench.claims.run import read_verdict
from learngene_zoo.bench.claims.verdict import Verdict, judge
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import machine
from pages import DOCS, ROOT, replace_between
from run_claims import KEPT
from shelf import ANCESTRY, PRETRAINING

BUILD = ROOT / "build" / "tal_ancestries"
PLACE = BUILD / "ancestry"
ROWS = machine.RESULTS / "tal_ancestries.jsonl"
SPEC = ANCESTRY.with_(layers=6, width=128, heads=4)
RECIPE = replace(PRETRAINING, images=300_000)
CLAIM, _ = read_verdict(KEPT / "tal-parts.json")  # as it was filed when it was decided
BUNDLED, OTHER, WITHOUT = "tal", "tal of another ancestry", "tal without ancestry"
PLACES = {BUNDLED: ROOT / "cards" / "ancestry-mini", OTHER: PLACE}
RUN = Run(seed=0, threads=1, progress=True, resume=True)


def main() -> None:
    """Train the other ancestry model and its learngenes, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="train nothing, write the table")
    os.chdir(
        ROOT
    )  # the arm names its ancestry model by a path from here, and rows are known by their arms
    if not parser.parse_args().table:
        measure()
    table = markdown()
    replace_between(DOCS / "results" / "tal.md", "ancestries", table)
    print(table)


def measure() -> None:
    """Every row of the arm that the claims do not have."""
    if not PLACE.exists():
        lifecycle.train(SOURCE_TASK, spec=SPEC, recipe=RECIPE, init="fan_in", out=PLACE, run=RUN)
    claim = over(OTHER, WITHOUT)
    rates = {name: choice.lr for name, choice in choose_rates(claim, [])[0].items()}
    cells = [cell for cell in list_cells(claim, rates) if cell.arm.name == OTHER]
    run_grid(cells, BUILD, Run(threads=1), say=lambda text: print(text, flush=True))
    shutil.copyfile(BUILD / RESULTS, ROWS)
    machine.write(
        "tal_ancestries", {"models": {name: known(place) for name, place in PLACES.items()}}
    )


def known(place: Path) -> dict[str, Any]:
    """An ancestry model's shape, and its accuracy on the source task's test images."""
    model = load_descendant(place)
    accuracy = lifecycle.evaluate(model, run=RUN).value
    return {"layers": model.spec.layers, "width": model.spec.width, "accuracy": accuracy}


def over(first: str, second: str) -> Claim:
    """The claim that one arm is better than another."""
    arm = CLAIM.arms[BUNDLED]
    settings = {**arm.settings, "hold_out": [*arm.settings["hold_out"], f"x{SPEC.width}"]}
    arms = {
        **CLAIM.arms,
        OTHER: replace(arm, settings=settings, ancestries=(str(PLACE.relative_to(ROOT)),)),
    }
    return replace(
        CLAIM,
        name="tal-ancestries",
        compare=ArmComparison(kind="over", arms=(first, second)),
        arms={name: arms[name] for name in (first, second)},
    )


def decided(first: str, second: str) -> Verdict:
    """What the rows say. Raises `SystemExit` while some are missing."""
    rows = [row for path in (KEPT / RESULTS, ROWS) if path.is_file() for row in read_rows(path)]
    verdict = judge(over(first, second), rows)
    if verdict.missing:
        raise SystemExit(
            f"{len(verdict.missing)} cells are missing, as {verdict.missing[0]}; run it without"
            " --table, and run_claims.py"
        )
    return verdict


def markdown() -> str:
    """A line per ancestry model: its shape, how good it is, what TAL makes of it, and the gain over
    having none.
    """
    tasks = CLAIM.targets
    lines = [
        (
            f"| ancestry model | its own accuracy | {' | '.join(f'`{task}`' for task in tasks)} |"
            " mean | gain over none |"
        ),
        f"|---|---:|{'---:|' * len(tasks)}---:|---:|",
    ]
    models = machine.read("tal_ancestries")["models"]
    for name, model in models.items():
        verdict = decided(name, WITHOUT)
        shape, own = (
            f"{model['layers']} layers, {model['width']} wide",
            f"{100 * model['accuracy']:.1f}",
        )
        lines.append(_line(shape, own, verdict.means[name], verdict.findings[0]))
    lines.append(_line("none", "", verdict.means[WITHOUT], None))
    gain = _gain(decided(OTHER, BUNDLED).findings[0])
    return "\n".join([*lines, "", f"The second over the first: {gain} points."])


def _line(what: str, own: str, means: Mapping[str, float], found: Finding | None) -> str:
    values = [means[task] for task in CLAIM.targets]
    shown = " | ".join(f"{value:.1f}" for value in (*values, sum(values) / len(values)))
    return f"| {what} | {own} | {shown} | {_gain(found) if found else ''} |"


def _gain(found: Finding) -> str:
    return f"{found.value:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


if __name__ == "__main__":
    main()
