"""Time exported text models against transformers' module: one text of three lengths.

Weights are random: latency does not depend on them. All forms of one size take turns in one run;
medians. An int8 file is written without being measured on texts, as only its time and its size are
of interest. One thread, about three minutes, 1 GB of memory. Exits with 1 if an ONNX file in fp32
is more than 5 % slower than transformers' module.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.runtimes import open_runner
from learngene_zoo.pretrained.ancestry import open_ancestry
from timings.case import Case, Row, measure_medians
from timings.export_latency import FORMS, export

# The first has the sizes of all-MiniLM-L6-v2.
ENCODER = BertSpec(
    layers=6, width=384, heads=12, vocabulary=30_522, positions=512, pad_token=0, pool="mean"
)
SIZES: dict[str, TextSpec] = {
    "BERT, 6 x 384": ENCODER,
    "BERT, 3 x 384": ENCODER.with_(layers=3),
    "GPT-2, 6 x 384": Gpt2Spec(
        layers=6, width=384, heads=6, vocabulary=4_000, positions=512, pad_token=0
    ),
}
LENGTHS = (16, 128, 512)
MAX_TIMES_MODULE = 1.05  # of an ONNX file in fp32
REPEATS = 12


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time all forms of each size and length."""
    torch.set_num_threads(1)
    files = open_ancestry("ancestry-words").files  # a tokenizer: which one makes no difference
    for name, spec in SIZES.items():
        descendant = assemble(spec, {}, seed=0, mean=(), std=(), files=files)
        with tempfile.TemporaryDirectory() as folder:
            paths = {
                f"{format} {dtype}": export(descendant, Path(folder), format, dtype)
                for format, dtype in FORMS
            }
            runners = {form: open_runner(path, threads=1) for form, path in paths.items()}
            sizes = {f"{form} bytes": path.stat().st_size for form, path in paths.items()}
            for length in LENGTHS:
                seconds = time_forms(descendant, runners, length)
                row = {"size": name, "tokens": length, **seconds, **sizes}
                times = "  ".join(
                    f"{form} {1e3 * value:6.2f} ms" for form, value in seconds.items()
                )
                yield row, f"{name:15} {length:3} tokens  {times}"


def time_forms(
    descendant: Descendant, runners: dict[str, Callable[[Any], torch.Tensor]], length: int
) -> dict[str, float]:
    """Return the median seconds of the module and of every file for one text of a length."""
    ids = torch.ones(1, length, dtype=torch.int64)
    texts = Tokens(ids, torch.ones_like(ids))
    models = {"transformers": partial(compute_logits, descendant.model()), **runners}
    with torch.inference_mode():
        return measure_medians(
            {form: partial(model, texts) for form, model in models.items()}, REPEATS
        )


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if an ONNX file is slower than transformers' module."""
    is_late = any(
        row["onnx fp32"] > MAX_TIMES_MODULE * row["transformers"] for row in numbers["rows"]
    )
    return "an exported file is slower than transformers' module" if is_late else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {
        "threads": 1,
        "most_times_module": MAX_TIMES_MODULE,
        "rows": rows,
    },
    find_problem=find_problem,
)
