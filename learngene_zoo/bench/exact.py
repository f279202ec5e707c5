"""Sums that need no experiment: the parameters that storing a learngene saves, and those of the smallest descendant. Cold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Each sum and what it comes to, in its unit."""
    for one in asked:
        params = params_of(one)
        yield one, saved(one, params) if one.quantity == "saved" else min(params.values()) / 1e6


def unit_of(one: Sum) -> str:
    """What a sum is counted in."""
    return "%" if one.quantity == "saved" else "M parameters"


def saved(one: Sum, params: Mapping[int, int]) -> float:
    """By how much the smallest descendant, which is what the learngene holds, is smaller than all of them together; per cent."""
    absent = [layers for layers in one.layers if layers not in params]
    if absent:
        raise WrongCall(f"{one.what}: {one.method} has no descendant with {absent[0]} layers; it has {sorted(params)}")
    return 100 * (1 - params[min(params)] / sum(params[layers] for layers in one.layers))


def params_of(one: Sum) -> dict[int, int]:
    """The parameters of the smallest descendant of every depth."""
    members = plan(
        one.method,
        extractor=extractor_of(one),
        ancestries=one.ancestries or ((one.ancestry,) if one.ancestry else ()),
        target=Target(classes=one.classes),
        convention=one.convention,
    )
    return {member.spec.layers: member.cost(one.convention).params for member in reversed(members)}


def extractor_of(one: Sum) -> Extractor:
    """The method's extractor with the settings told."""
    extractor = load(one.method).extractor
    return from_json(type(extractor), {**to_json(extractor), **one.settings}, f"settings of {one.what}")
