"""Judge an ancestry model by probes before any training, against pixels and random ViTs.

    python tools/probe_gate.py                          the bundled one
    python tools/probe_gate.py ancestry/ --out FILE     any other one
    python tools/probe_gate.py ancestry.run/ --out FILE
            the newest checkpoint of one that is being trained
    python tools/probe_gate.py --table                  print the table from the results

On 1,000 training images of a task, two probes are fitted: a ridge regression onto the classes and
the nearest class mean, both of standardised features. They are judged on up to 1,000 validation
images; no test image is read. Features: the 3,072 pixels; or of a ViT, after some of its blocks,
every token normalised, the class token and the mean of the patches side by side. Random ViTs have
the ancestry model's shape and weights of standard deviation 1/sqrt(fan_in).

The gate is passed if on every real task and every left-out family, by both probes, the last block
is above pixels and above the random ViTs at their best depth (mean of the seeds), and is clearly
above the third: its interval over images lies above 0. A left-out family counts as such only for a
model that was not trained on it, as the table says. Results: benchmarks/results/probe_gate.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from learngene_zoo.artifacts.descendant import fill_missing_tensors
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.families.tensors import Model, build_model
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.intervals import compute_paired_gain
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.settings import from_json
from learngene_zoo.storage import CONFIG, read_json
from learngene_zoo.tasks.catalogue import SOURCE_TASK, find_suite, open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.checkpoint import PREFIX, TENSORS, find_newest_step

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import machine
from probes import PROBES, Arrays, load_images, standardise

NAME = "probe_gate"
REAL, LEFT_OUT = ("digits", "fashion_mnist"), ("wings", "petals")
TASKS = (*REAL, *LEFT_OUT, *(name for name in find_suite("mini").tasks if name not in LEFT_OUT))
DEPTHS, EARLY = (0, 1, 2, 3, 4, 6, 8, 10, 12), 3
IMAGES, VALIDATION_IMAGES, SEEDS = 1_000, 1_000, (0, 1, 2)
TOKENS = ("both", "class", "patches")  # of a ViT's features; `both` decides


class Candidate(NamedTuple):
    """The ViT that is judged, and facts about it."""

    name: str
    model: Model
    spec: ViTSpec
    source: str  # the task it was trained on
    images: int | None  # seen, of a training that is not finished


# Models


def open_candidate(source: str) -> Candidate:
    """Return an ancestry model, or the newest checkpoint of a run's folder."""
    if (Path(source) / "run.json").is_file():
        return load_checkpoint(Path(source))
    ancestry = open_ancestry(source)
    assert isinstance(ancestry.spec, ViTSpec)
    return Candidate(source, ancestry.model(), ancestry.spec, find_training_task(source), None)


def find_training_task(source: str) -> str:
    """Return the task that a model of `lgzoo train` was trained on, from its config.json."""
    if source == BUNDLED:
        return SOURCE_TASK
    record = (
        read_json(Path(source) / CONFIG).get("learngene", {})
        if (Path(source) / CONFIG).is_file()
        else {}
    )
    return str(record.get("task") or "unknown")


def load_checkpoint(run: Path) -> Candidate:
    """Return the model in the newest checkpoint of a training."""
    settings, step = (
        json.loads((run / "run.json").read_text(encoding="utf-8"))["settings"],
        find_newest_step(run),
    )
    spec = from_json(ViTSpec, settings["spec"], "run.json")
    flat, prefix = load_file(run / f"{PREFIX}{step}" / TENSORS), "weights/model."
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in flat.items()
        if name.startswith(prefix)
    }
    num_images = step * settings["recipe"]["batch_size"]
    return Candidate(
        f"{run.name}, step {step}",
        build_model(spec, state),
        spec,
        settings["task"]["name"],
        num_images,
    )


def build_random_model(spec: ViTSpec, seed: int) -> Model:
    """Return a ViT of this shape with random weights."""
    return build_model(spec, fill_missing_tensors(spec, {}, seed, "fan_in"))


# Features


@torch.no_grad()
def compute_features(model: Any, pictures: torch.Tensor) -> dict[int, np.ndarray]:
    """Return, by depth, the class token and the mean of the patches, float32 (images, 2, width).

    Tokens are normalised. The depths are those of `DEPTHS`.
    """
    features: dict[int, list[torch.Tensor]] = {
        depth: [] for depth in DEPTHS if depth <= len(model.blocks)
    }
    for part in pictures.split(250):
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(part)))
        for depth in range(len(model.blocks) + 1):
            if depth:
                tokens = model.blocks[depth - 1](tokens)
            if depth in features:
                normal = functional.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
                first = model.num_prefix_tokens
                features[depth].append(
                    torch.stack([normal[:, 0], normal[:, first:].mean(dim=1)], dim=1)
                )
    return {depth: torch.cat(parts).numpy() for depth, parts in features.items()}


def select_features(features_N2D: np.ndarray, tokens: str) -> np.ndarray:
    """Return the features of some tokens, (images, width); of both, (images, 2 width)."""
    columns = {"both": slice(None), "class": slice(0, 1), "patches": slice(1, 2)}[tokens]
    return features_N2D[:, columns].reshape(len(features_N2D), -1)


# The gate


def judge_task(task: Task, ancestry: Candidate) -> dict[str, dict[str, Any]]:
    """Return, by probe, the accuracies of pixels, of random ViTs and of the candidate by depth, and
    its gains.
    """
    (train, labels), (validation, targets) = (
        load_images(task, "train", IMAGES),
        load_images(task, "validation", VALIDATION_IMAGES),
    )
    pixels = standardise(train.flatten(1).numpy(), validation.flatten(1).numpy())
    models = [ancestry.model, *(build_random_model(ancestry.spec, seed) for seed in SEEDS)]
    features = [
        (compute_features(model, train), compute_features(model, validation)) for model in models
    ]
    results = {}
    for probe, classify in PROBES.items():

        def classify_rightly(arrays: Arrays) -> np.ndarray:
            return np.asarray(classify(arrays[0], labels, arrays[1]) == targets)  # noqa: B023

        def judge_block(number: int, depth: int, tokens: str = "both") -> np.ndarray:
            return classify_rightly(
                standardise(*(select_features(part[depth], tokens) for part in features[number]))
            )

        ours = {depth: judge_block(0, depth) for depth in features[0][0]}
        random = {
            depth: [judge_block(1 + index, depth) for index in range(len(SEEDS))] for depth in ours
        }
        singles = {
            kind: {depth: float(judge_block(0, depth, kind).mean()) for depth in ours}
            for kind in TOKENS[1:]
        }
        results[probe] = summarise(classify_rightly(pixels), random, ours, singles)
    return results


def summarise(
    pixels: np.ndarray,
    random: Mapping[int, Sequence[np.ndarray]],
    ours: Mapping[int, np.ndarray],
    singles: Mapping[str, Mapping[int, float]],
) -> dict[str, Any]:
    """Return the accuracies, the gains with their 95 % intervals over images, and whether all gains
    pass.

    Args:
        pixels: whether each image is classified correctly from its pixels.
        random: the same of the random ViTs, by depth.
        ours: the same of the candidate, by depth.
        singles: the accuracies of the candidate's kinds of tokens, by kind and depth.
    """
    means = {depth: float(np.mean(runs)) for depth, runs in random.items()}
    last, best = max(ours), max(means, key=lambda depth: means[depth])
    rivals = {"pixels": [pixels], "random": random[best], f"block_{EARLY}": [ours[EARLY]]}
    gains = {
        name: compute_paired_gain([ours[last].tolist()], [run.tolist() for run in runs])
        for name, runs in rivals.items()
    }
    passed = (
        gains["pixels"].value > 0 and gains["random"].value > 0 and gains[f"block_{EARLY}"].low > 0
    )
    return {
        "pixels": float(pixels.mean()),
        "random": means,
        "random_best": best,
        "ancestry": {depth: float(flags.mean()) for depth, flags in ours.items()},
        **singles,
        "gains": {name: gain._asdict() for name, gain in gains.items()},
        "passed": bool(passed),
    }


def judge_tasks(ancestry: Candidate, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the results of all tasks, and the verdict."""
    rows = []
    for name in tasks:
        task = open_task(name)
        rows.append({"task": name, "probes": judge_task(task, ancestry)})
        print(format_row(rows[-1]), file=sys.stderr, flush=True)
    decisive_rows = [row for row in rows if row["task"] in (*REAL, *LEFT_OUT)]
    passed_tasks = [
        row["task"]
        for row in decisive_rows
        if all(probe["passed"] for probe in row["probes"].values())
    ]
    return {
        "ancestry": ancestry.name,
        "trained_on": ancestry.source,
        "images_seen": ancestry.images,
        "split": "validation",
        "left_out": {name: is_left_out(name, ancestry.source) for name in LEFT_OUT},
        "passed": len(passed_tasks) == len(REAL + LEFT_OUT),
        "passed_on": passed_tasks,
        "rows": rows,
    }


def is_left_out(family: str, source: str) -> bool:
    """Return whether a model trained on this task has never seen the family.

    Only `forms` is known to leave these families out.
    """
    return source == "forms" and family in LEFT_OUT


def format_row(row: Mapping[str, Any]) -> str:
    """Return a row of the table, in per cent and points: the ridge, then the nearest mean."""
    cells = []
    for probe in row["probes"].values():
        ours, best = probe["ancestry"], str(probe["random_best"])
        ours, random = (
            {str(depth): value for depth, value in part.items()} for part in (ours, probe["random"])
        )
        depths = " ".join(f"{100 * value:.0f}" for value in ours.values())
        gains = (
            f"{100 * g['value']:+.1f} ({100 * g['low']:+.1f} {100 * g['high']:+.1f})"
            for g in probe["gains"].values()
        )
        cells += [f"{100 * probe['pixels']:.1f}", f"{100 * random[best]:.1f}", depths, *gains]
        cells.append("yes" if probe["passed"] else "no")
    return f"| `{row['task']}` | {' | '.join(cells)} |"


def make_table(results: Mapping[str, Any]) -> str:
    """Return the table in Markdown, and the verdict."""
    depths = ", ".join(str(depth) for depth in DEPTHS)
    columns = (
        "pixels",
        "random",
        f"blocks {depths}",
        "over pixels",
        "over random",
        f"over block {EARLY}",
        "passed",
    )
    heads = ["task", *(f"{name} {head}" for name in ("ridge:", "mean:") for head in columns)]
    lines = [
        f"| {' | '.join(heads)} |",
        "|---|" + "---:|" * (len(heads) - 1),
        *map(format_row, results["rows"]),
    ]
    verdict = (
        "passed"
        if results["passed"]
        else f"not passed (only on: {', '.join(results['passed_on']) or 'none'})"
    )
    trained_families = [name for name, out in results["left_out"].items() if not out]
    note = (
        f"; {' and '.join(trained_families)} were not left out of its training"
        if trained_families
        else ""
    )
    return "\n".join([*lines, "", f"{results['ancestry']}: {verdict}{note}."])


def make_card_text(results: Mapping[str, Any]) -> str:
    """Return the text of the ancestry model's card: the decisive tasks, accuracies in per cent, and
    the gain by depth.
    """
    last = max(DEPTHS)
    lines = [
        (
            f"| task | probe | pixels | random ViT | block {EARLY} | block {last} | over block"
            f" {EARLY} |"
        ),
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in (row for row in results["rows"] if row["task"] in (*REAL, *LEFT_OUT)):
        for name, probe in row["probes"].items():
            best, ours, gain = (
                str(probe["random_best"]),
                probe["ancestry"],
                probe["gains"][f"block_{EARLY}"],
            )
            values = (probe["pixels"], probe["random"][best], ours[str(EARLY)], ours[str(last)])
            accuracies = " | ".join(f"{100 * value:.1f}" for value in values)
            interval = (
                f"{100 * gain['value']:+.1f} [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
            )
            lines.append(
                f"| `{row['task']}` | {name.replace('_', ' ')} | {accuracies} | {interval} |"
            )
    failed_tasks = [row["task"] for row in results["rows"] if row["task"] in (*REAL, *LEFT_OUT)]
    failed_tasks = [task for task in failed_tasks if task not in results["passed_on"]]
    verdict = (
        f"It does not pass on {', '.join(failed_tasks)}." if failed_tasks else "It passes on all."
    )
    return (
        "\n".join(lines)
        + f"\n\nBefore any training: validation accuracy in per cent of two probes on {IMAGES:,}"
        " images of real tasks and of the two families that its own training leaves out. Asked"
        " for: above pixels, above random ViTs at their best depth, and the last block above the"
        f" third. {verdict} Made by `python tools/probe_gate.py`."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge the model, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ancestry", nargs="?", default=BUNDLED)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args(arguments)
    if args.table:
        print(make_table(machine.read(NAME)))
        return
    torch.set_num_threads(1)
    results = judge_tasks(open_candidate(args.ancestry), args.tasks)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    elif args.ancestry == BUNDLED and tuple(args.tasks) == TASKS:
        machine.write(NAME, results)
    print(make_table(json.loads(json.dumps(results))))


if __name__ == "__main__":
    main()
