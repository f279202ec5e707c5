"""How do models train whose weights were predicted by a hypernetwork?

Varied: the weights that a model of 12 layers of width 96 starts from: predicted by the
hypernetworks of five arms of the claims (`run_claims.py`, in build/claims; missing ones are
extracted, six minutes each), or random by two initialisations; three seeds, each with its own
learngene.

Measured: on `motion` (moving images, as the paper's UCF101), over ten epochs of 1,000 images with
one recipe for all, the training loss; the sparsity, which is the share of parameters closer to zero
than 0.01 (the authors give no threshold); the change |after - before| / |before| over all inherited
parameters; and the diversity, the mean cosine distance between the trained models of two seeds.

Command: about eight minutes on one core, given the claims' learngenes; resumable.

    python benchmarks/archive/tal_curves.py
    python benchmarks/archive/tal_curves.py --table    draw picture and table from the results

Results: benchmarks/results/tal_curves.json.
Page: docs/results/tal.md, with the picture docs/images/tal_curves.png.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learngene_zoo import plotting
from learngene_zoo.bench.claims.cells import build_arm
from learngene_zoo.bench.claims.run import read_verdict
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import SCRATCH
from learngene_zoo.bench.report.pictures import choose_looks
from learngene_zoo.bench.running.extraction import extract_once
from learngene_zoo.bench.running.trial import build_start
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.fit import fit

sys.path.append(str(Path(__file__).resolve().parents[1]))
import machine
from pages import ROOT, replace_between
from run_claims import BUILD as CLAIMS
from run_claims import KEPT

BUILD = ROOT / "build" / "tal_curves"
IMAGE, PAGE = ROOT / "docs" / "images" / "tal_curves.png", ROOT / "docs" / "results" / "tal.md"
ARMS = {  # arm -> the claim that describes it
    "tal": "tal-parts",
    "tal of its own set": "tal-plus-inside",
    "logah v4": "tal-parts",
    "logah v1": "tal-v1-ghn3",
    "ghn3": "tal-v1-ghn3",
}
TASK, LAYERS, WIDTH, SEEDS = open_task("motion"), 12, 96, (0, 1, 2)
RECIPE = Recipe(epochs=10, images=1_000, batch_size=32, lr=5e-4, warmup=1.0, clip=1.0)
NEAR_ZERO = 0.01


def main(arguments: Sequence[str] = ()) -> None:
    """Train all, write the numbers, the picture and the table."""
    if "--table" not in arguments:
        found = {}
        for name, arm in {**dict.fromkeys(ARMS), **{arm.name: arm for arm in SCRATCH}}.items():
            runs = [trained(arm or load_arm(name, seed), seed) for seed in SEEDS]
            found[name] = row(runs)
            print(
                f"{name:20} {' '.join(f'{loss:.2f}' for loss in found[name]['loss'])}", flush=True
            )
        machine.write("tal_curves", {"arms": found})
    kept = machine.read("tal_curves")["arms"]
    draw(kept)
    replace_between(PAGE, "curves", markdown(kept))
    print(markdown(kept))


def load_arm(name: str, seed: int) -> Arm:
    """Return an arm of a claim as it was filed when it was decided."""
    claim, _ = read_verdict(KEPT / f"{ARMS[name]}.json")
    return build_arm(claim, name, seed)


def trained(arm: Arm, seed: int) -> tuple[list[float], StateDict, StateDict]:
    """One model.

    Its loss after each epoch, and its inherited parameters before and after training.
    """
    run = Run(threads=1, seed=seed, resume=True)
    cell = Cell(arm=arm, task=TASK.name, layers=LAYERS, width=WIDTH, seed=seed, recipe=RECIPE)
    learngene, _ = extract_once(cell.extraction, CLAIMS, run)
    run = replace(run, seed=cell.draws)
    start = build_start(cell, learngene, TASK, run)
    names = sorted(name for name in start.state if start.state[name].is_floating_point())
    before = {name: start.state[name].clone() for name in names}
    folder = BUILD / f"{arm.name} {seed}".replace(" ", "-").replace(",", "")
    tuned = fit(start, TASK, RECIPE, replace(run, folder=folder), judge=False)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    losses = [
        [step["loss"] for step in steps if step["epoch"] == epoch] for epoch in range(RECIPE.epochs)
    ]
    return (
        [sum(each) / len(each) for each in losses],
        before,
        {name: tuned.state[name] for name in names},
    )


def row(runs: Sequence[tuple[list[float], StateDict, StateDict]]) -> dict[str, Any]:
    """The means over seeds."""
    flat = [
        tuple(torch.cat([part[name].flatten() for name in part]) for part in run[1:])
        for run in runs
    ]
    changes = [float((after - before).norm() / before.norm()) for before, after in flat]
    pairs = [
        1 - float(torch.cosine_similarity(a[1], b[1], dim=0))
        for a, b in itertools.combinations(flat, 2)
    ]
    return {
        "loss": [_mean(epoch) for epoch in zip(*(run[0] for run in runs), strict=True)],
        "sparsity_before": _mean([_sparsity(before) for before, _ in flat]),
        "sparsity_after": _mean([_sparsity(after) for _, after in flat]),
        "change": _mean(changes),
        "diversity": _mean(pairs),
    }


def _sparsity(parameters: torch.Tensor) -> float:
    return float((parameters.abs() < NEAR_ZERO).float().mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def draw(kept: Mapping[str, Any]) -> None:
    """The loss of every arm against the epochs."""
    arms = [(name, "scratch" if name.startswith("scratch") else name, None) for name in kept]
    with plotting.style():
        figure, (panel,) = plotting.subplots(1, 1, (6.4, 3.8))
        for name, look in choose_looks(arms).items():
            losses = kept[name]["loss"]
            panel.plot(range(1, len(losses) + 1), losses, label=name, **look)
        panel.set_xlabel("epoch")
        panel.set_ylabel("training loss (cross-entropy)")
        panel.set_title(f"{TASK.name}: {LAYERS} layers, {WIDTH} wide, mean of {len(SEEDS)} seeds")
        plotting.draw_legend(figure, [panel], 3)
        plotting.save(plotting.settle(figure), IMAGE)


def markdown(kept: Mapping[str, Any]) -> str:
    """Loss at some epochs, and the parameters' characteristics."""
    last = RECIPE.epochs
    lines = [
        (
            f"| | loss, epoch 1 | epoch {last // 2} | epoch {last} | sparsity before | after |"
            " change | diversity |"
        ),
        f"|---|{'---:|' * 7}",
    ]
    for name, found in kept.items():
        losses = " | ".join(f"{found['loss'][epoch - 1]:.2f}" for epoch in (1, last // 2, last))
        shares = " | ".join(
            f"{100 * found[which]:.1f} %" for which in ("sparsity_before", "sparsity_after")
        )
        lines.append(
            f"| {name} | {losses} | {shares} | {found['change']:.2f} | {found['diversity']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
