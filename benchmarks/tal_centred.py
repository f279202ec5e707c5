"""Which of the changes of the form `centred` are worth it?

Varied: the form of the hypernetwork: `centred` without each of its changes, and the published form,
also with a last layer of the convolutional decoder that starts twelve times larger (`x 12`), the
least change that lets it leave chance; the learning rate. Arms of task layers are trained on
`signs`, `textures` and `numbers` together, with random unit vectors as the tasks' embeddings,
because task layers start to matter with several tasks; all others on `signs`.

Measured: the cross-entropy on the training images over six epochs, every step with another size of
the set `tal+`, as in tal_forms.py. Every arm has the best of `RATES` for the first seed; the table
has the mean of all seeds at that rate.

Command: about an hour and a half of one core, resumable.

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
from tal_forms import ANCESTRY, RECIPE, SIZES, trained

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
    """A hypernetwork that is trained, and on what."""

    spec: HypernetSpec
    tasks: tuple[str, ...] = ONE
    larger: bool = False  # the decoder's last layer starts larger


def arms() -> dict[str, Arm]:
    """What is compared, by name."""
    found = {}
    for kind, spec in SIZES.items():
        spec = spec.with_(places="input", writers="published")
        forms = ["published", "centred", *(form for form in WITHOUT if not form.endswith("tasks"))]
        found |= {f"{kind}, {form}": Arm(of(spec, form)) for form in forms}
        if spec.decoder == "conv":
            found[f"{kind}, published x {LARGER:g}"] = Arm(of(spec, "published"), larger=True)
        several = spec.with_(task=EMBEDDING)
        found |= {
            f"{kind}, {form}, three tasks": Arm(of(several, form), SEVERAL)
            for form in ("centred", "centred without tasks")
        }
    return found


def of(spec: HypernetSpec, form: str) -> HypernetSpec:
    """The hypernetwork in a form, which may be one of those made here."""
    return spec.with_(form=cast(Form, form))


def main() -> None:
    """Train what has no row yet, print each row, and write the table."""
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
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    for seed in range(0 if given.table else given.seeds):
        for name, arm in arms().items():
            if any(part in name for part in given.names):
                for rate in RATES if seed == 0 else (best_rate(name, rows),):
                    run(name, arm, rate, seed, rows)
    text = markdown(rows)
    print(text)
    replace_between(DOCS / "results" / "tal.md", "centred", text)


def run(name: str, arm: Arm, rate: float, seed: int, rows: list[dict[str, Any]]) -> None:
    """Train an arm unless it has a row; one is added."""
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
        TaskSpec(classes=task.classes, embedding=embedding(number, arm))
        for number, task in enumerate(tasks)
    ]
    objective = MetaObjective(hypernet, zoo, task_specs, seed)
    rows.append({**key, **trained(objective, tasks, recipe, seed)})
    with ROWS.open("a") as file:
        file.write(json.dumps(rows[-1]) + "\n")
    print(rows[-1], flush=True)


def embedding(number: int, arm: Arm) -> torch.Tensor | None:
    """(EMBEDDING,) a task's: a fixed direction of length 1; None without a task layer."""
    if arm.spec.task is None:
        return None
    drawn_ = torch.randn(EMBEDDING, generator=torch.Generator().manual_seed(number))
    return drawn_ / drawn_.norm()


def best_rate(name: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """The rate with the lowest cross-entropy of the first seed; one whose training diverged is not
    the best.
    """
    found = {
        row["rate"]: row["cross_entropy"][-1]
        for row in rows
        if row["name"] == name and row["seed"] == 0
    }
    return min(found, key=lambda rate: found[rate] if math.isfinite(found[rate]) else math.inf)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A line per arm that was trained: its rate, the mean over seeds of the first and the last
    part, and their range.
    """
    lines = ["| | rate | first sixth | last sixth | range | seeds |", f"|---|{'---:|' * 5}"]
    for name in [name for name in arms() if any(row["name"] == name for row in rows)]:
        rate = best_rate(name, rows)
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
