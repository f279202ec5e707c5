"""Compare an exported file with the module that it was written from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.errors import Refused, TrainingFailed
from learngene_zoo.families.forward import compute_logits, get_classifier
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat, Tokens
from learngene_zoo.lifecycle.training_warnings import describe_few
from learngene_zoo.pretrained.exported import Dtype
from learngene_zoo.runs.progress import print_note, report_activity
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.text import name_option
from learngene_zoo.training.evaluate import evaluate_each

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task

Runner = Callable[[Any], torch.Tensor]  # images_BCHW or `Tokens` -> logits, on the CPU

BATCHES = (1, 2, 5)  # sizes that are compared with the module
MAX_LENGTH = 32  # tokens of the texts that are compared
# The largest accepted difference, relative to the largest logit: many times the measured
# differences.
TOLERANCES: Mapping[Dtype, float] = {"fp32": 1e-4, "fp16": 2e-2}
MAX_FEATURES, FEATURE_BATCH = 256, 16  # inputs whose features in int8 are compared
WARM_UP, REPEATS = 5, 30


def compute_outputs(model: nn.Module, inputs: Any) -> torch.Tensor:
    """Return what a file of a module returns: its logits, (B, K) or (B, K, H, W).

    Without classes they are the features, (B, D); of a sentence encoder whose ancestry model
    scales them to unit length, scaled.
    """
    logits = compute_logits(model, inputs)
    is_scaled = getattr(model, "normalize", False) and isinstance(
        get_classifier(model), nn.Identity
    )
    return functional.normalize(logits, dim=-1) if is_scaled else logits


def draw_inputs(
    model: nn.Module, form: InputFormat | TextFormat, count: int
) -> torch.Tensor | Tokens:
    """Return random images; or `Tokens`, of which text number i has (i + 1) / count of the length,
    and a second half of another type.
    """
    generator = torch.Generator().manual_seed(0)
    if not isinstance(form, TextFormat):
        return torch.randn(
            count, form.channels, form.image_size, form.image_size, generator=generator
        )
    config: Any = model.config
    length = min(form.tokens, MAX_LENGTH)
    lengths_B1 = (torch.arange(1, count + 1) * length // count).clamp(min=1)[:, None]
    places_T = torch.arange(length)
    mask_BT = (places_T < lengths_B1).long()
    ids_BT = torch.randint(config.vocab_size, (count, length), generator=generator)
    ids_BT = torch.where(ids_BT == form.pad, (form.pad + 1) % config.vocab_size, ids_BT)
    types_BT = (2 * places_T >= lengths_B1) * mask_BT
    return Tokens(torch.where(mask_BT == 1, ids_BT, form.pad), mask_BT, types_BT)


def _select(inputs: Any, count: int) -> Any:
    """Return the first inputs of a batch; texts without the padding that all of them have."""
    chosen = inputs[:count]
    if not isinstance(chosen, Tokens):
        return chosen
    length = int(chosen.mask.sum(dim=1).max())
    types = None if chosen.types is None else chosen.types[:, :length]
    return Tokens(chosen.ids[:, :length], chosen.mask[:, :length], types)


def measure_difference(
    model: nn.Module, runner: Runner, inputs: torch.Tensor | Tokens, dtype: Dtype
) -> float:
    """Return the largest difference of a logit over `BATCHES`.

    Raises `TrainingFailed` if it is beyond rounding.
    """
    worst = largest = 0.0
    with torch.no_grad():
        for size in BATCHES:
            chosen = _select(inputs, size)
            expected, logits = compute_outputs(model, chosen), runner(chosen)
            if logits.shape != expected.shape or not torch.isfinite(logits).all():
                raise TrainingFailed(
                    "the logits of the file are not finite or have another shape than those of "
                    f"the model (batch of {size}); nothing was written"
                )
            worst = max(worst, float((logits - expected).abs().max()))
            largest = max(largest, float(expected.abs().max()))
    if dtype in TOLERANCES and worst > TOLERANCES[dtype] * max(1.0, largest):
        raise TrainingFailed(
            f"the logits of the file differ from those of the model by up to {worst:.2g}; nothing "
            "was written"
        )
    return worst


def measure_file(
    descendant: Descendant | TimmModel,
    model: nn.Module,
    runner: Runner,
    task: Task,
    max_drop: float,
    run: Run,
) -> dict[str, Any]:
    """Evaluate an int8 file and its module on the validation split of a task.

    Raises `Refused` if the metric of the file is lower by more than `max_drop`.
    """

    def answers(inputs: Any) -> Iterator[torch.Tensor]:
        yield compute_outputs(model, inputs)
        yield runner(inputs)

    run = replace(run, device="cpu")  # on which the file runs
    judged = evaluate_each(answers, model, task, "validation", descendant.input_format, run)
    module, file = (result.evaluation for result in judged)
    if module.value - file.value > max_drop:
        raise Refused(
            f"in int8 the {file.metric} on {file.images} validation {task.sample_noun}s of "
            f"{task.name} falls "
            f"from {module.value:.3f} to {file.value:.3f}, by more than {max_drop:g} "
            f"({name_option('max_drop')}); nothing was written; try {name_option('dtype', 'fp16')}"
        )
    few = describe_few({"validation_images": file.images}, task.sample_noun)
    if few:
        print_note(f"the {file.metric} in int8 was compared on {few}", "few images for int8")
    return {
        "task": task.name,
        "metric": file.metric,
        "value": file.value,
        "model_value": module.value,
        "images": file.images,
    }


def measure_features(
    descendant: Descendant | TimmModel,
    model: nn.Module,
    runner: Runner,
    data: Task,
    max_drop: float,
    run: Run,
) -> dict[str, Any]:
    """Compare the features of an int8 file with those of the module by their mean cosine.

    Args:
        descendant: a model without classes.
        model: its module.
        runner: the file.
        data: images or texts, of which at most `MAX_FEATURES` training inputs are used.
        max_drop: the largest accepted fall of the cosine below 1.
        run: how to compute.

    Raises:
        Refused: if the cosine falls by more.
    """
    run = replace(run, device="cpu")  # on which the file runs
    loader = sample_images(
        data, "train", descendant.input_format, run, images=MAX_FEATURES, batch_size=FEATURE_BATCH
    )
    cosines: list[float] = []
    with torch.inference_mode(), report_activity("comparing features", loader.steps) as activity:
        for activity.num_done, batch in enumerate(loader.epoch(0), start=1):
            expected_BD, features_BD = compute_outputs(model, batch.inputs), runner(batch.inputs)
            cosines += functional.cosine_similarity(expected_BD, features_BD).tolist()
    value = statistics.fmean(cosines)
    if not 1 - value <= max_drop:
        raise Refused(
            f"in int8 the features of {len(cosines)} {data.sample_noun}s of {data.name} have a "
            f"mean cosine of {value:.4f} with those of the model, below 1 by more than "
            f"{max_drop:g} ({name_option('max_drop')}); nothing was written; try "
            f"{name_option('dtype', 'fp16')}"
        )
    return {
        "task": data.name,
        "metric": "cosine",
        "value": value,
        "model_value": 1.0,
        "images": len(cosines),
    }


def measure_latencies(
    model: nn.Module, runner: Runner, inputs: torch.Tensor | Tokens
) -> tuple[float, float]:
    """Return the median seconds of the module and of the file for one image or text.

    They take turns, so that other load affects both alike.
    """
    functions: tuple[Runner, ...] = (partial(compute_outputs, model), runner)
    seconds: tuple[list[float], ...] = ([], [])
    with torch.inference_mode():
        for _ in range(WARM_UP + REPEATS):
            for function, spent in zip(functions, seconds):
                started = time.perf_counter()
                function(inputs)
                spent.append(time.perf_counter() - started)
    module, file = (statistics.median(spent[WARM_UP:]) for spent in seconds)
    return module, file
