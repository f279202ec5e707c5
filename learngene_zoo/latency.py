"""Which descendant fits a budget, and the latency of a model on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import Convention
from learngene_zoo.families.spec import Spec
from learngene_zoo.method import Budget, Member
from learngene_zoo.runs.run import Run
from learngene_zoo.text import human_count, human_seconds

if TYPE_CHECKING:
    from torch import nn

WARM_UP, REPEATS = 5, 30


def choose(
    members: Iterable[Member], budget: Budget, latency: Callable[[Member], float], convention: Convention = "exact"
) -> Member:
    """The member with the most parameters (then the most FLOPs) that fits the budget.

    `latency` measures the seconds that one image takes, from the largest member that fits otherwise to the smallest,
    until one is fast enough. Raises `WrongCall` if none fits, and names the smallest.
    """
    ordered = sorted(members, key=lambda member: member.cost(convention), reverse=True)
    if not ordered:
        raise WrongCall("this learngene has no descendant with these sizes; `lgzoo show` lists those that it has")
    affordable_ones = affordable(ordered, budget, convention)
    if budget.max_latency is None:
        return affordable_ones[0]
    for member in affordable_ones:
        seconds = latency(member)
        if seconds <= budget.max_latency:
            return member
    raise WrongCall(
        f"no descendant takes at most {human_seconds(budget.max_latency)} per image; "
        f"the smallest ({affordable_ones[-1].spec.layers} layers) takes {human_seconds(seconds)} on this machine"
    )


def affordable(members: Sequence[Member], budget: Budget, convention: Convention = "exact") -> list[Member]:
    """The members that have no more parameters and FLOPs than the budget. Raises `WrongCall` if none has."""
    found = fitting(members, budget, convention)
    if members and not found:
        raise _none_fits(sorted(members, key=lambda member: member.cost(convention), reverse=True), budget, convention)
    return found


def fitting(members: Iterable[Member], budget: Budget, convention: Convention = "exact") -> list[Member]:
    """The members that have no more parameters and FLOPs than the budget, in their order; maybe none."""
    return [member for member in members if _affordable(member, budget, convention)]


def _affordable(member: Member, budget: Budget, convention: Convention) -> bool:
    cost = member.cost(convention)
    return (budget.max_params is None or cost.params <= budget.max_params) and (
        budget.max_flops is None or cost.flops <= budget.max_flops
    )


def _none_fits(ordered: Sequence[Member], budget: Budget, convention: Convention) -> WrongCall:
    bounds = []
    if budget.max_params is not None:
        bounds.append(f"{human_count(budget.max_params)} parameters")
    if budget.max_flops is not None:
        bounds.append(f"{human_count(budget.max_flops)} FLOPs")
    least = ordered[-1].cost(convention)
    return WrongCall(
        f"no descendant fits within {' and '.join(bounds)}; the smallest has {ordered[-1].spec.layers} layers, "
        f"{human_count(least.params)} parameters ({least.params}) and {human_count(least.flops)} FLOPs ({least.flops})"
    )


def latency(spec: Spec, run: Run) -> float:
    """Seconds of one forward pass: batch 1, eval mode, median of 30 after a warm-up of 5.

    The weights are random: latency does not depend on them.
    """
    from learngene_zoo.families.tensors import initial, model_of

    return seconds_of(model_of(spec, initial(spec, run.seed)), spec.channels, spec.image_size, run)


def seconds_of(model: nn.Module, channels: int, image_size: int, run: Run) -> float:
    """The same of a module in eval mode."""
    import torch

    from learngene_zoo.runs.run import open_device

    device = open_device(run)
    model.to(device)
    images_BCHW = torch.zeros(1, channels, image_size, image_size, device=device)
    seconds = []
    with torch.inference_mode():
        for _ in range(WARM_UP + REPEATS):
            started = time.perf_counter()
            model(images_BCHW)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[WARM_UP:])
