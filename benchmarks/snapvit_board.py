"""How good are pruned models on SnapViT's board, beside the numbers that its authors published?

Varied: the pretrained model, the ranking, and the shares of hidden neurons and heads that are cut.
The rankings are those of `elastic` and `pruning`, and with --scores the authors' score files. Each
is measured with compensation and, with --cut, without it. With --scores and --cut the arm
`scores cut` repeats the published setting.

Measured: the top-1 accuracy of the 20 nearest neighbours (cosine of features, equal votes) on test
images, as in the authors' `results/in1k.md`. The features are the input of the head.

Command: resumable. The ten models and seven data sets come from the Hub (a network, the terms of
DINOv3 and ImageNet, and a GPU are needed); other models and tasks are named.

    python benchmarks/snapvit_board.py --scores SNAPVIT/scores/imagenet-1k --cut --device cuda
    python benchmarks/snapvit_board.py --model dinov2-s14=DINOV2 --image-size 112 \\
            --task stamps=stamps --task clothes=fashion_mnist --calibration stamps --cut \\
            --images 200 --test-images 200 \\
            --set images=100 crops=2 evaluations=12 compared=32 calibration_images=200
            DINOv2-S on tasks that need no network; DINOV2 as in benchmarks/real_models.py
    python benchmarks/snapvit_board.py --table      write the page from the results

Results: benchmarks/results/snapvit_board.jsonl; the published numbers are in
benchmarks/results/snapvit_published.json.
Page: docs/board.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.errors import ZooError
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import list_settings, with_settings
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.probes import Features, compute_features
from lgzoo_closed_form.calibration import Calibration
from lgzoo_closed_form.pruned import (
    DAMPING,
    build_pruned,
    choose_task,
    derive_selected_spec,
    select_shares,
)
from pages import DOCS, replace_between
from rows import append_row, read_rows

ROWS = machine.RESULTS / "snapvit_board.jsonl"
PUBLISHED = machine.RESULTS / "snapvit_published.json"
NEIGHBOURS = 20
SPARSITIES = ((0.15, 0.0), (0.25, 0.1), (0.35, 0.2), (0.45, 0.3), (0.55, 0.4), (0.65, 0.5))
# The weights of each model, and the authors' file of its scores.
MODELS = {
    "augreg-b16": (
        "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
        "augreg-vit-b-16-in21k-ft-in1k",
    ),
    "augreg-l16": (
        "timm:vit_large_patch16_224.augreg_in21k_ft_in1k",
        "augreg-vit-l-16-in21k-ft-in1k",
    ),
    "deit3-s16": ("timm:deit3_small_patch16_224.fb_in22k_ft_in1k", "deit-3-vit-s-16"),
    "deit3-b16": ("timm:deit3_base_patch16_224.fb_in22k_ft_in1k", "deit-3-vit-b-16"),
    "deit3-l16": ("timm:deit3_large_patch16_224.fb_in22k_ft_in1k", "deit-3-vit-l-16"),
    "deit3-h14": ("timm:deit3_huge_patch14_224.fb_in22k_ft_in1k", "deit-3-vit-h-14"),
    "deit-b16": ("timm:deit_base_distilled_patch16_224.fb_in1k", "deit-vit-b-16"),
    "dino-b16": ("timm:vit_base_patch16_224.dino", "dino_vitb16"),
    "dinov3-b16": ("timm:vit_base_patch16_dinov3.lvd1689m", "dinov3_vitb16"),
    "siglip2-b16": ("timm:vit_base_patch16_siglip_224.v2_webli", "siglip2-vit-b16"),
}
TASKS = {
    "aircraft": "hf:HuggingFaceM4/FGVC-Aircraft",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "eurosat": "hf:tanganke/eurosat",
    "imagenet": "imagenet-1k",
    "pets": "pets",
    "dtd": "dtd",
}
METHOD_OF = {"elastic": "elastic", "pruning": "pruning", "scores": "elastic"}


@dataclass(frozen=True)
class Cell:
    """A pruned model on a task."""

    model: str
    ranking: str  # "full" is the model itself
    compensated: bool
    mlp: float  # shares that are cut
    heads: float
    task: str

    @property
    def arm(self) -> str:
        """The name of its ranking in the table."""
        return self.ranking if self.compensated or self.ranking == "full" else f"{self.ranking} cut"


@dataclass(frozen=True)
class Study:
    """The measured models, tasks and settings."""

    models: Mapping[str, tuple[str, str]]
    tasks: Mapping[str, str]
    rankings: tuple[str, ...] = ("elastic", "pruning")
    with_cut: bool = False
    scores: Path | None = None
    calibration: str = "imagenet-1k"
    image_size: int | None = None
    images: int | None = None
    test_images: int | None = None
    settings: Mapping[str, Any] | None = None  # of the rankings
    folder: Path = Path("build/snapvit_board")
    rows: Path = ROWS
    run: Run = field(default_factory=Run)

    def list_cells(self) -> Iterator[Cell]:
        """Yield all cells; those of one pruned model follow each other."""
        for model in self.models:
            for task in self.tasks:
                yield Cell(model, "full", True, 0.0, 0.0, task)
            for ranking in self.rankings:
                for compensated in (True, False)[: 1 + self.with_cut]:
                    for mlp, heads in SPARSITIES:
                        for task in self.tasks:
                            yield Cell(model, ranking, compensated, mlp, heads, task)


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="*", default=[], help="names, or NAME=ANCESTRY")
    parser.add_argument("--task", action="append", default=[], help="COLUMN=TASK, repeatable")
    parser.add_argument("--scores", type=Path, help="folder of the authors' score files")
    parser.add_argument("--cut", action="store_true", help="measure without compensation, too")
    parser.add_argument("--calibration", default="imagenet-1k")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--images", type=int, help="training images of each task (default: all)")
    parser.add_argument("--test-images", type=int)
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        help="settings of the rankings, NAME=VALUE; calibration_images of the compensation",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="only write the page")
    args = parser.parse_args()
    if not args.table:
        rankings = ("elastic", "pruning", *(("scores",) if args.scores else ()))
        study = Study(
            models=_choose_models(args.model),
            tasks=dict(_split(pair) for pair in args.task) or TASKS,
            rankings=rankings,
            with_cut=args.cut,
            scores=args.scores,
            calibration=args.calibration,
            image_size=args.image_size,
            images=args.images,
            test_images=args.test_images,
            settings={name: json.loads(value) for name, value in map(_split, args.set)},
            run=Run(device=args.device, progress=True),
        )
        measure_study(study)
    for name, table in make_tables(read_rows(ROWS)).items():
        replace_between(DOCS / "board.md", name, table)
        print(f"{table}\n")


def _choose_models(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the named models with their sources; all of the board without a name."""
    chosen = {}
    for name in names or MODELS:
        if "=" in name:
            label, source = _split(name)
            chosen[label] = (source, "")
        elif name in MODELS:
            chosen[name] = MODELS[name]
        else:
            raise SystemExit(f"{name} is none of {', '.join(MODELS)}; name others as NAME=ANCESTRY")
    return chosen


def _split(pair: str) -> tuple[str, str]:
    """Return the name and the value of a pair NAME=VALUE."""
    name, _, value = pair.partition("=")
    return name, value


def measure_study(study: Study) -> None:
    """Measure the cells that have no row yet, and append each row when it is there."""
    measured = {tuple(row[name] for name in _KEY) for row in read_rows(study.rows)}
    current: tuple[Any, Descendant] | None = None
    for cell in study.list_cells():
        if tuple(asdict(cell)[name] for name in _KEY) in measured:
            continue
        start = time.monotonic()
        identity = replace(cell, task="")
        try:
            if current is None or current[0] != identity:
                current = identity, build_model(study, cell)
            result = probe_model(study, current[1], cell.task)
        except ZooError as error:
            result = {"error": str(error).replace(study.models[cell.model][0], cell.model.upper())}
        row = {**asdict(cell), **result, "seconds": round(time.monotonic() - start, 1)}
        append_row(study.rows, row)
        print(f"{cell.model} {cell.arm} {cell.mlp} {cell.heads} {cell.task}", file=sys.stderr)


_KEY = tuple(Cell.__dataclass_fields__)


def build_model(study: Study, cell: Cell) -> Descendant:
    """Return the pruned model of a cell, without a head."""
    source = study.models[cell.model][0]
    ranking = "elastic" if cell.ranking == "full" else cell.ranking
    learngene = open_learngene(study, cell.model, ranking)
    run = replace(study.run, ancestry=source)
    shares = (round(1 - cell.heads, 6), round(1 - cell.mlp, 6))
    selection = select_shares(learngene, shares, None)
    target = Target(classes=0)
    spec = derive_selected_spec(learngene, target, selection, "the shares are the board's")
    task = None
    if cell.compensated:
        task = choose_task(learngene, target, selection, study.calibration, None, run)
    images = (study.settings or {}).get("calibration_images", 600)
    return build_pruned(learngene, spec, selection, run, Calibration(images=images), task, DAMPING)


def open_learngene(study: Study, model: str, ranking: str) -> Learngene:
    """Return a ranking of a model, without its weights; it is extracted once."""
    folder = study.folder / f"{model}-{ranking}"
    if folder.is_dir():
        return load_learngene(folder)
    source, scores = study.models[model]
    method = METHODS.load(METHOD_OF[ranking])
    names = {setting.name for setting in list_settings(method.preset("mini"))}
    values = {name: value for name, value in (study.settings or {}).items() if name in names}
    values["store"] = False
    if ranking == "scores":
        assert study.scores is not None
        values["scores"] = str(study.scores / f"{scores}.pt")
    return lifecycle.extract(
        method.name,
        ancestries=source,
        tasks=study.calibration,
        extractor=with_settings(method.preset("mini"), values),
        image_size=study.image_size,
        out=folder,
        run=replace(study.run, device="cpu"),
    )


def probe_model(study: Study, model: Descendant, name: str) -> dict[str, Any]:
    """Return the accuracy of the nearest neighbours on a task, per cent."""
    task = open_task(study.tasks[name], offline=study.run.offline)
    counts = {"train": study.images, "test": study.test_images}
    train, test = (
        compute_features(
            model.model(),
            task,
            split,
            model.input_format,
            study.run,
            images=min(counts[split] or task.sizes[split], task.sizes[split]),
        )
        for split in ("train", "test")
    )
    predicted = classify_equally(train, test.values, task.classes)
    return {
        "value": round(100 * float(np.mean(predicted == test.labels)), 2),
        "images": len(test.labels),
        "training_images": len(train.labels),
        "params": model.cost().params,
    }


def classify_equally(train: Features, queries_ND: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the most frequent class of the nearest training images; of equal ones the first."""
    units_MD, predicted = _normalise(train.values), []
    k = min(NEIGHBOURS, len(units_MD))
    for start in range(0, len(queries_ND), 1024):
        similarity_NM = _normalise(queries_ND[start : start + 1024]) @ units_MD.T
        nearest_Nk = np.argsort(-similarity_NM, axis=1, kind="stable")[:, :k]
        votes_NK = np.zeros((len(similarity_NM), num_classes))
        rows_Nk = np.broadcast_to(np.arange(len(nearest_Nk))[:, None], nearest_Nk.shape)
        np.add.at(votes_NK, (rows_Nk, train.labels[nearest_Nk]), 1)
        predicted.append(votes_NK.argmax(axis=1))
    return np.concatenate(predicted)


def _normalise(values_ND: np.ndarray) -> np.ndarray:
    """Return the rows divided by their lengths."""
    lengths_N1 = np.linalg.norm(values_ND, axis=1, keepdims=True)
    units: np.ndarray = values_ND / np.maximum(lengths_N1, 1e-12)
    return units


def make_tables(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the tables of the page by name: the published models, and all others."""
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    other_models = list(dict.fromkeys(row["model"] for row in rows if row["model"] not in MODELS))
    return {
        "snapvit-board": "\n\n".join(_make_table(name, rows, published) for name in MODELS),
        "snapvit-other": "\n\n".join(_make_table(name, rows, published) for name in other_models),
    }


def _make_table(model: str, rows: Sequence[dict[str, Any]], published: Mapping[str, Any]) -> str:
    """Return one model's table: a pair of shares and an arm a row, a task a column."""
    rows = [row for row in rows if row["model"] == model and "error" not in row]
    reference = published["models"].get(model, {})
    columns = published["columns"] if reference else list(dict.fromkeys(r["task"] for r in rows))
    lines = [
        f"### {model}\n",
        f"| cut: neurons, heads | ranking | {' | '.join(columns)} |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for mlp, heads in ((0.0, 0.0), *SPARSITIES):
        cut = f"{mlp:.2f}, {heads:.1f}"
        values = reference.get(f"{mlp:.2f},{heads:.1f}")
        if values:
            cells = " | ".join(f"{value:.1f}" for value in values)
            lines.append(f"| {cut} | published | {cells} |")
        rows_of_cut = [row for row in rows if (row["mlp"], row["heads"]) == (mlp, heads)]
        for arm in dict.fromkeys(_name_arm(row) for row in rows_of_cut):
            accuracy_of_task = {
                row["task"]: row["value"] for row in rows_of_cut if _name_arm(row) == arm
            }
            cells = " | ".join(
                f"{accuracy_of_task[t]:.1f}" if t in accuracy_of_task else "" for t in columns
            )
            lines.append(f"| {cut} | {arm} | {cells} |")
    return "\n".join(lines)


def _name_arm(row: Mapping[str, Any]) -> str:
    """Return the name of a row's arm."""
    return Cell(**{name: row[name] for name in _KEY}).arm


if __name__ == "__main__":
    main()
