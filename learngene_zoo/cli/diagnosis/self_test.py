"""The self-test: from the bundled ancestry model to an evaluated model, in under a minute."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.cli.diagnosis.findings import make_row
from learngene_zoo.cli.job import Row
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.text import escape_controls

SELF_TEST = Recipe(epochs=2, images=200, batch_size=50, lr=1e-3, augment="none")


def run_self_test() -> Iterator[Row]:
    """Run every step, and yield its duration or its error; stop at the first that fails.

    Results are written to a temporary folder, and the network is not accessed.
    """
    with tempfile.TemporaryDirectory(prefix="lgzoo-self-test-") as folder:
        for name, step in _list_steps(Path(folder)):
            started, failed = time.perf_counter(), ""
            try:
                step()
            except Exception as error:  # any error is the result of the step
                failed = f"{type(error).__name__}: {error}"
            result = failed or f"{time.perf_counter() - started:.1f} s"
            if sys.stderr.isatty():
                click.echo(escape_controls(f"{name}: {result}"), err=True)
            yield make_row(name, "bad" if failed else "ok", result)
            if failed:
                return


def _list_steps(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    run = Run(offline=True)
    gene, model, tuned = (folder / name for name in ("learngene", "model", "tuned"))
    yield "extract", lambda: lifecycle.extract("closed_form", preset="smoke", out=gene, run=run)
    yield "expand", lambda: lifecycle.expand(gene, layers=3, task="digits", out=model, run=run)
    yield (
        "finetune",
        lambda: lifecycle.finetune(model, task="digits", recipe=SELF_TEST, out=tuned, run=run),
    )
    yield "evaluate", lambda: lifecycle.evaluate(tuned, task="digits", split="validation", run=run)
    yield "open with timm", lambda: _check_timm_agrees(tuned)
    if all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        yield "export", lambda: lifecycle.export(tuned, folder / "model.onnx", run=run)


def _check_timm_agrees(folder: Path) -> None:
    """Check that timm opens the folder and computes bit-equal logits."""
    import timm
    import torch

    ours = shelf.open_descendant(folder)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    size, channels = ours.input_format.image_size, ours.input_format.channels
    images_BCHW = torch.linspace(-1, 1, channels * size * size).reshape(1, -1, size, size)
    with torch.no_grad():
        if not torch.equal(theirs(images_BCHW), ours.model()(images_BCHW)):
            raise AssertionError(
                "the logits of timm's model of the folder differ from those of learngene_zoo"
            )
