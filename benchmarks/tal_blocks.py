"""Do the later blocks of the bundled TAL learngene's predictions contribute?

Varied: the depth of untrained descendants of width 96: 3, 6 and 12 layers, and 12 of which blocks 3
to 11 add nothing (`attn.proj` and `mlp.fc2` zero).

Measured: the accuracy on the test images of every task that the learngene has seen. The share of
the nine blocks is (whole - zeroed) / (whole - chance); the gain of six layers over three has an
interval over the images.

Command: two minutes of one core; `python tools/shelf.py tal-depth` also writes the tables.

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
from learngene_zoo.intervals import paired_gain
from learngene_zoo.method.contract import details_of
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
    """Measure, print, and write."""
    learngene = load_learngene(find("tal"))
    rows = [
        line_of(learngene, task) for task in details_of(learngene.config, HypernetDetails).tasks
    ]
    machine.write(NAME, {"width": WIDTH, "rows": rows})
    print(markdown(read()))


def read() -> dict[str, Any]:
    """The results as they were written."""
    return machine.read(NAME)


def line_of(learngene: Learngene, task: str) -> dict[str, Any]:
    """What descendants of several depths know of a task, and what the later blocks of the deepest
    have in it.
    """
    made = {
        layers: lifecycle.expand(learngene, layers=layers, width=WIDTH, task=task, run=RUN)
        for layers in sorted(DEPTHS)
    }
    right = {layers: correct(one, task) for layers, one in made.items()}
    silent = {f"blocks.{block}.{writer}" for block in IDLE for writer in WRITERS}
    whole = made[max(DEPTHS)]
    zeroed = correct(
        whole.with_state({n: t * 0 if n in silent else t for n, t in whole.state.items()}), task
    )
    share = {name: sum(own) / len(own) for name, own in {**right, "zeroed": zeroed}.items()}
    chance, deepest = 1 / whole.spec.classes, share[max(DEPTHS)]
    gain = paired_gain([right[6]], [right[3]])
    return {
        "task": task,
        "chance": chance,
        **{
            f"{name} layers" if isinstance(name, int) else name: value
            for name, value in share.items()
        },
        "share": (deepest - share["zeroed"]) / (deepest - chance),
        "gain": {"value": gain.value, "low": gain.low, "high": gain.high},
    }


def correct(made: Descendant, task: str) -> list[bool]:
    """Of every test image, whether it is answered rightly."""
    rows_NR = judge(made.model(), open_task(task), "test", made.input_format, RUN).rows
    return [bool(one) for one in rows_NR[:, 0] == rows_NR[:, 1]]


def markdown(kept: Mapping[str, Any]) -> str:
    """A line per task, in per cent; the gain in points."""
    shown = ["chance", *(f"{layers} layers" for layers in DEPTHS), "zeroed"]
    lines = [
        "| task | chance | 3 layers | 6 layers | 12 layers | without blocks 3 to 11 | their share |"
        " 6 over 3 layers |"
    ]
    lines.append(f"|---|{'---:|' * 7}")
    for row in kept["rows"]:
        accuracies = " | ".join(f"{100 * row[name]:.1f}" for name in shown)
        value, low, high = (100 * row["gain"][name] for name in ("value", "low", "high"))
        lines.append(
            f"| `{row['task']}` | {accuracies} | {row['share']:.2f} | {value:+.1f} [{low:+.1f},"
            f" {high:+.1f}] |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
