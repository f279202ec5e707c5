"""Comparison of two models on the same images: results, paired interval and costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.tensors import make_example_inputs
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.intervals import Gain, compute_paired_gain
from learngene_zoo.lifecycle.latency import time_forward
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.task import Task, check_inputs
from learngene_zoo.text import quote_path
from learngene_zoo.training.evaluate import (
    Evaluation,
    Judged,
    check_head,
    convert_rows,
    find_class_order,
    judge,
)
from learngene_zoo.training.objectives import NUM_RESAMPLES, choose_metric


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Results and costs of one of the compared models."""

    evaluation: Evaluation
    params: int
    flops: int  # of one image, by the convention `exact`
    latency: float | None = None  # seconds for one image, if measured


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of `compare`; `difference` is the second's value less the first's."""

    first: Contender
    second: Contender
    difference: Gain
    p: float | None  # McNemar's, exact, two-sided; None for mIoU
    only_first: int | None = None  # images that only the first model gets right; None for mIoU
    only_second: int | None = None


def compare(
    first: Descendant | TimmModel,
    second: Descendant | TimmModel,
    task: Task,
    split: str,
    run: Run,
    *,
    timed: bool = False,
) -> Comparison:
    """Evaluate both models on every image of a split, each with its input size and normalisation.

    For accuracies, the interval is that of a mean of paired differences, whose variance comes from
    the images that only one of them gets right; `p` is McNemar's exact test of those. For other
    metrics, the interval comes from 1,000 resamplings of the images, the same for both models.

    Args:
        first: a model.
        second: a model, whose value less that of `first` is the difference.
        task: the task with the images.
        split: "train", "validation" or "test".
        run: how to compute.
        timed: also measure latencies.

    Raises:
        WrongCall: if one of them does not have the classes of the task.
    """
    for model, other, which in (
        (first, second, "the first model"),
        (second, first, "the second model"),
    ):
        check_inputs(task, model.input_format)
        check_head(model, task, which, named=_name_at_size_of(model, other), any_order=True)
    (first_contender, first_judged), (second_contender, second_judged) = (
        _measure_model(model, task, split, run, timed) for model in (first, second)
    )
    if not first_contender.evaluation.correct:
        return Comparison(
            first=first_contender,
            second=second_contender,
            difference=_resample_gain(task, first_judged, second_judged),
            p=None,
        )
    first_right, second_right = (
        np.array(contender.evaluation.correct) for contender in (first_contender, second_contender)
    )
    lost, won = int((first_right & ~second_right).sum()), int((second_right & ~first_right).sum())
    gain = compute_paired_gain(
        [second_contender.evaluation.correct], [first_contender.evaluation.correct]
    )
    return Comparison(
        first=first_contender,
        second=second_contender,
        difference=gain,
        p=compute_mcnemar(lost, won),
        only_first=lost,
        only_second=won,
    )


def _name_at_size_of(model: Descendant | TimmModel, other: Descendant | TimmModel) -> str:
    """Return a model in a command line, with the image size of the other if it has another one."""
    folder = getattr(model, "folder", None)
    named = quote_path(folder) if folder else "MODEL"
    mine, size = (getattr(each.input_format, "image_size", None) for each in (model, other))
    return named if size in (mine, None) else f"{named} --image-size {size}"


def compute_mcnemar(lost: int, won: int) -> float:
    """Return the two-sided p of McNemar's exact test (1947).

    It is the probability that a fair coin splits lost + won tosses at least as unevenly.
    """
    tosses, fewer = lost + won, min(lost, won)
    halves = tosses * math.log(2)
    logs = (
        math.lgamma(tosses + 1) - math.lgamma(k + 1) - math.lgamma(tosses - k + 1) - halves
        for k in range(fewer + 1)
    )
    return min(1.0, 2 * sum(map(math.exp, logs)))


def _measure_model(
    model: Descendant | TimmModel, task: Task, split: str, run: Run, timed: bool
) -> tuple[Contender, Judged]:
    module = model.model()
    order = find_class_order(model, task)
    judged = judge(module, task, split, model.input_format, run, order)
    params, flops = count_cost(module, model.input_format)
    latency = (
        time_forward(module, make_example_inputs(model.input_format, 1), run).seconds
        if timed
        else None
    )
    return Contender(
        evaluation=judged.evaluation, params=params, flops=flops, latency=latency
    ), judged


def count_cost(model: nn.Module, input_format: InputFormat | TextFormat) -> tuple[int, int]:
    """Count parameters, and FLOPs of one input by the convention `exact` (`families.family`).

    FLOPs are counted while the model runs.
    """
    extra = 0

    def norm(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal extra
        extra += 5 * output.numel()

    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    hooks = [part.register_forward_hook(norm) for part in norms]
    inputs = make_example_inputs(input_format, 1, next(model.parameters()).device)
    try:
        with torch.no_grad(), make_flop_counter() as counter:
            compute_logits(model.eval(), inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(
        tensor.numel() for tensor in model.parameters()
    ), counter.get_total_flops() // 2 + extra


def make_flop_counter() -> FlopCounterMode:
    """Return PyTorch's counter of FLOPs (two for a multiply-add).

    Before version 2.15 it does not count attention on the CPU, which is added here.
    """
    on_the_processor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return FlopCounterMode(display=False, custom_mapping={on_the_processor: _count_attention})


def _count_attention(
    query: torch.Size,
    key: torch.Size,
    value: torch.Size,
    *rest: object,
    out_shape: object = None,
    **named: object,
) -> int:
    """Count one attention, from the shapes (B, H, N, d) of its tensors.

    Both products count: queries with keys, and weights with values.
    """
    return sdpa_flop_count(query, key, value)


def _resample_gain(task: Task, first: Judged, second: Judged) -> Gain:
    """Return the difference in the task's metric.

    Each resampling has the same images for both models.
    """
    metric, images = choose_metric(task), len(first.rows)
    rows = [convert_rows(metric, judged.rows) for judged in (first, second)]
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "resampled images", images)))
    values = []
    for _ in range(NUM_RESAMPLES):
        sample = draws.integers(images, size=images)
        first_value, second_value = (
            metric.value(rows_NR[sample].sum(axis=0), images) for rows_NR in rows
        )
        values.append(second_value - first_value)
    low, high = np.quantile(values, (0.025, 0.975))
    return Gain(second.evaluation.value - first.evaluation.value, float(low), float(high))
