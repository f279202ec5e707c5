"""Where stitches lie: the numbers and the order of the released code, and what that code has no
rule for.
"""

from __future__ import annotations

import json
from pathlib import Path as FilePath

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.settings import from_json, to_json, with_settings
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.expand import derive_spec
from lgzoo_pool.paths import (
    BlockSpan,
    Path,
    Stitch,
    StitchLayout,
    pair_blocks,
    pair_blocks_as_released,
)

RELEASED = json.loads((FilePath(__file__).parents[1] / "data" / "snnet_release.json").read_text())[
    "rows"
]
DEIT = [f"timm:deit_{size}_patch16_224" for size in ("tiny", "small", "base")]
SIX = "(0,0)(0,1)(1,0)(1,1)(1,2)(2,1)(2,2)(2,3)(3,2)(3,3)(3,4)(4,3)(4,4)(4,5)(5,4)(5,5)"


def test_six_blocks_have_the_sixteen_pairs_of_the_pool_in_their_order() -> None:
    pairs = pair_blocks(6, 6)
    assert "".join(f"({pair.j},{pair.k})" for pair in pairs) == SIX
    assert [pair.window for pair in pairs] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("blocks", [2, 6, 9, 12])
def test_windows_of_two_are_every_pair_of_neighbours(blocks: int) -> None:
    pairs = pair_blocks(blocks, blocks)
    assert sorted((j, k) for j, k, _ in pairs) == [
        (j, k) for j in range(blocks) for k in range(blocks) if abs(j - k) <= 1
    ]
    assert len(pairs) == 3 * blocks - 2
    assert {window for _, _, window in pairs} == set(range(blocks - 1))
    for j, k, window in pairs:
        assert window == (min(j, k) if j != k else max(j - 1, 0))


def test_as_many_configurations_as_the_released_code_has() -> None:
    assert len(StitchLayout(depths=(12, 12, 12)).paths) == 71
    assert len(StitchLayout(depths=(12, 12)).paths) == 36
    assert len(StitchLayout(depths=(6, 6)).paths) == 18
    assert len(StitchLayout(depths=(9, 9)).paths) == 27
    assert len(StitchLayout(depths=(12, 12, 12)).stitches) == 22


def test_anchors_come_first_then_joint_by_joint() -> None:
    layout = StitchLayout(depths=(3, 3, 3))
    assert layout.joints == ((0, 1), (1, 2))
    assert layout.paths[:3] == tuple(Path((BlockSpan(anchor, 0, 3),)) for anchor in range(3))
    assert layout.paths[4] == Path((BlockSpan(0, 0, 1), BlockSpan(1, 1, 3)), (Stitch(0, 0),))
    assert layout.paths[-1] == Path((BlockSpan(1, 0, 3), BlockSpan(2, 2, 3)), (Stitch(1, 1),))
    assert layout.paths[-1].layers == 4
    assert Stitch(1, 0).name == "stitches.1.0"


def test_far_stitches_join_every_narrower_with_every_wider_and_lead_through_all() -> None:
    layout = StitchLayout(depths=(4, 4, 4), nearest=False)
    assert layout.joints == ((0, 1), (0, 2), (1, 2))
    through = [path for path in layout.paths if len(path.parts) == 3]
    ten = {(j, k) for j, k, _ in pair_blocks(4, 4)}
    assert len(through) == sum(k <= j for _, k in ten for j, _ in ten)
    assert len(layout.paths) == 3 + 3 * 10 + len(through)
    assert len(set(layout.paths)) == len(layout.paths)
    for path in through:
        first, second, third = path.parts
        assert [part.anchor for part in path.parts] == [0, 1, 2]
        assert first.start == 0
        assert third.stop == 4
        assert second.start < second.stop, "each anchor has a block of the path"
        assert [stitch.joint for stitch in path.stitches] == [0, 2]


def test_of_unequal_depths_the_window_slides_over_the_shallower() -> None:
    """Blocks of the deeper one stand where they would after shrinking: two beside each of the
    shallower.
    """
    pairs = pair_blocks(3, 6)
    assert {(j, k) for j, k, window in pairs if window == 0} == {
        (j, k) for j in (0, 1) for k in range(4)
    }
    assert {(j, k) for j, k, window in pairs if window == 1} == {
        (j, k) for j in (1, 2) for k in range(2, 6) if not (j == 1 and k < 4)
    }
    assert {(k, j, window) for j, k, window in pair_blocks(6, 3)} == set(pairs)
    for deep, shallow in [(5, 4), (12, 5)]:
        ends = {j for j, _, _ in pair_blocks(deep, shallow)}
        assert ends == set(range(deep)), "every block of the deeper one takes part"


def test_a_deeper_anchor_is_entered_as_in_the_released_code() -> None:
    """Its rule in its own words: each block of the deeper anchor is assigned to one of the
    shallower by nearest interpolation.
    """
    assert (
        "".join(f"({j},{k}){layer}" for j, k, layer in pair_blocks_as_released(3, 6))
        == "(0,1)0(1,2)0(1,3)1(2,4)1(2,5)2"
    )
    assert (
        len(pair_blocks_as_released(12, 24)),
        len({layer for _, _, layer in pair_blocks_as_released(12, 24)}),
    ) == (23, 12)
    assert (
        len(pair_blocks_as_released(6, 18)),
        len(pair_blocks(12, 24)),
        len({layer for _, _, layer in pair_blocks(12, 24)}),
    ) == (17, 68, 11)
    for front, end in ((2, 3), (2, 18), (6, 18), (9, 12), (12, 24), (12, 40)):
        numbers = torch.arange(front).float()[None, None]
        assigned = torch.nn.functional.interpolate(numbers, end).squeeze().long().tolist()
        entered = [(j, k) for j in range(front) for k in range(end) if assigned[k] == j and j < k]
        assert [(j, k, layer) for (j, k), layer in zip(entered, assigned)] == [
            *pair_blocks_as_released(front, end)
        ]


def test_only_anchors_of_unequal_depth_record_how_they_are_stitched() -> None:
    def details(*layers: int) -> StitchedDetails:
        widths = (16, 32, 48)
        specs = [
            ViTSpec(layers=n, width=w, heads=1, classes=3, image_size=16, patch_size=8)
            for n, w in zip(layers, widths)
        ]
        return StitchedDetails.from_specs(specs, unequal="released")

    deeper = details(3, 6)
    assert deeper.layout.pairs == (pair_blocks_as_released(3, 6),)
    assert to_json(deeper)["unequal"] == "released"
    assert details(6, 3).layout.pairs == (pair_blocks(6, 3),), (
        "the released code has no rule from deep to shallow"
    )
    assert "unequal" not in to_json(details(3, 3))
    before = {name: value for name, value in to_json(deeper).items() if name != "unequal"}
    assert from_json(StitchedDetails, before, "details").layout.pairs == (pair_blocks(3, 6),), (
        "as older learngenes were stitched"
    )


def test_windows_and_strides_of_other_sizes() -> None:
    assert len({window for _, _, window in pair_blocks(12, 12, 2, 2)}) == 6
    assert len(pair_blocks(12, 12, 2, 2)) == 24
    assert len(pair_blocks(12, 12, 1, 1)) == 12
    assert len(pair_blocks(4, 4, 4, 1)) == 16
    assert pair_blocks(1, 1) == ((0, 0, 0),)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": 0}, "window is 0"),
        ({"stride": -1}, "stride is -1"),
        ({"window": 40, "nearest": False}, "more than 10000 paths"),
    ],
)
def test_layouts_that_cannot_be_meant(options: dict[str, int], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        StitchLayout(depths=(40, 40, 40), **options)  # type: ignore[arg-type]


def test_the_released_table_to_the_last_parameter_and_flop() -> None:
    method = METHODS.load("snnet")
    legacy = with_settings(method.expander, {"legacy": True})
    rows = lifecycle.plan("snnet", ancestries=DEIT, expander=legacy, convention="fvcore")
    results = {row.settings["config"]: row.cost("fvcore") for row in rows}
    assert {row["config"]: (row["params"], row["flops"]) for row in RELEASED} == {
        number: (cost.params, cost.flops) for number, cost in results.items()
    }
    assert [row.cost("fvcore") for row in rows] == sorted(results.values()), "smallest first"
    exact = {row.settings["config"]: row.cost() for row in lifecycle.plan("snnet", ancestries=DEIT)}
    assert exact[3].params - results[3].params == 197 * 192 + 192
    assert exact[3].flops - results[3].flops == 5 * 197 * 384


def test_a_path_is_a_stitched_model_and_an_anchor_a_plain_one() -> None:
    specs = [find_architecture(name.removeprefix("timm:")) for name in DEIT]
    plain = [spec for spec in specs if spec is not None]
    layout = StitchLayout(depths=(12, 12, 12))
    assert [derive_spec(path, plain) for path in layout.paths[:3]] == plain
    made = derive_spec(layout.paths[24], plain)
    assert made.front == (Segment(layers=8, width=192, heads=3),)
    assert (made.layers, made.width, made.heads, made.final_norm) == (13, 384, 6, True)
    assert derive_spec(layout.paths[24], plain, legacy=True).final_norm is False
    assert derive_spec(layout.paths[2], plain, legacy=True) == plain[2], "anchors keep their norm"
    assert max(derive_spec(path, plain).layers for path in layout.paths) == 14
