"""Which learning rate does fine-tuning need, and does it fall with the width?

Varied: descendants of 7 layers of LSAMD's learngene (width 96) and of TAL's (96, 64, 32), and
random weights of standard deviation 1/sqrt(fan_in) (96, 192), because no learngene on the shelf
builds a model wider than 96; four learning rates, of which random weights are not trained at 1e-2.

Measured: the accuracy on validation images of four tasks after 6 epochs of 600 images, all other
settings those of `lgzoo finetune`; one seed. The best rate of a model has the best mean over the
tasks.

Command: about ten minutes on one idle core, resumable.

    python benchmarks/archive/finetune_lr.py

Results: benchmarks/results/finetune_lr.jsonl, their means in finetune_lr.json.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.fit import fit

sys.path.append(str(Path(__file__).resolve().parents[1]))
import machine
from pages import DOCS, replace_between

ROWS = machine.RESULTS / "finetune_lr.jsonl"
MODELS = (("lsamd", 96), ("tal", 96), ("tal", 64), ("tal", 32), ("random", 96), ("random", 192))
TASKS = ("digits", "textures", "signs", "numbers")
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
RECIPE = {"images": 600, "epochs": 6}
RUN = Run(seed=0, threads=1, device="cpu")
Cell = tuple[str, int, str, float]


def main() -> None:
    """Measure what is not measured yet, print, and write."""
    found = (
        [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
        if ROWS.is_file()
        else []
    )
    measured = {
        (row["start"], row["width"], row["task"], row["lr"]): row["accuracy"] for row in found
    }
    for (start, width), task in product(MODELS, TASKS):
        for cell in ((start, width, task, rate) for rate in rates_of(start)):
            if cell in measured:
                continue
            measured[cell] = accuracy(*cell)
            row = {
                "start": start,
                "width": width,
                "task": task,
                "lr": cell[-1],
                "accuracy": measured[cell],
            }
            with ROWS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    text = table(measured)
    replace_between(DOCS / "results" / "finetuning.md", "finetune-lr", text)
    rows = [
        {
            "start": start,
            "width": width,
            "means": {f"{rate:g}": value for rate, value in means(measured, start, width).items()},
        }
        for start, width in MODELS
    ]
    machine.write("finetune_lr", {**RECIPE, "seed": RUN.seed, "split": "validation", "rows": rows})
    print(text)


def rates_of(start: str) -> tuple[float, ...]:
    """The rates that are tried."""
    return RATES[:-1] if start == "random" else RATES


def accuracy(start: str, width: int, task: str, rate: float) -> float:
    """The accuracy on validation images, in per cent, after all epochs."""
    recipe = replace(lifecycle.FINETUNE, lr=rate, **RECIPE)
    made = fit(model(start, width, task), open_task(task), recipe, RUN)
    metrics: Any = made.provenance["metrics"]
    return round(100 * metrics["validation_accuracy"], 1)


@lru_cache(maxsize=1)
def model(start: str, width: int, task: str) -> Descendant:
    """7 layers for a task, with heads 32 wide."""
    if start != "random":
        return lifecycle.expand(start, layers=7, width=width, task=task, run=RUN)
    data, like = open_task(task), lifecycle.expand("lsamd", layers=7, task=task, run=RUN).spec
    spec = like.with_(width=width, heads=width // 32)
    return assemble(
        spec, {}, seed=RUN.seed, scheme="fan_in", mean=data.mean, std=data.std, provenance={}
    )


def means(measured: dict[Cell, float], start: str, width: int) -> dict[float, float]:
    """By rate, the mean accuracy over the tasks."""
    return {
        rate: round(mean(measured[start, width, task, rate] for task in TASKS), 1)
        for rate in rates_of(start)
    }


def table(measured: dict[Cell, float]) -> str:
    """In Markdown, the best of each row in bold."""
    lines = [
        f"| weights | width | task | {' | '.join(f'{rate:g}' for rate in RATES)} |",
        "|---|---|---|" + "---|" * len(RATES),
    ]
    for start, width in MODELS:
        rows = [
            (task, {rate: measured[start, width, task, rate] for rate in rates_of(start)})
            for task in TASKS
        ]
        for task, values in [*rows, ("mean", means(measured, start, width))]:
            shown = {
                rate: f"**{value}**" if value == max(values.values()) else f"{value}"
                for rate, value in values.items()
            }
            lines.append(
                f"| {start} | {width} | {task} |"
                f" {' | '.join(shown.get(rate, '') for rate in RATES)} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
