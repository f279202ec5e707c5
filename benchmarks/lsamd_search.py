"""Does LSAMD's search find better blocks than chance?

Varied: the search, as `lgzoo extract lsamd` does it, with augmentation, and also with the patches'
mean as the routers' input; and placebos: routers that were not trained (0 epochs), routers that see
nothing of the images (constant), an ancestry model whose tensors have their entries shuffled. Each
has several seeds. Every set of blocks that they keep is used with the true ancestry model.

Measured: the percentile of the kept sets among all 792 sets of five blocks, by a probe of models of
7 layers that are not trained: a ridge regression on the class token and the mean of the patches,
fitted to training images of tasks that no search has seen, and judged on validation images; the
mean of the tasks. With `--tune` also the accuracy of 100 random sets after a short fine-tuning. No
test image is read.

Command: resumable. Rows belong to one ancestry model; after the bundled one has changed, everything
is measured again.

    python benchmarks/lsamd_search.py            about an hour of one idle core
    python benchmarks/lsamd_search.py --tune     and the fine-tunings: half an hour more
    python benchmarks/lsamd_search.py --smoke    a minute, to test the program
    python benchmarks/lsamd_search.py --table    write the page from the results

Results: benchmarks/results/lsamd_search.jsonl, the summary in lsamd_search.json.
Page: docs/results/lsamd.md, and the card of the learngene.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.families.tensors import shuffle_tensors
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry, open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, with_settings
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, open_task
from learngene_zoo.training.fit import fit
from lgzoo_lsamd.blocks import order_blocks, select_base_blocks
from lsamd_search_summary import (
    AUGMENTED,
    KEPT,
    LAYERS,
    SEARCH,
    UNTRAINED,
    Blocks,
    Summary,
    describe_bundled_set,
    make_sentence,
    make_table,
)
from pages import CARDS, DOCS, ROOT, replace_between, show_on_card
from probes import classify_by_ridge, load_images, standardise

NAME = "lsamd_search"
VARIANTS: dict[str, dict[str, Any]] = {
    SEARCH: {},
    UNTRAINED: {"epochs": 0},
    "shuffled ancestry": {},
    "constant router": {"router_token": "constant"},
    AUGMENTED: {"augment": "light"},
    f"{AUGMENTED}, patches": {"augment": "light", "router_token": "patches"},
}
RECIPE = Recipe(epochs=4, images=500, batch_size=50, lr=3e-3, warmup=0.4)  # of the fine-tuning


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The amount of measurements."""

    # Seeds 0 to 15 are those of the trial that led to a search without augmentation.
    seeds: tuple[int, ...] = tuple(range(16, 32))
    fewer: tuple[int, ...] = (0, 1, 2)  # of the placebos that take as long as the search
    augmented: tuple[int, ...] = (0, 1, 2, 3, 4)
    untrained: tuple[int, ...] = tuple(range(20))  # of those that take no time
    search: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings of all searches that differ from the preset mini
    tasks: tuple[str, ...] = ("digits", "textures", "numbers")
    images: int = 250  # training images of a probe, and as many validation images
    sets: int | None = None  # None: all
    tuned: int = 100
    recipe: Recipe = RECIPE
    rows: Path = machine.RESULTS / f"{NAME}.jsonl"
    build: Path = ROOT / "build" / NAME

    def get_seeds(self, variant: str) -> tuple[int, ...]:
        """Return the seeds of a variant."""
        if variant.startswith(AUGMENTED):
            return self.augmented
        return {SEARCH: self.seeds, UNTRAINED: self.untrained}.get(variant, self.fewer)


SMOKE = Plan(
    seeds=(0, 1),
    fewer=(0,),
    untrained=(0, 1),
    augmented=(0,),
    search={"epochs": 1, "images": 32},
    tasks=("digits",),
    images=40,
    sets=12,
    tuned=2,
    recipe=Recipe(epochs=1, images=50, batch_size=25),
    rows=ROOT / "build" / f"{NAME}_smoke" / "rows.jsonl",
    build=ROOT / "build" / f"{NAME}_smoke",
)


class Rows:
    """The rows of one ancestry model, in a file of lines. Rows of another one are dropped."""

    def __init__(self, path: Path, ancestry: str) -> None:
        self.path, self.ancestry = path, ancestry
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        all_rows = [json.loads(line) for line in lines]
        self.rows = [row for row in all_rows if row["ancestry"] == ancestry]
        if len(self.rows) < len(all_rows):
            path.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    def select(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a kind, in the order of their measurement."""
        return [row for row in self.rows if row["kind"] == kind]

    def add(self, kind: str, **row: Any) -> None:
        """Append a row and print it."""
        self.rows.append({"ancestry": self.ancestry, "kind": kind, **row})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")
        print(kind, *row.values(), flush=True)


# Searches


def search_all(ancestry: Ancestry, plan: Plan, rows: Rows) -> None:
    """Run every variant with each of its seeds, and add rows with the chosen blocks and usage."""
    measured = {(row["variant"], row["seed"]) for row in rows.select("search")}
    for variant in VARIANTS:
        for seed in plan.get_seeds(variant):
            if (variant, seed) not in measured:
                details = run_search(ancestry, variant, seed, plan)
                rows.add(
                    "search",
                    variant=variant,
                    seed=seed,
                    kept=details["kept"],
                    usage=details["usage"],
                )


def run_search(ancestry: Ancestry, variant: str, seed: int, plan: Plan) -> Mapping[str, Any]:
    """Return the details of the learngene of one search. An interrupted one continues with the
    first task that is not finished.
    """
    if variant == "shuffled ancestry":
        ancestry = shuffle_ancestry(ancestry, seed)
    extractor = with_settings(
        METHODS.load("lsamd").preset("mini"), {"top": KEPT, **plan.search, **VARIANTS[variant]}
    )
    folder = plan.build / f"{ancestry.record.sha256 or 'shuffled'}" / variant / str(seed)
    run = Run(seed=seed, threads=1, device="cpu", folder=folder, resume=True)
    learngene = extractor([ancestry], [open_task(name) for name in DEFAULT_TASKS], run)
    shutil.rmtree(folder)
    return learngene.config.details


def shuffle_ancestry(ancestry: Ancestry, seed: int) -> Ancestry:
    """Return the ancestry model with the entries of every tensor in a random order."""
    record = replace(ancestry.record, source="shuffled", sha256=None)
    return replace(
        ancestry, record=record, state=shuffle_tensors(ancestry.state, ancestry.state, seed)
    )


# All sets by untrained probe


def list_sets(layers: int, plan: Plan) -> list[Blocks]:
    """Return all sets of `KEPT` blocks, or `plan.sets` of them drawn at random."""
    all_sets = list(combinations(range(1, layers + 1), KEPT))
    return all_sets if plan.sets is None else sorted(random.Random(0).sample(all_sets, plan.sets))


def probe_all(ancestry: Ancestry, plan: Plan, rows: Rows) -> None:
    """Measure the accuracy of every set on every task, and add the rows."""
    measured = {tuple(row["kept"]) for row in rows.select("probe")}
    sets = [
        *list_sets(ancestry.spec.layers, plan),
        *(tuple(row["kept"]) for row in rows.select("search")),
    ]
    missing = {order_blocks(kept, LAYERS): kept for kept in sorted({*sets}) if kept not in measured}
    if missing:
        probe = Probe(ancestry, plan)
        for sources, features in compute_tokens(probe.blocks, probe.start, sorted(missing)):
            rows.add("probe", kept=missing[sources], accuracy=probe.compute_accuracies(features))


def compute_tokens(
    blocks: Sequence[torch.nn.Module],
    start: torch.Tensor,
    orders: Sequence[Blocks],
    num_done: int = 0,
) -> Iterator[tuple[Blocks, torch.Tensor]]:
    """Yield each order of blocks with the tokens after its last block.

    Orders with the same first blocks share their computation.

    Args:
        blocks: of the ancestry model.
        start: the tokens after the first `num_done` blocks of every order.
        orders: block numbers, counted from 1, in ascending order.
        num_done: the number of computed blocks.
    """
    for block in sorted({sources[num_done] for sources in orders}):
        with_same_block = [sources for sources in orders if sources[num_done] == block]
        with torch.no_grad():
            tokens = torch.cat([blocks[block - 1](part) for part in start.split(250)])
        if num_done + 1 == len(with_same_block[0]):
            yield with_same_block[0], tokens
        else:
            yield from compute_tokens(blocks, tokens, with_same_block, num_done + 1)


class Probe:
    """The embedded images of all tasks, by which expansions are judged."""

    def __init__(self, ancestry: Ancestry, plan: Plan) -> None:
        model = ancestry.model().eval()
        self.blocks, self.first, self.plan = model.blocks, model.num_prefix_tokens, plan
        self.parts: list[
            tuple[str, str, np.ndarray]
        ] = []  # task, split and labels, in the order of the images
        pictures = []
        for name in plan.tasks:
            for split in ("train", "validation"):
                images, labels = load_images(open_task(name), split, plan.images)
                pictures.append(images)
                self.parts.append((name, split, labels))
        with torch.no_grad():
            self.start = torch.cat(
                [model.norm_pre(model._pos_embed(model.patch_embed(part))) for part in pictures]
            )

    def compute_accuracies(self, tokens: torch.Tensor) -> dict[str, float]:
        """Return the accuracy by task, from the tokens after the last block."""
        normal = functional.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
        features = torch.cat([normal[:, 0], normal[:, self.first :].mean(dim=1)], dim=1).numpy()
        ends = np.cumsum([len(labels) for _, _, labels in self.parts])
        split = dict(
            zip(
                [part[:2] for part in self.parts],
                zip(np.split(features, ends), [part[2] for part in self.parts]),
            )
        )
        accuracy_of_task = {}
        for name in self.plan.tasks:
            (train, labels), (validation, targets) = split[name, "train"], split[name, "validation"]
            train, validation = standardise(train, validation)
            predictions = classify_by_ridge(train, labels, validation)
            accuracy_of_task[name] = round(float((predictions == targets).mean()), 4)
        return accuracy_of_task


# Some sets by short fine-tuning


def tune_sets(ancestry: Ancestry, plan: Plan, rows: Rows) -> None:
    """Fine-tune `plan.tuned` random sets, and every set that a search has chosen, on every task."""
    random_sets = random.Random(1).sample(list_sets(ancestry.spec.layers, plan), plan.tuned)
    searched_sets = [tuple(row["kept"]) for row in rows.select("search")]
    measured = {(tuple(row["kept"]), row["task"]) for row in rows.select("tune")}
    for blocks in dict.fromkeys([*random_sets, *searched_sets]):
        for task in plan.tasks:
            if (blocks, task) not in measured:
                value = measure_tuned(ancestry, blocks, task, plan.recipe)
                rows.add(
                    "tune", kept=blocks, task=task, drawn=blocks in random_sets, accuracy=value
                )


def measure_tuned(ancestry: Ancestry, blocks: Blocks, task: str, recipe: Recipe) -> float:
    """Return the validation accuracy of a set's expansion after a short training with seed 0."""
    run, spec = Run(seed=0, threads=1, device="cpu"), ancestry.spec
    config = LearngeneConfig(
        method="lsamd", spec=spec, details={"kept": list(blocks)}, ancestries=(ancestry.record,)
    )
    learngene = Learngene(config=config, state=select_base_blocks(ancestry.state, spec, blocks))
    start = lifecycle.expand(learngene, target=Target(layers=LAYERS, task=task), run=run)
    trained: Any = fit(start, open_task(task), recipe, run)
    return round(trained.provenance["metrics"]["validation_accuracy"], 4)


def main() -> None:
    """Measure what is missing, print the results and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in ("--tune", "--table", "--smoke"):
        parser.add_argument(option, action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = SMOKE if args.smoke else Plan()
    ancestry = open_ancestry(BUNDLED)
    rows = Rows(plan.rows, (ancestry.record.sha256 or "")[:16])
    stages = (
        []
        if args.table
        else [search_all, probe_all, *([tune_sets] if args.tune or args.smoke else [])]
    )
    for stage in stages:
        stage(ancestry, plan, rows)
    summary = Summary(rows.rows, plan.tasks)
    results = summary.to_json()
    text = make_table(results)
    if not args.smoke:
        machine.write(NAME, results)
        replace_between(
            DOCS / "results" / "lsamd.md", "lsamd-search", text + describe_bundled_set(summary)
        )
        show_on_card(
            CARDS / "lsamd-mini",
            "lsamd-search",
            make_sentence(results) + describe_bundled_set(summary),
        )
    print(text)


if __name__ == "__main__":
    main()
