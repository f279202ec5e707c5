"""Sums that need no experiment: the parameters that storing a learngene saves. Cold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.bench.claim_file import Sum
from learngene_zoo.errors import WrongCall
from learngene_zoo.lifecycle import plan
from learngene_zoo.method import Target
from learngene_zoo.registry import load
from learngene_zoo.settings import from_json, to_json

if TYPE_CHECKING:
    from learngene_zoo.method import Extractor


def sums(asked: Sequence[Sum]) -> Iterator[tuple[Sum, float]]:
    """Each sum and what it comes to, in per cent."""
    for one in asked:
        yield one, saved(one)


def saved(one: Sum) -> float:
    """By how much the smallest descendant, which is what the learngene holds, is smaller than all of them together."""
    extractor = extractor_of(one)
    ancestries = (one.ancestry,) if one.ancestry else ()
    members = plan(
        one.method,
        extractor=extractor,
        ancestries=ancestries,
        target=Target(classes=one.classes),
        convention=one.convention,
    )
    params = {member.spec.layers: member.cost(one.convention).params for member in members}
    absent = [layers for layers in one.layers if layers not in params]
    if absent:
        raise WrongCall(f"{one.what}: {one.method} has no descendant with {absent[0]} layers; it has {sorted(params)}")
    return 100 * (1 - params[min(params)] / sum(params[layers] for layers in one.layers))


def extractor_of(one: Sum) -> Extractor:
    """The method's extractor with the settings told."""
    extractor = load(one.method).extractor
    return from_json(type(extractor), {**to_json(extractor), **one.settings}, f"settings of {one.what}")
