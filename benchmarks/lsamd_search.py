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
from learngene_zoo.families.tensors import shuffle_tensors
from learngene_zoo.method.contract import BUNDLED, METHODS
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
    Kept,
    Summary,
    own_place,
    sentence,
    table,
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
    """How much is measured."""

    # Not those of the trial (0 to 15) by which the search lost its augmentation.
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

    def seeds_of(self, variant: str) -> tuple[int, ...]:
        """The seeds of a variant."""
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
    """The rows of one ancestry model, kept line by line; those of another are dropped."""

    def __init__(self, path: Path, ancestry: str) -> None:
        self.path, self.ancestry = path, ancestry
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        every = [json.loads(line) for line in lines]
        self.rows = [row for row in every if row["ancestry"] == ancestry]
        if len(self.rows) < len(every):
            path.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The rows of a kind, in the order of their measurement."""
        return [row for row in self.rows if row["kind"] == kind]

    def add(self, kind: str, **row: Any) -> None:
        """Keep a row and print it."""
        self.rows.append({"ancestry": self.ancestry, "kind": kind, **row})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")
        print(kind, *row.values(), flush=True)


# Searches


def search_all(ancestry: Ancestry, plan: Plan, rows: Rows) -> None:
    """Every variant with each of its seeds: the blocks that it keeps, and G."""
    done = {(row["variant"], row["seed"]) for row in rows.of("search")}
    for variant in VARIANTS:
        for seed in plan.seeds_of(variant):
            if (variant, seed) not in done:
                details = searched(ancestry, variant, seed, plan)
                rows.add(
                    "search",
                    variant=variant,
                    seed=seed,
                    kept=details["kept"],
                    usage=details["usage"],
                )


def searched(ancestry: Ancestry, variant: str, seed: int, plan: Plan) -> Mapping[str, Any]:
    """The details of the learngene of one search. An interrupted one continues with the first task
    that is not finished.
    """
    if variant == "shuffled ancestry":
        ancestry = shuffled_ancestry(ancestry, seed)
    extractor = with_settings(
        METHODS.load("lsamd").preset("mini"), {"top": KEPT, **plan.search, **VARIANTS[variant]}
    )
    folder = plan.build / f"{ancestry.record.sha256 or 'shuffled'}" / variant / str(seed)
    run = Run(seed=seed, threads=1, device="cpu", folder=folder, resume=True)
    learngene = extractor([ancestry], [open_task(name) for name in DEFAULT_TASKS], run)
    shutil.rmtree(folder)
    return learngene.config.details


def shuffled_ancestry(ancestry: Ancestry, seed: int) -> Ancestry:
    """The ancestry model with the entries of every tensor in another order."""
    record = replace(ancestry.record, source="shuffled", sha256=None)
    return replace(
        ancestry, record=record, state=shuffle_tensors(ancestry.state, ancestry.state, seed)
    )


# All sets by untrained probe


def sets_of(layers: int, plan: Plan) -> list[Kept]:
    """All sets of `KEPT` blocks, or the first `plan.sets` of them in an order that is drawn."""
    every = list(combinations(range(1, layers + 1), KEPT))
    return every if plan.sets is None else sorted(random.Random(0).sample(every, plan.sets))


def probe_all(ancestry: Ancestry, plan: Plan, rows: Rows) -> None:
    """The accuracy of every set on every task."""
    done = {tuple(row["kept"]) for row in rows.of("probe")}
    kept = [
        *sets_of(ancestry.spec.layers, plan),
        *(tuple(row["kept"]) for row in rows.of("search")),
    ]
    missing = {order_blocks(one, LAYERS): one for one in sorted({*kept}) if one not in done}
    if missing:
        probe = Probe(ancestry, plan)
        for sources, features in expanded(probe.blocks, probe.start, sorted(missing)):
            rows.add("probe", kept=missing[sources], accuracy=probe.accuracies(features))


def expanded(
    blocks: Sequence[torch.nn.Module], start: torch.Tensor, orders: Sequence[Kept], done: int = 0
) -> Iterator[tuple[Kept, torch.Tensor]]:
    """Each order of blocks (ascending orders, counted from 1) with the tokens after its last block.

    Orders with the same first blocks share their computation: `start` are the tokens after the
    first `done` of them.
    """
    for block in sorted({sources[done] for sources in orders}):
        same = [sources for sources in orders if sources[done] == block]
        with torch.no_grad():
            tokens = torch.cat([blocks[block - 1](part) for part in start.split(250)])
        if done + 1 == len(same[0]):
            yield same[0], tokens
        else:
            yield from expanded(blocks, tokens, same, done + 1)


class Probe:
    """The images of all tasks, embedded, and the judgement of what an expansion makes of them."""

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

    def accuracies(self, tokens: torch.Tensor) -> dict[str, float]:
        """By task, of the tokens after the last block."""
        normal = functional.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
        features = torch.cat([normal[:, 0], normal[:, self.first :].mean(dim=1)], dim=1).numpy()
        ends = np.cumsum([len(labels) for _, _, labels in self.parts])
        split = dict(
            zip(
                [part[:2] for part in self.parts],
                zip(np.split(features, ends), [part[2] for part in self.parts]),
            )
        )
        found = {}
        for name in self.plan.tasks:
            (train, labels), (validation, wanted) = split[name, "train"], split[name, "validation"]
            guessed = classify_by_ridge(*reordered(standardise(train, validation), labels))
            found[name] = round(float((guessed == wanted).mean()), 4)
        return found


def reordered(
    arrays: tuple[np.ndarray, np.ndarray], labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `ridge` takes them: training features, their labels, validation features."""
    return arrays[0], labels, arrays[1]


# Some sets by short fine-tuning


def tune_some(ancestry: Ancestry, plan: Plan, rows: Rows) -> None:
    """`plan.tuned` sets drawn at random, and every set that a search has kept, on every task."""
    drawn = random.Random(1).sample(sets_of(ancestry.spec.layers, plan), plan.tuned)
    searched = [tuple(row["kept"]) for row in rows.of("search")]
    done = {(tuple(row["kept"]), row["task"]) for row in rows.of("tune")}
    for kept in dict.fromkeys([*drawn, *searched]):
        for task in plan.tasks:
            if (kept, task) not in done:
                value = tuned(ancestry, kept, task, plan.recipe)
                rows.add("tune", kept=kept, task=task, drawn=kept in drawn, accuracy=value)


def tuned(ancestry: Ancestry, kept: Kept, task: str, recipe: Recipe) -> float:
    """The accuracy on validation images of a set's expansion after a short training,
    with seed 0.
    """
    run, spec = Run(seed=0, threads=1, device="cpu"), ancestry.spec
    config = LearngeneConfig(
        method="lsamd", spec=spec, details={"kept": list(kept)}, ancestries=(ancestry.record,)
    )
    learngene = Learngene(config=config, state=select_base_blocks(ancestry.state, spec, kept))
    start = lifecycle.expand(learngene, target=Target(layers=LAYERS, task=task), run=run)
    made: Any = fit(start, open_task(task), recipe, run)
    return round(made.provenance["metrics"]["validation_accuracy"], 4)


def main() -> None:
    """Measure what is not measured yet, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in ("--tune", "--table", "--smoke"):
        parser.add_argument(option, action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    plan = SMOKE if given.smoke else Plan()
    ancestry = open_ancestry(BUNDLED)
    rows = Rows(plan.rows, (ancestry.record.sha256 or "")[:16])
    stages = (
        []
        if given.table
        else [search_all, probe_all, *([tune_some] if given.tune or given.smoke else [])]
    )
    for stage in stages:
        stage(ancestry, plan, rows)
    summary = Summary(rows.rows, plan.tasks)
    found = summary.as_json()
    text = table(found)
    if not given.smoke:
        machine.write(NAME, found)
        replace_between(DOCS / "results" / "lsamd.md", "lsamd-search", text + own_place(summary))
        show_on_card(CARDS / "lsamd-mini", "lsamd-search", sentence(found) + own_place(summary))
    print(text)


if __name__ == "__main__":
    main()
