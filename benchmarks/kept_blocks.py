"""How many blocks should LSAMD keep? Descendants of several kept sets, on validation images of `digits`.

    python benchmarks/kept_blocks.py           about five minutes of one core

For each set: descendants of 9 and 12 layers as the demo tunes them, over three seeds, beside the same weights shuffled.
Results in benchmarks/results/kept_blocks.json.
"""

from __future__ import annotations

import machine

from learngene_zoo import lifecycle, registry
from learngene_zoo.artifacts.learngene import load
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.bench import demo
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET, open_task
from learngene_zoo.training.fit import fit

LAYERS, SEEDS, ARMS = (9, 12), (0, 1, 2), ("lsamd", "shuffled")


def main() -> None:
    """Measure, print, and write."""
    rows = [
        {"rule": rule, "kept": kept, "layers": layers, **{arm: accuracy(arm, layers, kept) for arm in ARMS}}
        for rule, kept in kept_sets().items()
        for layers in LAYERS
    ]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    machine.write("kept_blocks", {"task": DEFAULT_TARGET, "split": "validation", "seeds": len(SEEDS), "rows": rows})


def kept_sets() -> dict[str, list[int]]:
    """What the rules keep of the bundled search: above half of the tasks, the five most used, and the last five."""
    details = load(find("lsamd")).config.details
    half = len(details["datasets"]) / 2
    above = [block for block, used in enumerate(details["usage"], start=1) if used > half]
    return {"above M/2": above, "top 5": list(details["kept"]), "last 5": [8, 9, 10, 11, 12]}


def accuracy(arm: str, layers: int, kept: list[int]) -> float:
    """Mean validation accuracy over the seeds, in per cent."""
    extractor = with_settings(registry.load("lsamd").extractor, {"keep": tuple(kept)})
    learngene, task = lifecycle.extract("lsamd", extractor=extractor), open_task(DEFAULT_TARGET)
    found = []
    for seed in SEEDS:
        run = Run(threads=1, seed=seed)
        tuned = fit(demo.build(arm, layers, learngene, task, run), task, demo.TUNING, run)
        found.append(tuned.provenance["metrics"]["validation_accuracy"])
    return round(100 * sum(found) / len(found), 1)


if __name__ == "__main__":
    main()
