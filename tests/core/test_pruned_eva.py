"""Models of timm's `Eva` with fewer heads and with blocks of several sizes, and pruned models whose
pooling by attention keeps its sizes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from learngene_zoo.artifacts.descendant import Descendant, load_descendant
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.eva import host
from learngene_zoo.families.eva.names import ARCHITECTURES, convert_config
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.surgery import map_axes
from learngene_zoo.families.tensors import build_model, get_shapes, get_state_dict, initialise
from learngene_zoo.families.vit.host import read_spec
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.comparison import make_flop_counter
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.settings import from_json, to_json

TINY: dict[str, Any] = {"layers": 4, "width": 32, "heads": 4, "image_size": 32, "patch_size": 8}
DINOV3 = replace(ARCHITECTURES["vit_small_plus_patch16_dinov3"], **TINY, classes=5)
DINOV3 = replace(DINOV3, swiglu_multiple=1)
CORE = replace(ARCHITECTURES["vit_pe_core_tiny_patch16_384"], **TINY, classes=5, rope_reference=4)
CORE = replace(CORE, pool_heads=2)
EVA02 = replace(ARCHITECTURES["eva02_tiny_patch14_336"], **TINY, classes=5)
MIXED = replace(ARCHITECTURES["vit_small_patch16_rope_mixed_224"], **TINY, classes=5)
PLAIN = {"dinov3": DINOV3, "core": CORE, "eva02": EVA02, "mixed": MIXED}
FRONT = (
    Segment(layers=1, width=32, heads=2, attention_width=16, mlp_ratio=2.0, stitch=False),
    Segment(layers=2, width=32, heads=4, mlp_ratio=1.34375, stitch=False),  # 43 hidden neurons
)
NARROW = {name: spec.with_(heads=3, attention_width=24) for name, spec in PLAIN.items()}
UNEVEN = {name: NARROW[name].with_(front=FRONT) for name in ("dinov3", "core", "eva02")}
SIGLIP = ViTSpec(**TINY, classes=0, class_token=False, pool="map")
POOLED = {
    "narrow": SIGLIP.with_(heads=3, attention_width=24, pool_heads=4),
    "shallow": SIGLIP.with_(mlp_ratio=2.0, pool_mlp_ratio=4.0),
    "uneven": SIGLIP.with_(
        **{"heads": 3, "attention_width": 24, "pool_heads": 4, "mlp_ratio": 3.0},
        pool_mlp_ratio=4.0,
        front=FRONT,
    ),
}
MODELS: dict[str, PictureSpec] = {
    **{f"{name}-narrow": spec for name, spec in NARROW.items()},
    **{f"{name}-uneven": spec for name, spec in UNEVEN.items()},
    **{f"siglip-{name}": spec for name, spec in POOLED.items()},
}
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
several = pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)


@several
def test_tensors_spec_and_cost_are_those_of_the_built_model(spec: PictureSpec) -> None:
    model = build_model(spec, initialise(spec, 0))
    assert [(name, tuple(tensor.shape)) for name, tensor in get_state_dict(model).items()] == list(
        get_shapes(spec).items()
    )
    assert count_cost(spec).params == sum(tensor.numel() for tensor in model.parameters())
    read = host.read_spec(model) if isinstance(spec, EvaSpec) else read_spec(model)
    assert get_shapes(read) == get_shapes(spec)
    assert [(part.heads, part.heads_width, part.hidden) for part in read.segments] == [
        (part.heads, part.heads_width, part.hidden) for part in spec.segments
    ]
    assert from_json(type(spec), to_json(spec), "spec") == spec
    assert not spec.plain
    assert not spec.stitched


@several
def test_flops_of_the_matrices_are_counted(spec: PictureSpec) -> None:
    flops = {}
    for spec_of_depth in (spec, replace(spec, front=(), layers=1)):  # type: ignore[call-arg]
        model = (
            build_model(spec_of_depth, initialise(spec_of_depth, 0)).eval().requires_grad_(False)
        )
        for block in model.blocks:
            block.attn.fused_attn = False  # the counter sees its two products
        if model.attn_pool is not None:
            model.attn_pool.fused_attn = False
        with make_flop_counter() as counter, torch.no_grad():
            model(IMAGES_BCHW[:1])
        flops[spec_of_depth.layers] = counter.get_total_flops() // 2
        flops[-spec_of_depth.layers] = count_cost(spec_of_depth).flops
    norms = 5 * 2 * spec.tokens * spec.width * (spec.layers - 1)
    assert flops[-4] - flops[-1] == flops[4] - flops[1] + norms


@pytest.mark.parametrize("name", PLAIN)
def test_heads_that_nothing_reads_may_as_well_be_gone(name: str) -> None:
    """A model without a head equals the full model whose projection ignores this head."""
    spec, narrow = PLAIN[name], NARROW[name]
    full = dict(initialise(spec, 0, "fan_in"))
    cut = map_axes(full, spec, {"heads": [0, 1, 3]})
    for block in range(spec.layers):
        full[f"blocks.{block}.attn.proj.weight"][:, 16:24] = 0
    with torch.no_grad():
        got, wanted = (
            build_model(shape, state).eval()(IMAGES_BCHW)
            for shape, state in ((narrow, cut), (spec, full))
        )
    assert (got - wanted).abs().max() < 1e-6
    assert got.abs().max() > 1e-4


@several
def test_a_saved_one_is_opened_by_timm_and_by_us(tmp_path: Path, spec: PictureSpec) -> None:
    model = Descendant(
        spec=spec, state=initialise(spec, 0, "fan_in"), provenance={"method": "scratch"}
    )
    model.save(tmp_path / "m")
    assert load_descendant(tmp_path / "m").spec == spec
    opened = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(opened(IMAGES_BCHW), build_model(spec, model.state).eval()(IMAGES_BCHW))
    with pytest.raises(WrongCall, match="a model whose blocks were pruned"):
        read_ancestry_spec(str(tmp_path / "m"))


def test_pruned_models_may_be_dense() -> None:
    spec = UNEVEN["dinov3"].with_(dense=True)
    model = build_model(spec, initialise(spec, 0)).eval()
    assert model(IMAGES_BCHW).shape == (2, 5, 32, 32)
    assert host.read_spec(model).dense


@pytest.mark.parametrize(
    ("spec", "changes", "words"),
    [
        (MIXED, {"front": FRONT, "heads": 3, "attention_width": 24}, "learned frequencies"),
        (DINOV3, {"front": (Segment(layers=1, width=32, heads=4),)}, "have no stitches"),
        (
            DINOV3,
            {"front": (Segment(layers=1, width=16, heads=2, stitch=False),)},
            "have the same width",
        ),
        (
            DINOV3,
            {"front": (Segment(layers=1, width=32, heads=2, stitch=False),)},
            "have the same number of channels",
        ),
        (DINOV3, {"front": (replace(FRONT[0], layers=4),)}, "every segment needs at least 1"),
        (DINOV3, {"attention_width": 0}, "attention_width is 0"),
        (
            DINOV3,
            {"attention_width": 30, "heads": 5},
            "5 heads of a width of 30 have 6; choose other heads",
        ),
        (SIGLIP, {"attention_width": 24, "heads": 3}, "name pool_heads"),
        (SIGLIP, {"attention_width": 24, "heads": 3, "pool_heads": 5}, "5 heads do not divide"),
    ],
)
def test_what_cannot_be_is_refused(spec: PictureSpec, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongCall, match=words):
        spec.with_(**changes)


def test_a_file_with_other_segments_is_refused() -> None:
    with pytest.raises(BadFile, match=r"each \[layers, width, heads\]"):
        convert_config("learngene_pruned_eva", {"front": [[1, 32]]}, "config.json")
    with pytest.raises(BadFile, match="model_args has 'front', which is not supported"):
        convert_config("vit_small_patch16_dinov3", {"front": [[1, 32, 2]]}, "config.json")


def test_blocks_have_the_stochastic_depth_of_timms() -> None:
    spec = NARROW["dinov3"]
    model = host.create(spec, drop_path_rate=0.3)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
