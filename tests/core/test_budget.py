"""A budget selects the member with the most parameters that fits, then the most FLOPs."""

import math
from typing import Any

import numpy as np
import pytest

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import Convention, Cost
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.latency import choose
from learngene_zoo.method.sizes import Budget, Member

BASE = ViTSpec(layers=12, width=192, heads=3, classes=10, image_size=32, patch_size=8)
DEPTHS = [Member(spec=BASE.with_(layers=layers)) for layers in (3, 5, 7, 9)]


def never(member: Member) -> float:
    raise AssertionError("no latency was asked for")


def seconds(member: Member) -> float:
    return member.spec.layers * 1e-3


def test_the_largest_that_fits_is_chosen() -> None:
    exact = DEPTHS[2].cost()
    assert choose(DEPTHS, Budget(max_params=exact.params), never) is DEPTHS[2]
    assert choose(DEPTHS, Budget(max_params=exact.params - 1), never) is DEPTHS[1]
    assert choose(DEPTHS, Budget(max_flops=exact.flops), never) is DEPTHS[2]


def test_several_bounds_hold_at_once() -> None:
    budget = Budget(max_params=DEPTHS[3].cost().params, max_flops=DEPTHS[1].cost().flops)
    assert choose(DEPTHS, budget, never) is DEPTHS[1]
    assert (
        choose(DEPTHS, Budget(max_params=DEPTHS[2].cost().params, max_latency=5e-3), seconds)
        is DEPTHS[1]
    )


def test_flops_decide_between_equal_parameters() -> None:
    class Priced(Member):
        def cost(self, convention: Convention = "exact") -> Cost:
            return Cost(1000, self.settings["flops"])

    slow, fast = (Priced(spec=BASE, settings={"flops": flops}) for flops in (70, 50))
    assert choose([fast, slow], Budget(max_params=1000), never) is slow
    assert choose([fast, slow], Budget(max_params=1000, max_flops=60), never) is fast


def test_latency_is_measured_from_large_to_small_and_no_further_than_needed() -> None:
    calls = []

    def watched(member: Member) -> float:
        calls.append(member.spec.layers)
        return seconds(member)

    assert choose(DEPTHS, Budget(max_latency=7.5e-3), watched) is DEPTHS[2]
    assert calls == [3, 9, 7], "the smallest one decides whether any other can fit"
    calls.clear()
    with pytest.raises(WrongCall, match="the smallest"):
        choose(DEPTHS, Budget(max_latency=1e-3), watched)
    assert calls == [3]


def test_bounds_are_read_as_by_name_and_refused_unless_they_are_finite_and_positive() -> None:
    wrong: Any = {"max_params": "1M", "max_flops": np.int64(7), "max_latency": "15ms"}
    assert Budget(**wrong) == Budget(max_params=1_000_000, max_flops=7, max_latency=0.015)
    for name, value in (
        ("max_latency", math.nan),
        ("max_latency", math.inf),
        ("max_latency", -1.0),
        ("max_params", 0),
        ("max_params", 1.5),
        ("max_params", "many"),
        ("max_flops", True),
    ):
        wrong = {name: value}
        with pytest.raises(WrongCall, match=rf"{name} is .*; expected|not a positive quantity"):
            Budget(**wrong)


def test_none_fits_says_the_smallest_there_is() -> None:
    with pytest.raises(WrongCall, match=rf"3 layers of width .*\({DEPTHS[0].cost().params}\)"):
        choose(DEPTHS, Budget(max_params=1000), never)
    with pytest.raises(WrongCall, match=r"3 layers.* takes 3ms"):
        choose(DEPTHS, Budget(max_latency=1e-4), seconds)
    with pytest.raises(WrongCall, match="no descendant with these sizes"):
        choose([], Budget(max_params=1000), never)
