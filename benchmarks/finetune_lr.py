"""Which learning rate does fine-tuning need? A narrow descendant, four tasks, five rates.

    python benchmarks/finetune_lr.py     about four minutes on one core; resumable; prints the table and keeps it

A descendant of LSAMD's learngene (7 layers, 96 wide) is fine-tuned on 600 images of each task for 4 epochs, with all other settings those of
`lgzoo finetune`. What counts is the accuracy on validation images; the best rate is that of the best mean.
Measurements in benchmarks/results/finetune_lr.jsonl, their means in finetune_lr.json, the table in docs/training.md.
"""

from __future__ import annotations

import json
from itertools import product
from statistics import mean
from typing import Any

import machine
from pages import DOCS, replace_between

from learngene_zoo import lifecycle
from learngene_zoo.runs.run import Run

ROWS = machine.RESULTS / "finetune_lr.jsonl"
TASKS = ("digits", "textures", "signs", "numbers")
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
RECIPE = {"images": 600, "epochs": 4}
RUN = Run(seed=0, threads=1, device="cpu")


def main() -> None:
    """Measure what is not measured yet, print, and write."""
    found = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()] if ROWS.is_file() else []
    measured = {(row["task"], row["lr"]): row["accuracy"] for row in found}
    for task, rate in product(TASKS, RATES):
        if (task, rate) not in measured:
            measured[task, rate] = accuracy(task, rate)
            with ROWS.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"task": task, "lr": rate, "accuracy": measured[task, rate]}) + "\n")
    means = {rate: round(mean(measured[task, rate] for task in TASKS), 1) for rate in RATES}
    best = max(RATES, key=lambda rate: means[rate])
    by_rate = {f"{rate:g}": value for rate, value in means.items()}
    machine.write("finetune_lr", {**RECIPE, "seed": RUN.seed, "split": "validation", "means": by_rate, "best": best})
    text = table(measured, means)
    replace_between(DOCS / "training.md", "finetune-lr", text)
    print(f"{text}\nbest {best:g}, default {lifecycle.FINETUNE.lr:g}")


def accuracy(task: str, rate: float) -> float:
    """The accuracy on validation images, in per cent, after all epochs."""
    model = lifecycle.expand("lsamd", layers=7, run=RUN)
    made = lifecycle.finetune(model, task=task, lr=rate, keep="last", run=RUN, **RECIPE)
    metrics: Any = made.provenance["metrics"]
    return round(100 * metrics["validation_accuracy"], 1)


def table(measured: dict[tuple[str, float], float], means: dict[float, float]) -> str:
    """In Markdown, the best of each row in bold."""
    lines = [f"| task | {' | '.join(f'{rate:g}' for rate in RATES)} |", "|---|" + "---|" * len(RATES)]
    rows = [(task, [measured[task, rate] for rate in RATES]) for task in TASKS]
    for task, values in [*rows, ("mean", list(means.values()))]:
        cells = (f"**{value}**" if value == max(values) else f"{value}" for value in values)
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
