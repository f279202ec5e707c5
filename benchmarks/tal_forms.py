"""How fast does a hypernetwork learn in each of its two forms, compared with a ViT?

Varied: the decoder (low-rank or convolutional) and the form (published or centred); beside them a
ViT of 6 layers of width 96 that is trained directly, with timm's initialisation.

Measured: the cross-entropy on the training images of `signs`, the mean of each sixth of the steps
over twelve epochs at the published learning rate, every step with another size of the set `tal+`.
All see the same batches. Without any learning it stays at ln 43 = 3.76.

Command: one thread, about ten minutes.

    python benchmarks/tal_forms.py
    python benchmarks/tal_forms.py centred        only those with this in their names; the others
                                                  keep their results
    python benchmarks/tal_forms.py --seeds 3      this many runs of each

Results: benchmarks/results/tal_forms.json.
Page: docs/results/tal.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import Classification, load_training_images
from lgzoo_tal.architectures import derive_plain_spec, draw_training_set
from lgzoo_tal.hypernet_spec import Conv, Form, HypernetSpec
from lgzoo_tal.logah import MINI
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.mixture import TaskMixture
from lgzoo_tal.modules.objective import MetaObjective, TaskSpec
from machine import read, write
from pages import DOCS, replace_between

RECIPE = Recipe(
    epochs=12, batch_size=64, lr=3e-4, warmup=0.6, weight_decay=0.01, clip=5.0, augment="none"
)
PARTS = 6
TASK, ANCESTRY = open_task("signs"), open_ancestry("bundled")
VIT = derive_plain_spec(ANCESTRY.spec).with_(layers=6, classes=TASK.classes)


def build_meta_objective(spec: HypernetSpec, seed: int) -> nn.Module:
    """Return the objective that trains a hypernetwork on the task."""
    zoo = draw_training_set("tal+", (), ANCESTRY.spec)
    return MetaObjective(Hypernet(spec, seed), zoo, [TaskSpec(classes=TASK.classes)], seed)


def build_classification(seed: int) -> nn.Module:
    """Return the objective that trains a ViT on the task."""
    return Classification(build_model(VIT, initialise(VIT, seed)))


Arm = tuple[Callable[[int], nn.Module], Recipe]
SIZES = {"low-rank (LoGAH, TAL)": MINI.build_spec(), "convolutional (GHN-3)": Conv().build_spec()}
FORMS: tuple[Form, ...] = ("published", "centred")


def make_arms() -> dict[str, Arm]:
    """Return the compared arms by name."""
    hypernetworks: dict[str, Arm] = {
        f"{kind}, {form}": (partial(build_meta_objective, spec.with_(form=form)), RECIPE)
        for kind, spec in SIZES.items()
        for form in FORMS
    }
    return {"a ViT, directly": (build_classification, replace(RECIPE, lr=1e-3)), **hypernetworks}


def main() -> None:
    """Train the arms; print the curves and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=[""],
        help="parts of the names of what is trained; all unless given",
    )
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    images = RECIPE.epochs * TASK.sizes["train"]
    before = read("tal_forms").get("rows", [])
    row_of_run: dict[tuple[str, int], dict[str, Any]] = {
        (row["name"], row["seed"]): row for row in before
    }
    for name, (make, recipe) in make_arms().items():
        for seed in range(args.seeds) if any(part in name for part in args.names) else ():
            row = {"name": name, "seed": seed, **train_objective(make(seed), [TASK], recipe, seed)}
            row_of_run[name, seed] = row
            print(
                f"{name:34} seed {seed}  {' '.join(map('{:5.2f}'.format, row['cross_entropy']))}  "
                f" {row['seconds']:4.0f} s",
                flush=True,
            )
    rows = [
        row_of_run[key]
        for key in sorted(row_of_run, key=lambda key: ([*make_arms()].index(key[0]), key[1]))
    ]
    print(write("tal_forms", {"rows": rows, "images": images, "threads": 1}))
    replace_between(DOCS / "results" / "tal.md", "forms", make_table(rows))


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in Markdown, an arm a row: means over seeds."""
    lines = [f"| {'| ' * PARTS}| seconds |", f"|---|{'---:|' * (PARTS + 1)}"]
    for name in dict.fromkeys(row["name"] for row in rows):
        rows_of_arm = [row for row in rows if row["name"] == name]
        curve = [
            statistics.fmean(values)
            for values in zip(*(row["cross_entropy"] for row in rows_of_arm), strict=True)
        ]
        seconds = statistics.fmean(row["seconds"] for row in rows_of_arm)
        lines.append(f"| {name} | {' | '.join(map('{:.2f}'.format, curve))} | {seconds:.0f} |")
    return "\n".join(lines)


def train_objective(
    objective: nn.Module, tasks: Sequence[Task], recipe: Recipe, seed: int, share: float = 1.0
) -> dict[str, Any]:
    """Return the mean cross-entropy of each sixth of the steps, and the seconds of the training.

    Args:
        objective: the trained module.
        tasks: the tasks whose batches it sees in turn.
        recipe: of the training.
        seed: of the batches.
        share: the weight of the cross-entropy in the loss.
    """
    run = Run(seed=seed, threads=1)
    loader = TaskMixture(
        {
            task.name: load_training_images(task, ANCESTRY.input_format, recipe, run)
            for task in tasks
        },
        batch_size=recipe.batch_size,
        temperature=1,
        seed=seed,
    )
    started, losses = time.perf_counter(), []
    for step in train(objective, loader, recipe, run, unused=True):
        if isinstance(objective, MetaObjective):
            objective.finished.fill_(step.step)
        losses.append(step.losses["cross_entropy"] / share)
    steps = len(losses) // PARTS
    means = [
        round(statistics.fmean(losses[part * steps : (part + 1) * steps]), 3)
        for part in range(PARTS)
    ]
    return {"cross_entropy": means, "seconds": round(time.perf_counter() - started, 1)}


if __name__ == "__main__":
    main()
