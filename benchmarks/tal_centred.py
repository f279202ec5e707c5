"""Which of the changes of the form `centred` are worth it?

Varied: the form of the hypernetwork: `centred` without each of its changes, and the published form,
also with a last layer of the convolutional decoder that starts twelve times larger (`x 12`), the
least change that lets it leave chance; the learning rate. Arms of task layers are trained on
`signs`, `textures` and `numbers` together, with random unit vectors as the tasks' embeddings,
because task layers start to matter with several tasks; all others on `signs`.

Measured: the cross-entropy on the training images over six epochs, every step with another size of
the set `tal+`, as in tal_forms.py. Every arm has the best of `RATES` for the first seed; the table
has the mean of all seeds at that rate.

Command: about an hour and a half on one core, resumable.

    python benchmarks/tal_centred.py
    python benchmarks/tal_centred.py convolutional      only arms with this in their names
    python benchmarks/tal_centred.py --seeds 1          the first seed only, at every rate
    python benchmarks/tal_centred.py --table            write the table from the results

Results: benchmarks/results/tal_centred.jsonl.
Page: docs/results/tal.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from learngene_zoo.tasks.catalogue import open_task
from lgzoo_tal.architectures import draw_training_set
from lgzoo_tal.hypernet_spec import Form, HypernetSpec
from lgzoo_tal.modules.forms import CHANGES
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.objective import MetaObjective, TaskSpec
from machine import RESULTS
from pages import DOCS, replace_between
from tal_forms import ANCESTRY, RECIPE, SIZES, train_objective

ROWS = RESULTS / "tal_centred.jsonl"
RATES = (3e-4, 1e-3)
TRAINING = replace(RECIPE, epochs=6, warmup=0.3)
ONE, SEVERAL = ("signs",), ("signs", "textures", "numbers")  # as many images in all
EMBEDDING, LARGER = 64, 12.0  # numbers of a task's embedding; factor of the published start
WITHOUT = {
    f"centred without {change}": CHANGES["centred"] - {change}
    for change in sorted(CHANGES["centred"])
}
CHANGES.update(WITHOUT)


@dataclass(frozen=True)
class Arm:
    """A hypernetwork and its tasks."""

    spec: HypernetSpec
    tasks: tuple[str, ...] = ONE
    larger: bool = False  # the decoder's last layer starts larger


def make_arms() -> dict[str, Arm]:
    """Return the compared arms by name."""
    arms_of_name = {}
    for kind, spec in SIZES.items():
        spec = spec.with_(places="input", writers="published")
        forms = ["published", "centred", *(form for form in WITHOUT if not form.endswith("tasks"))]
        arms_of_name |= {f"{kind}, {form}": Arm(set_form(spec, form)) for form in forms}
        if spec.decoder == "conv":
            arms_of_name[f"{kind}, published x {LARGER:g}"] = Arm(
                set_form(spec, "published"), larger=True
            )
        several = spec.with_(task=EMBEDDING)
        arms_of_name |= {
            f"{kind}, {form}, three tasks": Arm(set_form(several, form), SEVERAL)
            for form in ("centred", "centred without tasks")
        }
    return arms_of_name


def set_form(spec: HypernetSpec, form: str) -> HypernetSpec:
    """Return the hypernetwork in a form, which may be one of `WITHOUT`."""
    return spec.with_(form=cast(Form, form))


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
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    for seed in range(0 if args.table else args.seeds):
        for name, arm in make_arms().items():
            if any(part in name for part in args.names):
                for rate in RATES if seed == 0 else (choose_rate(name, rows),):
                    train_arm(name, arm, rate, seed, rows)
    text = make_table(rows)
    print(text)
    replace_between(DOCS / "results" / "tal.md", "centred", text)


def train_arm(name: str, arm: Arm, rate: float, seed: int, rows: list[dict[str, Any]]) -> None:
    """Train an arm unless it has a row, and add its row."""
    key = {"name": name, "rate": rate, "seed": seed}
    if any(key.items() <= row.items() for row in rows):
        return
    hypernet = Hypernet(arm.spec, seed)
    if arm.larger:
        with torch.no_grad():
            hypernet.get_parameter("decoder.conv.2.weight").mul_(LARGER)
    tasks = [open_task(task) for task in arm.tasks]
    recipe = replace(TRAINING, lr=rate, images=tasks[0].sizes["train"] // len(tasks))
    zoo = draw_training_set("tal+", (), ANCESTRY.spec)
    task_specs = [
        TaskSpec(classes=task.classes, embedding=draw_embedding(number, arm))
        for number, task in enumerate(tasks)
    ]
    objective = MetaObjective(hypernet, zoo, task_specs, seed)
    rows.append({**key, **train_objective(objective, tasks, recipe, seed)})
    with ROWS.open("a") as file:
        file.write(json.dumps(rows[-1]) + "\n")
    print(rows[-1], flush=True)


def draw_embedding(number: int, arm: Arm) -> torch.Tensor | None:
    """Return a task's embedding, (EMBEDDING,): a fixed direction of length 1; None without a task
    layer.
    """
    if arm.spec.task is None:
        return None
    vector = torch.randn(EMBEDDING, generator=torch.Generator().manual_seed(number))
    return vector / vector.norm()


def choose_rate(name: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the rate with the lowest cross-entropy of the first seed.

    A rate whose training diverged is the worst.
    """
    loss_of_rate = {
        row["rate"]: row["cross_entropy"][-1]
        for row in rows
        if row["name"] == name and row["seed"] == 0
    }
    return min(
        loss_of_rate,
        key=lambda rate: loss_of_rate[rate] if math.isfinite(loss_of_rate[rate]) else math.inf,
    )


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown, an arm a row: its rate, the means over seeds of the first and
    the last part, and their range.
    """
    lines = ["| | rate | first sixth | last sixth | range | seeds |", f"|---|{'---:|' * 5}"]
    for name in [name for name in make_arms() if any(row["name"] == name for row in rows)]:
        rate = choose_rate(name, rows)
        curves = [
            row["cross_entropy"] for row in rows if row["name"] == name and row["rate"] == rate
        ]
        first, last = ([curve[part] for curve in curves] for part in (0, -1))
        spread = f"{min(last):.2f} to {max(last):.2f}"
        lines.append(
            f"| {name} | {rate:g} | {statistics.fmean(first):.2f} | {statistics.fmean(last):.2f} |"
            f" {spread} | {len(last)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
