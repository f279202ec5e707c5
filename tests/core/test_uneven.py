"""Models whose blocks have several sizes without stitches, and attention of another width than
theirs: as pruning produces them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from learngene_zoo.artifacts.descendant import Descendant, load_descendant
from learngene_zoo.cli.plan import format_front
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.surgery import map_axes
from learngene_zoo.families.tensors import build_model, get_shapes, get_state_dict, initialise
from learngene_zoo.families.vit.host import read_spec
from learngene_zoo.families.vit.modules import StitchedBlock
from learngene_zoo.families.vit.names import convert_config, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.comparison import make_flop_counter
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.settings import from_json, to_json

PLAIN = ViTSpec(layers=4, width=32, heads=4, image_size=32, patch_size=8, classes=5)
NARROW = PLAIN.with_(heads=3, attention_width=24)  # a head less in every block
FRONT = (
    Segment(layers=1, width=32, heads=2, attention_width=16, mlp_ratio=2.0, stitch=False),
    Segment(layers=2, width=32, heads=4, mlp_ratio=3.34375, stitch=False),  # a hidden width of 107
)
UNEVEN = NARROW.with_(front=FRONT)
STITCHED = UNEVEN.with_(
    front=(Segment(layers=1, width=16, heads=3, attention_width=24), *FRONT[1:])
)
MODELS = {"narrow": NARROW, "uneven": UNEVEN, "stitched": STITCHED}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"qk_norm": True},
    {"scale_norms": True},
    {"qkv_bias": False, "proj_bias": False, "layer_scale": 0.1},
    {"dense": True},
    {"mlp": "swiglu"},
    {"class_token": False, "pool": "avg", "mlp_ratio": 2.7},
]
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_tensors_spec_and_cost_are_those_of_the_built_model(
    changes: dict[str, Any], spec: ViTSpec
) -> None:
    spec = spec.with_(**changes)
    model = build_model(spec, initialise(spec, 0))
    assert [(name, tuple(tensor.shape)) for name, tensor in get_state_dict(model).items()] == list(
        get_shapes(spec).items()
    )
    assert count_cost(spec).params == sum(tensor.numel() for tensor in model.parameters())
    spec_of_model = read_spec(model)
    assert get_shapes(spec_of_model) == get_shapes(spec)
    assert [(part.heads, part.heads_width, part.hidden) for part in spec_of_model.segments] == [
        (part.heads, part.heads_width, part.hidden) for part in spec.segments
    ]
    assert from_json(ViTSpec, to_json(spec), "spec") == spec


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_flops_of_the_matrices_are_counted(spec: ViTSpec) -> None:
    model = build_model(spec, initialise(spec, 0)).eval()
    for block in model.blocks:
        block.attn.fused_attn = False  # the counter sees its two products
    with make_flop_counter() as counter, torch.no_grad():
        model(IMAGES_BCHW[:1])
    norms = (
        5 * spec.tokens * (2 * sum(part.layers * part.width for part in spec.segments) + spec.width)
    )
    assert count_cost(spec).flops == counter.get_total_flops() // 2 + norms


def test_heads_that_nothing_reads_may_as_well_be_gone() -> None:
    """A model without a head equals the full model whose projection ignores this head."""
    full = initialise(PLAIN, 0, "fan_in")
    cut = map_axes(full, PLAIN, {"heads": [0, 1, 3]})
    for block in range(PLAIN.layers):
        full[f"blocks.{block}.attn.proj.weight"][:, 16:24] = 0
    with torch.no_grad():
        got, wanted = (
            build_model(spec, state).eval()(IMAGES_BCHW)
            for spec, state in ((NARROW, cut), (PLAIN, full))
        )
    assert (got - wanted).abs().max() < 1e-6
    assert got.abs().max() > 0.1


def test_only_where_the_widths_differ_is_a_stitch() -> None:
    kinds = {
        name: [
            type(block) is StitchedBlock for block in build_model(spec, initialise(spec, 0)).blocks
        ]
        for name, spec in MODELS.items()
    }
    assert kinds == {
        "narrow": [False] * 4,
        "uneven": [False] * 4,
        "stitched": [False, True, False, False],
    }
    assert [(spec.stitched, spec.plain) for spec in (PLAIN, *MODELS.values())] == [
        (False, True),
        (False, False),
        (False, False),
        (True, False),
    ]
    assert PLAIN.with_(heads=8, attention_width=32).plain
    assert format_front(UNEVEN) == "1x32/16/64+2x32/32/107"
    assert format_front(STITCHED) == "1x16+2x32/32/107"


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_a_saved_one_is_opened_by_timm_and_by_us(tmp_path: Path, spec: ViTSpec) -> None:
    model = Descendant(
        spec=spec, state=initialise(spec, 0, "fan_in"), provenance={"method": "scratch"}
    )
    model.save(tmp_path / "m")
    assert load_descendant(tmp_path / "m").spec == spec
    opened = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(opened(IMAGES_BCHW), build_model(spec, model.state).eval()(IMAGES_BCHW))
    with pytest.raises(WrongCall, match=r"pruned|stitched model \(widths 16, 32, 32\)"):
        read_ancestry_spec(str(tmp_path / "m"))


def test_what_cannot_be_is_refused() -> None:
    for changes, words in {
        (("attention_width", 30), ("heads", 4)): "4 heads do not divide a width of 30; try 3",
        (("attention_width", 0),): "attention_width is 0",
        (
            ("attention_width", 24),
            ("heads", 3),
            ("pool", "map"),
        ): "pool 'map' needs heads that together are as wide",
        (
            ("front", (Segment(layers=1, width=16, heads=2, stitch=False),)),
        ): "segments of widths 16 and 32 need a stitch between them",
        (("attention_width", 24), ("heads", 3), ("post_norm", True)): "post_norm needs mlp 'mlp'",
    }.items():
        with pytest.raises(WrongCall, match=words):
            PLAIN.with_(**dict(changes))
    bad = {**list_arguments(UNEVEN), "front": [[1, 32, 2, 16]]}
    with pytest.raises(
        BadFile, match=r"each \[layers, width, heads\] or \[layers, width, heads, attention width"
    ):
        convert_config("learngene_stitched_vit", bad, "config.json")
