"""`lgzoo demo`: the whole story on what is bundled, in minutes, with its honest table.

One LSAMD extraction over three tasks; descendants of several depths; each fine-tuned shortly on `digits`, real images that
neither the ancestry nor the extraction ever saw, beside its scratch twins (two initialisations) and its `shuffled` control.

How the demo tells what it found: sentences, a Markdown table, and a picture of the curves. Cold at its top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from learngene_zoo import lifecycle, registry
from learngene_zoo.bench import trial
from learngene_zoo.bench.cell import Cell as BenchCell
from learngene_zoo.bench.grid import standard_arms
from learngene_zoo.intervals import Gain, paired_gain
from learngene_zoo.method import Target
from learngene_zoo.recipe import Recipe
from learngene_zoo.runs.folder import begin, finish
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import StateDict, new_folder, read_json, write_json
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET, DEFAULT_TASKS, open_task
from learngene_zoo.units import human_count

if TYPE_CHECKING:
    from torch import nn

    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.tasks.task import Task


METHOD = "lsamd"

TUNING = Recipe(epochs=10, images=400, batch_size=50, lr=1e-3, warmup=1.0, augment="light")


@dataclass(frozen=True)
class Story:
    """How long the demo takes."""

    depths: int  # descendants of how many depths
    seeds: int  # fine-tunings of each


SHORT = Story(depths=3, seeds=2)

FULL = Story(depths=5, seeds=3)


def tell(
    out: Path, run: Run, full: bool = False, force: bool = False, say: Callable[[str], None] = print
) -> list[Json]:
    """Run the story, write `learngene/`, `curves.png` and `results.json` into `out`, and return the table's rows.

    Resumable: finished parts are not repeated. `say` receives one line as each part begins.
    """
    story = FULL if full else SHORT
    run = begin(out, "demo", {"story": to_json(story), "tuning": to_json(TUNING)}, run, force)
    say(f"1. condensing the bundled ancestry into a learngene, over {', '.join(DEFAULT_TASKS)}")
    learngene = _learngene(run)
    depths = _depths(learngene, story.depths)
    say(f"   kept blocks {learngene.config.details['kept']} of {learngene.config.spec.layers}")
    say(
        f"2. descendants of {', '.join(map(str, depths))} layers, fine-tuned on {TUNING.images} images of {DEFAULT_TARGET}"
    )
    cells = list(_cells(learngene, depths, story.seeds, run, say))
    rows = [_row(learngene, layers, cells) for layers in depths]
    with new_folder(out, force) as draft:
        learngene.save(draft / "learngene")
        write_json(draft / "results.json", {"tuning": to_json(TUNING), "rows": rows, "cells": to_json(cells)})
        draw(cells, draft / "curves.png")
    finish(run)
    return rows


def _learngene(run: Run) -> Learngene:
    from learngene_zoo.artifacts.learngene import load

    assert run.folder is not None
    place = run.folder / "learngene"
    if not (run.resume and place.is_dir()):
        lifecycle.extract(METHOD, out=place, run=run, force=not run.resume)
    return load(place)


def _depths(learngene: Learngene, count: int) -> list[int]:
    """Depths spread evenly over what the learngene can build up to the ancestry's own depth."""
    members = lifecycle.family(learngene.config, registry.load(METHOD).expander, Target())
    possible = sorted({m.spec.layers for m in members if m.spec.layers <= learngene.config.spec.layers})
    if len(possible) <= count:
        return possible
    return [possible[round(i * (len(possible) - 1) / (count - 1))] for i in range(count)]


def _cells(
    learngene: Learngene, depths: Sequence[int], seeds: int, run: Run, say: Callable[[str], None]
) -> Iterator[Cell]:
    task = open_task(DEFAULT_TARGET, offline=run.offline)
    for layers in depths:
        for seed in range(seeds):
            for arm in ARMS:
                name = f"{layers}-layers/{arm.replace(' ', '-')}/{seed}"
                # The same chance for all arms: equal images, order and head, so that only the start differs.
                build_and_tune = partial(_tuned, arm, layers, learngene, task, derive_seed(run.seed, "tuning", seed))
                record = run.part(name).once(build_and_tune)[1]
                say(
                    f"   {layers:>2} layers, seed {seed}, {arm:<14} {100 * sum(record['correct']) / len(record['correct']):5.1f} %"
                )
                yield Cell(arm, layers, seed, tuple(record["curve"]), tuple(record["correct"]))


def _tuned(arm: str, layers: int, learngene: Learngene, task: Task, seed: int, run: Run) -> tuple[StateDict, Json]:
    from learngene_zoo.training.evaluate import evaluate
    from learngene_zoo.training.fit import fit

    run = replace(run, folder=None, seed=seed)  # no checkpoints: a resumed cell would lack the beginning of its curve
    start = build(arm, layers, learngene, task, run)
    curve = [evaluate(start.model(), task, "validation", start.input_format, run).value]

    def watch(model: nn.Module) -> None:
        curve.append(evaluate(model, task, "validation", start.input_format, run).value)

    tuned = fit(start, task, TUNING, run, watch=watch)
    test = evaluate(tuned.model(), task, "test", tuned.input_format, run)
    return {}, {"curve": curve, "correct": list(map(bool, test.correct))}


def build(arm: str, layers: int, learngene: Learngene, task: Task, run: Run) -> Descendant:
    """The untrained descendant of one arm, as the bench builds it: the same size, head and normalisation in all of them."""
    chosen = next(one for one in standard_arms([METHOD]) if one.name in (arm, f"{METHOD} {arm}"))
    gene = learngene if chosen.method == METHOD else lifecycle.extract(chosen.method, run=replace(run, folder=None))
    cell = BenchCell(arm=chosen, task=task.name, layers=layers, seed=run.seed, recipe=TUNING)
    return trial.build(cell, gene, task, run)


def _row(learngene: Learngene, layers: int, cells: Sequence[Cell]) -> Json:
    """One line of the table: sizes, accuracies, and what the inheritance is worth against the two honest rivals."""
    of = {arm: [cell.correct for cell in cells if (cell.arm, cell.layers) == (arm, layers)] for arm in ARMS}
    accuracy = {arm: _mean(_mean(correct) for correct in runs) for arm, runs in of.items()}
    stronger = max(("scratch timm", "scratch fan_in"), key=lambda arm: accuracy[arm])
    classes = open_task(DEFAULT_TARGET).classes
    cost = next(
        m
        for m in lifecycle.family(
            learngene.config, registry.load(METHOD).expander, Target(layers=layers, classes=classes)
        )
    ).cost()
    return {
        "layers": layers,
        "params": cost.params,
        "flops": cost.flops,
        **{arm.replace(" ", "_"): value for arm, value in accuracy.items()},
        **_gain("over_scratch", paired_gain(of["lsamd"], of[stronger])),
        **_gain("over_shuffled", paired_gain(of["lsamd"], of["shuffled"])),
    }


def _gain(name: str, gain: Gain) -> dict[str, Json]:
    return {name: gain.value, f"{name}_low": gain.low, f"{name}_high": gain.high}


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


ARMS = ("lsamd", "shuffled", "scratch timm", "scratch fan_in")

COLOURS = dict(zip(ARMS, ("#1b7837", "#a17cc0", "#b35806", "#f1a340")))


@dataclass(frozen=True)
class Cell:
    """One fine-tuned model: its arm, depth and seed, and how it did."""

    arm: str
    layers: int
    seed: int
    curve: tuple[float, ...]  # validation accuracy before training and after each epoch
    correct: tuple[bool, ...]  # per test image


def read_rows(out: Path) -> list[Json]:
    """The table's rows of a demo that was told into `out`."""
    rows: list[Json] = read_json(out / "results.json")["rows"]
    return rows


def verdict(row: Json) -> str:
    """What a row allows to say, in words."""
    parts = []
    for name, words in (("over_scratch", "over the stronger scratch twin"), ("over_shuffled", "over shuffled")):
        value, low, high = (100 * row[key] for key in (name, f"{name}_low", f"{name}_high"))
        note = "" if low > 0 else "; within its interval" if high > 0 else "; worse"
        parts.append(f"{value:+.1f} points {words} [{low:+.1f}, {high:+.1f}]{note}")
    return f"{row['layers']} layers: " + ", ".join(parts)


def markdown(rows: Sequence[Json]) -> str:
    """The table for a README: test accuracies in per cent, and the gains with their 95 % intervals in points."""
    head = (
        "| layers | params | FLOPs | " + " | ".join(ARMS) + " | gain over the stronger scratch | gain over shuffled |"
    )
    lines = [head, "|" + "---:|" * (head.count("|") - 1)]
    for row in rows:
        accuracies = [f"{100 * row[arm.replace(' ', '_')]:.1f}" for arm in ARMS]
        sizes = [str(row["layers"]), human_count(row["params"]), human_count(row["flops"])]
        gains = [_points(row, "over_scratch"), _points(row, "over_shuffled")]
        lines.append(f"| {' | '.join([*sizes, *accuracies, *gains])} |")
    return "\n".join(lines)


def _points(row: Json, name: str) -> str:
    value, low, high = (100 * row[key] for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Validation accuracy after each epoch, one panel per depth, one line per arm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    depths = sorted({cell.layers for cell in cells})
    figure = Figure(figsize=(3.4 * len(depths), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for panel, layers in zip(panels, depths):
        for arm in ARMS:
            curves = [cell.curve for cell in cells if (cell.arm, cell.layers) == (arm, layers)]
            mean = [100 * sum(values) / len(values) for values in zip(*curves)]
            panel.plot(range(len(mean)), mean, label=arm, color=COLOURS[arm], linewidth=2.4 if arm == ARMS[0] else 1.5)
        panel.set_title(f"{layers} layers", fontsize=10)
        panel.set_xlabel("epochs of fine-tuning")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"validation accuracy on {DEFAULT_TARGET}, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS), frameon=False)
    figure.savefig(path, dpi=140)
