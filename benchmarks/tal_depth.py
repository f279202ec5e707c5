"""Which description of a block's place lets the later blocks of predicted models contribute?

Varied: the hypernetwork (the preset `mini`'s, without a task layer): places by the distance from
the input or relative, writers scaled by depth; and its training: without models of 3 layers, or
without the penalty of the norms.

Measured: after twelve epochs on `signs`, every step with another size of the set `tal+`, the
accuracy of untrained models of width 96 on validation images: with 3, 6 and 12 layers, and with 12
of which blocks 3 to 11 add nothing (`attn.proj` and `mlp.fc2` zero). The share of those nine blocks
is (whole - zeroed) / (whole - chance).

Command: about 50 minutes on one core for three seeds, resumable.

    python benchmarks/tal_depth.py
    python benchmarks/tal_depth.py --seeds 1        the first seed only
    python benchmarks/tal_depth.py both             only arms with this in their names

Results: benchmarks/results/tal_depth.jsonl.
Page: docs/results/tal.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from learngene_zoo.families.tensors import build_model
from learngene_zoo.runs.run import Run
from learngene_zoo.training.evaluate import evaluate
from lgzoo_tal.architectures import derive_plain_spec, draw_training_set
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.logah import MINI
from lgzoo_tal.modules.forms import WRITERS
from lgzoo_tal.modules.hypernet import Hypernet, predict_tensors
from lgzoo_tal.modules.objective import MetaObjective, TaskSpec
from machine import RESULTS
from pages import DOCS, replace_between
from tal_forms import ANCESTRY, RECIPE, TASK, train_objective


@dataclass(frozen=True)
class Arm:
    """A hypernetwork, the sizes that are not trained, and the weight of the norms in its loss."""

    spec: HypernetSpec
    hold_out: tuple[str, ...] = ()
    norm_weight: float = 3e-5


BASE = replace(MINI, places="input", writers="published").build_spec()
ARMS = {
    "distance from the input": Arm(BASE),
    "relative places": Arm(BASE.with_(places="relative")),
    "writers scaled": Arm(BASE.with_(writers="by_depth")),
    "both": Arm(BASE.with_(places="relative", writers="by_depth")),
    "no models of 3 layers": Arm(BASE, hold_out=("3",)),
    "no norm penalty": Arm(BASE, norm_weight=0.0),
}
ROWS = RESULTS / "tal_depth.jsonl"
IDLE = range(3, 12)  # the blocks whose outputs are set to 0


def main() -> None:
    """Train the arms that have no row yet, print each row, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=[""],
        help="parts of the names of what is trained; all unless given",
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    measured_arms = {(row["name"], row["seed"]) for row in rows}
    for seed in range(args.seeds):
        for name, arm in ARMS.items():
            if (name, seed) not in measured_arms and any(part in name for part in args.names):
                rows.append({"name": name, "seed": seed, **measure_arm(arm, seed)})
                with ROWS.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    replace_between(DOCS / "results" / "tal.md", "depth", make_table(rows))


def measure_arm(arm: Arm, seed: int) -> dict[str, Any]:
    """Return the curve of a training, and the accuracies of its predictions."""
    zoo, task_specs = (
        draw_training_set("tal+", arm.hold_out, ANCESTRY.spec),
        [TaskSpec(classes=TASK.classes)],
    )
    objective = MetaObjective(
        Hypernet(arm.spec, seed), zoo, task_specs, seed, norm_weight=arm.norm_weight
    )
    curve = train_objective(objective, [TASK], RECIPE, seed)
    accuracies = {
        f"{layers} layers": measure_accuracy(objective.hypernet, layers) for layers in (3, 6, 12)
    }
    full, zeroed, chance = (
        accuracies["12 layers"],
        measure_accuracy(objective.hypernet, 12, IDLE),
        1 / TASK.classes,
    )
    return {
        **curve,
        **accuracies,
        "zeroed": zeroed,
        "share": (full - zeroed) / max(full - chance, 1 / 1000),
    }


def measure_accuracy(hypernet: Hypernet, layers: int, idle: Sequence[int] = ()) -> float:
    """Return the validation accuracy of an untrained prediction of width 96; blocks in `idle` add
    nothing.
    """
    spec = derive_plain_spec(ANCESTRY.spec).with_(layers=layers, classes=TASK.classes)
    idle_tensors = tuple(f"blocks.{block}.{writer}" for block in idle for writer in WRITERS)
    tensors = {
        name: torch.zeros_like(tensor) if name in idle_tensors else tensor
        for name, tensor in predict_tensors(hypernet, spec, None, Run()).items()
    }
    return evaluate(
        build_model(spec, tensors), TASK, "validation", ANCESTRY.input_format, Run(threads=1)
    ).value


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown, an arm a row: means over seeds, and the range of the share."""
    columns = ["3 layers", "6 layers", "12 layers", "zeroed"]
    lines = [
        "| | cross-entropy | 3 layers | 6 layers | 12 layers | without blocks 3 to 11 | their share"
        " | seeds |"
    ]
    lines.append(f"|---|{'---:|' * 7}")
    for name in dict.fromkeys(row["name"] for row in rows):
        rows_of_arm = [row for row in rows if row["name"] == name]
        loss = statistics.fmean(row["cross_entropy"][-1] for row in rows_of_arm)
        means = [
            f"{100 * statistics.fmean(row[column] for row in rows_of_arm):.1f}"
            for column in columns
        ]
        shares = [row["share"] for row in rows_of_arm]
        share = f"{statistics.fmean(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
        lines.append(
            f"| {name} | {loss:.2f} | {' | '.join(means)} | {share} | {len(rows_of_arm)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
