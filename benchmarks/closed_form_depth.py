"""Does a model by closed_form come nearer to its ancestry model with every further layer?

Varied: the depth, at full width; beside the solved blocks of the best cut the same blocks as
copies, and the first blocks solved.

Measured: the share of the variance of the ancestry model's last stream, over the tokens of 500
validation images of the source task, by which the built model's differs from it; and the objective
of the best cut, which never rises with the depth but is a sum of errors on the ancestry model's own
streams. Depths whose error is larger than that of a shallower model are listed as violations.

Command: about four minutes on one core.

    python benchmarks/closed_form_depth.py
    python benchmarks/closed_form_depth.py --table    write the table from the results

Results: benchmarks/results/closed_form_depth.json.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from pages import DOCS, replace_between
from probes import load_images

NAME = "closed_form_depth"
WAYS: dict[str, dict[str, Any]] = {
    "solved": {"teacher_depth": 12},
    "copied": {"teacher_depth": 12, "solve": False},
}
IMAGES, RUN = 500, Run(threads=1, device="cpu")


def main(arguments: Sequence[str]) -> None:
    """Measure every depth, print the table and write it."""
    torch.set_num_threads(1)
    if "--table" not in arguments:
        machine.write(NAME, {"images": IMAGES, "rows": measure_depths()})
    text = make_table(machine.read(NAME)["rows"])
    print(text)
    replace_between(DOCS / "results" / "closed_form.md", "depth", text)


def measure_depths() -> list[dict[str, Any]]:
    """Return, for every depth, the objective and the error of each way."""
    ancestry, learngene = open_ancestry("bundled"), load_learngene(find("closed_form"))
    images, _ = load_images(open_task(SOURCE_TASK), "validation", IMAGES)
    teacher_stream = compute_last_stream(ancestry.model(), images)
    variance = (teacher_stream - teacher_stream.mean(dim=(0, 1))).square().sum()
    rows = []
    for layers, objective in enumerate(learngene.config.details["objective"], 1):
        errors = {}
        for way, settings in WAYS.items():
            descendant = lifecycle.expand(
                learngene, layers=layers, num_classes=0, run=RUN, **settings
            )
            errors[way] = float(
                (compute_last_stream(descendant.model(), images) - teacher_stream).square().sum()
                / variance
            )
        rows.append({"layers": layers, "objective": objective, **errors})
    return rows


@torch.no_grad()
def compute_last_stream(model: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the inputs of the final norm, (images, tokens, width)."""
    streams: list[torch.Tensor] = []
    handle = model.norm.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0]))
    model.eval()
    for batch in images.split(250):
        model.forward_features(batch)
    handle.remove()
    return torch.cat(streams)


def find_violations(rows: Sequence[Mapping[str, Any]], way: str) -> list[int]:
    """Return the depths at which the error is larger than at some smaller depth."""
    return [
        row["layers"]
        for number, row in enumerate(rows)
        if any(row[way] > before[way] for before in rows[:number])
    ]


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row for each quantity, and the violations below it."""
    lines = [
        f"| layers | {' | '.join(str(row['layers']) for row in rows)} |",
        f"|---|{'---:|' * len(rows)}",
    ]
    for name in ("objective", *WAYS):
        lines.append(f"| {name} | {' | '.join(f'{row[name]:.2f}' for row in rows)} |")
    depths_of_way = {way: ", ".join(map(str, find_violations(rows, way))) or "none" for way in WAYS}
    text = "; ".join(f"{way}: {depths}" for way, depths in depths_of_way.items())
    lines += ["", f"Violations, by layers: {text}."]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
