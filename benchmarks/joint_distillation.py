"""Is the training of all sizes together better when it starts from the closed form?

Varied: four ways to the same sizes, from the bundled ancestry model:

- `closed_form`: each size solved by itself, without a gradient;
- `turned`: slices of the closed form of the full size, whose stream is nested (`lgzoo expand
  --nested`): a narrower model is the first channels of a wider one;
- `nested`: slices of the ancestry model after the training of all sizes together, the bundled
  learngene of `nested`;
- `turned, nested`: the same training, started from the turned model.

Measured: the probe of the features before any fine-tuning: validation images are classified by the
nearest class mean of 1,000 training images, on three tasks; one seed.

Command: about fifteen minutes on one idle core, resumable; works in build/joint_distillation.

    python benchmarks/joint_distillation.py

Results: benchmarks/results/joint_distillation.json; rows that are there are not measured again.
Page: docs/results/closed_form.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.bench.running.trial import probe_start
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from pages import DOCS, ROOT, replace_between

NAME = "joint_distillation"
BUILD = ROOT / "build" / NAME
RUN = Run(threads=1, device="cpu", progress=True)
TASKS, IMAGES = ("digits", "numbers", "textures"), 1000
SIZES: tuple[dict[str, Any], ...] = (
    {"layers": 12, "width": 96},
    {"layers": 12, "width": 64},
    {"layers": 6, "width": 96},
    {"layers": 6, "width": 64},
    {"layers": 6, "width": 32},
)
WAYS = ("closed_form", "turned", "nested", "turned, nested")


def main() -> None:
    """Measure the missing sizes, print the table and write it."""
    rows: dict[str, dict[str, float]] = machine.read(NAME).get("rows", {})
    for way in WAYS:
        for size in SIZES:
            key = f"{way}: {describe_size(size)}"
            if key not in rows:
                descendant = lifecycle.expand(open_way(way), num_classes=10, run=RUN, **size)
                accuracies = {
                    task: probe_start(descendant, open_task(task), "validation", IMAGES, RUN).probe
                    or 0
                    for task in TASKS
                }
                rows[key] = {task: round(100 * value, 1) for task, value in accuracies.items()}
                machine.write(
                    NAME, {"seed": RUN.seed, "split": "validation", "images": IMAGES, "rows": rows}
                )
    page_text = make_table(rows)
    replace_between(DOCS / "results" / "closed_form.md", NAME, page_text)
    print(page_text)


def describe_size(size: dict[str, Any]) -> str:
    """Return a size as layers x width."""
    return " x ".join(str(value) for value in size.values())


@cache
def open_way(way: str) -> Learngene:
    """Return the learngene whose sizes a way uses."""
    if way in ("closed_form", "nested"):
        return load_learngene(find(way))
    return train_nested("turned", epochs=0) if way == "turned" else train_nested("joint")


def train_nested(name: str, **changes: Any) -> Learngene:
    """Train all slices of the turned model together, as the bundled learngene of `nested` was
    trained.

    Returns the learngene, which is written once; an interrupted training is resumed.
    """
    folder, extractor = BUILD / name, with_settings(METHODS.load("nested").preset("mini"), changes)
    if not folder.exists():
        lifecycle.extract(
            "nested",
            ancestries=[build_turned()],
            tasks=[SOURCE_TASK],
            extractor=extractor,
            out=folder,
            run=replace(RUN, resume=True),
        )
    return load_learngene(folder)


@cache
def build_turned() -> str:
    """Return the folder of the full size by the closed form with a nested stream; build it once."""
    folder = BUILD / "ancestry"
    if not folder.exists():
        descendant = lifecycle.expand("closed_form", nested=True, num_classes=0, run=RUN)
        descendant.save(folder)
    return str(folder)


def make_table(rows: dict[str, dict[str, float]]) -> str:
    """Return the table in Markdown: a size a row, the accuracies of all tasks by way."""
    lines = [f"| layers x width | {' | '.join(WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
    for size in SIZES:
        cells = (rows[f"{way}: {describe_size(size)}"] for way in WAYS)
        texts = [" ".join(map(str, cell.values())) for cell in cells]
        lines.append(f"| {describe_size(size)} | {' | '.join(texts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
