"""The latency of a model on this machine."""

import statistics
import time

from learngene_zoo.families.spec import Spec
from learngene_zoo.runs.run import Run

WARM_UP, REPEATS = 5, 30


def latency(spec: Spec, run: Run) -> float:
    """Seconds of one forward pass: batch 1, eval mode, median of 30 after a warm-up of 5.

    The weights are random: latency does not depend on them.
    """
    import torch

    from learngene_zoo.families.tensors import initial, model_of
    from learngene_zoo.runs.run import open_device

    device = open_device(run)
    model = model_of(spec, initial(spec, run.seed)).to(device)
    images_BCHW = torch.zeros(1, spec.channels, spec.image_size, spec.image_size, device=device)
    seconds = []
    with torch.inference_mode():
        for _ in range(WARM_UP + REPEATS):
            started = time.perf_counter()
            model(images_BCHW)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[WARM_UP:])
