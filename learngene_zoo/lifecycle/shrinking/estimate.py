"""Estimate of the time of `shrink`, from FLOPs and a measurement of about a second.

Texts count with the number of tokens to which batches of training texts are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from learngene_zoo.families.family import count_cost
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.rates import FINETUNE
from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
from learngene_zoo.lifecycle.shrinking.request import ShrinkRequest
from learngene_zoo.method.contract import Work
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run, has_bf16
from learngene_zoo.settings import list_settings, with_settings
from learngene_zoo.text import format_seconds, name_option
from learngene_zoo.training.healing.settings import HEALING, MAX_HELD_OUT, MAX_PROBED
from learngene_zoo.training.speed import (
    HEAD_PASSES,
    LAYER_SECONDS,
    MEASURED_TEXTS,
    SOLVING_COST,
    TRAINING_COST,
    build_layer,
    measure_rate,
    shorten,
)

if TYPE_CHECKING:
    from torch import nn

LONG = 600.0  # seconds from which on a call states its estimate when it starts
# A call with fewer FLOPs than this many per second of `LONG` is not measured when it starts.
SLOWEST = 1e9
ADVISED_PIXELS = 224  # largest image size that is advised
MIN_SPEEDUP = 1.3  # of bfloat16 that is advised


def estimate_seconds(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], run: Run
) -> float:
    """Estimate the seconds of a call, from FLOPs and a measurement of about a second.

    What methods state about their extractions and expansions counts, with the equations that they
    solve, and the passes of probes, healing and fine-tuning. Reading images, measuring latencies
    and exporting come on top.
    """
    length = _measure_length(request)
    spec = shorten(request.ancestry.spec, length)
    flops = _count_flops(request, candidates, length)
    return _compute_seconds(flops, request.ancestry.model(), spec, run)


def describe_long_call(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], run: Run
) -> str:
    """Return a line about the time of a call that takes more than `LONG` seconds; "" of others.

    The estimate takes one or two seconds: one layer of the model is measured, in bfloat16 too. Of a
    model for which that takes longer, the line has only the advice about the image size.
    """
    seconds = _estimate_quickly(request, candidates, run)
    if seconds is None:
        return advise_image_size(request)
    if seconds <= LONG:
        return ""
    return "; ".join([f"about {format_seconds(seconds)} in all", *list_advice(request, run)])


def list_advice(request: ShrinkRequest, run: Run) -> list[str]:
    """Return what makes a long call shorter: a smaller image size, bfloat16."""
    advice = (advise_image_size(request), _advise_precision(request, run))
    return [text for text in advice if text]


def _advise_precision(request: ShrinkRequest, run: Run) -> str:
    """Return advice on bfloat16 if this device computes in it much faster, measured on a layer."""
    if run.precision != "fp32" or not has_bf16(run):
        return ""
    layer = _build_layer(request, _measure_length(request), run)
    if layer is None:
        return ""
    single, half = (
        measure_rate(*layer, each, LAYER_SECONDS) for each in (run, replace(run, precision="bf16"))
    )
    if half < MIN_SPEEDUP * single:
        return ""
    faster = name_option("precision", "bf16", of_run=True)
    return f"{faster} computes about {half / single:.1f} times as fast here"


def advise_image_size(request: ShrinkRequest) -> str:
    """Return advice on a smaller image size if the default is large; "" if a size was given."""
    spec = request.ancestry.spec
    if request.image_size is not None or not isinstance(spec, PictureSpec):
        return ""
    pixels = ADVISED_PIXELS // spec.patch_size * spec.patch_size
    if not 0 < pixels < spec.image_size:
        return ""
    share = round(spec.tokens / spec.with_(image_size=pixels).tokens)
    if share < 2:
        return ""
    return (
        f"images have {spec.image_size} pixels: {name_option('image_size', pixels)} needs about "
        f"1/{share} of the time"
    )


def _estimate_quickly(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], run: Run
) -> float | None:
    """Estimate the seconds from the speed of one layer; 0 of a short call, None if that is slow."""
    length = _measure_length(request)
    flops = _count_flops(request, candidates, length)
    if sum(flops) <= SLOWEST * LONG:
        return 0.0
    layer = _build_layer(request, length, run)
    return None if layer is None else _compute_seconds(flops, *layer, run, LAYER_SECONDS)


def _build_layer(
    request: ShrinkRequest, length: int | None, run: Run
) -> tuple[nn.Module, Spec] | None:
    """Return one layer of the original and its shape; None if it is too slow to be measured."""
    return build_layer(shorten(request.ancestry.spec, length), run)


class Flops(NamedTuple):
    """Multiply-adds of a call."""

    device: float  # of passes on the run's device
    processor: float  # of parts that run on the processor, in fp32, on every device


def _compute_seconds(
    flops: Flops, model: nn.Module, spec: Spec, run: Run, seconds: float = 1.0
) -> float:
    """Return the seconds of so many FLOPs. Arguments as for `measure_rate`."""
    from learngene_zoo.runs.run import open_device

    rate = measure_rate(model, spec, run, seconds)
    if open_device(run).type == "cpu" and run.precision != "bf16":
        return sum(flops) / rate
    processor = replace(run, device="cpu", precision="fp32")
    return flops.device / rate + flops.processor / measure_rate(model, spec, processor, seconds)


def _count_flops(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], length: int | None
) -> Flops:
    """Return the FLOPs of a call, with texts of `length` tokens."""
    original = count_cost(shorten(request.ancestry.spec, length)).flops
    shapes = [shorten(candidate.member.spec, length) for candidate in candidates]
    sizes = sorted((count_cost(shape).flops for shape in shapes), reverse=True)
    tries = min(request.config.tries, len(sizes))
    # With `max_drop` sizes differ, and it is not known which ones are tried.
    is_spread = request.config.max_drop is not None
    tried = sum(sizes) / len(sizes) if is_spread else sum(sizes[:tries]) / tries
    flops, processor = _count_building(request, candidates, original)
    flops += _count_probing(request, sizes, original)
    if request.config.is_healing(request.task):
        flops += tries * _count_healing(request, tried, original)
    if request.task is not None:
        flops += tries * _count_finetuning(request) * tried
    return Flops(flops, processor)


def _measure_length(request: ShrinkRequest) -> int | None:
    """Return the usual number of tokens of a text in a batch; None for images."""
    if not request.images.is_text:
        return None
    from learngene_zoo.tasks.texts.encoding import measure_length

    split: Any = request.images.split("train")
    texts = split.__getitems__(range(min(MEASURED_TEXTS, len(split))))
    return measure_length(texts, request.ancestry.input_format, FINETUNE.batch_size)


def _count_building(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], original: float
) -> Flops:
    """Return the FLOPs of extractions and expansions, as methods state them."""
    spec, images = request.ancestry.spec, [request.images.sizes["train"]]
    parts: list[Work] = []
    for name in {candidate.method for candidate in candidates}:
        method = METHODS.load(name)
        config = replace(method.extractor.outline([spec]), method=name)
        parts += method.extractor.work([spec], images)
        for candidate in candidates:
            if candidate.method == name:
                parts += method.expander.work(config, candidate.member.spec, images)
    flops = [0.0, 0.0]
    for part in parts:
        passes = original * part.images * part.frozen / spec.layers
        flops[part.solved > 0] += passes + SOLVING_COST * part.solved
    return Flops(*flops)


def _count_probing(request: ShrinkRequest, sizes: Sequence[float], original: float) -> float:
    """Return the FLOPs of the comparison of the original with all candidates."""
    most, task = request.config.probe_images, request.task
    images = min(most, request.images.sizes["train"])
    if task is None:
        images += min(most, request.images.sizes["validation"])
        return images * (original + sum(sizes))
    images = min(most, task.sizes["train"])
    judged = task.sizes["validation"] + task.sizes["test"]
    return (images + judged) * original + images * sum(sizes)


def _count_healing(request: ShrinkRequest, tried: float, original: float) -> float:
    """Return the FLOPs of the healing of a candidate: steps, and the examination of every epoch."""
    sizes, epochs = request.images.sizes, request.config.heal_epochs
    examined = min(HEALING.map_images, sizes["train"]) + min(MAX_HELD_OUT, sizes["validation"])
    flops = epochs * sizes["train"] * (TRAINING_COST * tried + original)
    flops += (epochs + 1) * examined * (tried + original)
    if request.task is not None:
        splits = (request.task.sizes[split] for split in ("train", "validation"))
        flops += (epochs + 1) * sum(min(MAX_PROBED, count) for count in splits) * tried
    return flops


def _count_finetuning(request: ShrinkRequest) -> float:
    """Return how many forward passes the fine-tuning of a candidate costs."""
    assert request.task is not None, "without one, nothing is fine-tuned"
    sizes = request.task.sizes
    named = {
        setting.name: request.tuning[setting.name]
        for setting in list_settings(FINETUNE)
        if request.tuning.get(setting.name, "auto") != "auto"
    }
    recipe = with_settings(FINETUNE, named)
    images = min(recipe.images or sizes["train"], sizes["train"])
    trained = recipe.epochs * TRAINING_COST * images + HEAD_PASSES * images
    return trained + (recipe.epochs + 1) * sizes["validation"] + sizes["test"]
