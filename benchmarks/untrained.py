"""How good are descendants of `pruning`, `elastic` and `nested` before any training?

Varied: the size; for `pruning` the criterion, each with a learngene that is extracted here, and
with it and `elastic` whether the cuts are compensated. Learngenes of `elastic` and `nested` are the
bundled ones.

Measured: a probe of the features: validation images of three tasks are classified by the nearest
class mean of 1,000 training images. Slices of `nested` classify validation images of the source
task with their head. One seed.

Command: about six minutes on one idle core, resumable.

    python benchmarks/untrained.py

Results: benchmarks/results/untrained.json; rows that are there are not measured again.
Pages: docs/results/pruning.md, docs/results/elastic.md, docs/results/nested.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.bench.running.trial import probe_start
from learngene_zoo.method.installed import parse_details
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from lgzoo_closed_form.elastic import ElasticDetails
from lgzoo_closed_form.pruning import PruningExtractor, Scoring
from pages import DOCS, replace_between

NAME = "untrained"
Size = dict[str, Any]
Row = dict[str, Any]
Rows = dict[str, Row]
RUN = Run(threads=1, device="cpu")
TASKS, IMAGES = ("digits", "numbers", "textures"), 1000
CRITERIA = {
    "energy": PruningExtractor(each=Scoring(criterion="energy")),
    "magnitude": PruningExtractor(each=Scoring(criterion="magnitude")),
    "taylor": PruningExtractor(each=Scoring(criterion="taylor")),
}
# Sizes and settings of descendants.
FULL: Size = {"ranking": "global", "keep": 1}
CUTS: tuple[Size, ...] = (
    {"mlp_ratio": 2},
    {"mlp_ratio": 1},
    {"heads": 2},
    {"heads": 2, "mlp_ratio": 2},
    {"ranking": "global", "keep": 0.7},
    {"ranking": "global", "keep": 0.5},
)
BEGINNINGS: tuple[Size, ...] = ({"keep": 0.8}, {"keep": 0.6}, {"keep": 0.4})
SLICES: tuple[Size, ...] = (
    {"layers": 12, "width": 96, "mlp_ratio": 4},
    {"layers": 12, "width": 96, "mlp_ratio": 1},
    {"layers": 6, "width": 96, "mlp_ratio": 4},
    {"layers": 9, "width": 96, "mlp_ratio": 3},
    {"layers": 6, "width": 64, "mlp_ratio": 1},
)


def main() -> None:
    """Measure what is missing, print the tables and write them."""
    rows: Rows = machine.read(NAME).get("rows", {})
    cells = [
        ("energy", FULL),
        *product(CRITERIA, CUTS),
        *product(["elastic"], BEGINNINGS),
        *product(["nested"], SLICES),
    ]
    for learngene, size in cells:
        key = f"{learngene} {describe_size(size)}"
        if key not in rows:
            rows[key] = (
                measure_slice(size) if learngene == "nested" else measure_cut(learngene, size)
            )
            machine.write(
                NAME, {"seed": RUN.seed, "split": "validation", "images": IMAGES, "rows": rows}
            )
    for method, text in {
        "pruning": make_pruning_text(rows),
        "elastic": make_elastic_text(rows),
        "nested": make_nested_table(rows),
    }.items():
        replace_between(DOCS / "results" / f"{method}.md", NAME, text)
        print(text, end="\n\n")


def describe_size(size: Size) -> str:
    """Return a size in the options of `lgzoo expand`."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in size.items())


def measure_cut(name: str, size: Size) -> Row:
    """Return the accuracies of a probe, in per cent, of a descendant of `elastic`, or of `pruning`
    by a criterion.
    """
    learngene, row = open_learngene(name), Row()
    for arm, compensate in (("compensated", True), ("cut", False)):
        descendant = lifecycle.expand(
            learngene, num_classes=10, compensate=compensate, run=RUN, **size
        )
        accuracies = {
            task: probe_start(descendant, open_task(task), "validation", IMAGES, RUN).probe or 0
            for task in TASKS
        }
        row |= {
            "params": descendant.cost().params,
            arm: {task: round(100 * value, 1) for task, value in accuracies.items()},
        }
    return row


@lru_cache(maxsize=1)
def open_learngene(name: str) -> Learngene:
    """Return a bundled learngene; for a criterion, one of `pruning` that is extracted."""
    extractor = CRITERIA.get(name)
    return (
        lifecycle.extract("pruning", extractor=extractor, run=RUN)
        if extractor
        else load_learngene(find(name))
    )


def measure_slice(size: Size) -> Row:
    """Return the accuracy of a slice of the bundled nested model, in per cent, and whether its size
    was trained.
    """
    descendant = lifecycle.expand(open_learngene("nested"), task=SOURCE_TASK, run=RUN, **size)
    evaluation = lifecycle.evaluate(descendant, task=SOURCE_TASK, split="validation", run=RUN)
    is_trained = descendant.spec in (member.spec for member in lifecycle.plan("nested"))
    return {
        "params": descendant.cost().params,
        "accuracy": round(100 * evaluation.value, 1),
        "trained": is_trained,
    }


def make_pruning_text(rows: Rows) -> str:
    """Return the table of `pruning`, a size a row, and how often compensation helps."""
    pairs = [rows[f"{name} {describe_size(size)}"] for name, size in product(CRITERIA, CUTS)]
    gains = [row["compensated"][task] - row["cut"][task] for row, task in product(pairs, TASKS)]
    better, equal = sum(gain > 0 for gain in gains), gains.count(0)
    ancestry = format_accuracies(rows[f"energy {describe_size(FULL)}"], "cut")
    text = (
        f"The ancestry model: {ancestry}. Compensation is the better in {better} of the"
        f" {len(gains)} pairs, equal in {equal}, and the worse in {len(gains) - better - equal}."
    )
    return f"{make_table(rows, CUTS, list(CRITERIA))}\n\n{textwrap.fill(text, 100)}"


def make_elastic_text(rows: Rows) -> str:
    """Return the table of `elastic`, a size a row, and the agreement that the evolution reached."""
    details = parse_details(open_learngene("elastic").config, ElasticDetails)
    text = (
        "Agreement of the features of pruned models with those of the full model:"
        f" {details.start:.3f} with the initial factors, {details.reached:.3f} with the factors of"
        " the evolution."
    )
    return f"{make_table(rows, BEGINNINGS, ['elastic'])}\n\n{textwrap.fill(text, 100)}"


def make_table(rows: Rows, sizes: Sequence[Size], learngenes: Sequence[str]) -> str:
    """Return a table in Markdown: accuracies with compensation / without it."""
    head = " | ".join(f"`{name}`" for name in learngenes)
    table_lines = [f"| descendant | parameters | {head} |", f"|---|---:|{'---|' * len(learngenes)}"]
    for size in sizes:
        rows_of_size = [rows[f"{name} {describe_size(size)}"] for name in learngenes]
        cells = " | ".join(
            f"{format_accuracies(row, 'compensated')} / {format_accuracies(row, 'cut')}"
            for row in rows_of_size
        )
        counts = dict.fromkeys(
            f"{params / 1e6:.2f}" for params in sorted(row["params"] for row in rows_of_size)
        )
        table_lines.append(f"| `{describe_size(size)}` | {' to '.join(counts)} M | {cells} |")
    return "\n".join(table_lines)


def format_accuracies(row: Row, arm: str) -> str:
    """Return the accuracies of all tasks."""
    return " ".join(str(value) for value in row[arm].values())


def make_nested_table(rows: Rows) -> str:
    """Return the table of `nested` in Markdown, a slice a row."""
    table_lines = ["| slice | parameters | accuracy | trained as a size |", "|---|---:|---|---|"]
    for size in SLICES:
        row = rows[f"nested {describe_size(size)}"]
        trained = "yes" if row["trained"] else "no"
        table_lines.append(
            f"| `{describe_size(size)}` | {row['params'] / 1e6:.2f} M | {row['accuracy']} |"
            f" {trained} |"
        )
    return "\n".join(table_lines)


if __name__ == "__main__":
    main()
