"""What do text descendants know that TAL predicts, before any training?

Varied: the depth of descendants of width 64 (3, 6 and 9 layers) of a learngene of `tal` for two
tasks by rules and two real ones, made from the bundled language model:

    lgzoo extract tal --ancestry ancestry-words --task sentiment --task entailment
        --task debian_sections --task wordnet --tuning-epochs 30 --tuning-clip 0.5 -o GENE
                                                            (about an hour on one core)

Measured: the accuracy on all test texts of each task, without any training, of the descendant, of
the same weights shuffled, and of the deepest without blocks 4 to 9 (their writers zero), which
shows whether later blocks contribute. Beside them a model of 6 layers from random weights after 3
epochs of 4,000 training texts, with the better of two learning rates on validation texts, and the
share of the largest class.

Command: ten minutes on one core; resumable. `debian_sections` and `wordnet` must be installed
(`lgzoo show wordnet` prints how).

    python benchmarks/text_tal.py GENE
    python benchmarks/text_tal.py        write the page from the results

Results: benchmarks/results/text_tal.jsonl.
Page: docs/results/tal.md.
"""

from __future__ import annotations

import argparse
from typing import Any

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.families.family import get_table
from learngene_zoo.intervals import compute_interval
from learngene_zoo.method.installed import parse_details
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.evaluate import judge
from learngene_zoo.training.fit import find_constant_share
from lgzoo_tal.hypernet_spec import HypernetDetails
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "text_tal.jsonl"
DEPTHS, WIDTH, HEADS = (3, 6, 9), 64, 2
FIRST_IDLE = 3  # of the deepest model, counted from 0
SCRATCH_LAYERS, EPOCHS, TEXTS, RATES = 6, 3, 4000, (1e-3, 2e-3)
RUN = Run(threads=1, progress=False)
# The arm and the text of each column.
COLUMNS = (
    *((f"tal {layers}", f"TAL, {layers} layers") for layers in DEPTHS),
    ("idle", f"{max(DEPTHS)} layers, blocks {FIRST_IDLE + 1} to {max(DEPTHS)} zero"),
    ("shuffled 6", "6 layers, shuffled"),
    ("scratch", f"random weights, {SCRATCH_LAYERS} layers, {EPOCHS} epochs"),
    ("constant", "the largest class"),
)


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("learngene", nargs="?", help="the folder of a learngene of tal")
    given = parser.parse_args()
    if given.learngene:
        learngene = load_learngene(find(given.learngene))
        for task in parse_details(learngene.config, HypernetDetails).tasks:
            for arm, _ in COLUMNS:
                if not find_row(task, arm):
                    measure(learngene, task, arm)
    table = make_table()
    replace_between(DOCS / "results" / "tal.md", "text-tal", table)
    print(table)


def find_row(task: str, arm: str) -> dict[str, Any] | None:
    """Return the row of an arm on a task; None if it is missing."""
    return next((row for row in read_rows(ROWS) if (row["task"], row["arm"]) == (task, arm)), None)


def measure(learngene: Learngene, task: str, arm: str) -> None:
    """Measure the test accuracy of an arm, and append the row."""
    facts: dict[str, Any] = {}
    if arm == "constant":
        share = find_constant_share(open_task(task), "test")
        append_row(ROWS, {"task": task, "arm": arm, "accuracy": share})
        return
    if arm == "scratch":
        model, facts = train_from_scratch(build(learngene, task, SCRATCH_LAYERS), task)
    elif arm == "idle":
        model = silence(build(learngene, task, max(DEPTHS)))
    else:
        kind, layers = arm.split()
        model = build(learngene, task, int(layers), is_shuffled=kind == "shuffled")
    rows = judge(model.model(), open_task(task), "test", model.input_format, RUN).rows
    right = rows[:, 0] == rows[:, 1]
    low, high = compute_interval(float(right.sum()), len(right))
    append_row(
        ROWS,
        {
            "task": task,
            "arm": arm,
            "accuracy": float(right.mean()),
            "low": low,
            "high": high,
            "texts": len(right),
            **facts,
        },
    )


def build(learngene: Learngene, task: str, layers: int, *, is_shuffled: bool = False) -> Descendant:
    """Build a descendant for a task."""
    return lifecycle.expand(
        learngene,
        layers=layers,
        width=WIDTH,
        heads=HEADS,
        task=task,
        control="shuffled" if is_shuffled else None,
        run=RUN,
    )


def silence(model: Descendant) -> Descendant:
    """Return the model with zeros in the writers of the later blocks."""
    table = get_table(model.spec)
    silent = {
        f"{table.prefix}{block}.{branch.writer}.{kind}"
        for block in range(FIRST_IDLE, max(DEPTHS))
        for branch in table.branches(model.spec)
        for kind in ("weight", "bias")
    }
    assert silent <= set(model.state)
    return model.with_state(
        {name: tensor * (name not in silent) for name, tensor in model.state.items()}
    )


def train_from_scratch(shape: Descendant, task: str) -> tuple[Descendant, dict[str, Any]]:
    """Return random weights of a descendant's shape after training, with the better rate."""
    best: Descendant | None = None
    facts: dict[str, Any] = {}
    for lr in RATES:
        start = assemble(shape.spec, {}, seed=0, files=shape.files)
        tuned: Any = lifecycle.finetune(
            start,
            task=task,
            images=TEXTS,
            epochs=EPOCHS,
            lr=lr,
            layer_decay=1.0,
            head="random",
            run=RUN,
        )
        metrics: Any = tuned.provenance["metrics"]
        if best is None or metrics["validation_accuracy"] > facts["validation"]:
            best, facts = tuned, {"validation": metrics["validation_accuracy"], "lr": lr}
    assert best is not None
    return best, facts


def make_table() -> str:
    """Return the accuracies in Markdown, per cent."""
    tasks = list(dict.fromkeys(row["task"] for row in read_rows(ROWS)))
    lines = [
        "| task | " + " | ".join(text for _, text in COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for task in tasks:
        rows = [find_row(task, arm) for arm, _ in COLUMNS]
        cells = [f"{100 * row['accuracy']:.1f}" if row else "" for row in rows]
        lines.append(f"| `{task}` | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
