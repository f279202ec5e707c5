"""Ranking of descendants of several learngenes for given pictures, before any training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.intervals import Gain, compute_interval, compute_paired_gain
from learngene_zoo.lifecycle.rates import choose_fit
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.probes import compute_features, is_right_left_out

# Below a bound, a model with fewer parameters than this share of the largest one is not probed.
MIN_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class RankedDescendant:
    """A descendant that could be built, and the probe of its untrained features."""

    learngene: str  # a reference to it for the verbs; "in memory", "in memory 2" have none
    member: Member
    probe: float  # leave-one-out accuracy of a linear probe
    interval: tuple[float, float]  # 95 %, over the pictures
    images: int  # number of pictures
    difference: Gain  # the probe less that of the first candidate, on the same pictures

    @property
    def is_tied(self) -> bool:
        """Return whether these pictures do not distinguish it from the first one."""
        return self.difference.low <= 0 <= self.difference.high


def choose_evenly(members: Iterable[Member], count: int) -> list[Member]:
    """Return at most `count` members from the smallest to the largest.

    They are equally spaced in the order of cost.
    """
    ordered = sorted(members, key=lambda member: member.cost())
    indices = np.unique(
        np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)
    )
    return [ordered[index] for index in indices]


def list_largest(members: Sequence[Member], least: float) -> list[Member]:
    """Return the members that no other one exceeds, from the most expensive one on.

    A member exceeds another if it is at least as large in every size, and larger in one. Those with
    fewer than `least` parameters are left out.
    """
    sizes = {_list_sizes(member.spec) for member in members}
    largest = {size for size in sizes if not any(_exceeds(other, size) for other in sizes)}
    chosen = [
        member
        for member in members
        if _list_sizes(member.spec) in largest and member.cost().params >= least
    ]
    return sorted(chosen, key=lambda member: member.cost(), reverse=True)


def choose_largest(members: Sequence[Member], count: int) -> list[Member]:
    """Return at most `count` members: those that no other one exceeds, then the next largest.

    Those with fewer parameters than `MIN_SHARE` of the largest one are left out.
    """
    least = MIN_SHARE * max((member.cost().params for member in members), default=0)
    chosen: list[Member] = []
    remaining = list(members)
    while len(chosen) < count and (largest := list_largest(remaining, least)):
        chosen += largest
        remaining = [member for member in remaining if member not in largest]
    return chosen[:count]


def _list_sizes(spec: Spec) -> tuple[float, ...]:
    return spec.layers, spec.width, spec.heads, spec.mlp_ratio


def _exceeds(sizes: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return sizes != others and all(a >= b for a, b in zip(sizes, others))


def rank_descendants(
    descendants: Iterable[tuple[str, Member, Descendant]],
    task: Task,
    run: Run,
    *,
    images: int | None,
    report: Callable[[str, Member, float], None] = lambda *_: None,
) -> list[RankedDescendant]:
    """Rank descendants, best first, by a probe of the same training images of `task`.

    A probe (see `training.probes.is_right_left_out`) measures the features before any training; the
    order after fine-tuning may differ.

    Args:
        descendants: names of learngenes, members and their descendants.
        task: the task with the images.
        run: how to compute.
        images: number of training images. None: all.
        report: called after each probe with its result.

    Raises:
        WrongCall: for a task with a class per pixel.
        BadData: as the probe does.
    """
    if task.dense:
        raise WrongCall(
            f"{task.name} has a class for every pixel; a ranking needs one class for every image"
        )
    probes = []
    for name, member, descendant in descendants:
        right_N = probe_descendant(descendant, task, images, run)
        report(name, member, float(right_N.mean()))
        probes.append((name, member, right_N))
    return sort_candidates(probes)


def sort_candidates(probes: Iterable[tuple[str, Member, np.ndarray]]) -> list[RankedDescendant]:
    """Return the candidates, best first, from their probes; of equal ones the cheapest first."""
    ordered = sorted(probes, key=lambda item: (-int(item[2].sum()), item[1].cost()))
    return [
        _make_candidate(name, member, right_N, ordered[0][2]) for name, member, right_N in ordered
    ]


def _make_candidate(
    name: str, member: Member, right_N: np.ndarray, best_N: np.ndarray
) -> RankedDescendant:
    right, total = int(np.sum(right_N)), len(right_N)
    is_first = right_N is best_N  # The first candidate does not differ from itself.
    return RankedDescendant(
        learngene=name,
        member=member,
        probe=right / total,
        interval=compute_interval(right, total),
        images=total,
        difference=Gain(0.0, 0.0, 0.0)
        if is_first
        else compute_paired_gain([list(right_N)], [list(best_N)]),
    )


def probe_descendant(
    descendant: Descendant, task: Task, images: int | None, run: Run
) -> np.ndarray:
    """Return which training images a probe of a descendant classifies correctly, bool (N,).

    The images are cropped, padded or stretched as for a fine-tuning.
    """
    descendant = descendant.with_fit(choose_fit(descendant, task))
    return is_right_left_out(
        compute_features(
            descendant.model(), task, "train", descendant.input_format, run, images=images
        )
    )
