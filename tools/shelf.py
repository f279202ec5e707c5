"""Rebuild everything that is bundled, in order: the ancestry models, the learngenes, their
evaluation, their cards, the demo.

    python tools/shelf.py                 all that is out of date; resumable
    python tools/shelf.py worth           one stage only (see BEFORE, LEARNGENES, AFTER)
    python tools/shelf.py pool snnet      the learngenes of these methods and their evaluation
    python tools/shelf.py cost pool       one stage of one method, for the stages of LEARNGENES
    torchrun --standalone --nproc_per_node 2 tools/shelf.py ancestry
            the long part, on two cores at once

There is a learngene of every registered method except `SKIPPED`, which store every size or nothing;
the shelf includes a new method without any change here. A learngene that comes from the current
ancestry models, tasks and settings stays as it is, so with another ancestry model the same command
extracts all of them again. Every stage works in `build/shelf` and replaces committed files only
when it is complete.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import gate
import probe_gate
import shelf_cost
import shelf_table
import shelf_worth
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.card import (
    END,
    NOTES,
    ArtifactLocation,
    read_notes,
    render_descendant_card,
    render_learngene_card,
)
from learngene_zoo.artifacts.descendant import Descendant, load_descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene, read_config
from learngene_zoo.artifacts.records import CardCost, CardRecord, CardResults
from learngene_zoo.artifacts.shelf import BUNDLED, BUNDLED_CARD
from learngene_zoo.bench import demo
from learngene_zoo.bench.grid.cell import Arm
from learngene_zoo.bench.report.report import write_grid, write_report
from learngene_zoo.families.tensors import cast
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run, get_world_size
from learngene_zoo.settings import Recipe, Setting, fingerprint, from_json, list_settings, to_json
from learngene_zoo.storage import CONFIG, WEIGHTS, compute_sha256, read_json, write_json
from learngene_zoo.tasks.catalogue import SOURCE_TASK, find_suite

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import machine
import tal_blocks
import tal_worth
from grids import run_cells
from pages import CARDS, DOCS, ROOT, replace_between, show_on_card

BUILD = ROOT / "build" / "shelf"

# The bundled ancestry model: 3 MB of fp16. Each process takes one thread, because two threads on a
# machine that is busy otherwise can be many times slower than one; under torchrun two processes
# share the work.
SIZE = (12, 96)  # layers and width
ANCESTRY = ViTSpec(layers=SIZE[0], width=SIZE[1], heads=3, image_size=32, patch_size=8)
PRETRAINING = Recipe(
    epochs=1,
    batch_size=128,
    lr=2e-3,
    min_lr=1e-5,
    warmup=0.03,
    clip=1.0,
    weight_decay=0.05,
    augment="none",
)
# A second, narrower one, which stitching needs. So few images do not suffice from scratch: it
# starts from the weights that the TAL learngene predicts.
NARROW_CARD, NARROW = "ancestry-narrow", (12, 64)  # layers and width
BRIEF = replace(PRETRAINING, images=48_000, batch_size=64, lr=1e-3)
RUN = Run(seed=0, threads=1, progress=True, resume=True)


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """The options of `lgzoo extract METHOD` for a bundled learngene, where the defaults do not
    suffice.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    ancestries: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


# The hypernetworks see the suite's tasks but those that are left out; LoGAH's and GHN-3's learn for
# minutes, TAL's for longer. SN-Net's paths are trained for a minute only: its anchors are
# pretrained and the stitches start from least squares.
_SHORT = {"images": 24_000, "tuning_images": 1_000, "tuning_epochs": 5}
_ALL = tuple(name for name in find_suite("mini").tasks if name not in find_suite("mini").left_out)
_NAMED = ExtractionSettings(
    settings={"store": False}
)  # its descendants are cut from the ancestry model, which is on the shelf already
EXCEPTIONS = {
    **dict.fromkeys(("evenly_spaced", "first_k", "last_k", "middle_k", "stacked"), _NAMED),
    **dict.fromkeys(("weight_selection", "weight_subcloning"), _NAMED),
    **dict.fromkeys(("closed_form", "elastic", "growth", "ligo", "pruning"), _NAMED),
    "front": ExtractionSettings(
        settings={"keep": 0.5}
    ),  # of the ancestry model's numbers a quarter
    "ghn3": ExtractionSettings(settings={"hypernet_hidden": 24, **_SHORT}, tasks=_ALL),
    "logah": ExtractionSettings(settings={"hypernet_rank": 24, **_SHORT}, tasks=_ALL),
    # Stage 2 alone: the start at the ancestry model's directions does not need a source task. Some
    # seeds fail at this rate (docs/results/pith.md), but not the shelf's.
    "pith": ExtractionSettings(
        settings={
            "store": False,
            "source": None,
            "hypernet_rank": 32,
            "tuning_lr": 3e-4,
            "tuning_warmup": 0.05,
        },
        tasks=_ALL,
    ),
    "snnet": ExtractionSettings(
        settings={"images": 6_000, "judged": 100},
        ancestries=(NARROW_CARD, BUNDLED),
        tasks=(SOURCE_TASK,),
    ),
    "tal": ExtractionSettings(
        settings={
            "images": 450_000,
            "tuning_images": None,
            "tuning_epochs": 15,
            "tuning_warmup": 0.5,
            "tuning_augment": "light",
        },
        tasks=_ALL,
    ),
}
# Methods that store every size, or nothing.
SKIPPED = ("distillation", "pretrain_finetune", "scratch")


def make_arms() -> dict[str, Arm]:
    """Return the arms of the shelf by method, in an order in which each can be extracted.

    SN-Net needs the narrow ancestry model, which comes from TAL.
    """
    arms_of_method = {}
    for name in sorted(
        set(METHODS.references()) - set(SKIPPED), key=lambda name: (name == "snnet", name)
    ):
        exception = EXCEPTIONS.get(name, ExtractionSettings())
        arms_of_method[name] = Arm(
            name=name,
            method=name,
            settings=exception.settings,
            ancestries=exception.ancestries,
            tasks=exception.tasks,
        )
    return arms_of_method


def get_card(method: str) -> Path:
    """Return the folder of a method's learngene on the shelf."""
    return CARDS / f"{method}-mini"


# The ancestry models


def build_ancestry() -> None:
    """Train the ancestry model and write it to cards/ancestry-mini, unless the one there has this
    recipe.
    """
    config = CARDS / BUNDLED_CARD / CONFIG
    ours = read_json(config)["learngene"] if config.is_file() else {}
    if (
        ours
        and read_recipe(ours) == PRETRAINING
        and (ours["spec"]["layers"], ours["spec"]["width"]) == SIZE
    ):
        return
    out = BUILD / f"ancestry-{fingerprint([to_json(ANCESTRY), to_json(PRETRAINING)])}"
    if not out.exists():
        lifecycle.train(
            SOURCE_TASK, spec=ANCESTRY, recipe=PRETRAINING, init="fan_in", out=out, run=RUN
        )
    if get_world_size() == 1:  # else it is put onto the shelf by one process, in the next call
        put_on_shelf(load_descendant(out), BUNDLED_CARD, "ancestry", licence="apache-2.0")


def build_narrow() -> None:
    """Build the narrow ancestry model, unless the one on the shelf comes from the current TAL
    learngene.
    """
    config, origin = CARDS / NARROW_CARD / CONFIG, compute_sha256(get_card("tal") / WEIGHTS)
    ours = read_json(config)["learngene"] if config.is_file() else {}
    if ours.get("origin") == origin and read_recipe(ours) == BRIEF:
        return
    out = BUILD / f"narrow-{fingerprint([origin, to_json(BRIEF)])}"
    if not out.exists():
        start = lifecycle.expand(
            "tal-mini", layers=NARROW[0], width=NARROW[1], task=SOURCE_TASK, run=RUN
        )
        lifecycle.finetune(start, task=SOURCE_TASK, recipe=BRIEF, out=out, run=RUN)
    put_on_shelf(load_descendant(out), NARROW_CARD, "narrow", origin=origin)


def read_recipe(record: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a model was trained with, from its record."""
    return from_json(Recipe, record["recipe"], "recipe")


def put_on_shelf(trained: Descendant, name: str, stage: str, **facts: str) -> None:
    """Write a model to the shelf in half precision, evaluated in that precision."""
    bundled = trained.with_state(cast(cast(trained.state, torch.float16), torch.float32))
    test = lifecycle.evaluate(bundled, run=RUN)
    metrics = {
        **trained.provenance["metrics"],
        "test_accuracy": test.value,
        "test_images": test.images,
    }
    record = to_json(CardRecord(command=f"python tools/shelf.py {stage}"))
    bundled_model = replace(
        bundled, provenance={**trained.provenance, "metrics": metrics, "card": record, **facts}
    )
    notes = read_notes(CARDS / name / "README.md")
    clear_card(CARDS / name)
    bundled_model.save(CARDS / name, force=True, dtype="fp16")
    write_page(CARDS / name, notes)


@cache
def compute_checksum(source: str) -> str | None:
    """Return the sha256 of an ancestry model's weights."""
    return open_ancestry(source).record.sha256


def write_probe() -> None:
    """Judge the ancestry model's features (see probe_gate.py), and write the table to its card."""
    probe_gate.main([])
    show_on_card(
        CARDS / BUNDLED_CARD, "probe", probe_gate.make_card_text(machine.read(probe_gate.NAME))
    )


def write_gate() -> None:
    """Judge the ancestry model (see gate.py), and write the table to its card."""
    gate.main()
    results = gate.read_results()
    show_on_card(
        CARDS / BUNDLED_CARD,
        "gate",
        f"{gate.make_table(results)}\n\n{gate.describe_result(results)}",
    )


# The learngenes


def extract_learngene(arm: Arm) -> None:
    """Extract the learngene of an arm and write it to the shelf, unless that one is current."""
    card = get_card(arm.method)
    if NARROW_CARD in arm.ancestries:
        build_narrow()
    if is_current(arm, card):
        return
    print(f"== {arm.method}", file=sys.stderr)
    (extracted, cost), notes = (
        shelf_cost.extract_learngene(arm, get_extraction_folder(arm), RUN),
        read_notes(card / "README.md"),
    )
    clear_card(card)
    Learngene(config=extracted.config, state=cast(extracted.state, torch.float16)).save(
        card, force=True
    )
    write_page(card, notes)
    write_record(arm, None, cost)


def get_extraction_folder(arm: Arm) -> Path:
    """Return the folder for learngenes of these ancestry models."""
    return BUILD / f"extractions-{fingerprint(list_checksums(arm))}"


def measure_costs(methods: list[str]) -> None:
    """Measure the cost of the extractions whose cards lack it.

    They are repeated, and compared with the learngene on the shelf.
    """
    for name, arm in make_arms().items():
        before = read_card(name)
        if name in methods and before and before.cost is None:
            print(f"== what {name} costs", file=sys.stderr)
            extracted, cost = shelf_cost.extract_learngene(arm, get_extraction_folder(arm), RUN)
            rounded = replace(extracted, state=cast(extracted.state, torch.float16))
            difference = shelf_cost.compute_difference(load_learngene(get_card(name)), rounded)
            print(
                f"{name}: {cost}; the largest difference from the shelf's: {difference}",
                file=sys.stderr,
            )
            write_record(arm, before.worth, cost)


def read_card(method: str) -> CardRecord | None:
    """Return the record of a learngene's card; None if it is not on the shelf."""
    return (
        (read_config(get_card(method)).card or CardRecord())
        if (get_card(method) / CONFIG).is_file()
        else None
    )


def list_checksums(arm: Arm) -> list[str | None]:
    """Return the checksums of the ancestry models of an arm."""
    return [compute_checksum(source) for source in METHODS.load(arm.method).sources(arm.ancestries)]


def clear_card(card: Path) -> None:
    """Remove the committed files of a card; a clone lacks the mark that lgzoo wrote its folder."""
    for name in (CONFIG, WEIGHTS, "README.md"):
        (card / name).unlink(missing_ok=True)


def is_current(arm: Arm, card: Path) -> bool:
    """Return whether a card's learngene comes from these settings, ancestry models and tasks."""
    if not (card / CONFIG).is_file():
        return False
    config, method, extractor = read_config(card), METHODS.load(arm.method), arm.extractor
    tasks = (
        method.references(arm.tasks, method.sources(arm.ancestries))
        if extractor.needs_tasks()
        else []
    )
    return (
        from_json(type(extractor), to_json(config.settings), str(card)) == extractor
        and [record.sha256 for record in config.ancestries] == list_checksums(arm)
        and [task.name for task in config.tasks] == tasks
    )


def make_command(arm: Arm) -> str:
    """Return the call of `lgzoo extract` for an arm's learngene."""
    words = ["lgzoo extract", arm.method]
    words += [f"--ancestry {source}" for source in arm.ancestries] + [
        f"--task {name}" for name in arm.tasks
    ]
    preset = METHODS.load(arm.method).preset(arm.preset)
    defaults = {setting.name: setting.default for setting in list_settings(preset)}
    changed = [item for item in list_settings(arm.extractor) if item.default != defaults[item.name]]
    return " ".join([*words, *map(_format_option, changed)])


def _format_option(setting: Setting) -> str:
    """Return a setting as an option of the command line."""
    if setting.kind is bool:
        return f"--{'' if setting.default else 'no-'}{setting.option}"
    return f"--{setting.option} {'none' if setting.default is None else setting.default}"


def measure_worth(methods: list[str]) -> None:
    """Evaluate the learngenes (see shelf_worth.py), and write the results to their config.json."""
    for name, arm in make_arms().items():
        if name in methods and (get_card(name) / CONFIG).is_file():
            print(f"== what {name} is worth", file=sys.stderr)
            results = shelf_worth.measure_worth(
                arm, get_card(name), BUILD / f"worth-{fingerprint(compute_checksum(BUNDLED))}"
            )
            before = read_card(name)
            write_record(arm, results, before.cost if before else None)


def write_record(arm: Arm, results: CardResults | None, cost: CardCost | None) -> None:
    """Write the command, the results and the cost to a learngene's config.json, and its card.

    Nothing else changes.
    """
    card = get_card(arm.method)
    record = CardRecord(
        command=make_command(arm), paper=METHODS.load(arm.method).paper, worth=results, cost=cost
    )
    write_json(card / CONFIG, {**read_json(card / CONFIG), "card": to_json(record)})
    write_page(card, read_notes(card / "README.md"))


def write_tal_depth() -> None:
    """Measure the later blocks of TAL's descendants (see tal_blocks.py), and write the table to its
    card and page.
    """
    tal_blocks.main()
    text = tal_blocks.make_table(tal_blocks.read_results())
    replace_between(DOCS / "results" / "tal.md", "blocks", text)
    show_on_card(get_card("tal"), "blocks", f"{text}\n\n{tal_blocks.SENTENCE}")


def write_tal_worth() -> None:
    """Judge the TAL learngene on all of its tasks (see tal_worth.py), and write the tables to its
    card and page.
    """
    tal_worth.main()
    results = tal_worth.read_results()
    tables = (
        tal_worth.make_table,
        tal_worth.describe_measurement,
        tal_worth.make_unseen_table,
        tal_worth.describe_unseen,
    )
    text = "\n\n".join(make_text(results) for make_text in tables)
    replace_between(DOCS / "results" / "tal.md", "worth", text)
    show_on_card(get_card("tal"), "worth", text)


# The cards


def write_cards() -> None:
    """Write the pages of all cards again; their notes stay."""
    for name, arm in make_arms().items():
        before = read_card(name)
        if before:
            write_record(arm, before.worth, before.cost)
    for name, stage in {BUNDLED_CARD: "ancestry", NARROW_CARD: "narrow"}.items():
        config = CARDS / name / CONFIG
        if config.is_file():
            data = read_json(config)
            data["learngene"] |= {
                "card": to_json(CardRecord(command=f"python tools/shelf.py {stage}"))
            }
            write_json(config, data)
            write_page(config.parent, read_notes(config.parent / "README.md"))


def write_table() -> None:
    """Write the table of all learngenes on the shelf to the page of the methods."""
    folders = [card for card in map(get_card, make_arms()) if (card / CONFIG).is_file()]
    text = shelf_table.make_table(folders)
    replace_between(DOCS / "methods" / "index.md", "shelf", text)


def write_page(folder: Path, notes: str) -> None:
    """Write a card's page, with its notes; a page without notes gets an empty part for them."""
    config = read_json(folder / CONFIG)
    location = ArtifactLocation(
        reference=folder.name,
        note=f"`{folder.name}` is its name on the shelf that comes with the package.",
    )
    text = (
        render_descendant_card(config)
        if "learngene" in config
        else render_learngene_card(read_config(folder), location)
    )
    (folder / "README.md").write_text(text + (notes or f"\n{NOTES}\n{END}\n"), encoding="utf-8")


def write_demo() -> None:
    """Run the demo, and write its table and picture to docs."""
    folder, cells = BUILD / "demo", demo.demo_grid(RUN.seed)
    rows = run_cells(cells, folder)
    write_grid(cells, folder)
    write_report(folder)
    shutil.copyfile(folder / "pictures" / "pareto.png", DOCS / "images" / "demo.png")
    replace_between(DOCS / "demo.md", "demo", demo.render_markdown(demo.demo_rows(rows)))


def extract_learngenes(methods: list[str]) -> None:
    """Extract the learngenes of these methods."""
    for name, arm in make_arms().items():
        if name in methods:
            extract_learngene(arm)


BEFORE = {
    "ancestry": build_ancestry,
    "probe": write_probe,
    "gate": write_gate,
    "narrow": build_narrow,
}
LEARNGENES = {
    "learngenes": extract_learngenes,
    "worth": measure_worth,
    "cost": measure_costs,
}  # stages that can be restricted to some methods
AFTER = {
    "tal-depth": write_tal_depth,
    "tal-worth": write_tal_worth,
    "cards": write_cards,
    "table": write_table,
    "demo": write_demo,
}


def main(names: list[str]) -> None:
    """Run the named stages, or all of them, in order.

    Names of methods alone mean the stages `learngenes` and `worth` of these methods.
    """
    methods, stages = (
        [name for name in names if name in make_arms()],
        [*BEFORE, *LEARNGENES, *AFTER],
    )
    unknown = sorted(set(names) - set(stages) - set(methods))
    if unknown:
        choices = ", ".join([*stages, *make_arms()])
        raise SystemExit(f"no stage or method named {unknown[0]}; there are: {choices}")
    named = [name for name in names if name in stages] or (
        ["learngenes", "worth"] if methods else stages
    )
    for name in stages:
        if name in named:
            print(f"== {name}", file=sys.stderr)
            if name in LEARNGENES:
                LEARNGENES[name](methods or list(make_arms()))
            else:
                {**BEFORE, **AFTER}[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
