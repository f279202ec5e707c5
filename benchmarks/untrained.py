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

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.bench.running.trial import probe_start
from learngene_zoo.method.contract import details_of
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
WHOLE: Size = {"ranking": "global", "keep": 1}
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
    """Measure what is not measured yet, print, and write."""
    rows: Rows = machine.read(NAME).get("rows", {})
    cells = [
        ("energy", WHOLE),
        *product(CRITERIA, CUTS),
        *product(["elastic"], BEGINNINGS),
        *product(["nested"], SLICES),
    ]
    for learngene, size in cells:
        key = f"{learngene} {words(size)}"
        if key not in rows:
            rows[key] = sliced(size) if learngene == "nested" else cut(learngene, size)
            machine.write(
                NAME, {"seed": RUN.seed, "split": "validation", "images": IMAGES, "rows": rows}
            )
    for method, text in {
        "pruning": pruning(rows),
        "elastic": elastic(rows),
        "nested": nested(rows),
    }.items():
        replace_between(DOCS / "results" / f"{method}.md", NAME, text)
        print(text, end="\n\n")


def words(size: Size) -> str:
    """As `lgzoo expand` takes it."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in size.items())


def cut(name: str, size: Size) -> Row:
    """Accuracies of a probe, in per cent, of a descendant of `elastic`, or of `pruning` by a
    criterion.
    """
    learngene, row = opened(name), Row()
    for arm, compensate in (("compensated", True), ("cut", False)):
        made = lifecycle.expand(learngene, num_classes=10, compensate=compensate, run=RUN, **size)
        found = {
            task: probe_start(made, open_task(task), "validation", IMAGES, RUN).probe or 0
            for task in TASKS
        }
        row |= {
            "params": made.cost().params,
            arm: {task: round(100 * value, 1) for task, value in found.items()},
        }
    return row


@lru_cache(maxsize=1)
def opened(name: str) -> Learngene:
    """A bundled learngene, or for a criterion one of `pruning` that is extracted now."""
    extractor = CRITERIA.get(name)
    return (
        lifecycle.extract("pruning", extractor=extractor, run=RUN)
        if extractor
        else load_learngene(find(name))
    )


def sliced(size: Size) -> Row:
    """The accuracy of a slice of the bundled nested model, in per cent, and whether it was trained
    as a size.
    """
    made = lifecycle.expand(opened("nested"), task=SOURCE_TASK, run=RUN, **size)
    found = lifecycle.evaluate(made, task=SOURCE_TASK, split="validation", run=RUN)
    trained = made.spec in (member.spec for member in lifecycle.plan("nested"))
    return {
        "params": made.cost().params,
        "accuracy": round(100 * found.value, 1),
        "trained": trained,
    }


def pruning(rows: Rows) -> str:
    """A line for every size, and how often compensation helps."""
    pairs = [rows[f"{name} {words(size)}"] for name, size in product(CRITERIA, CUTS)]
    gains = [row["compensated"][task] - row["cut"][task] for row, task in product(pairs, TASKS)]
    better, equal = sum(gain > 0 for gain in gains), gains.count(0)
    return (
        f"{lines(rows, CUTS, list(CRITERIA))}\n\nThe ancestry model:"
        f" {shown(rows[f'energy {words(WHOLE)}'], 'cut')}. Compensation is the better in {better}"
        f" of the {len(gains)} pairs, equal in {equal}, and the worse in"
        f" {len(gains) - better - equal}."
    )


def elastic(rows: Rows) -> str:
    """A line for every size, and what the evolution has reached."""
    found = details_of(opened("elastic").config, ElasticDetails)
    return (
        f"{lines(rows, BEGINNINGS, ['elastic'])}\n\nAgreement of the features of pruned models with"
        f" the whole model's: {found.start:.3f} with the factors of the start, {found.reached:.3f}"
        " with those found."
    )


def lines(rows: Rows, sizes: Sequence[Size], learngenes: Sequence[str]) -> str:
    """In Markdown, compensated / not."""
    head = " | ".join(f"`{name}`" for name in learngenes)
    text = [f"| descendant | parameters | {head} |", f"|---|---:|{'---|' * len(learngenes)}"]
    for size in sizes:
        found = [rows[f"{name} {words(size)}"] for name in learngenes]
        cells = " | ".join(f"{shown(row, 'compensated')} / {shown(row, 'cut')}" for row in found)
        counts = dict.fromkeys(
            f"{params / 1e6:.2f}" for params in sorted(row["params"] for row in found)
        )
        text.append(f"| `{words(size)}` | {' to '.join(counts)} M | {cells} |")
    return "\n".join(text)


def shown(row: Row, arm: str) -> str:
    """The accuracies of all tasks."""
    return " ".join(str(value) for value in row[arm].values())


def nested(rows: Rows) -> str:
    """A line for every slice."""
    text = ["| slice | parameters | accuracy | trained as a size |", "|---|---:|---|---|"]
    for size in SLICES:
        row = rows[f"nested {words(size)}"]
        trained = "yes" if row["trained"] else "no"
        text.append(
            f"| `{words(size)}` | {row['params'] / 1e6:.2f} M | {row['accuracy']} | {trained} |"
        )
    return "\n".join(text)


if __name__ == "__main__":
    main()
