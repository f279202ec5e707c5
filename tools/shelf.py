"""Rebuild everything that is bundled, in order: the ancestry models, the learngenes, their
evaluation, their cards, the demo.

    python tools/shelf.py                 whatever is out of date; resumable
    python tools/shelf.py worth           one stage only (see BEFORE, LEARNGENES, AFTER)
    python tools/shelf.py pool snnet      the learngenes of these methods and their evaluation
    python tools/shelf.py cost pool       one stage of one method, for the stages of LEARNGENES
    torchrun --standalone --nproc_per_node 2 tools/shelf.py ancestry
            the long part, on two cores at once

There is a learngene of every registered method but those that keep no part of a model or every size
of it (`SKIPPED`); a new method comes onto the shelf by itself. A learngene that comes from today's
ancestry models, tasks and settings stays as it is, so with another ancestry model the same command
makes all of them again. Every stage works in `build/shelf` and replaces what is committed only when
it is complete.
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
    descendant_card,
    learngene_card,
    notes_of,
)
from learngene_zoo.artifacts.descendant import Descendant, load_descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene, read_config
from learngene_zoo.artifacts.records import CardCost, CardRecord, CardResults
from learngene_zoo.artifacts.shelf import BUNDLED_CARD
from learngene_zoo.bench import demo
from learngene_zoo.bench.grid.cell import Arm
from learngene_zoo.bench.report.report import note_grid, write_report
from learngene_zoo.families.tensors import cast
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import BUNDLED, METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run, world
from learngene_zoo.settings import Recipe, Setting, fingerprint, from_json, settings_of, to_json
from learngene_zoo.storage import CONFIG, WEIGHTS, read_json, sha256, write_json
from learngene_zoo.tasks.catalogue import SOURCE_TASK, suite

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import machine
import tal_blocks
import tal_worth
from grids import finished
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
# A second, narrower one, without which nothing can be stitched. From scratch so few images would
# teach it nothing: it starts from the weights that the TAL learngene predicts.
NARROW_CARD, NARROW = "ancestry-narrow", (12, 64)  # layers and width
BRIEF = replace(PRETRAINING, images=48_000, batch_size=64, lr=1e-3)
RUN = Run(seed=0, threads=1, progress=True, resume=True)


@dataclass(frozen=True, kw_only=True)
class Made:
    """How a bundled learngene is made, where `lgzoo extract METHOD` alone would not do."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    ancestries: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


# The hypernetworks see the suite's tasks but those that are left out; LoGAH's and GHN-3's learn for
# minutes, TAL's for longer. SN-Net's paths are trained for a minute: its anchors bring what they
# know, the stitches start from least squares.
_SHORT = {"images": 24_000, "tuning_images": 1_000, "tuning_epochs": 5}
_ALL = tuple(name for name in suite("mini").tasks if name not in suite("mini").left_out)
_NAMED = Made(
    settings={"store": False}
)  # its descendants are cut from the ancestry model, which is on the shelf already
EXCEPTIONS = {
    **dict.fromkeys(("evenly_spaced", "first_k", "last_k", "middle_k", "stacked"), _NAMED),
    **dict.fromkeys(("weight_selection", "weight_subcloning"), _NAMED),
    **dict.fromkeys(("closed_form", "elastic", "growth", "ligo", "pruning"), _NAMED),
    "front": Made(settings={"keep": 0.5}),  # of the ancestry model's numbers a quarter
    "ghn3": Made(settings={"hypernet_hidden": 24, **_SHORT}, tasks=_ALL),
    "logah": Made(settings={"hypernet_rank": 24, **_SHORT}, tasks=_ALL),
    # Stage 2 alone: the start at the ancestry model's directions does not need a source task.
    "pith": Made(settings={"store": False, "source": None, "hypernet_rank": 32}, tasks=_ALL),
    "snnet": Made(
        settings={"images": 6_000, "judged": 100},
        ancestries=(NARROW_CARD, BUNDLED),
        tasks=(SOURCE_TASK,),
    ),
    "tal": Made(
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
# They store every size, or nothing: no learngene is condensed.
SKIPPED = ("distillation", "pretrain_finetune", "scratch")


def arms() -> dict[str, Arm]:
    """By method what is on the shelf, in an order in which each can be made: SN-Net needs what TAL
    predicts.
    """
    found = {}
    for name in sorted(
        set(METHODS.references()) - set(SKIPPED), key=lambda name: (name == "snnet", name)
    ):
        made = EXCEPTIONS.get(name, Made())
        found[name] = Arm(
            name=name,
            method=name,
            settings=made.settings,
            ancestries=made.ancestries,
            tasks=made.tasks,
        )
    return found


def card_of(method: str) -> Path:
    """Where its learngene is on the shelf."""
    return CARDS / f"{method}-mini"


# The ancestry models


def ancestry() -> None:
    """Train the ancestry model and put it into cards/ancestry-mini, unless the one there is of this
    recipe.
    """
    config = CARDS / BUNDLED_CARD / CONFIG
    ours = read_json(config)["learngene"] if config.is_file() else {}
    if (
        ours
        and recipe_of(ours) == PRETRAINING
        and (ours["spec"]["layers"], ours["spec"]["width"]) == SIZE
    ):
        return
    out = BUILD / f"ancestry-{fingerprint([to_json(ANCESTRY), to_json(PRETRAINING)])}"
    if not out.exists():
        lifecycle.train(
            SOURCE_TASK, spec=ANCESTRY, recipe=PRETRAINING, init="fan_in", out=out, run=RUN
        )
    if world() == 1:  # else it is put onto the shelf by one process, in the next call
        shelve(load_descendant(out), BUNDLED_CARD, "ancestry", licence="apache-2.0")


def narrow() -> None:
    """Make the narrower ancestry model, unless the one on the shelf comes from today's TAL
    learngene.
    """
    config, origin = CARDS / NARROW_CARD / CONFIG, sha256(card_of("tal") / WEIGHTS)
    ours = read_json(config)["learngene"] if config.is_file() else {}
    if ours.get("origin") == origin and recipe_of(ours) == BRIEF:
        return
    out = BUILD / f"narrow-{fingerprint([origin, to_json(BRIEF)])}"
    if not out.exists():
        start = lifecycle.expand(
            "tal-mini", layers=NARROW[0], width=NARROW[1], task=SOURCE_TASK, run=RUN
        )
        lifecycle.finetune(start, task=SOURCE_TASK, recipe=BRIEF, out=out, run=RUN)
    shelve(load_descendant(out), NARROW_CARD, "narrow", origin=origin)


def recipe_of(record: Mapping[str, Any]) -> Recipe:
    """The recipe that a model was trained with, by its record."""
    return from_json(Recipe, record["recipe"], "recipe")


def shelve(trained: Descendant, name: str, stage: str, **facts: str) -> None:
    """Put a model onto the shelf in half precision, evaluated as users will open it."""
    bundled = trained.with_state(cast(cast(trained.state, torch.float16), torch.float32))
    test = lifecycle.evaluate(bundled, run=RUN)
    metrics = {
        **trained.provenance["metrics"],
        "test_accuracy": test.value,
        "test_images": test.images,
    }
    about = to_json(CardRecord(command=f"python tools/shelf.py {stage}"))
    kept = replace(
        bundled, provenance={**trained.provenance, "metrics": metrics, "card": about, **facts}
    )
    notes = notes_of(CARDS / name / "README.md")
    clear_card(CARDS / name)
    kept.save(CARDS / name, force=True, dtype="fp16")
    rendered(CARDS / name, notes)


@cache
def checksum(source: str) -> str | None:
    """The sha256 of an ancestry model's weights."""
    return open_ancestry(source).record.sha256


def probed() -> None:
    """What the ancestry model's features say (see probe_gate.py), on its card."""
    probe_gate.main([])
    show_on_card(CARDS / BUNDLED_CARD, "probe", probe_gate.card_text(machine.read(probe_gate.NAME)))


def judged() -> None:
    """Judge the ancestry model (see gate.py) and show the table on its card."""
    gate.main()
    kept = gate.read()
    show_on_card(CARDS / BUNDLED_CARD, "gate", f"{gate.markdown(kept)}\n\n{gate.sentence(kept)}")


# The learngenes


def learngene(arm: Arm) -> None:
    """Extract the learngene of a method and put it onto the shelf, unless the one there is the
    same.
    """
    card = card_of(arm.method)
    if NARROW_CARD in arm.ancestries:
        narrow()
    if is_current(arm, card):
        return
    print(f"== {arm.method}", file=sys.stderr)
    (whole, cost), notes = (
        shelf_cost.extracted(arm, extractions(arm), RUN),
        notes_of(card / "README.md"),
    )
    clear_card(card)
    Learngene(config=whole.config, state=cast(whole.state, torch.float16)).save(card, force=True)
    rendered(card, notes)
    described(arm, None, cost)


def extractions(arm: Arm) -> Path:
    """Where learngenes of these ancestry models are extracted."""
    return BUILD / f"extractions-{fingerprint(sums(arm))}"


def costs(methods: list[str]) -> None:
    """What the extractions cost, where a card does not say it: they are repeated, and compared with
    what is on the shelf.
    """
    for name, arm in arms().items():
        before = card_record(name)
        if name in methods and before and before.cost is None:
            print(f"== what {name} costs", file=sys.stderr)
            made, cost = shelf_cost.extracted(arm, extractions(arm), RUN)
            again = replace(made, state=cast(made.state, torch.float16))
            gap = shelf_cost.difference(load_learngene(card_of(name)), again)
            print(
                f"{name}: {cost}; the largest difference from the shelf's: {gap}", file=sys.stderr
            )
            described(arm, before.worth, cost)


def card_record(method: str) -> CardRecord | None:
    """What a learngene's card says of it."""
    return (
        (read_config(card_of(method)).card or CardRecord())
        if (card_of(method) / CONFIG).is_file()
        else None
    )


def sums(arm: Arm) -> list[str | None]:
    """The checksums of the ancestry models of an arm."""
    return [checksum(source) for source in METHODS.load(arm.method).sources(arm.ancestries)]


def clear_card(card: Path) -> None:
    """Remove the committed files of a card; a clone lacks the mark that lgzoo wrote its folder."""
    for name in (CONFIG, WEIGHTS, "README.md"):
        (card / name).unlink(missing_ok=True)


def is_current(arm: Arm, card: Path) -> bool:
    """Whether a card's learngene comes from these settings, ancestry models and tasks."""
    if not (card / CONFIG).is_file():
        return False
    config, method, wanted = read_config(card), METHODS.load(arm.method), arm.extractor
    tasks = (
        method.references(arm.tasks, method.sources(arm.ancestries)) if wanted.needs_tasks() else []
    )
    return (
        from_json(type(wanted), to_json(config.settings), str(card)) == wanted
        and [record.sha256 for record in config.ancestries] == sums(arm)
        and [task.name for task in config.tasks] == tasks
    )


def command(arm: Arm) -> str:
    """The call of `lgzoo extract` that makes an arm's learngene."""
    words = ["lgzoo extract", arm.method]
    words += [f"--ancestry {source}" for source in arm.ancestries] + [
        f"--task {name}" for name in arm.tasks
    ]
    preset = METHODS.load(arm.method).preset(arm.preset)
    usual = {setting.name: setting.default for setting in settings_of(preset)}
    changed = [one for one in settings_of(arm.extractor) if one.default != usual[one.name]]
    return " ".join([*words, *map(_option, changed)])


def _option(setting: Setting) -> str:
    """A setting as it is typed."""
    if setting.kind is bool:
        return f"--{'' if setting.default else 'no-'}{setting.option}"
    return f"--{setting.option} {'none' if setting.default is None else setting.default}"


def worth(methods: list[str]) -> None:
    """Measure what the learngenes are worth (see shelf_worth.py), and tell it in their
    config.json.
    """
    for name, arm in arms().items():
        if name in methods and (card_of(name) / CONFIG).is_file():
            print(f"== what {name} is worth", file=sys.stderr)
            found = shelf_worth.measured(
                arm, card_of(name), BUILD / f"worth-{fingerprint(checksum(BUNDLED))}"
            )
            before = card_record(name)
            described(arm, found, before.cost if before else None)


def described(arm: Arm, found: CardResults | None, cost: CardCost | None) -> None:
    """Tell in a learngene's config.json, and on its card, how it is made and what it is worth;
    nothing else changes.
    """
    card = card_of(arm.method)
    about = CardRecord(
        command=command(arm), paper=METHODS.load(arm.method).paper, worth=found, cost=cost
    )
    write_json(card / CONFIG, {**read_json(card / CONFIG), "card": to_json(about)})
    rendered(card, notes_of(card / "README.md"))


def tal_depth() -> None:
    """Measure what the later blocks of TAL's descendants do (see tal_blocks.py); the table is on
    its card and on TAL's page.
    """
    tal_blocks.main()
    text = tal_blocks.markdown(tal_blocks.read())
    replace_between(DOCS / "results" / "tal.md", "blocks", text)
    show_on_card(card_of("tal"), "blocks", f"{text}\n\n{tal_blocks.SENTENCE}")


def tal_in_full() -> None:
    """Judge the TAL learngene on all of its tasks (see tal_worth.py) and show the tables on its
    card and on TAL's page.
    """
    tal_worth.main()
    kept = tal_worth.read()
    tables = (
        tal_worth.markdown,
        tal_worth.sentence,
        tal_worth.unseen_markdown,
        tal_worth.unseen_sentence,
    )
    text = "\n\n".join(table(kept) for table in tables)
    replace_between(DOCS / "results" / "tal.md", "worth", text)
    show_on_card(card_of("tal"), "worth", text)


# The cards


def cards() -> None:
    """Write the cards' pages anew; what people wrote into them stays."""
    for name, arm in arms().items():
        before = card_record(name)
        if before:
            described(arm, before.worth, before.cost)
    for name, stage in {BUNDLED_CARD: "ancestry", NARROW_CARD: "narrow"}.items():
        config = CARDS / name / CONFIG
        if config.is_file():
            data = read_json(config)
            data["learngene"] |= {
                "card": to_json(CardRecord(command=f"python tools/shelf.py {stage}"))
            }
            write_json(config, data)
            rendered(config.parent, notes_of(config.parent / "README.md"))


def table() -> None:
    """One line for every learngene that has been made, on the page of the methods."""
    cards_made = [card for card in map(card_of, arms()) if (card / CONFIG).is_file()]
    text = shelf_table.markdown(cards_made)
    replace_between(DOCS / "methods" / "index.md", "shelf", text)


def rendered(folder: Path, notes: str) -> None:
    """Write one card's page, with its notes; a page without any has room for them."""
    config = read_json(folder / CONFIG)
    place = ArtifactLocation(
        reference=folder.name,
        note=f"`{folder.name}` is its name on the shelf that comes with the package.",
    )
    page = (
        descendant_card(config)
        if "learngene" in config
        else learngene_card(read_config(folder), place)
    )
    (folder / "README.md").write_text(page + (notes or f"\n{NOTES}\n{END}\n"), encoding="utf-8")


def story() -> None:
    """Run the demo and put its table and picture into docs."""
    out, cells = BUILD / "demo", demo.demo_grid(RUN.seed)
    rows = finished(cells, out)
    note_grid(cells, out)
    write_report(out)
    shutil.copyfile(out / "pictures" / "pareto.png", DOCS / "images" / "demo.png")
    replace_between(DOCS / "demo.md", "demo", demo.markdown(demo.demo_rows(rows)))


def extracted(methods: list[str]) -> None:
    """The learngenes of these methods."""
    for name, arm in arms().items():
        if name in methods:
            learngene(arm)


BEFORE = {"ancestry": ancestry, "probe": probed, "gate": judged, "narrow": narrow}
LEARNGENES = {
    "learngenes": extracted,
    "worth": worth,
    "cost": costs,
}  # stages that may be had of some methods only
AFTER = {
    "tal-depth": tal_depth,
    "tal-worth": tal_in_full,
    "cards": cards,
    "table": table,
    "demo": story,
}


def main(names: list[str]) -> None:
    """Run the named stages, or all of them, in order; names of methods alone mean their learngenes
    and what they are worth.
    """
    methods, stages = [name for name in names if name in arms()], [*BEFORE, *LEARNGENES, *AFTER]
    unknown = sorted(set(names) - set(stages) - set(methods))
    if unknown:
        raise SystemExit(
            f"no stage or method named {unknown[0]}; there are: {', '.join([*stages, *arms()])}"
        )
    named = [name for name in names if name in stages] or (
        ["learngenes", "worth"] if methods else stages
    )
    for name in stages:
        if name in named:
            print(f"== {name}", file=sys.stderr)
            if name in LEARNGENES:
                LEARNGENES[name](methods or list(arms()))
            else:
                {**BEFORE, **AFTER}[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
