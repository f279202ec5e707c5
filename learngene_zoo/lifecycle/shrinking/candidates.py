"""Choice of the descendants that `shrink` builds: methods without training, sizes near a budget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.latency import select_fitting
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Budget, Member, Target
from learngene_zoo.runs.progress import print_note
from learngene_zoo.text import format_count, format_seconds

# Methods in the order in which they get candidates; the others follow in alphabetical order.
# docs/inheritance.md and docs/real.md have the measurements.
ORDER = ("closed_form", "first_k", "weight_selection", "weight_subcloning", "pruning")
Offers = Mapping[str, Sequence[Member]]  # by the names of methods


@dataclass(frozen=True, kw_only=True)
class ShrinkCandidate:
    """A descendant that is built and probed."""

    method: str
    member: Member
    number: int  # from 1, in the order of building

    @property
    def name(self) -> str:
        """The name of its folder, which no other candidate has."""
        spec = self.member.spec
        return f"{self.number:02}-{self.method}-{spec.layers}x{spec.width}"

    @property
    def title(self) -> str:
        """The method and the size, as in the table."""
        return f"{self.method} {self.member.spec.layers}x{self.member.spec.width}"


def list_free_methods(spec: Spec) -> list[Method]:
    """Return the methods that extract a learngene from one model without training, in `ORDER`.

    Methods whose descendants inherit no tensors are left out.
    """
    methods = [method for method in METHODS.load_all()[0] if is_free(method, spec)]
    ranks = {name: rank for rank, name in enumerate(ORDER)}
    return sorted(methods, key=lambda method: (ranks.get(method.name, len(ranks)), method.name))


def is_free(method: Method, spec: Spec) -> bool:
    """Return whether a method extracts from one model of this shape, without training."""
    least, most = method.ancestries
    if not (method.inherits and least <= 1 and (most is None or most >= 1)):
        return False
    if spec.family not in method.families:
        return False
    try:
        method.extractor.outline([spec])
        return not any(work.trained for work in method.extractor.work([spec], [1]))
    except WrongCall:  # a shape that the method does not take
        return False


def list_offers(spec: Spec, classes: int, *, has_labels: bool = True) -> dict[str, list[Member]]:
    """Return the descendants of each method that have fewer parameters than the model itself.

    Args:
        spec: the shape of the pretrained model.
        classes: of the descendants' head.
        has_labels: whether extractions see labels. If not, methods that use them are left out with
            a note.

    Raises:
        WrongCall: if there is no method for such a model.
    """
    whole_size = count_cost(spec.with_(classes=classes, dense=False)).params
    target = Target(classes=classes, dense=False)
    methods = list_free_methods(spec)
    if not has_labels:
        methods = _leave_out_labelled(methods)
    offers = {}
    for method in methods:
        config = replace(method.extractor.outline([spec]), method=method.name)
        members = list_members(config, method.expander, target)
        smaller = [member for member in members if member.cost().params < whole_size]
        if smaller:
            offers[method.name] = smaller
    if not offers:
        raise WrongCall(
            "no method without training takes a model of this shape; `lgzoo list methods` shows "
            "the others"
        )
    return offers


def _leave_out_labelled(methods: Sequence[Method]) -> list[Method]:
    """Return the methods whose extractions use no labels, with a note that names the others."""
    names = [method.name for method in methods if method.tasks != "none" and method.uses_labels]
    if names:
        print_note(
            f"methods that need labels are left out: {', '.join(names)}", "methods without labels"
        )
    return [method for method in methods if method.name not in names]


def select_affordable(
    offers: Offers, budget: Budget, measure: Callable[[Spec], float]
) -> dict[str, list[Member]]:
    """Return the descendants of each method within the budget.

    Args:
        offers: the descendants of each method.
        budget: the bounds.
        measure: returns the latency of a shape in seconds. It is called for descendants that fit
            the other bounds; of those that differ in depth only, for a few.

    Raises:
        WrongCall: if none is fast enough.
    """
    fitting = {name: select_fitting(members, budget) for name, members in offers.items()}
    if budget.max_latency is not None:
        seconds: dict[Spec, float] = {}

        def measure_once(member: Member) -> float:
            if member.spec not in seconds:
                seconds[member.spec] = measure(member.spec)
            return seconds[member.spec]

        # If even the smallest ones take twice as long, the others are not measured.
        smallest = _list_smallest([member for members in fitting.values() for member in members])
        is_hopeless = all(measure_once(member) > 2 * budget.max_latency for member in smallest)
        if not is_hopeless:
            fitting = {
                name: _select_fast(members, budget.max_latency, measure_once)
                for name, members in fitting.items()
            }
        if smallest and (is_hopeless or not any(fitting.values())):
            raise WrongCall(
                f"no descendant takes at most {format_seconds(budget.max_latency)} per image on "
                f"this machine; the fastest measured one takes "
                f"{format_seconds(min(seconds.values()))}"
            )
    return {name: members for name, members in fitting.items() if members}


def describe_too_large(offers: Offers, fitting: Offers) -> str:
    """Return the methods without a descendant within the budget, with the size of the smallest one;
    "" if there are none.

    Args:
        offers: the descendants of each method.
        fitting: those within the budget, as `select_affordable` returns them.
    """
    names: dict[str, list[str]] = {}  # of methods, by the size of their smallest descendant
    for name, members in offers.items():
        if name not in fitting:
            size = format_count(min(member.cost().params for member in members))
            names.setdefault(size, []).append(name)
    if not names:
        return ""
    listed = "; ".join(f"{', '.join(of_size)} (from {size} on)" for size, of_size in names.items())
    return f"methods without a model within the budget, by parameters: {listed}"


def _list_smallest(members: Sequence[Member]) -> list[Member]:
    """Return the member of the fewest FLOPs, and the one of the fewest layers."""
    if not members:
        return []
    flops = {id(member): member.cost().flops for member in members}
    return [
        min(members, key=lambda member: flops[id(member)]),
        min(members, key=lambda member: (member.spec.layers, flops[id(member)])),
    ]


def _select_fast(
    members: Sequence[Member], most: float, measure: Callable[[Member], float]
) -> list[Member]:
    """Return the members with a latency of at most `most` seconds.

    Latency rises with depth, so that of members that differ in depth only, those by bisection are
    measured.
    """
    fast = []
    ordered = sorted(members, key=lambda member: (_name_shape_of_block(member), member.spec.layers))
    for _, group in groupby(ordered, key=_name_shape_of_block):
        depths = list(group)
        fast += depths[: bisect_right(depths, most, key=measure)]
    return fast


def _name_shape_of_block(member: Member) -> str:
    return repr((replace(member.spec, layers=1), sorted(member.settings.items())))


def choose_candidates(offers: Offers, count: int, *, is_spread: bool) -> list[ShrinkCandidate]:
    """Return at most `count` candidates: half of the first method, the others by turns.

    Args:
        offers: the descendants of each method within the budget.
        count: the maximum number of candidates.
        is_spread: choose sizes evenly from small to large. Otherwise the candidates are the largest
            ones: those that no other descendant of the method exceeds in every size.
    """
    from learngene_zoo.lifecycle.recommendation import MIN_SHARE, choose_evenly, list_largest

    largest = max(member.cost().params for members in offers.values() for member in members)
    queues = {
        name: list(members) if is_spread else list_largest(members, MIN_SHARE * largest)
        for name, members in offers.items()
    }
    chosen = []
    for name, share in _share_out({name: len(queue) for name, queue in queues.items()}, count):
        # Neither the smallest nor the largest of all sizes.
        members = (
            choose_evenly(queues[name], share + 2)[1:-1] if is_spread else queues[name][:share]
        )
        chosen += [(name, member) for member in members or queues[name][:share]]
    return [
        ShrinkCandidate(method=name, member=member, number=number)
        for number, (name, member) in enumerate(chosen, start=1)
    ]


def _share_out(lengths: Mapping[str, int], count: int) -> list[tuple[str, int]]:
    """Return the number of candidates of each method: half for the first, the rest by turns."""
    first, *others = [name for name, length in lengths.items() if length]
    shares = {first: min(lengths[first], -(-count // 2)), **dict.fromkeys(others, 0)}
    while sum(shares.values()) < count:
        unfilled = [name for name in others if shares[name] < lengths[name]]
        unfilled = unfilled or [name for name in (first,) if shares[name] < lengths[name]]
        if not unfilled:
            break
        for name in unfilled[: count - sum(shares.values())]:
            shares[name] += 1
    return [(name, share) for name, share in shares.items() if share]
