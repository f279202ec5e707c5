"""How much of the ancestry model do PITH's models inherit before any training, by start of P and Q?

Varied: the size of the model (four), the start of P and Q (noise, as in the paper, or the principal
directions), both with the hypernetwork of the preset `mini`, untrained, and seed 0. Beside them the
ancestry model itself.

Measured: the accuracy on 500 validation images of three tasks of a ridge regression on the
features of 600 training images.

Command: two minutes on one core.

    python benchmarks/pith_start.py
    python benchmarks/pith_start.py --table    print the table from the results

Results: benchmarks/results/pith_start.json.
Page: docs/results/pith.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

from torch import nn

from learngene_zoo.families.tensors import build_model
from learngene_zoo.pretrained.ancestry import Ancestry, open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_tal.architectures import derive_plain_spec
from lgzoo_tal.hypernet_spec import Start
from lgzoo_tal.modules.directions import measure_directions
from lgzoo_tal.modules.embedding import EmbeddingSettings
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.inheritance import build_inheritance, collect_inherited
from lgzoo_tal.pith import PITH
from machine import read, write
from pages import DOCS, replace_between

TASKS = ("signs", "numbers", "textures")
SIZES = ((12, 96), (6, 96), (12, 64), (6, 64))
TRAINING_IMAGES, IMAGES = 600, 500
RUN = Run(seed=0, threads=1)
STARTS: tuple[Start, ...] = get_args(Start)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure the accuracies, print the table and write it."""
    if "--table" not in arguments:
        ancestry = open_ancestry("bundled")
        rows = [{"name": "the ancestry model", "size": "12x96", **measure_model(ancestry.model())}]
        for start in STARTS:
            for layers, width in SIZES:
                accuracies = measure_model(predict_model(ancestry, start, layers, width))
                rows.append({"name": start, "size": f"{layers}x{width}", **accuracies})
                print(rows[-1], flush=True)
        print(write("pith_start", {"rows": rows, "threads": 1}))
    text = make_table(read("pith_start")["rows"])
    replace_between(DOCS / "results" / "pith.md", "start", text)
    print(text)


def predict_model(ancestry: Ancestry, start: Start, layers: int, width: int) -> nn.Module:
    """Return a model of an untrained hypernetwork."""
    preset: Any = PITH.presets["mini"]
    spec = preset.hypernet.build_spec().with_(decoder="projected", start=start)
    directions: Any = None
    if start == "projections":
        settings = EmbeddingSettings(images=preset.curriculum.embedding_images)
        state, _ = measure_directions(settings, ancestry, open_task("forms"), RUN)
        directions = SimpleNamespace(state=state)
    hypernet = Hypernet(spec, seed=0)
    tensors = collect_inherited(ancestry, start, directions)
    hypernet.inheritance = build_inheritance(spec, ancestry.spec, tensors)
    plain = derive_plain_spec(ancestry.spec)
    target = plain.with_(layers=layers, width=width, heads=width // plain.head_width)
    return build_model(target, hypernet.predict(build_graph(target)))


def measure_model(model: nn.Module) -> dict[str, float]:
    """Return the accuracy of a ridge regression on each task, in per cent."""
    input_format, accuracies = open_ancestry("bundled").input_format, {}
    for name in TASKS:
        task = open_task(name)
        train = compute_features(
            model, task, "train", input_format, RUN, images=TRAINING_IMAGES, seed=0
        )
        held_out = compute_features(
            model, task, "validation", input_format, RUN, images=IMAGES, seed=0
        )
        result = run_probe(train, held_out, task, "validation", "ridge")
        accuracies[name] = round(100 * result.value, 1)
    return accuracies


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown, a model a row."""
    heads = " | ".join(f"`{name}`" for name in TASKS)
    lines = [f"| start | size | {heads} |", f"|---|---|{'---:|' * len(TASKS)}"]
    for row in rows:
        numbers = " | ".join(f"{row[name]:.1f}" for name in TASKS)
        lines.append(f"| {row['name']} | {row['size']} | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
