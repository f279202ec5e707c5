"""Choice of a descendant within a budget, and the latency of a model on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import Convention, Cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.sizes import Budget, Member
from learngene_zoo.runs.progress import print_note, report_activity
from learngene_zoo.runs.run import Run
from learngene_zoo.text import count_noun, format_count, format_round_count, format_seconds

if TYPE_CHECKING:
    import torch
    from torch import nn

WARM_UP, REPEATS = 5, 30
BUSY = 1.5  # ratio of the median to the fastest pass, and of elapsed time to the processor's
LONG_ENOUGH = 0.5  # seconds of a measurement in which the share of the processor is known


def choose(
    members: Iterable[Member],
    budget: Budget,
    latency: Callable[[Member], float],
    convention: Convention = "exact",
) -> Member:
    """Return the member with the most parameters (then the most FLOPs) within the budget.

    Args:
        members: the candidates.
        budget: the bounds.
        latency: measures the seconds for one image. It is called for the smallest member that fits
            the other bounds, and unless that takes twice the bound, for the others, largest first,
            until one is fast enough.
        convention: how FLOPs are counted.

    Raises:
        WrongCall: if none fits; the message names the smallest.
    """
    ordered = sorted(members, key=lambda member: member.cost(convention), reverse=True)
    if not ordered:
        raise WrongCall(
            "this learngene has no descendant with these sizes; `lgzoo show` lists its sizes"
        )
    fitting = require_fitting(ordered, budget, convention)
    if budget.max_latency is None:
        return fitting[0]
    seconds = latency(fitting[-1])
    if seconds <= 2 * budget.max_latency:
        for member in fitting:
            seconds = latency(member)
            if seconds <= budget.max_latency:
                return member
    raise WrongCall(
        f"no descendant takes at most {format_seconds(budget.max_latency)} per image; "
        f"the smallest ({fitting[-1].spec.layers} layers) takes "
        f"{format_seconds(seconds)} on this machine"
    )


def require_fitting(
    members: Sequence[Member], budget: Budget, convention: Convention = "exact"
) -> list[Member]:
    """Return the members within the budget of parameters and FLOPs.

    Raises `WrongCall` if there are none.
    """
    fitting = select_fitting(members, budget, convention)
    if members and not fitting:
        raise refuse_all(members, describe_bounds(budget), convention)
    return fitting


def select_fitting(
    members: Iterable[Member], budget: Budget, convention: Convention = "exact"
) -> list[Member]:
    """Return the members within the budget of parameters and FLOPs, in their order."""
    return [member for member in members if _is_affordable(member, budget, convention)]


def _is_affordable(member: Member, budget: Budget, convention: Convention) -> bool:
    cost = member.cost(convention)
    return (budget.max_params is None or cost.params <= budget.max_params) and (
        budget.max_flops is None or cost.flops <= budget.max_flops
    )


def describe_bounds(budget: Budget) -> list[str]:
    """Return the bounds of parameters and FLOPs in words."""
    bounds = ((budget.max_params, "parameter"), (budget.max_flops, "FLOP"))
    return [
        f"{format_round_count(bound)} {unit if bound == 1 else f'{unit}s'}"
        for bound, unit in bounds
        if bound is not None
    ]


def refuse_all(
    members: Iterable[Member],
    bounds: Sequence[str],
    convention: Convention = "exact",
    describe: Callable[[Cost], str] = lambda cost: "",
    smallest: str = "the smallest",
) -> WrongCall:
    """Return the error that no member is within a budget; it names the smallest one.

    Args:
        members: the members.
        bounds: the bounds in words.
        convention: how FLOPs are counted.
        describe: returns a further size of a member in words, for bounds of that size.
        smallest: the words for the smallest member.
    """
    least = min(members, key=lambda member: member.cost(convention))
    cost = least.cost(convention)
    sizes = [
        f"{count_noun(least.spec.layers, 'layer')} of width {least.spec.width}",
        f"{format_count(cost.params)} parameters ({cost.params})",
        *filter(None, [describe(cost)]),
    ]
    return WrongCall(
        f"no descendant fits within {' and '.join(bounds)}; {smallest} has "
        f"{', '.join(sizes)} and {format_count(cost.flops)} FLOPs ({cost.flops})"
    )


@dataclass(frozen=True)
class Latency:
    """Seconds of one forward pass, and whether other programs disturbed the measurement."""

    seconds: float
    is_disturbed: bool = False


def measure_latency(spec: Spec, run: Run) -> Latency:
    """Measure one forward pass of a shape: batch 1, eval mode, median of 30 passes after 5.

    The weights are random: latency does not depend on them. See `time_forward`.
    """
    from learngene_zoo.families.tensors import build_model, initialise, make_example_inputs

    layers = count_noun(spec.layers, "layer")
    with report_activity(f"measuring the latency of {layers} of width {spec.width}"):
        return time_forward(
            build_model(spec, initialise(spec, run.seed)), make_example_inputs(spec, 1), run
        )


def time_forward(model: nn.Module, inputs: torch.Tensor, run: Run) -> Latency:
    """Measure one forward pass of a module in eval mode, as `measure_latency` does.

    On a processor that is shared with other programs the result is the fastest pass instead of the
    median, which is often several times longer, and a note is printed.
    """
    from statistics import median  # slow to import

    import torch

    from learngene_zoo.families.forward import compute_logits
    from learngene_zoo.runs.run import open_device

    device = open_device(run)
    model.to(device)
    inputs = inputs.to(device)
    seconds, before = list[float](), time.process_time()
    with torch.inference_mode():
        for _ in range(WARM_UP + REPEATS):
            started = time.perf_counter()
            compute_logits(model, inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    worked, passes = time.process_time() - before, seconds[WARM_UP:]
    if device.type != "cpu" or not _is_disturbed(passes, sum(seconds), worked):
        return Latency(median(passes))
    print_note(
        "the processor is busy with other programs, so latencies may be too long; measure again "
        "when it is idle",
        "busy processor",
    )
    return Latency(min(passes), is_disturbed=True)


def _is_disturbed(passes: Sequence[float], elapsed: float, worked: float) -> bool:
    """Return whether other programs took the processor during a measurement.

    Threads that wait for one another also use the processor, so its time alone does not show it.

    Args:
        passes: seconds of each pass.
        elapsed: seconds of all passes, with those of the warm-up.
        worked: seconds that the processor spent on them, summed over the threads.
    """
    from statistics import median

    return median(passes) > BUSY * min(passes) or elapsed > max(BUSY * worked, LONG_ENOUGH)
