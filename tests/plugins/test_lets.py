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
from learngene_zoo.families.tensors import initial, model_of, shapes
from learngene_zoo.method import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import tiny_ancestry, tiny_task
from lgzoo_baselines.grown_blocks import auxiliary, first_of, grow_shapes, into, out, plan, sized
from lgzoo_baselines.lets import LETS, Details

BASE = load_family("vit").architectures["deit_base_patch16_224"]
WHOLE = tiny_ancestry().spec.with_(layers=4, pool="avg", class_token=False, classes=3)  # 2 heads of 16
SOURCE = Details(layers=2, heads=1, classes=3).source(WHOLE)


@cache
def made() -> lg.Learngene:
    ancestry = tiny_ancestry()
    return LETS.presets["smoke"]([ancestry], [tiny_task()], Run()).with_config(ancestries=(ancestry.record,))


def stored() -> dict[str, torch.Tensor]:
    """A source, matrices and scalars at random."""
    generator = torch.Generator().manual_seed(0)
    grow = {name: torch.randn(*shape, generator=generator) * 0.2 for name, shape in grow_shapes(SOURCE, WHOLE).items()}
    positions = {"pos_embed": torch.randn(1, WHOLE.patches, WHOLE.width, generator=generator)}
    return {**initial(SOURCE, 1, "fan_in"), **grow, **positions}


def test_wider_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, matrix = (torch.randn(*shape, generator=generator) for shape in ((3, 4), (3,), (2, 3)))
    torch.testing.assert_close(out(weight, matrix), torch.cat([weight, matrix @ weight]))
    torch.testing.assert_close(out(bias, matrix), torch.cat([bias, matrix @ bias]))
    torch.testing.assert_close(into(weight.T, matrix), torch.cat([weight.T, weight.T @ matrix.T], dim=1))


def test_the_source_blocks_of_the_layers() -> None:
    assert [first_of(t, 8, 16) for t in range(16)] == [0] * 4 + [2] * 4 + [4] * 4 + [6] * 4
    layers = plan(8, 16, 12)  # the authors' 12 of 16 layers, with their coefficients 0 2 4 4 6 6 8 8 10 10 12 14
    assert [2 * scalars for _, scalars in layers] == [0, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 14]
    assert [first for first, _ in layers] == [0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6]
    assert plan(2, 4, 4) == ((0, 0), (0, 0), (0, 1), (0, 1))
    assert plan(2, 4, 2) == ((0, 0), (0, 1))


def test_every_tensor_of_a_layer_is_a_sum_of_two_wider_ones() -> None:
    state = stored()
    found = sized(state, plan(2, 4, 4), 16, 32)
    stream, hidden = state["blocks.grow.stream"], [state[f"blocks.grow.{m}.hidden"] for m in (0, 1)]
    scalars = state["blocks.grow.scalars.1"].reshape(8, 2, 2)
    fc1 = [out(into(state[f"blocks.{m}.mlp.fc1.weight"], stream), hidden[m]) for m in (0, 1)]
    torch.testing.assert_close(found["blocks.2.mlp.fc1.weight"], scalars[6, 0, 0] * fc1[0] + scalars[6, 0, 1] * fc1[1])
    keys = [out(state[f"blocks.{m}.attn.qkv.bias"][16:32], state[f"blocks.grow.{m}.k"]) for m in (0, 1)]
    torch.testing.assert_close(
        found["blocks.3.attn.qkv.bias"][32:64], scalars[2, 1, 0] * keys[0] + scalars[2, 1, 1] * keys[1]
    )
    proj = [out(into(state[f"blocks.{m}.attn.proj.weight"], state[f"blocks.grow.{m}.v"]), stream) for m in (0, 1)]
    torch.testing.assert_close(
        found["blocks.2.attn.proj.weight"], scalars[4, 0, 0] * proj[0] + scalars[4, 0, 1] * proj[1]
    )
    torch.testing.assert_close(found["head.weight"], into(state["head.weight"], state["blocks.grow.head"]))
    torch.testing.assert_close(found["fc_norm.weight"], out(state["fc_norm.weight"], stream))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == shapes(WHOLE)


def test_the_auxiliary_model_answers_as_the_plain_one_and_all_of_it_learns() -> None:
    state, images = stored(), torch.randn(2, 3, WHOLE.image_size, WHOLE.image_size)
    model = auxiliary(state, SOURCE, WHOLE)
    plain = model_of(WHOLE, sized(state, plan(2, 4, 4), 16, 32))
    torch.testing.assert_close(model(images), plain(images))
    model(images).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_narrower_descendants_have_the_first_rows() -> None:
    whole, source = lg.expand(made(), classes=5), lg.expand(made(), width=16, classes=5)
    assert (whole.spec.width, whole.spec.layers, source.spec.heads) == (32, 3, 1)
    assert torch.equal(whole.state["blocks.0.mlp.fc2.weight"][:16, :64], source.state["blocks.0.mlp.fc2.weight"])
    assert torch.equal(source.state["fc_norm.bias"], made().state["fc_norm.bias"])
    assert torch.equal(source.state["pos_embed"], made().state["pos_embed"][..., :16])
    assert lg.expand(made(), layers=2, classes=5).provenance["blocks"] == [[0, 0], [0, 1]]


def test_the_papers_sizes() -> None:
    config = METHODS.load("lets").preset("paper").outline([BASE])
    source = Details(layers=8, heads=6, classes=1000).source(config.spec)
    assert (config.spec.layers, config.details["layers"], config.details["heads"]) == (16, 8, 6)
    assert sum(math.prod(shape) for shape in shapes(source).values()) == 14_952_040
    grow = sum(math.prod(shape) for shape in grow_shapes(source, config.spec).values())
    assert round((14_952_040 + grow) / 1e6, 1) == 37.7


def test_what_cannot_be_built_is_refused() -> None:
    for size in ({"width": 48}, {"layers": 4}, {"width": 32, "heads": 4}):
        with pytest.raises(WrongCall, match="builds at most 3 layers, of width 16 to 32, in heads of 16"):
            lg.expand(made(), **size)
    with pytest.raises(WrongCall, match="an even number of at most 4 layers"):
        Details(layers=3, heads=1).source(WHOLE)
    with pytest.raises(WrongCall, match="lets takes plain blocks alone"):
        LETS.presets["smoke"].outline([tiny_ancestry().spec.with_(layer_scale=0.1)])
    fewer = {name: tensor for name, tensor in made().state.items() if name != "blocks.grow.1.k"}
    with pytest.raises(BadFile, match=r"blocks\.grow\.1\.k is missing"):
        lg.expand(replace(made(), state=fewer))
