"""Two models on the same images: how each does, the difference with a paired interval, and what each costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.timm_model import TimmModel
from learngene_zoo.families.spec import InputFormat
from learngene_zoo.intervals import Gain, paired_gain
from learngene_zoo.latency import seconds_of
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import Evaluation, Judged, check_head, judge
from learngene_zoo.training.objectives import RESAMPLES, MeanIoU


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the two, measured."""

    evaluation: Evaluation
    params: int
    flops: int  # of one image, by the convention `exact`
    latency: float | None = None  # seconds of one image, if it was asked for


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` finds. `difference` is the second's value less the first's, with its 95 % interval."""

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
    """Both models on every image of a split, each with its own input size and normalisation.

    Accuracies: the interval is that of a mean of paired differences, whose variance comes from the images that only one of them
    gets right; `p` is McNemar's exact test of those. mIoU: from 1,000 resamplings of the images, the same for both models.
    Raises `WrongCall` if one of them does not have the classes of the task.
    """
    for model, which in ((first, "the first model"), (second, "the second model")):
        check_head(model, task, which, named="THAT_MODEL -o NEW ")
    (one, judged_one), (other, judged_other) = (_measured(model, task, split, run, timed) for model in (first, second))
    if task.dense:
        return Comparison(first=one, second=other, difference=_resampled(task, judged_one, judged_other), p=None)
    right_one, right_other = (np.array(contender.evaluation.correct) for contender in (one, other))
    lost, won = int((right_one & ~right_other).sum()), int((right_other & ~right_one).sum())
    gain = paired_gain([other.evaluation.correct], [one.evaluation.correct])
    return Comparison(first=one, second=other, difference=gain, p=mcnemar(lost, won), only_first=lost, only_second=won)


def mcnemar(lost: int, won: int) -> float:
    """The two-sided p of McNemar's exact test (1947): how likely a fair coin splits lost + won tosses at least as unevenly."""
    tosses, fewer = lost + won, min(lost, won)
    halves = tosses * math.log(2)
    logs = (
        math.lgamma(tosses + 1) - math.lgamma(k + 1) - math.lgamma(tosses - k + 1) - halves for k in range(fewer + 1)
    )
    return min(1.0, 2 * sum(map(math.exp, logs)))


def _measured(model: Descendant | TimmModel, task: Task, split: str, run: Run, timed: bool) -> tuple[Contender, Judged]:
    module = model.model()
    judged = judge(module, task, split, model.input_format, run)
    params, flops = cost_of(module, model.input_format)
    latency = seconds_of(module, model.input_format.channels, model.input_format.image_size, run) if timed else None
    return Contender(evaluation=judged.evaluation, params=params, flops=flops, latency=latency), judged


def cost_of(model: nn.Module, input_format: InputFormat) -> tuple[int, int]:
    """Parameters, and FLOPs of one image by the convention `exact` (`families.family`), counted while the model runs."""
    extra = 0

    def norm(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal extra
        extra += 5 * output.numel()

    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    hooks = [part.register_forward_hook(norm) for part in norms]
    device, size = next(model.parameters()).device, input_format.image_size
    try:
        with torch.no_grad(), flop_counter() as counter:
            model.eval()(torch.zeros(1, input_format.channels, size, size, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(tensor.numel() for tensor in model.parameters()), counter.get_total_flops() // 2 + extra


def flop_counter() -> FlopCounterMode:
    """PyTorch's counter of FLOPs (two for a multiply-add), which before version 2.15 does not know attention on the processor."""
    on_the_processor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return FlopCounterMode(display=False, custom_mapping={on_the_processor: _attention_flops})


def _attention_flops(
    query: torch.Size, key: torch.Size, value: torch.Size, *others: object, out_shape: object = None, **named: object
) -> int:
    """Of one attention, from the shapes (B, H, N, d) of its tensors: that of queries and keys, and that of weights and values."""
    return sdpa_flop_count(query, key, value)


def _resampled(task: Task, first: Judged, second: Judged) -> Gain:
    """The difference in mIoU; in every resampling both models have the same images."""
    metric, images = MeanIoU(task.classes), len(first.rows)
    draws = np.random.Generator(np.random.PCG64(derive_seed(0, "resampled images", images)))
    values = []
    for _ in range(RESAMPLES):
        drawn = draws.integers(images, size=images)
        one, other = (metric.value(judged.rows[drawn].sum(axis=0), images) for judged in (first, second))
        values.append(other - one)
    low, high = np.quantile(values, (0.025, 0.975))
    return Gain(second.evaluation.value - first.evaluation.value, float(low), float(high))
