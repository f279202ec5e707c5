"""The speed of this machine on a model, from which estimates of time are computed."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec

if TYPE_CHECKING:
    from torch import nn

    from learngene_zoo.runs.run import Run

# Forward passes that an image costs in a step of training, with the step of the optimiser: 3.4 for
# descendants of the bundled model in batches of 64.
TRAINING_COST = 3.4
# Time of a multiply-add of `Work.solved`, in units of that of a forward pass. docs/shrink.md
# compares estimates with whole calls.
SOLVING_COST = 1.25
HEAD_PASSES = 2  # of the images that the ridge regression of a new head is fitted to
BATCH_SIZE = 64
MEASURED_TEXTS = 512  # whose tokens are counted
MEASURED_TOKENS = 1024  # in a batch of the measurement; images of larger ones are not faster
LAYER_SECONDS = 0.3  # for which one layer is measured
MAX_FLOPS = 1.5e10  # of a layer that is measured, for a batch: about half a second


def shorten(spec: Spec, length: int | None) -> Spec:
    """Return the shape of a model for texts of at most `length` tokens, or of images."""
    return spec.with_(positions=length) if isinstance(spec, TextSpec) and length else spec


def build_layer(spec: Spec, run: Run) -> tuple[nn.Module, Spec] | None:
    """Return a model of one layer of this shape, with random weights, and its shape.

    It is None if the layers of the shape differ, or one is too slow to be measured.
    """
    from learngene_zoo.families.tensors import build_model, initialise

    try:
        layer = spec.with_(layers=1)
    except WrongCall:  # a shape whose layers differ
        return None
    if _choose_batch(layer) * count_cost(layer).flops > MAX_FLOPS:
        return None
    return build_model(layer, initialise(layer, run.seed)).eval(), layer


def measure_rate(model: nn.Module, spec: Spec, run: Run, seconds: float = 1.0) -> float:
    """Return the FLOPs per second of forward passes of a model, by the median time of a pass.

    Args:
        model: the model, or one layer of its shape.
        spec: its shape for inputs of the usual size, as for `make_example_inputs`.
        run: the run, for its device, threads and precision.
        seconds: at least so long is measured.
    """
    import torch

    from learngene_zoo.families.forward import compute_logits
    from learngene_zoo.families.tensors import make_example_inputs
    from learngene_zoo.runs.run import open_device
    from learngene_zoo.training.evaluate import use_evaluation_mode

    device = open_device(run)
    model = model.to(device)
    images = make_example_inputs(spec, _choose_batch(spec), device)
    with use_evaluation_mode(model, device, run):
        compute_logits(model, images)
        durations = list[float]()
        while not durations or sum(durations) < seconds:
            start = time.perf_counter()
            compute_logits(model, images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            durations.append(time.perf_counter() - start)
    return len(images) * count_cost(spec).flops / statistics.median(durations)


def _choose_batch(spec: Spec) -> int:
    """Return the batch size of the measurement."""
    return max(1, min(BATCH_SIZE, MEASURED_TOKENS // spec.tokens))
