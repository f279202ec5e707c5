"""LeTs: a small model and the matrices that make it wider and deeper."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.tensors import build_model, get_shapes, initialise
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_baselines.learnt.lets import LETS, LetsDetails
from lgzoo_baselines.modules.lets import (
    build_auxiliary,
    find_source_block,
    grow_source,
    list_growth_shapes,
    plan_layers,
    widen_inputs,
    widen_outputs,
)

BASE = load_family("vit").architectures["deit_base_patch16_224"]
AUXILIARY = make_tiny_ancestry().spec.with_(
    layers=4, pool="avg", class_token=False, classes=3
)  # 2 heads of 16
SOURCE = LetsDetails(layers=2, heads=1, classes=3).derive_source_spec(AUXILIARY)


@cache
def extract() -> lg.Learngene:
    ancestry = make_tiny_ancestry()
    return LETS.presets["smoke"]([ancestry], [make_tiny_task()], Run()).with_config(
        method="lets", ancestries=(ancestry.record,)
    )


def random_state() -> dict[str, torch.Tensor]:
    """Return a source, matrices and scalars at random."""
    generator = torch.Generator().manual_seed(0)
    grow = {
        name: torch.randn(*shape, generator=generator) * 0.2
        for name, shape in list_growth_shapes(SOURCE, AUXILIARY).items()
    }
    positions = {
        "pos_embed": torch.randn(1, AUXILIARY.patches, AUXILIARY.width, generator=generator)
    }
    return {**initialise(SOURCE, 1, "fan_in"), **grow, **positions}


def test_wider_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, matrix = (
        torch.randn(*shape, generator=generator) for shape in ((3, 4), (3,), (2, 3))
    )
    torch.testing.assert_close(widen_outputs(weight, matrix), torch.cat([weight, matrix @ weight]))
    torch.testing.assert_close(widen_outputs(bias, matrix), torch.cat([bias, matrix @ bias]))
    torch.testing.assert_close(
        widen_inputs(weight.T, matrix), torch.cat([weight.T, weight.T @ matrix.T], dim=1)
    )


def test_the_source_blocks_of_the_layers() -> None:
    assert [find_source_block(t, 8, 16) for t in range(16)] == [0] * 4 + [2] * 4 + [4] * 4 + [6] * 4
    layers = plan_layers(
        8, 16, 12
    )  # the authors' 12 of 16 layers, with their coefficients 0 2 4 4 6 6 8 8 10 10 12 14
    assert [2 * scalars for _, scalars in layers] == [0, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 14]
    assert [first for first, _ in layers] == [0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6]
    assert plan_layers(2, 4, 4) == ((0, 0), (0, 0), (0, 1), (0, 1))
    assert plan_layers(2, 4, 2) == ((0, 0), (0, 1))


def test_every_tensor_of_a_layer_is_a_sum_of_two_wider_ones() -> None:
    state = random_state()
    grown = grow_source(state, plan_layers(2, 4, 4), 16, 32)
    stream, hidden = state["blocks.grow.stream"], [state[f"blocks.grow.{m}.hidden"] for m in (0, 1)]
    scalars = state["blocks.grow.scalars.1"].reshape(8, 2, 2)
    fc1 = [
        widen_outputs(widen_inputs(state[f"blocks.{m}.mlp.fc1.weight"], stream), hidden[m])
        for m in (0, 1)
    ]
    torch.testing.assert_close(
        grown["blocks.2.mlp.fc1.weight"], scalars[6, 0, 0] * fc1[0] + scalars[6, 0, 1] * fc1[1]
    )
    keys = [
        widen_outputs(state[f"blocks.{m}.attn.qkv.bias"][16:32], state[f"blocks.grow.{m}.k"])
        for m in (0, 1)
    ]
    torch.testing.assert_close(
        grown["blocks.3.attn.qkv.bias"][32:64],
        scalars[2, 1, 0] * keys[0] + scalars[2, 1, 1] * keys[1],
    )
    proj = [
        widen_outputs(
            widen_inputs(state[f"blocks.{m}.attn.proj.weight"], state[f"blocks.grow.{m}.v"]), stream
        )
        for m in (0, 1)
    ]
    torch.testing.assert_close(
        grown["blocks.2.attn.proj.weight"], scalars[4, 0, 0] * proj[0] + scalars[4, 0, 1] * proj[1]
    )
    torch.testing.assert_close(
        grown["head.weight"], widen_inputs(state["head.weight"], state["blocks.grow.head"])
    )
    torch.testing.assert_close(
        grown["fc_norm.weight"], widen_outputs(state["fc_norm.weight"], stream)
    )
    assert {name: tuple(tensor.shape) for name, tensor in grown.items()} == get_shapes(AUXILIARY)


def test_the_auxiliary_model_answers_as_the_plain_one_and_all_of_it_learns() -> None:
    state, images = random_state(), torch.randn(2, 3, AUXILIARY.image_size, AUXILIARY.image_size)
    model = build_auxiliary(state, SOURCE, AUXILIARY)
    plain = build_model(AUXILIARY, grow_source(state, plan_layers(2, 4, 4), 16, 32))
    torch.testing.assert_close(model(images), plain(images))
    model(images).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_narrower_descendants_have_the_first_rows() -> None:
    widest, source = lg.expand(extract(), classes=5), lg.expand(extract(), width=16, classes=5)
    assert (widest.spec.width, widest.spec.layers, source.spec.heads) == (32, 3, 1)
    assert torch.equal(
        widest.state["blocks.0.mlp.fc2.weight"][:16, :64], source.state["blocks.0.mlp.fc2.weight"]
    )
    assert torch.equal(source.state["fc_norm.bias"], extract().state["fc_norm.bias"])
    assert torch.equal(source.state["pos_embed"], extract().state["pos_embed"][..., :16])
    assert lg.expand(extract(), layers=2, classes=5).provenance["blocks"] == [[0, 0], [0, 1]]


def test_the_papers_sizes() -> None:
    config = METHODS.load("lets").preset("paper").outline([BASE])
    source = LetsDetails(layers=8, heads=6, classes=1000).derive_source_spec(config.spec)
    assert (config.spec.layers, config.details["layers"], config.details["heads"]) == (16, 8, 6)
    assert sum(math.prod(shape) for shape in get_shapes(source).values()) == 14_952_040
    grow = sum(math.prod(shape) for shape in list_growth_shapes(source, config.spec).values())
    assert round((14_952_040 + grow) / 1e6, 1) == 37.7


def test_the_layer_scale_of_an_ancestry_model_is_left_out() -> None:
    spec = make_tiny_ancestry().spec
    outline = LETS.presets["smoke"].outline([spec.with_(layer_scale=0.1)])
    assert outline == LETS.presets["smoke"].outline([spec])
    assert outline.spec.layer_scale is None


def test_what_cannot_be_built_is_refused() -> None:
    for size in ({"width": 48}, {"layers": 4}, {"width": 32, "heads": 4}):
        with pytest.raises(
            WrongCall, match="builds at most 3 layers, of width 16 to 32, in heads of 16"
        ):
            lg.expand(extract(), **size)
    with pytest.raises(WrongCall, match="an even number of at most 4 layers"):
        LetsDetails(layers=3, heads=1).derive_source_spec(AUXILIARY)
    with pytest.raises(WrongCall, match="lets takes plain blocks alone"):
        LETS.presets["smoke"].outline([make_tiny_ancestry().spec.with_(qk_norm=True)])
    fewer = {name: tensor for name, tensor in extract().state.items() if name != "blocks.grow.1.k"}
    with pytest.raises(BadFile, match=r"blocks\.grow\.1\.k is missing"):
        lg.expand(replace(extract(), state=fewer))
