"""Stitched models: formula, names and initial values of tensors, spec of a module, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional

from learngene_zoo.errors import WrongCall
from learngene_zoo.families import tensors
from learngene_zoo.families.picture_spec import MAX_SEGMENTS
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.surgery import map_axes
from learngene_zoo.families.tensors import (
    build_empty,
    build_model,
    get_shapes,
    get_state_dict,
    initialise,
)
from learngene_zoo.families.vit.host import read_spec
from learngene_zoo.families.vit.modules import (
    StitchedBlock,
    StitchedDenseVisionTransformer,
    StitchedVisionTransformer,
)
from learngene_zoo.families.vit.names import ARCHITECTURE, STITCHED_ARCHITECTURE, list_arguments
from learngene_zoo.families.vit.spec import TABLE, ViTSpec
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.training.loop import make_parameter_groups, use_stochastic_depth

TWO = ViTSpec(
    layers=3,
    width=32,
    heads=4,
    image_size=32,
    patch_size=8,
    classes=5,
    front=(Segment(layers=1, width=16, heads=2),),
)
THREE = TWO.with_(
    layers=4, front=(Segment(layers=1, width=16, heads=2), Segment(layers=2, width=24, heads=3))
)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
VARIANTS: list[dict[str, Any]] = [
    {},
    {"class_token": False, "pool": "avg"},
    {"registers": 3},
    {"layer_scale": 0.1},
    {"qk_norm": True},
    {"pre_norm": True},
    {"final_norm": False},
    {"fc_norm": True},
    {"no_embed_class": True},
    {"mlp_ratio": 2.7},
    {"qkv_bias": False},
    {"proj_bias": False},
    {"dynamic_image_size": True},
    {"classes": 0},
    {"dense": True},
    {"dense": True, "pool": "avg", "class_token": False},
    {"norm_eps": 1e-5, "activation": "quick_gelu", "scale_norms": True},
    {"norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu", "embed_norm": True},
    {"mlp": "swiglu_packed"},
    {"pool": "map"},
]


def by_hand(spec: ViTSpec, state: StateDict) -> torch.Tensor:
    """Run stem, blocks, linear layer, blocks, norm and head, taken from plain models of each width."""
    start, tokens_BND = 0, torch.empty(0)
    for index, segment in enumerate(spec.segments):
        plain = build_model(
            segment, _own(segment, state, start, stem=index == 0, tail=index == len(spec.front))
        )
        if index == 0:
            tokens_BND = plain.norm_pre(plain._pos_embed(plain.patch_embed(IMAGES_BCHW)))
        else:
            stitch = f"blocks.{start}.stitch"
            tokens_BND = functional.linear(
                tokens_BND, state[f"{stitch}.weight"], state[f"{stitch}.bias"]
            )
        for block in plain.blocks:
            tokens_BND = block(tokens_BND)
        start += segment.layers
    return plain.forward_head(plain.norm(tokens_BND))


def _own(segment: ViTSpec, state: StateDict, start: int, *, stem: bool, tail: bool) -> StateDict:
    """Return the tensors of one segment, blocks counted from 0; unused ones are random."""
    own = initialise(segment, 99)
    for name in own:
        block = TABLE.block_of(name)
        if block is not None:
            own[name] = state[f"blocks.{start + block}.{TABLE.inner_name(name)}"]
        elif stem if TABLE.is_stem(name) else tail:
            own[name] = state[name]
    return own


@pytest.mark.parametrize("spec", [TWO, THREE], ids=["two segments", "three"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_it_is_its_segments_one_after_the_other(changes: dict[str, Any], spec: ViTSpec) -> None:
    spec = spec.with_(**changes)
    state = initialise(spec, 3, "fan_in")
    with torch.no_grad():
        got, expected = build_model(spec, state)(IMAGES_BCHW), by_hand(spec, state)
    assert got.abs().max() > 0
    assert (got - expected).abs().max().item() == 0.0


@pytest.mark.parametrize("spec", [TWO, THREE], ids=["two segments", "three"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_its_tensors_are_as_the_table_says_and_its_spec_can_be_read_off(
    changes: dict[str, Any], spec: ViTSpec
) -> None:
    spec = spec.with_(**changes)
    model = build_model(spec, initialise(spec, 0))
    assert [(name, tuple(tensor.shape)) for name, tensor in get_state_dict(model).items()] == list(
        get_shapes(spec).items()
    )
    spec_of_model = read_spec(model)
    assert [segment.hidden for segment in spec_of_model.segments] == [
        segment.hidden for segment in spec.segments
    ]
    assert spec_of_model.with_(mlp_ratio=spec.mlp_ratio) == spec
    kind = StitchedDenseVisionTransformer if spec.dense else StitchedVisionTransformer
    assert type(model) is kind


def test_where_the_stitches_are() -> None:
    model = build_empty(THREE)
    assert [type(block) is StitchedBlock for block in model.blocks] == [False, True, False, True]
    assert [
        tuple(block.stitch.weight.shape) for block in model.blocks if hasattr(block, "stitch")
    ] == [
        (24, 16),
        (32, 24),
    ]
    assert [block.attn.num_heads for block in model.blocks] == [2, 3, 3, 4]
    assert [info["num_chs"] for info in model.feature_info] == [16, 24, 24, 32]
    assert [segment.layers for segment in THREE.segments] == [1, 2, 1]
    assert (THREE.first.width, THREE.sizes[-1]) == (16, Segment(layers=1, width=32, heads=4))
    assert TABLE.find("blocks.2.stitch.bias") is not None
    assert not TABLE.is_stem("blocks.0.stitch.weight")


def test_a_model_of_one_width_stays_plain() -> None:
    plain = TWO.with_(front=())
    assert type(build_model(plain, initialise(plain, 0))) is VisionTransformer
    assert "front" not in list_arguments(plain)
    assert list_arguments(TWO)["front"] == [[1, 16, 2]]
    assert plain.sizes == (Segment(layers=3, width=32, heads=4),)


def test_timm_builds_it_with_its_own_initialisation() -> None:
    model = timm.create_model(STITCHED_ARCHITECTURE, **list_arguments(TWO))
    assert read_spec(model) == TWO
    assert model.blocks[1].stitch.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert model.blocks[1].stitch.bias.abs().sum() == 0
    assert model.pos_embed.shape == (1, 17, 16)
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.3)


def test_no_random_number_is_drawn() -> None:
    before = torch.random.get_rng_state()
    build_model(THREE, initialise(THREE, 0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_its_tensors_start_as_those_of_its_segments() -> None:
    wide = TWO.with_(width=256, heads=4, front=(Segment(layers=1, width=64, heads=2),))
    for scheme, deviation in (("timm", 0.02), ("fan_in", 64**-0.5)):
        initial_state = initialise(wide, 5, scheme)  # type: ignore[arg-type]
        assert initial_state["blocks.1.stitch.weight"].std().item() == pytest.approx(
            deviation, rel=0.05
        )
        assert initial_state["blocks.1.stitch.bias"].abs().sum() == 0
        first = initialise(wide.first, 5, scheme)  # type: ignore[arg-type]
        assert all(
            torch.equal(initial_state[name], first[name])
            for name in first
            if TABLE.is_stem(name) or TABLE.block_of(name) == 0
        )


def test_only_matrices_are_decayed_and_every_block_may_be_dropped() -> None:
    model = build_model(TWO, initialise(TWO, 0))
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    decayed, undecayed = (
        [names[id(p)] for p in group["params"]] for group in make_parameter_groups(model, Recipe())
    )
    assert "blocks.1.stitch.weight" in decayed
    assert "blocks.1.stitch.bias" in undecayed
    with use_stochastic_depth(model, 0.3):
        assert [
            getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks
        ] == pytest.approx([0, 0.15, 0.3])


def test_positions_are_resized_and_nothing_else() -> None:
    state, larger = initialise(TWO, 0), TWO.with_(image_size=48)
    resized = tensors.resize_positions(state, TWO, larger)
    assert resized["pos_embed"].shape == (1, 37, 16)
    assert all(resized[name] is state[name] for name in state if name != "pos_embed")
    expected = tensors.resize_positions(state, TWO.first, larger.first)["pos_embed"]
    assert torch.equal(resized["pos_embed"], expected)


def test_no_axis_is_cut_through_all_widths_at_once() -> None:
    with pytest.raises(WrongCall, match="got one of several segments"):
        map_axes(initialise(TWO, 0), TWO, {"hidden": range(4)})
    plain = TWO.with_(front=())
    with pytest.raises(WrongCall, match=r"blocks\.1\.stitch\.weight is not a tensor of this model"):
        map_axes({"blocks.1.stitch.weight": torch.zeros(32, 16)}, plain, {"width": range(4)})


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ([(3, 16, 2)], "the segments in front have 3 of 3 layers"),
        ([(1, 16, 2), (2, 24, 3)], r"have 1 \+ 2 of 3 layers"),
        ([(0, 16, 2)], "every segment needs at least 1"),
        ([(1, 16, 3)], "3 heads do not divide a width of 16"),
        ([(1, 0, 1)], "width is 0"),
        ([(1, 10**7, 1)], "width is 10000000"),
        ([(1, 16, 2)] * MAX_SEGMENTS, "there are 33 segments; a stitched model has at most 32"),
    ],
    ids=str,
)
def test_impossible_segments_are_refused(front: list[tuple[int, int, int]], message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        TWO.with_(
            front=tuple(
                Segment(layers=layers, width=width, heads=heads) for layers, width, heads in front
            )
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.blocks[1].mlp, "act", nn.ReLU()), r"ReLU\(\) for blocks.1.mlp.act"),
        (lambda m: setattr(m.blocks[0], "attn", nn.Identity()), r"Identity for blocks.0.attn"),
        (lambda m: setattr(m.blocks[2], "mlp", nn.Identity()), r"Identity for blocks.2.mlp"),
        (
            lambda m: setattr(m.blocks[1], "stitch", nn.Linear(16, 32, bias=False)),
            "bias=False.* for blocks.1.stitch",
        ),
        (lambda m: setattr(m.blocks[2], "stitch", nn.Linear(32, 32)), "a Block for blocks.2"),
        (
            lambda m: setattr(m.blocks[2].attn, "num_heads", 2),
            r"attention of 2 heads of 8 for blocks\.2\.attn",
        ),
    ],
)
def test_an_odd_stitched_model_is_refused_by_name(change: Any, message: str) -> None:
    model = build_empty(TWO)
    change(model)
    with pytest.raises(WrongCall, match=message):
        read_spec(model)


def test_a_stitch_in_a_plain_model_is_refused() -> None:
    model = timm.create_model(ARCHITECTURE, **list_arguments(TWO.with_(front=())))
    model.blocks[1] = StitchedBlock(32, before=32, num_heads=4, qkv_bias=True)
    with pytest.raises(WrongCall, match="VisionTransformer"):
        read_spec(model)
