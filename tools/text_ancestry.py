"""Make the bundled language model: a text ancestry model, and its gate.

    python tools/text_ancestry.py           train it, judge it, put it onto the shelf; resumable
    python tools/text_ancestry.py train     one stage: train, gate or card

It is trained on the example sentences of WordNet 3.0 (Debian's package wordnet-base, `apt-get
install wordnet-base`, or the folder that LGZOO_WORDS names) and the training texts of `paraphrase`
and `sentiment`, without labels. No text of other tasks is in the corpus, so `acceptability`,
`entailment`, `debian_sections` and `snippets` are left out.

WordNet 3.0 is copyright 2006 by Princeton University; its licence permits to use, copy, modify and
distribute it without fee. The other sentences are made by rules of this project (Apache-2.0).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import text_gate
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.card import END, NOTES, render_descendant_card
from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.artifacts.records import CardRecord
from learngene_zoo.families.tensors import cast
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, fingerprint, to_json
from learngene_zoo.storage import CONFIG, read_json
from lgzoo_words.opening import VARIABLE

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from pages import show_on_card

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "shelf"
CARD = text_gate.CARD
PARTS = ("noun", "verb", "adj", "adv")
QUOTED = re.compile(r'"([^"]*)"')
MIN_WORDS = 3  # of a sentence
TASKS = ("paraphrase", "sentiment")
FAMILY = "gpt2"
SIZES = {"layers": 6, "width": 96, "heads": 3, "vocabulary": 3000, "positions": 64}
RECIPE = Recipe(
    epochs=3,
    batch_size=32,
    lr=2e-3,
    min_lr=1e-5,
    warmup=0.1,
    clip=1.0,
    weight_decay=0.05,
    augment="none",
)
RUN = Run(seed=0, threads=1, progress=True, resume=True)
LICENCE = "apache-2.0"
NOTICE = """The corpus is the example sentences of WordNet 3.0 and the training texts of
`paraphrase` and `sentiment` without their labels (Apache-2.0). WordNet 3.0 is copyright 2006 by
Princeton University, all rights reserved; its licence permits to use, copy, modify and distribute
it for any purpose and without fee, as is and without warranty. None of its sentences is stored
here."""


def main(arguments: Sequence[str] = ()) -> None:
    """Run the stages that are named, or all."""
    stages = {"train": train, "card": write_card, "gate": text_gate.main}
    for name in arguments or stages:
        stages[name]()
    show_gate()


def train() -> None:
    """Train the model in the build folder, unless it is there."""
    if get_build_folder().exists():
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    corpus = BUILD / "wordnet.txt"
    corpus.write_text("\n\n".join(read_sentences(find_wordnet())) + "\n", encoding="utf-8")
    lifecycle.train_language(
        [f"text:{corpus}", *TASKS],
        family=FAMILY,
        recipe=RECIPE,
        out=get_build_folder(),
        run=RUN,
        **SIZES,
    )


def get_build_folder() -> Path:
    """Return the folder of the trained model."""
    return BUILD / f"words-{fingerprint([to_json(SIZES), to_json(RECIPE)])}"


def find_wordnet() -> Path:
    """Return the folder with WordNet's files."""
    tops = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    for top in (*tops, Path("/usr/share")):
        if (top / "wordnet" / "data.noun").is_file():
            return top / "wordnet"
    raise SystemExit("WordNet is not installed: apt-get install wordnet-base")


def read_sentences(folder: Path) -> Iterator[str]:
    """Yield the example sentences of all synsets, each once."""
    seen: set[str] = set()
    for part in PARTS:
        text = (folder / f"data.{part}").read_text("utf-8", errors="replace")
        for line in text.splitlines():
            gloss = "" if line.startswith("  ") else line.partition(" | ")[2]
            for sentence in QUOTED.findall(gloss):
                if len(sentence.split()) >= MIN_WORDS and sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def write_card() -> None:
    """Put the model onto the shelf in half precision."""
    trained = load_descendant(get_build_folder())
    about = to_json(CardRecord(command="python tools/text_ancestry.py"))
    wordnet, *other_sources = trained.provenance["corpus"]
    corpus = [{**wordnet, "source": "WordNet 3.0", "licence": "WordNet-3.0"}, *other_sources]
    facts = {"licence": LICENCE, "card": about, "corpus": corpus}
    bundled = trained.with_state(
        cast(cast(trained.state, torch.float16), torch.float32),
        provenance={**trained.provenance, **facts},
    )
    shutil.rmtree(CARD, ignore_errors=True)
    bundled.save(CARD, dtype="fp16")


def show_gate() -> None:
    """Render the card, with the table of the gate if it was measured."""
    if not (CARD / CONFIG).is_file():
        return
    card = render_descendant_card(read_json(CARD / CONFIG))
    page = f"{card}\n{NOTES}\n## Corpus and gate\n\n{NOTICE}\n\n{END}\n"
    (CARD / "README.md").write_text(page, encoding="utf-8")
    if text_gate.RESULTS.is_file():
        show_on_card(CARD, "gate", text_gate.make_page_text(text_gate.read_results()))


if __name__ == "__main__":
    main(sys.argv[1:])
