"""Which descendant of which learngene suits given pictures, judged before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import WrongCall
from learngene_zoo.intervals import Gain, paired_gain, proportion
from learngene_zoo.method import Member
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.probes import compute_features, is_right_left_out


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A descendant that could be built, and what its untrained features say of the pictures."""

    learngene: str  # what it is built from, as the verbs take it
    member: Member
    probe: float  # share of the pictures that a linear probe names rightly, each left out in turn
    interval: tuple[float, float]  # 95 %, over the pictures
    images: int  # how many pictures
    difference: Gain  # the probe less that of the first candidate, on the same pictures

    @property
    def tied(self) -> bool:
        """Whether these pictures do not tell it from the first one."""
        return self.difference.low <= 0 <= self.difference.high


def spread(members: Iterable[Member], count: int) -> list[Member]:
    """At most `count` members from the smallest to the largest, in steps of their places by cost."""
    ordered = sorted(members, key=lambda member: member.cost())
    places = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int))
    return [ordered[place] for place in places]


def ranked(
    built: Iterable[tuple[str, Member, Descendant]],
    task: Task,
    run: Run,
    *,
    images: int | None,
    report: Callable[[str, Member, float], None] = lambda *_: None,
) -> list[Candidate]:
    """The descendants, best first, by a probe of the same training images of `task` (None: of all).

    A probe (see `training.probes.is_right_left_out`) says what the features know before any training; what a fine-tuning
    makes of them may rank otherwise. `report` hears of each as it is done. Raises `WrongCall` for a task with a class per pixel, and `BadData`.
    """
    if task.dense:
        raise WrongCall(f"{task.name} has a class for every pixel; what suits it cannot be told by a probe")
    found = []
    for name, member, descendant in built:
        right_N = probed(descendant, task, images, run)
        report(name, member, float(right_N.mean()))
        found.append((name, member, right_N))
    return in_order(found)


def in_order(probes: Iterable[tuple[str, Member, np.ndarray]]) -> list[Candidate]:
    """Candidates, best first, from what `probed` says of each; of equally good ones the cheapest first."""
    found = sorted(probes, key=lambda one: (-int(one[2].sum()), one[1].cost()))
    return [_candidate(name, member, right_N, found[0][2]) for name, member, right_N in found]


def _candidate(name: str, member: Member, right_N: np.ndarray, best_N: np.ndarray) -> Candidate:
    right, total = int(np.sum(right_N)), len(right_N)
    is_first = right_N is best_N  # it does not differ from itself, on these or any other images
    return Candidate(
        learngene=name,
        member=member,
        probe=right / total,
        interval=proportion(right, total),
        images=total,
        difference=Gain(0.0, 0.0, 0.0) if is_first else paired_gain([list(right_N)], [list(best_N)]),
    )


def probed(descendant: Descendant, task: Task, images: int | None, run: Run) -> np.ndarray:
    """Which of the task's training images the probe of a descendant's features names rightly, bool (N,)."""
    return is_right_left_out(
        compute_features(descendant.model(), task, "train", descendant.input_format, run, images=images)
    )
