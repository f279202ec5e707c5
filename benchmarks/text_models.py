"""How good are descendants of a real text model, MiniLM-L6, and of the bundled GPT-2?

Varied: the method and the size, half the depth (3 x 384), two thirds of the width (6 x 256) and
both (3 x 256) of a model of 6 x 384; of the bundled one, `ancestry-words`, of 6 x 96 they are 3 x
96, 6 x 64 and 3 x 64. Methods that copy complete blocks build half the depth only; `growth` and
`ligo`, which build larger models only, are left out. Beside them are the ancestry model itself,
random weights (`scratch`), and the matrices of `weight_selection` with their entries shuffled.
Features are the mean over the tokens of MiniLM and its descendants, and the last token of a GPT-2.
`closed_form`, `weight_subcloning`, `pruning` and `elastic` see training texts of the task. Methods
that train have 4 epochs of 500 texts of the task, those with a teacher share that of the task, the
ancestry model fine-tuned for 4 epochs; `lsamd` and `heur_lg` have 4 epochs of 500 texts of each of
three tasks.

Measured:

    probe       a ridge regression before any training (training/probes.py), of 500 training texts,
                on at most 1,000 test texts of a task: two tasks made by rules, two of real texts
    blocks      the same for 4 of its blocks: the first, evenly spaced ones, and those of `lsamd`,
                whose search has one epoch of 200 texts of each of three tasks
    finetune    `lgzoo finetune` with its defaults on 2,000 training texts, 6 epochs
    arms        fine-tuned on 500 training texts for 6 epochs, three seeds, with the default rates
                of version 1.0.0: 1e-4, of the bundled model that of its width. Random weights and
                the control have the better of these two on validation texts. Learngenes that were
                trained are those of `probe`. Rows with `validation_texts` choose the epoch on that
                many validation texts, others on all of them
    similarity  the correlation of the cosine similarities of 2,000 test texts of `debian_sections`
                with those by MiniLM-L6: the first blocks, `closed_form` of 600 training texts, and
                `heal` of that on 3,000 texts, 3 epochs
    penalty     the same correlation for `closed_form` by its penalty, on 700 training texts of
                `wordnet`; this chose `TEXT_PENALTY`

Command: resumable; `--only WORD ...` selects the cells whose names contain all of the words, for
example `--only tleg wordnet`. MINILM is a folder of transformers with all-MiniLM-L6-v2;
`debian_sections` and `wordnet` must be installed (`lgzoo show debian_sections` prints how).

    python benchmarks/text_models.py --ancestry MINILM probe    or --ancestry ancestry-words
    python benchmarks/text_models.py --ancestry MINILM blocks
    python benchmarks/text_models.py --ancestry MINILM finetune
    python benchmarks/text_models.py --ancestry MINILM arms     or --ancestry ancestry-words
    python benchmarks/text_models.py --ancestry MINILM similarity
    python benchmarks/text_models.py --ancestry MINILM penalty
    python benchmarks/text_models.py table    write the page from the results

Results: benchmarks/results/text_models.jsonl; learngenes that were trained are kept in
build/text_models. The last digits of a row depend on the machine.
Page: docs/results/text.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from statistics import mean
from typing import Any, Literal

import numpy as np

import machine
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import Control
from learngene_zoo.errors import Exists
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import list_settings, with_settings
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.text import count_noun
from learngene_zoo.training.probes import compute_features, run_probe
from lgzoo_closed_form.calibration import TEXT_PENALTY
from pages import DOCS, replace_between

ROWS = machine.RESULTS / "text_models.jsonl"
TEXTS, TEST_TEXTS = 500, 1000
TASKS = ("sentiment", "debian_sections", "wordnet", "acceptability")
LAYERS, WIDTH = 6, 384  # of the ancestry model
HEAD_WIDTH = 32
SIZES = ((3, 384), (6, 256), (3, 256))
# Learngenes that take a training, kept for all sizes, stages and seeds.
KEPT = machine.RESULTS.parent.parent / "build" / "text_models"
BLOCKS = ("first_k", "evenly_spaced", "middle_k", "last_k", "stacked", "vanilla_lg")
ANY_WIDTH = ("weight_selection", "weight_subcloning", "scratch")
CALIBRATED = ("closed_form", "weight_subcloning", "pruning", "elastic")
# A separate model of every size, of the task.
OF_ONE_SIZE = ("distillation", "pretrain_finetune")
TRAINED = (*OF_ONE_SIZE, "tleg", "sws")  # of the task
SEVERAL = ("lsamd", "heur_lg")  # of `SEARCH_TASKS`
# Fewer blocks, all as wide as those of the ancestry model. At half the depth `stacked` and
# `weight_selection` build the model of `first_k`, and `vanilla_lg` that of `last_k`.
WHOLE_BLOCKS = ("first_k", "evenly_spaced", "middle_k", "last_k")
SAME_WIDTH = ("pruning", "elastic", *SEVERAL, "tleg", "sws")
BUDGET = {"epochs": 4, "images": TEXTS, "teaching_epochs": 4, "teaching_images": TEXTS}
STAGES = (2, 2, 2)  # of sws: an auxiliary model as deep as the ancestry model
NUM_BLOCKS, BLOCK_TASKS = 4, ("sentiment", "wordnet")
CHOICES = ("first_k", "evenly_spaced", "lsamd")
SEARCH_TASKS, SEARCH_TEXTS = ("acceptability", "sentiment", "paraphrase"), 200
TUNED_TEXTS, EPOCHS = 2000, 6
TUNED_TASKS = ("sentiment", "paraphrase")
# Method, layers and text of the rows.
TUNED_MODELS = (
    ("first_k", 6, "MiniLM-L6 itself, 6 layers"),
    ("first_k", 3, "`first_k`, 3 layers"),
)
# Method, layers, width and control of the arms; the first is the ancestry model itself.
ARMS: tuple[tuple[str, int, int, Control | None], ...] = (
    ("first_k", LAYERS, WIDTH, None),
    *((method, 3, WIDTH, None) for method in WHOLE_BLOCKS),
    ("closed_form", 3, WIDTH, None),
    # At half the depth `elastic` builds the model of `pruning`.
    *((method, 3, WIDTH, None) for method in SAME_WIDTH if method != "elastic"),
    ("weight_subcloning", 3, WIDTH, None),
    *((method, 3, WIDTH, None) for method in OF_ONE_SIZE),
    ("weight_selection", 3, WIDTH, "shuffled"),
    ("scratch", 3, WIDTH, None),
    *(
        (method, layers, 256, control)
        for layers in (6, 3)
        for method, control in (
            ("weight_selection", None),
            ("weight_subcloning", None),
            ("distillation", None),
            ("pretrain_finetune", None),
            ("weight_selection", "shuffled"),
            ("scratch", None),
        )
    ),
)
# The same of the bundled GPT-2, which `closed_form` also makes narrower.
WORDS, WORDS_WIDTH = "ancestry-words", 96
WORDS_ARMS: tuple[tuple[str, int, int, Control | None], ...] = (
    ("first_k", LAYERS, WORDS_WIDTH, None),
    *((method, 3, WORDS_WIDTH, None) for method in WHOLE_BLOCKS),
    *((method, 3, WORDS_WIDTH, None) for method in SAME_WIDTH if method != "elastic"),
    *(
        (method, layers, width, control)
        for layers, width in ((3, WORDS_WIDTH), (6, 64), (3, 64))
        for method, control in (
            ("closed_form", None),
            ("weight_selection", None),
            ("weight_subcloning", None),
            ("distillation", None),
            ("pretrain_finetune", None),
            ("closed_form", "shuffled"),
            ("closed_form", "stem"),
            ("scratch", None),
        )
        # At the full width it is `first_k`.
        if (method, width) != ("weight_selection", WORDS_WIDTH)
    ),
)
ARM_LR = 1e-4
SEEDS = 3
VALIDATION_TEXTS = 1_000
PENALTY_TASK, PENALTIES = "wordnet", (1e-3, 1e-2, 1e-1, 1.0, 10.0)
SIMILAR_TEXTS, PENALTY_TEXTS, HEAL_TEXTS, HEAL_EPOCHS = 2_000, 700, 3_000, 3
SIMILAR = (
    ("first_k", "`first_k`"),
    ("copied", "`closed_form` with `--no-solve`: the first block of each run"),
    ("closed_form", "`closed_form`"),
    ("healed", "`closed_form`, then `heal`"),
)


# What the first rows do not say.
FIRST_ROWS = {
    "stage": "probe",
    "width": WIDTH,
    "control": None,
    "seed": 0,
    "ancestry": "minilm",
}


@dataclass(frozen=True)
class Cell:
    """One model on one task."""

    method: str
    layers: int
    task: str
    width: int = WIDTH
    control: Control | None = None
    seed: int = 0
    ancestry: str = "minilm"  # or `WORDS`

    @property
    def name(self) -> str:
        """Its words, which `--only` looks for."""
        arm = f"{self.method} {self.control or ''}".strip()
        return f"{arm} {self.layers} x {self.width} {self.task} seed {self.seed}"


def main() -> None:
    """Measure the missing cells, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stage", choices=["probe", "blocks", "finetune", "arms", "similarity", "penalty", "table"]
    )
    parser.add_argument("--ancestry", help=f"the folder of MiniLM-L6, or {WORDS}")
    parser.add_argument(
        "--only", nargs="*", default=[], help="cells whose name contains all of these words"
    )
    given = parser.parse_args()
    if given.stage != "table" and not given.ancestry:
        parser.error("name the folder of MiniLM-L6: --ancestry MINILM")
    name = WORDS if given.ancestry == WORDS else "minilm"
    if name == WORDS and given.stage not in ("probe", "arms"):
        parser.error(f"{given.stage} is measured of MiniLM-L6 only")
    if given.stage == "probe":
        for cell in list_missing("probe", name, given.only):
            measure(cell, given.ancestry)
    if given.stage == "blocks":
        for task, method in product(BLOCK_TASKS, CHOICES):
            if not find_rows("probe", method=method, layers=NUM_BLOCKS, task=task):
                measure(Cell(method, NUM_BLOCKS, task), given.ancestry)
    if given.stage == "finetune":
        for task, (method, layers, _) in product(TUNED_TASKS, TUNED_MODELS):
            if not find_rows("finetune", task=task, method=method, layers=layers):
                measure_finetuning(Cell(method, layers, task), given.ancestry)
    if given.stage == "arms":
        for cell in list_missing("arms", name, given.only):
            measure_arm(cell, given.ancestry)
    if given.stage == "similarity":
        measure_similarities(given.ancestry)
    if given.stage == "penalty":
        measure_penalties(given.ancestry)
    for name, make in (
        ("text-models", make_table),
        ("text-blocks", make_block_table),
        ("text-finetuning", make_finetuning_table),
        ("text-arms", make_arm_table),
        ("text-words", make_words_table),
        ("text-similarity", make_similarity_table),
        ("text-penalty", make_penalty_table),
    ):
        replace_between(DOCS / "results" / "text.md", name, make())
        print(make())


def list_cells(stage: Literal["probe", "arms"], ancestry: str) -> Iterator[Cell]:
    """Yield the cells of a stage in the order in which they are measured, the first seed first."""
    of_minilm = ARMS if stage == "arms" else tuple(list_models())
    models = WORDS_ARMS if ancestry == WORDS else of_minilm
    seeds = SEEDS if stage == "arms" else 1
    for seed, task, (method, layers, width, control) in product(range(seeds), TASKS, models):
        yield Cell(method, layers, task, width, control, seed, ancestry)


def list_missing(
    stage: Literal["probe", "arms"], ancestry: str, words: Sequence[str]
) -> Iterator[Cell]:
    """Yield the cells that have no row yet and whose names contain all words."""
    for cell in list_cells(stage, ancestry):
        is_named = all(word in cell.name for word in words)
        if is_named and not find_rows(stage, **asdict(cell)):
            yield cell


def list_models() -> Iterator[tuple[str, int, int, Control | None]]:
    """Yield method, layers, width and control of every row, the ancestry model first."""
    yield "first_k", LAYERS, WIDTH, None
    for layers, width in SIZES:
        methods = (*BLOCKS, "closed_form", *SAME_WIDTH) if width == WIDTH else ()
        for method in (*methods, *OF_ONE_SIZE, *ANY_WIDTH):
            yield method, layers, width, None
        yield "weight_selection", layers, width, "shuffled"


def find_rows(stage: str, **values: Any) -> list[dict[str, Any]]:
    """Return the results of a stage so far that have these values."""
    if not ROWS.is_file():
        return []
    rows = [
        {**FIRST_ROWS, **json.loads(line)} for line in ROWS.read_text(encoding="utf-8").splitlines()
    ]
    wanted = {"stage": stage, **values}
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def append(row: dict[str, Any]) -> None:
    """Append a row to the results."""
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(row, file=sys.stderr, flush=True)


def measure(cell: Cell, ancestry: str) -> None:
    """Measure the accuracy of the regression on test texts, and append the row."""
    import torch

    torch.set_num_threads(1)
    start, run = time.monotonic(), Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    model = build_model(cell, ancestry, run)
    module, task, form = model.model(), open_task(cell.task), model.input_format
    train = compute_features(module, task, "train", form, run, images=TEXTS)
    test = compute_features(module, task, "test", form, run, images=TEST_TEXTS)
    ridge = run_probe(train, test, task, "test", "ridge")
    low, high = ridge.interval
    row = {
        **asdict(cell),
        "ridge": ridge.value,
        "low": low,
        "high": high,
        "texts": ridge.images,
        "training_texts": ridge.training_images,
        "params": model.cost().params,
        **name_blocks(model),
        "seconds": round(time.monotonic() - start, 1),
    }
    append(row)


def build_model(cell: Cell, ancestry: str, run: Run) -> Descendant:
    """Build the model of a cell, without a head."""
    if cell.method in (*TRAINED, *SEVERAL):
        learngene = train_learngene(cell, ancestry)
    else:
        task = cell.task if cell.method in CALIBRATED else ""
        learngene = extract_learngene(cell.method, ancestry, task)
    learngene = learngene.with_config(purpose=None)  # without a head, whose features are pooled
    whole = WORDS_WIDTH if cell.ancestry == WORDS else WIDTH
    narrow = {} if cell.width == whole else {"width": cell.width, "heads": cell.width // HEAD_WIDTH}
    return lifecycle.expand(learngene, layers=cell.layers, control=cell.control, run=run, **narrow)


def name_blocks(model: Descendant) -> dict[str, Any]:
    """Return the ancestry model's blocks of a descendant, counted from 1, if it names them."""
    blocks: Any = model.provenance.get("blocks")
    if blocks is None:
        return {}
    first = 0 if model.provenance["method"] == "lsamd" else 1  # lsamd counts from 1
    return {"blocks": [block + first for block in blocks]}


def measure_finetuning(cell: Cell, ancestry: str) -> None:
    """Measure the test accuracies before and after fine-tuning, and append the row."""
    start, run = time.monotonic(), Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    learngene = extract_learngene(cell.method, ancestry)
    model = lifecycle.expand(learngene, layers=cell.layers, run=run)
    task = open_task(cell.task)
    module, form = model.model(), model.input_format
    train = compute_features(module, task, "train", form, run, images=TUNED_TEXTS)
    test = compute_features(module, task, "test", form, run)
    ridge = run_probe(train, test, task, "test", "ridge")
    tuned = lifecycle.finetune(model, task=cell.task, images=TUNED_TEXTS, epochs=EPOCHS, run=run)
    metrics: Any = tuned.provenance["metrics"]
    low, high = metrics["test_interval"]
    append(
        {
            "stage": "finetune",
            **asdict(cell),
            "ridge": ridge.value,
            "accuracy": metrics["test_accuracy"],
            "low": low,
            "high": high,
            "kept_epoch": metrics["kept_epoch"],
            "history": [epoch["validation_accuracy"] for epoch in metrics["history"]],
            "lr": tuned.provenance["recipe"]["lr"],
            "texts": metrics["test_images"],
            "training_texts": metrics["training_images"],
            "seconds": round(time.monotonic() - start, 1),
        }
    )


def measure_arm(cell: Cell, ancestry: str) -> None:
    """Measure the test accuracy after fine-tuning on few texts, and append the row."""
    import torch

    torch.set_num_threads(1)
    start = time.monotonic()
    run = Run(seed=cell.seed, threads=1, device=machine.DEVICE, ancestry=ancestry)
    model = build_model(cell, ancestry, run)
    rates = [lifecycle.choose_rate(model.width) if cell.ancestry == WORDS else ARM_LR]
    if cell.control or cell.method == "scratch":
        rates = [ARM_LR, lifecycle.choose_rate(model.width)]
    best: Any = {}
    for lr in rates:
        recipe = {"lr": lr, "epochs": EPOCHS}
        tuned = lifecycle.finetune(
            model,
            task=cell.task,
            images=TEXTS,
            validation_images=VALIDATION_TEXTS,
            run=run,
            **recipe,
        )
        metrics: Any = tuned.provenance["metrics"]
        if not best or metrics["validation_accuracy"] > best["validation_accuracy"]:
            best = {**metrics, **recipe}
    append(
        {
            "stage": "arms",
            **asdict(cell),
            "accuracy": best["test_accuracy"],
            "validation": best["validation_accuracy"],
            "start": best["history"][0]["validation_accuracy"],
            "kept_epoch": best["kept_epoch"],
            "lr": best["lr"],
            "texts": best["test_images"],
            "training_texts": best["training_images"],
            "validation_texts": best["validation_images"],
            "seconds": round(time.monotonic() - start, 1),
        }
    )


def measure_similarities(ancestry: str, layers: int = 3) -> None:
    """Measure the agreement of every model of `SIMILAR`, and append the rows."""
    run = Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    task, whole = open_task("debian_sections"), extract_learngene("first_k", ancestry)
    expected = compute_similarities(lifecycle.expand(whole, run=run), task, run)
    solved = None
    for kind, _ in SIMILAR:
        if find_rows("similarity", method=kind, layers=layers, texts=SIMILAR_TEXTS):
            continue
        start = time.monotonic()
        if kind == "first_k":
            model = lifecycle.expand(whole, layers=layers, run=run)
        else:
            # Without a head, whose features are the pooler's.
            learngene = extract_learngene("closed_form", ancestry, "debian_sections")
            learngene = learngene.with_config(purpose=None)
            solve = {"solve": False} if kind == "copied" else {}
            model = solved or lifecycle.expand(learngene, layers=layers, run=run, **solve)
        if kind == "closed_form":
            solved = model
        if kind == "healed":
            model = lifecycle.heal(
                model, task.name, max_images=HEAL_TEXTS, epochs=HEAL_EPOCHS, run=run
            )
        similarities = compute_similarities(model, task, run)
        append(
            {
                "stage": "similarity",
                "method": kind,
                "layers": layers,
                "agreement": float(np.corrcoef(expected, similarities)[0, 1]),
                "texts": SIMILAR_TEXTS,
                "seconds": round(time.monotonic() - start, 1),
            }
        )


def measure_penalties(ancestry: str, layers: int = 3) -> None:
    """Measure the agreement of `closed_form` by its penalty on other texts, and append the rows."""
    run = Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    task, whole = open_task(PENALTY_TASK), extract_learngene("first_k", ancestry)
    compute = partial(compute_similarities, task=task, run=run, split="train", texts=PENALTY_TEXTS)
    expected = compute(lifecycle.expand(whole, run=run))
    for penalty in PENALTIES:
        if find_rows("penalty", penalty=penalty):
            continue
        learngene = lifecycle.extract(
            "closed_form",
            ancestries=(ancestry,),
            tasks=("debian_sections",),
            extractor=with_settings(
                METHODS.load("closed_form").preset("mini"), {"ridge": penalty / TEXT_PENALTY}
            ),
            run=run,
        ).with_config(purpose=None)
        model = lifecycle.expand(learngene, layers=layers, run=run)
        similarities = compute(model)
        append(
            {
                "stage": "penalty",
                "penalty": penalty,
                "layers": layers,
                "agreement": float(np.corrcoef(expected, similarities)[0, 1]),
                "texts": PENALTY_TEXTS,
            }
        )


def compute_similarities(
    model: Descendant,
    task: Task,
    run: Run,
    split: Literal["train", "test"] = "test",
    texts: int = SIMILAR_TEXTS,
) -> np.ndarray:
    """Return the cosine similarities of all pairs of texts."""
    features = compute_features(
        model.model(), task, split, model.input_format, run, images=texts
    ).values
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarities: np.ndarray = (features @ features.T)[np.triu_indices(len(features), 1)]
    return similarities


def train_learngene(cell: Cell, ancestry: str) -> Learngene:
    """Return the learngene of a method that trains, of the cell's task or of several tasks."""
    method, several = cell.method, cell.method in SEVERAL
    name = f"{method}-{cell.ancestry}" if several else f"{method}-{cell.ancestry}-{cell.task}"
    settings: dict[str, Any] = {"lsamd": {"top": 3}, "sws": {"stages": STAGES}}.get(method, {})
    if method in OF_ONE_SIZE:
        name += f"-{cell.layers}x{cell.width}"
        settings = {"depths": (cell.layers,), "widths": (cell.width,)}
    folder = KEPT / name
    if not folder.is_dir():
        known = {setting.name for setting in list_settings(METHODS.load(method).extractor)}
        learngene = lifecycle.extract(
            method,
            ancestries=(ancestry,),
            tasks=SEARCH_TASKS if several else (cell.task,),
            run=Run(threads=1, device=machine.DEVICE, ancestry=ancestry, shared=KEPT / "teachers"),
            **{name: value for name, value in BUDGET.items() if name in known},
            **settings,
        )
        with suppress(Exists):  # saved by another process meanwhile
            learngene.save(folder)
    return load_learngene(folder)


@lru_cache(maxsize=2)
def extract_learngene(method: str, ancestry: str, task: str = "") -> Learngene:
    """Return a method's learngene of the ancestry model; of texts of a task if one is named."""
    run = Run(threads=1, device=machine.DEVICE, ancestry=ancestry)
    tasks = (task,) if task else ()
    if method == "lsamd":
        learngene = lifecycle.extract(
            method,
            ancestries=(ancestry,),
            tasks=SEARCH_TASKS,
            run=run,
            top=NUM_BLOCKS,
            epochs=1,
            images=SEARCH_TEXTS,
        )
        # Without a head, whose features are the pooler's.
        return learngene.with_config(purpose=None)
    return lifecycle.extract(method, ancestries=(ancestry,), tasks=tasks, run=run)


def make_finetuning_table() -> str:
    """Return the accuracies before and after fine-tuning in Markdown, per cent."""
    heads = [f"{task}: {column}" for task in TUNED_TASKS for column in ("ridge", "fine-tuned")]
    lines = [f"| model | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for method, layers, text in TUNED_MODELS:
        cells: list[str] = []
        for task in TUNED_TASKS:
            rows = find_rows("finetune", method=method, layers=layers, task=task)
            cells += (
                [f"{100 * rows[0]['ridge']:.1f}", describe(rows[0], "accuracy")]
                if rows
                else ["", ""]
            )
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_arm_table() -> str:
    """Return the mean test accuracies of the arms in Markdown, per cent, with the number of seeds
    where not all are there.
    """
    lines = [f"| model | {' | '.join(TASKS)} |", "|---|" + "---:|" * len(TASKS)]
    for method, layers, width, control in ARMS:
        model = {"method": method, "layers": layers, "width": width, "control": control}
        found = find_rows("arms", ancestry="minilm", **model)
        if found:
            cells = []
            for task in TASKS:
                values = [100 * row["accuracy"] for row in found if row["task"] == task]
                seeds = f" ({count_noun(len(values), 'seed')})" if len(values) < SEEDS else ""
                cells.append(f"{mean(values):.1f}{seeds}" if values else "")
            name = name_model(method, layers, width, control)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_words_table() -> str:
    """Return the results of the bundled GPT-2 and its descendants in Markdown, per cent: a ridge
    regression before training, then the mean test accuracy of the seeds after fine-tuning.
    """
    heads = [f"{task}: {step}" for task in TASKS for step in ("ridge", "fine-tuned")]
    lines = [f"| model | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for method, layers, width, control in WORDS_ARMS:
        model = {"method": method, "layers": layers, "width": width, "control": control}
        cells = []
        for task in TASKS:
            own = {"ancestry": WORDS, "task": task, **model}
            probes = find_rows("probe", **own)
            values = [100 * row["accuracy"] for row in find_rows("arms", **own)]
            seeds = f" ({count_noun(len(values), 'seed')})" if len(values) < SEEDS else ""
            cells.append(f"{100 * probes[0]['ridge']:.1f}" if probes else "")
            cells.append(f"{mean(values):.1f}{seeds}" if values else "")
        if any(cells):
            lines.append(f"| {name_model(method, layers, width, control)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_block_table() -> str:
    """Return the accuracies of 4 blocks in Markdown, per cent, with their intervals."""
    lines = [
        f"| method, {NUM_BLOCKS} layers | blocks | {' | '.join(BLOCK_TASKS)} |",
        "|---|---|" + "---:|" * len(BLOCK_TASKS),
    ]
    for method in CHOICES:
        own = {row["task"]: row for row in find_rows("probe", method=method, layers=NUM_BLOCKS)}
        if own:
            blocks = " ".join(map(str, next(iter(own.values()))["blocks"]))
            cells = [describe(own[task]) if task in own else "" for task in BLOCK_TASKS]
            lines.append(f"| `{method}` | {blocks} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_similarity_table() -> str:
    """Return the agreements in Markdown."""
    lines = ["| model, 3 layers | agreement |", "|---|---:|"]
    for kind, text in SIMILAR:
        for row in find_rows("similarity", method=kind, texts=SIMILAR_TEXTS):
            lines.append(f"| {text} | {row['agreement']:.2f} |")
    return "\n".join(lines)


def make_penalty_table() -> str:
    """Return the agreements by penalty in Markdown."""
    rows = [row for penalty in PENALTIES for row in find_rows("penalty", penalty=penalty)]
    lines = [
        "| penalty | " + " | ".join(f"{row['penalty']:g}" for row in rows) + " |",
        "|---|" + "---:|" * len(rows),
        "| agreement | " + " | ".join(f"{row['agreement']:.3f}" for row in rows) + " |",
    ]
    return "\n".join(lines)


def make_table() -> str:
    """Return the accuracies in Markdown, per cent, with the mean half width of their intervals."""
    lines = [f"| model | parameters | {' | '.join(TASKS)} |", "|---|---:|" + "---:|" * len(TASKS)]
    for method, layers, width, control in list_models():
        found = find_rows("probe", method=method, layers=layers, width=width, control=control)
        rows = {row["task"]: row for row in found}
        if rows:
            params = f"{next(iter(rows.values()))['params'] / 1e6:.1f}M"
            cells = [f"{100 * rows[task]['ridge']:.1f}" if task in rows else "" for task in TASKS]
            name = name_model(method, layers, width, control)
            lines.append(f"| {name} | {params} | {' | '.join(cells)} |")
    return "\n".join(lines)


def name_model(method: str, layers: int, width: int, control: Control | None) -> str:
    """Return the text of a row."""
    if (layers, width) == (LAYERS, WIDTH):
        return f"MiniLM-L6 itself, {layers} x {width}"
    if (layers, width) == (LAYERS, WORDS_WIDTH):
        return f"`{WORDS}` itself, {layers} x {width}"
    controls = {None: "", "shuffled": ", shuffled", "stem": ", the stem alone"}
    names = {"scratch": "random weights"}
    name = names.get(method, f"`{method}`") + controls[control]
    return f"{name}, {layers} x {width}"


def describe(row: dict[str, Any], key: str = "ridge") -> str:
    """Return an accuracy and its interval, per cent."""
    return f"{100 * row[key]:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"


if __name__ == "__main__":
    main()
