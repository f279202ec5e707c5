"""How the demo tells what it found: sentences, a Markdown table, and a picture of the curves. Cold at its top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learngene_zoo.folder import read_json
from learngene_zoo.settings import Json
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET
from learngene_zoo.units import human_count

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
