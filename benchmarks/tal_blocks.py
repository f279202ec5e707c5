"""Do the later blocks of the bundled TAL learngene's predictions contribute?

Varied: the depth of untrained descendants of width 96: 3, 6 and 12 layers, and 12 of which blocks 3
to 11 add nothing (`attn.proj` and `mlp.fc2` zero).

Measured: the accuracy on the test images of every task that the learngene has seen. The share of
the nine blocks is (whole - zeroed) / (whole - chance); the gain of six layers over three has an
interval over the images.

Command: two minutes on one core; `python tools/shelf.py tal-depth` also writes the tables.

    python benchmarks/tal_blocks.py

Results: benchmarks/results/tal_blocks.json.
Page: docs/results/tal.md, and the card of the learngene.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.intervals import compute_paired_gain
from learngene_zoo.method.installed import parse_details
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.evaluate import judge
from lgzoo_tal.hypernet_spec import HypernetDetails
from lgzoo_tal.modules.forms import WRITERS

NAME = "tal_blocks"
DEPTHS, WIDTH, IDLE = (3, 6, 12), 96, range(3, 12)
RUN = Run(threads=1, progress=False)
SENTENCE = (
    f"Accuracy in per cent of untrained descendants of width {WIDTH} on the test images. In the"
    " fifth column `attn.proj` and `mlp.fc2` of blocks 3 to 11 of the twelve are zero; the share"
    " of those blocks is (whole - zeroed) / (whole - chance). The last column is in points, with a"
    " 95 % interval over the images. Made by `python benchmarks/tal_blocks.py`."
)


def main() -> None:
    """Measure every task, print the table and write it."""
    learngene = load_learngene(find("tal"))
    rows = [
        measure_task(learngene, task)
        for task in parse_details(learngene.config, HypernetDetails).tasks
    ]
    machine.write(NAME, {"width": WIDTH, "rows": rows})
    print(make_table(read_results()))


def read_results() -> dict[str, Any]:
    """Return the content of the results file."""
    return machine.read(NAME)


def measure_task(learngene: Learngene, task: str) -> dict[str, Any]:
    """Return the accuracies of descendants of several depths, and the share of the later blocks."""
    descendants = {
        layers: lifecycle.expand(learngene, layers=layers, width=WIDTH, task=task, run=RUN)
        for layers in sorted(DEPTHS)
    }
    right = {layers: compute_right(model, task) for layers, model in descendants.items()}
    idle_tensors = {f"blocks.{block}.{writer}" for block in IDLE for writer in WRITERS}
    deepest = descendants[max(DEPTHS)]
    zeroed = compute_right(
        deepest.with_state(
            {n: t * 0 if n in idle_tensors else t for n, t in deepest.state.items()}
        ),
        task,
    )
    accuracies = {
        name: sum(flags) / len(flags) for name, flags in {**right, "zeroed": zeroed}.items()
    }
    chance, deepest_accuracy = 1 / deepest.spec.classes, accuracies[max(DEPTHS)]
    gain = compute_paired_gain([right[6]], [right[3]])
    return {
        "task": task,
        "chance": chance,
        **{
            f"{name} layers" if isinstance(name, int) else name: value
            for name, value in accuracies.items()
        },
        "share": (deepest_accuracy - accuracies["zeroed"]) / (deepest_accuracy - chance),
        "gain": {"value": gain.value, "low": gain.low, "high": gain.high},
    }


def compute_right(model: Descendant, task: str) -> list[bool]:
    """Return, for each test image, whether the model classifies it correctly."""
    rows_NR = judge(model.model(), open_task(task), "test", model.input_format, RUN).rows
    return [bool(flag) for flag in rows_NR[:, 0] == rows_NR[:, 1]]


def make_table(results: Mapping[str, Any]) -> str:
    """Return the table in Markdown, a task a row: accuracies in per cent, the gain in points."""
    names = ["chance", *(f"{layers} layers" for layers in DEPTHS), "zeroed"]
    lines = [
        "| task | chance | 3 layers | 6 layers | 12 layers | without blocks 3 to 11 | their share |"
        " 6 over 3 layers |"
    ]
    lines.append(f"|---|{'---:|' * 7}")
    for row in results["rows"]:
        accuracies = " | ".join(f"{100 * row[name]:.1f}" for name in names)
        value, low, high = (100 * row["gain"][name] for name in ("value", "low", "high"))
        lines.append(
            f"| `{row['task']}` | {accuracies} | {row['share']:.2f} | {value:+.1f} [{low:+.1f},"
            f" {high:+.1f}] |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
