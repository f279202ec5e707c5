"""Estimate of the time of `shrink`, from FLOPs and a measurement of about a second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from learngene_zoo.families.family import cost
from learngene_zoo.lifecycle.rates import FINETUNE
from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
from learngene_zoo.lifecycle.shrinking.request import ShrinkRequest
from learngene_zoo.method.contract import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import settings_of, with_settings

TRAINING_COST = 3  # forward passes that a step of training costs


def estimate_seconds(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], run: Run
) -> float:
    """Estimate the seconds of a call, from FLOPs and a measurement of about a second.

    Only passes of images through models count: an extraction's as its method states them, as many
    for each expansion of a method that uses images, those of the probes, the healing and the
    fine-tunings. The equations of closed-form methods and reading of images come on top.
    """
    spec = request.ancestry.spec
    original = cost(spec).flops
    probe_images = min(request.config.probe_images, request.images.sizes["train"])
    flops = float(original * probe_images)
    for name in {candidate.method for candidate in candidates}:
        extractor = METHODS.load(name).extractor
        pass_flops = original * sum(
            work.images * work.frozen / spec.layers
            for work in extractor.work([spec], [request.images.sizes["train"]])
        )
        flops += pass_flops * (1 + sum(candidate.method == name for candidate in candidates))
    sizes = sorted((candidate.member.cost().flops for candidate in candidates), reverse=True)
    flops += probe_images * sum(sizes)
    tried = sum(sizes[: request.config.tries])
    if request.config.is_healing(request.task):
        images = request.images.sizes["train"]
        flops += (
            request.config.heal_epochs
            * images
            * (TRAINING_COST * tried + original * request.config.tries)
        )
    if request.task is not None:
        recipe = with_settings(
            FINETUNE,
            {
                setting.name: request.tuning[setting.name]
                for setting in settings_of(FINETUNE)
                if request.tuning.get(setting.name, "auto") != "auto"
            },
        )
        images = min(recipe.images or request.task.sizes["train"], request.task.sizes["train"])
        seen = TRAINING_COST * images + request.task.sizes["validation"]
        flops += recipe.epochs * seen * tried
    return flops / _measure_rate(request, original, run)


def _measure_rate(request: ShrinkRequest, flops: int, run: Run, seconds: float = 1.0) -> float:
    """Return the FLOPs per second of forward passes of the original model, batch 8."""
    import torch

    from learngene_zoo.families.forward import compute_logits
    from learngene_zoo.families.tensors import example_inputs
    from learngene_zoo.runs.run import open_device

    device, spec = open_device(run), request.ancestry.spec
    model = request.ancestry.model().to(device)
    images = example_inputs(spec, 8, device)
    with torch.inference_mode():
        compute_logits(model, images)
        start, passes = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            compute_logits(model, images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            passes += 1
    return passes * len(images) * flops / (time.perf_counter() - start)
