"""Judge the bundled language model by fine-tuning, against random weights and bags of words.

    python tools/text_gate.py            forty minutes on one core, or five of a GPU; resumable
    python tools/text_gate.py --table    print the table from the results

On each task: the language model, the same shape and tokenizer with random weights, both fine-tuned
on at most 4,000 training texts, and logistic regressions on the same texts: on words, and on words
and pairs of adjacent words, of which the better one counts. Each arm has its best learning rate on
validation texts of two tasks, with a separate seed. No test text is read. The gate is passed if
the language model is above both rivals, with 95 % intervals over the validation texts, on every
task made by rules whose texts it was not trained on. The results are among those of the benchmarks
(`RESULTS`), the table is on the card of the language model.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import Unavailable
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.fit import fit

ROOT = Path(__file__).resolve().parent.parent
CARD = ROOT / "cards" / "ancestry-words"
RESULTS = ROOT / "benchmarks" / "results" / "text_gate.json"
ROWS = ROOT / "build" / "text_gate.jsonl"
LEFT_OUT = ("acceptability", "entailment")  # tasks by rules whose texts are in no corpus
SEEN = ("paraphrase", "sentiment")  # without their labels
REAL = ("debian_sections", "snippets")
TASKS = (*LEFT_OUT, *SEEN, *REAL)
ARMS = ("language model", "random weights")
SEEDS, TUNING_SEED = (0, 1), 1_000
RATES, TUNING_TASKS = (1e-3, 2e-3), ("acceptability", "sentiment")
RECIPE = Recipe(epochs=6, images=4_000, batch_size=50, warmup=0.5, clip=1.0, augment="none")
WORD = re.compile(r"\w+|[^\w\s]")


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, print, and write."""
    if "--table" not in arguments:
        RESULTS.write_text(json.dumps(measure_all(), indent=1) + "\n", encoding="utf-8")
    print(make_page_text(read_results()))


def read_results() -> dict[str, Any]:
    """Return the results as they were written."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def measure_all() -> dict[str, Any]:
    """Return rates, rows and verdict."""
    rates = {arm: choose_rate(arm) for arm in ARMS}
    rows = [row for name in TASKS if (row := judge_task(name, rates)) is not None]
    return {"lr": rates, "rows": rows, "passed": is_passed(rows)}


def is_passed(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether both gains are certain on every task made by rules that is left out."""
    decisive = [row for row in rows if row["task"] in LEFT_OUT]
    return len(decisive) == len(LEFT_OUT) and all(
        row[f"over {rival}"][1] > 0 for row in decisive for rival in ("random weights", "bag")
    )


def choose_rate(arm: str) -> float:
    """Return the rate with the best mean accuracy on the tuning tasks."""

    def measure(rate: float) -> float:
        results = (measure_model(arm, name, rate, TUNING_SEED) for name in TUNING_TASKS)
        return sum(np.mean(right_N) for right_N in results)

    return max(RATES, key=measure)


def judge_task(name: str, rates: Mapping[str, float]) -> dict[str, Any] | None:
    """Return the accuracies and gains of one task; None if its texts are not on this machine."""
    try:
        task = open_task(name)
    except Unavailable as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    right = {
        arm: np.mean([measure_model(arm, name, rates[arm], seed) for seed in SEEDS], axis=0)
        for arm in ARMS
    }
    right["bag"] = max((measure_bag(task, pairs) for pairs in (False, True)), key=np.mean)
    row: dict[str, Any] = {"task": name, "texts": len(right["bag"])}
    row |= {arm: round(float(np.mean(right_N)), 4) for arm, right_N in right.items()}
    for rival in ("random weights", "bag"):
        gain_N = right[ARMS[0]] - right[rival]
        error = 1.96 * gain_N.std(ddof=1) / np.sqrt(len(gain_N))
        mean = float(gain_N.mean())
        row[f"over {rival}"] = [round(mean, 4), round(mean - error, 4), round(mean + error, 4)]
    return row


def measure_model(arm: str, name: str, rate: float, seed: int) -> list[int]:
    """Return for each validation text whether a fine-tuned model is right; cached in `ROWS`."""
    key = [arm, name, rate, seed]
    for line in ROWS.read_text().splitlines() if ROWS.is_file() else ():
        row = json.loads(line)
        if row["key"] == key:
            return list(map(int, row["right"]))
    right = compute_right(build_model(arm, seed), open_task(name), rate, seed)
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    with ROWS.open("a") as file:
        file.write(json.dumps({"key": key, "right": "".join(map(str, right))}) + "\n")
    print(key, round(float(np.mean(right)), 4), flush=True)
    return right


def build_model(arm: str, seed: int) -> Descendant:
    """Return the model of an arm, without a head."""
    ancestry = open_ancestry(str(CARD))
    state = ancestry.state if arm == ARMS[0] else {}
    return assemble(ancestry.spec, state, seed=seed, files=ancestry.files)


def compute_right(start: Descendant, task: Task, rate: float, seed: int) -> list[int]:
    """Fine-tune a model; return for each validation text whether it is right."""
    run = Run(seed=seed)
    start = start.for_task(task.name, task.class_names, seed=seed)
    recipe = Recipe(**{**vars(RECIPE), "lr": rate})
    trained = fit(start, task, recipe, run, judge=False)
    device = torch.device(run.device_name)
    model = trained.model().to(device).eval()
    loader = sample_images(task, "validation", start.input_format, run, images=None, batch_size=100)
    right: list[int] = []
    with torch.no_grad():
        for batch in loader.epoch(0):
            logits = compute_logits(model, batch.inputs.to(device)).argmax(dim=1).cpu()
            right += (logits == batch.labels).long().tolist()
    return right


# Bags of words.


def measure_bag(task: Task, with_pairs: bool) -> np.ndarray:
    """Return for each validation text whether a logistic regression on its words is right."""
    train = task.split("train")
    rows = choose_rows(np.asarray(train.labels))
    fitted = [Counter(list_features(text, with_pairs)) for text in train.__getitems__(rows)]
    validation = task.split("validation")
    judged = [
        Counter(list_features(text, with_pairs))
        for text in validation.__getitems__(range(len(validation)))
    ]
    names = sorted({name for row in fitted for name in row})
    column = {name: index for index, name in enumerate(names)}
    labels_N = torch.from_numpy(np.asarray(train.labels)[rows])
    weight = fit_regression(count_words(fitted, column), labels_N, task.classes)
    predicted_N = torch.sparse.mm(count_words(judged, column), weight).argmax(dim=1).numpy()
    return (predicted_N == np.asarray(validation.labels)).astype(int)


def choose_rows(labels: np.ndarray) -> list[int]:
    """Return the rows of the training texts that a fine-tuning with seed 0 uses."""
    from learngene_zoo.seeds import derive_seed, draw_balanced

    max_texts = RECIPE.images
    if max_texts is None or len(labels) <= max_texts:
        return list(range(len(labels)))
    return [int(row) for row in draw_balanced(labels, max_texts, derive_seed(0, "data"))]


def list_features(text: str | tuple[str, str], with_pairs: bool) -> Iterator[str]:
    """Yield the words of a text, and its pairs of adjacent words; those of two texts differ."""
    for side, part in enumerate(text if isinstance(text, tuple) else (text,)):
        words = WORD.findall(part.lower())
        yield from (f"{side} {word}" for word in words)
        if with_pairs:
            yield from (f"{side} {first} {second}" for first, second in pairwise(words))


def count_words(rows: Sequence[Counter[str]], column: Mapping[str, int]) -> torch.Tensor:
    """Return a sparse matrix of the counts, with a last column of ones."""
    entries = [
        (row, column[name], float(count))
        for row, counts in enumerate(rows)
        for name, count in counts.items()
        if name in column
    ] + [(row, len(column), 1.0) for row in range(len(rows))]
    positions, values = [entry[:2] for entry in entries], [entry[2] for entry in entries]
    size = (len(rows), len(column) + 1)
    return torch.sparse_coo_tensor(torch.tensor(positions).T, torch.tensor(values), size).coalesce()


def fit_regression(inputs: torch.Tensor, labels_N: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the weights of a logistic regression with a small penalty of their squares."""
    weight = torch.zeros(inputs.shape[1], classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(torch.sparse.mm(inputs, weight), labels_N)
        loss = loss + 1e-4 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach()


# The page.


def make_page_text(results: Mapping[str, Any]) -> str:
    """Return the table and the verdict."""
    lines = [
        "| task | language model | random weights | bag of words | over random | over bag |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in results["rows"]:
        accuracies = [f"{100 * row[arm]:.1f}" for arm in (*ARMS, "bag")]
        gains = [describe_gain(row[f"over {rival}"]) for rival in ("random weights", "bag")]
        lines.append(f"| `{row['task']}` | {' | '.join([*accuracies, *gains])} |")
    rates = ", ".join(f"{arm} {rate:g}" for arm, rate in results["lr"].items())
    verdict = "passed" if results["passed"] else "not passed"
    text = (
        f"Validation accuracy in per cent after {RECIPE.epochs} epochs on at most {RECIPE.images:,}"
        f" training texts, mean of {len(SEEDS)} seeds; gains in points with 95 % intervals over the"
        f" texts. Learning rates ({rates}) were chosen on validation texts with another seed. No"
        f" text of {' and '.join(f'`{name}`' for name in LEFT_OUT)}, `debian_sections` and"
        " `snippets` is in the corpus; those of the others are, without their labels. The gate is"
        f" {verdict}: on {' and '.join(f'`{name}`' for name in LEFT_OUT)} both gains must be"
        " certain. Made by `python tools/text_gate.py`."
    )
    return "\n".join([*lines, "", text])


def describe_gain(gain: Sequence[float]) -> str:
    """Return a gain in points with its interval."""
    mean, low, high = (100 * value for value in gain)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    main(sys.argv[1:])
