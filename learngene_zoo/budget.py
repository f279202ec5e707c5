"""Choosing the descendant that a budget allows. Cold until a latency has to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from learngene_zoo.cost import Convention
from learngene_zoo.errors import WrongCall
from learngene_zoo.method import Member
from learngene_zoo.units import human_count, human_seconds


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper bounds; None is no bound. Parameters of the built model, FLOPs of one image, seconds for a batch of one."""

    max_params: int | None = None
    max_flops: int | None = None
    max_latency: float | None = None

    def __bool__(self) -> bool:
        return any(bound is not None for bound in (self.max_params, self.max_flops, self.max_latency))


def choose(
    members: Iterable[Member],
    budget: Budget,
    latency: Callable[[Member], float],
    convention: Convention = "exact",
) -> Member:
    """The member with the most parameters that fits (then the most FLOPs).

    `latency` gives the seconds one image takes; it is asked from the largest member that fits otherwise to the smallest,
    until one is fast enough. Raises `WrongCall` if none fits, and says the smallest there is.
    """
    ordered = sorted(members, key=lambda member: member.cost(convention), reverse=True)
    if not ordered:
        raise WrongCall("this learngene can build no descendant of the shape asked for")
    affordable = [member for member in ordered if _affordable(member, budget, convention)]
    if budget.max_latency is None:
        if affordable:
            return affordable[0]
        raise _none_fits(ordered, budget, convention)
    for member in affordable:
        seconds = latency(member)
        if seconds <= budget.max_latency:
            return member
    if not affordable:
        raise _none_fits(ordered, budget, convention)
    raise WrongCall(
        f"no descendant answers within {human_seconds(budget.max_latency)}; "
        f"the smallest ({affordable[-1].spec.layers} layers) takes {human_seconds(seconds)} on this machine"
    )


def _affordable(member: Member, budget: Budget, convention: Convention) -> bool:
    cost = member.cost(convention)
    return (budget.max_params is None or cost.params <= budget.max_params) and (
        budget.max_flops is None or cost.flops <= budget.max_flops
    )


def _none_fits(ordered: Sequence[Member], budget: Budget, convention: Convention) -> WrongCall:
    asked = []
    if budget.max_params is not None:
        asked.append(f"{human_count(budget.max_params)} parameters")
    if budget.max_flops is not None:
        asked.append(f"{human_count(budget.max_flops)} FLOPs")
    least = ordered[-1].cost(convention)
    return WrongCall(
        f"no descendant fits within {' and '.join(asked)}; the smallest there is has {ordered[-1].spec.layers} layers, "
        f"{human_count(least.params)} parameters ({least.params}) and {human_count(least.flops)} FLOPs ({least.flops})"
    )
