"""The self-test of `lgzoo doctor`: the whole way from the bundled ancestry model to a measured model, in under a minute."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe

LAYERS = 3
RECIPE = Recipe(epochs=2, images=200, batch_size=50, lr=1e-3, augment="none")
Step = tuple[str, Callable[[], object]]


def self_test() -> Iterator[tuple[str, bool, str]]:
    """Every step: its name, whether it worked, and how long it took or what went wrong. Stops at the first that fails.

    What it writes is in a temporary folder, and nothing accesses the network.
    """
    with tempfile.TemporaryDirectory(prefix="lgzoo-self-test-") as folder:
        for name, step in _steps(Path(folder)):
            started = time.perf_counter()
            try:
                step()
            except Exception as error:  # whatever is broken here is what is reported
                yield name, False, f"{type(error).__name__}: {error}"
                return
            yield name, True, f"{time.perf_counter() - started:.1f} s"


def _steps(folder: Path) -> Iterator[Step]:
    run = Run(offline=True)
    gene, model, tuned = (folder / name for name in ("learngene", "model", "tuned"))
    yield "extract", lambda: lifecycle.extract("lsamd", preset="smoke", out=gene, run=run)
    yield "expand", lambda: lifecycle.expand(gene, layers=LAYERS, task="digits", out=model, run=run)
    yield "finetune", lambda: lifecycle.finetune(model, task="digits", recipe=RECIPE, out=tuned, run=run)
    yield "evaluate", lambda: lifecycle.evaluate(tuned, task="digits", split="validation", run=run)
    yield "open with timm", lambda: _opened_alike(tuned)
    if all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        yield "export", lambda: lifecycle.export(tuned, folder / "model.onnx", run=run)


def _opened_alike(folder: Path) -> None:
    """timm opens the folder and answers as we do, to the last bit."""
    import timm
    import torch

    ours = shelf.open_descendant(folder)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    size = ours.spec.image_size
    images_BCHW = torch.linspace(-1, 1, ours.spec.channels * size * size).reshape(1, -1, size, size)
    with torch.no_grad():
        if not torch.equal(theirs(images_BCHW), ours.model()(images_BCHW)):
            raise AssertionError("timm's model of the folder gives other logits than ours")
