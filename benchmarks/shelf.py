"""Rebuild everything that is bundled, in order: the ancestry model, the learngenes, their cards, README's demo.

    python benchmarks/shelf.py            about four hours on two cores; resumable: run it again after a stop
    python benchmarks/shelf.py demo       one stage only (ancestry, gate, lsamd, tal, worth, cards, demo)
    torchrun --standalone --nproc_per_node 2 benchmarks/shelf.py ancestry      the long part, on two cores at once

Every stage works in `build/shelf` and replaces what is committed only when it is whole.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import gate
import tal_worth
import torch
from grids import finished
from pages import DOCS, ROOT, replace_between

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.card import descendant_card, learngene_card
from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.artifacts.shelf import Learngene, load_learngene, read_config
from learngene_zoo.bench import demo
from learngene_zoo.bench.report import note_grid, write_report
from learngene_zoo.families.tensors import cast
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method import METHODS
from learngene_zoo.runs.run import Run, world
from learngene_zoo.settings import Recipe, with_settings
from learngene_zoo.storage import CONFIG, read_json
from learngene_zoo.tasks.catalogue import SOURCE_TASK, suite

BUILD = ROOT / "build" / "shelf"

# The bundled ancestry model: 3 MB of fp16. Each process takes one thread, because two threads on a machine that is busy
# otherwise can be many times slower than one; under torchrun two processes share the work.
ANCESTRY = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
PRETRAINING = Recipe(
    epochs=1,
    batch_size=128,
    lr=2e-3,
    min_lr=1e-5,
    warmup=0.05,
    clip=1.0,
    weight_decay=0.05,
    augment="none",
)
# The bundled TAL learngene: more of everything than the preset `mini` has.
TAL = {
    "images": 450_000,
    "tuning_images": None,
    "tuning_epochs": 15,
    "tuning_warmup": 0.5,
    "tuning_augment": "light",
}
RUN = Run(seed=0, threads=1, progress=True, resume=True)


def ancestry() -> None:
    """Train the ancestry model and put it into cards/ancestry-mini."""
    out = BUILD / "ancestry"
    if not out.exists():
        lifecycle.train(SOURCE_TASK, spec=ANCESTRY, recipe=PRETRAINING, init="fan_in", out=out, run=RUN)
    if world() > 1:
        return  # judged and put onto the shelf by one process, in the next call
    trained = load_descendant(out)
    bundled = trained.with_state(cast(cast(trained.state, torch.float16), torch.float32))  # what users will open
    test = lifecycle.evaluate(bundled, run=RUN)
    metrics = {**trained.provenance["metrics"], "test_accuracy": test.value, "test_images": test.images}
    kept = replace(bundled, provenance={**trained.provenance, "metrics": metrics, "licence": "apache-2.0"})
    kept.save(ROOT / "cards" / "ancestry-mini", force=True, dtype="fp16")


def judged() -> None:
    """Judge the ancestry model (see gate.py) and show the table on its card."""
    gate.main()
    kept = gate.read()
    shown(ROOT / "cards" / "ancestry-mini" / "README.md", "gate", f"{gate.markdown(kept)}\n\n{gate.sentence(kept)}")


def shown(card: Path, name: str, text: str) -> None:
    """Put a text onto a card, before its licence."""
    old = card.read_text(encoding="utf-8")
    if f"<!-- {name} -->" not in old:
        room = f"## What it is worth\n\n<!-- {name} -->\n<!-- /{name} -->\n\n## Licence"
        card.write_text(old.replace("## Licence", room), encoding="utf-8")
    replace_between(card, name, text)


def cards() -> None:
    """Write the cards' pages anew from their config.json, with the tables that other stages put onto them."""
    for folder in sorted((ROOT / "cards").iterdir()):
        page, config = folder / "README.md", read_json(folder / CONFIG)
        old = page.read_text(encoding="utf-8")
        new = descendant_card(config) if "learngene" in config else learngene_card(read_config(folder))
        page.write_text(new, encoding="utf-8")
        for name, text in re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- /\1 -->", old, re.DOTALL):
            shown(page, name, text)


def lsamd() -> None:
    """Extract the LSAMD learngene of the default tasks and put it into cards/lsamd-mini."""
    out = BUILD / "lsamd"
    if not out.exists():
        lifecycle.extract("lsamd", out=out, run=RUN)
    bundle(out, "lsamd-mini")


def tal() -> None:
    """Extract the TAL learngene of the nine tasks of the suite `mini` and put it into cards/tal-mini."""
    out = BUILD / "tal"
    if not out.exists():
        extractor = with_settings(METHODS.load("tal").preset("mini"), TAL)
        lifecycle.extract("tal", tasks=suite("mini").tasks, extractor=extractor, out=out, run=RUN)
    bundle(out, "tal-mini")


def bundle(out: Path, name: str) -> None:
    """Put a learngene onto the shelf, in half precision."""
    whole = load_learngene(out)
    Learngene(config=whole.config, state=cast(whole.state, torch.float16)).save(ROOT / "cards" / name, force=True)


def worth() -> None:
    """Judge the TAL learngene (see tal_worth.py) and show the table on its card and on TAL's page."""
    tal_worth.main()
    kept = tal_worth.read()
    tables = (tal_worth.markdown, tal_worth.sentence, tal_worth.unseen_markdown, tal_worth.unseen_sentence)
    text = "\n\n".join(told(kept) for told in tables)
    replace_between(DOCS / "methods" / "tal.md", "worth", text)
    shown(ROOT / "cards" / "tal-mini" / "README.md", "worth", text)


def story() -> None:
    """Run the demo and put its table and picture into README.md and docs/images."""
    out, cells = BUILD / "demo", demo.demo_grid(RUN.seed)
    rows = finished(cells, out)
    note_grid(cells, out)
    write_report(out)
    shutil.copyfile(out / "pictures" / "pareto.png", DOCS / "images" / "demo.png")
    replace_between(ROOT / "README.md", "demo", demo.markdown(demo.demo_rows(rows)))


STAGES = {
    "ancestry": ancestry,
    "gate": judged,
    "lsamd": lsamd,
    "tal": tal,
    "worth": worth,
    "cards": cards,
    "demo": story,
}


def main(names: list[str]) -> None:
    """Run the named stages, or all of them, in order."""
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        raise SystemExit(f"no stage named {unknown[0]}; there are: {', '.join(STAGES)}")
    for name, stage in STAGES.items():
        if not names or name in names:
            print(f"== {name}", file=sys.stderr)
            stage()


if __name__ == "__main__":
    main(sys.argv[1:])
