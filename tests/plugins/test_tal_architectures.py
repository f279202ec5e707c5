"""The sets of architectures against the official generators, and scaled to a smaller ancestry."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import count_params
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.architectures import (
    FORMS,
    Rule,
    SetName,
    compute_mean_size,
    draw_architectures,
    draw_specs,
    pick_architecture,
    scale_rule,
)

OFFICIAL: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "tal" / "arch_generators.json").read_text(
        encoding="utf-8"
    )
)
NAMES: tuple[SetName, ...] = tuple(FORMS)
BUNDLED = ViTSpec(layers=12, width=96, heads=3, classes=326, image_size=32, patch_size=8)
BASE = ViTSpec(layers=12, width=768, heads=12)
STEPS = {"vits-1k": 32, "tal": 32, "tal+": 64}  # between the widths of the official generators


def build_rule(name: SetName) -> Rule:
    """Return the rule of a set as in the official code, for images of 32 pixels and ten classes."""
    bounds, layers = FORMS[name]
    three, up_to_five, more = (tuple(range(low, high + 1, STEPS[name])) for low, high in bounds)
    widths = {n: three if n == 3 else up_to_five if n <= 5 else more for n in layers}
    images = ViTSpec(layers=3, width=192, heads=3, image_size=32, patch_size=2, classes=10)
    return Rule(spec=images, widths=widths, patch_sizes=(2, 4))


@pytest.mark.parametrize("name", NAMES)
def test_the_first_draws_are_the_official_ones(name: SetName) -> None:
    draws = [
        (s.layers, s.width, s.heads, s.patch_size) for s in islice(draw_specs(build_rule(name)), 20)
    ]
    assert draws == [tuple(row) for row in OFFICIAL[name]["first20"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_draws_have_the_official_statistics(name: SetName) -> None:
    expected, specs = OFFICIAL[name], draw_architectures(build_rule(name))
    assert len(specs) == 1000
    assert len({(s.layers, s.width, s.heads) for s in specs}) == expected["n_unique_of_1000"]
    assert Counter(str(s.heads) for s in specs) == expected["heads_hist"]
    assert sorted({s.width for s in specs}) == expected["dims"]
    for key, image_settings in [
        ("params_M_patch16_224_1000", {"image_size": 224, "patch_size": 16, "classes": 1000}),
        ("params_M_patch2_32_10", {"image_size": 32, "patch_size": 2, "classes": 10}),
    ]:
        counts = [count_params(spec.with_(**image_settings)) / 1e6 for spec in specs]
        got = {"mean": fmean(counts), "std": pstdev(counts), "min": min(counts), "max": max(counts)}
        assert got == pytest.approx(expected[key], rel=1e-9)


def test_the_largest_of_tal_plus_is_vit_base() -> None:
    image_settings = {
        "image_size": BASE.image_size,
        "patch_size": BASE.patch_size,
        "classes": BASE.classes,
    }
    largest = max(
        (spec.with_(**image_settings) for spec in draw_architectures(build_rule("tal+"))),
        key=count_params,
    )
    assert (largest.layers, largest.width, count_params(largest)) == (12, 768, 86_567_656)


def test_scaled_to_the_bundled_ancestry_widths_are_whole_heads_of_its_own() -> None:
    tal, plus, logah = (scale_rule(name, BUNDLED) for name in ("tal", "tal+", "vits-1k"))
    deep, shallow = (32, 64, 96), (32, 64)
    assert tal.widths == {3: shallow, 4: shallow, 5: shallow, 6: deep, 7: deep, 8: deep, 9: deep}
    assert plus.widths == dict.fromkeys(range(3, 13), deep)
    assert logah.widths == {3: (64,), 4: shallow, 5: shallow, **dict.fromkeys(range(6, 10), (32,))}
    for rule in (tal, plus, logah):
        for spec in draw_architectures(rule, count=50):
            assert spec.head_width == 32
            assert (spec.image_size, spec.patch_size, spec.classes) == (32, 8, 326)


def test_scaled_to_vit_base_the_deeper_set_has_the_papers_sizes() -> None:
    assert scale_rule("tal+", BASE).widths == build_rule("tal+").widths
    assert {
        spec.head_width for spec in draw_architectures(scale_rule("tal+", BASE), count=100)
    } == {64}


@pytest.mark.parametrize(
    ("name", "scaled", "released"), [("vits-1k", 21, 80), ("tal", 52, 223), ("tal+", 100, 229)]
)
def test_sets_scaled_to_vit_base_have_fewer_architectures_than_the_released_ones(
    name: SetName, scaled: int, released: int
) -> None:
    shapes = [
        {(spec.layers, spec.width, spec.heads) for spec in draw_architectures(rule)}
        for rule in (scale_rule(name, BASE), build_rule(name))
    ]
    assert [len(sizes) for sizes in shapes] == [scaled, released]


@pytest.mark.parametrize(
    "ancestry", [BUNDLED, BASE, ViTSpec(layers=12, width=64, heads=1), BASE.with_(heads=6)]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_scaled_set_reaches_at_most_the_ancestrys_width(
    name: SetName, ancestry: ViTSpec
) -> None:
    rule = scale_rule(name, ancestry)
    assert all(widths for widths in rule.widths.values())
    assert all(ancestry.head_width <= width <= ancestry.width for _, width in rule.sizes)
    assert name == "vits-1k" or max(width for _, width in rule.sizes) == ancestry.width


def test_held_out_sizes_are_never_drawn_and_the_rest_keeps_its_order() -> None:
    rule = scale_rule("tal+", BUNDLED)
    every = draw_architectures(rule, count=400)
    left = draw_architectures(rule, hold_out=("12", "x32", "6x96"), count=100)

    def is_held_out(spec: ViTSpec) -> bool:
        return spec.layers == 12 or spec.width == 32 or (spec.layers, spec.width) == (6, 96)

    assert any(is_held_out(spec) for spec in every)
    assert left == tuple(spec for spec in every if not is_held_out(spec))[:100]
    assert {(s.layers, s.width) for s in left} == {
        (n, w) for n in range(3, 12) for w in (64, 96)
    } - {(6, 96)}


@pytest.mark.parametrize("text", ["", "x", "12x", "12x96x3", "12 x 96", "-3", "deep"])
def test_what_names_no_size_is_refused(text: str) -> None:
    with pytest.raises(WrongCall, match=r"expected a size to hold out: 12x96 .* got "):
        draw_architectures(scale_rule("tal", BUNDLED), hold_out=(text,))


def test_holding_everything_out_is_refused() -> None:
    with pytest.raises(WrongCall, match=r"x32, x64, x96 hold out every architecture of the set"):
        draw_architectures(scale_rule("tal", BUNDLED), hold_out=("x32", "x64", "x96"))


def test_a_set_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        WrongCall, match=r"no set of architectures named 'tal-'; did you mean tal\?"
    ):
        scale_rule("tal-", BASE)  # type: ignore[arg-type]


def test_each_pass_is_the_whole_set_in_an_order_of_its_own() -> None:
    specs = tuple(ViTSpec(layers=n, width=32, heads=1) for n in range(1, 21))
    first, second = (
        [pick_architecture(specs, 7, index) for index in range(start, start + 20)]
        for start in (0, 20)
    )
    assert set(first) == set(second) == set(specs)
    assert first != second
    assert first != [pick_architecture(specs, 8, index) for index in range(20)]
    assert (
        pick_architecture(specs, 7, 33) == second[13]
    )  # at any index, with nothing drawn before it


@pytest.mark.parametrize("hold_out", [(), ("12", "x16")])
def test_the_mean_size_is_that_of_many_draws(hold_out: tuple[str, ...]) -> None:
    rule = scale_rule("tal+", BUNDLED)
    drawn = [
        spec.layers * spec.width for spec in draw_architectures(rule, hold_out=hold_out, count=2000)
    ]
    assert compute_mean_size(rule, hold_out) == pytest.approx(sum(drawn) / len(drawn), rel=0.05)
