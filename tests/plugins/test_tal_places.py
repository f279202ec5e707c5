"""Places of nodes relative to the depth, and tensors of the residual stream scaled by it."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.hypernet_spec import INPUT_DISTANCES, HypernetSpec
from lgzoo_tal.modules.forms import ANCHORS, compute_writer_scale, interpolate_places
from lgzoo_tal.modules.graph import Graph, build_graph
from lgzoo_tal.modules.hypernet import Hypernet

HYPERNET = HypernetSpec(
    hidden=16, layers=1, heads=2, decoder="low_rank", rank=4, widest=64, chunk=512, form="centred"
)
SPEC = ViTSpec(layers=3, width=16, heads=2, classes=3, image_size=16, patch_size=8)
TABLE = torch.arange(INPUT_DISTANCES, dtype=torch.float64)[:, None]  # row n holds n


def build_layers_graph(layers: int, **changes: bool) -> Graph:
    return build_graph(SPEC.with_(layers=layers), **changes)


def compute_rows(layers: int) -> dict[str, float]:
    """Return the (interpolated) row of every parameter."""
    of = build_layers_graph(layers)
    rows = interpolate_places(of, TABLE)[:, 0].tolist()
    return {name: row for name, row in zip(of.names, rows) if name is not None}


@pytest.mark.parametrize("msa", [True, False])
@pytest.mark.parametrize("sink", [None, (5, SPEC.width)])
def test_every_node_has_a_place(msa: bool, sink: tuple[int, int] | None) -> None:
    of = build_graph(SPEC.with_(layers=4), msa=msa, sink=sink)
    assert interpolate_places(of, TABLE).shape == (len(of), 1)


def test_nodes_of_a_model_are_apart() -> None:
    rows = compute_rows(ANCHORS)
    assert len(set(rows.values())) == len(rows)


def test_first_and_last_blocks_are_alike_at_every_depth_and_the_middle_lies_between() -> None:
    for role in ("attn.qkv.weight", "mlp.fc2.bias"):
        few, many = compute_rows(3), compute_rows(12)
        assert few[f"blocks.0.{role}"] == many[f"blocks.0.{role}"]
        assert few[f"blocks.2.{role}"] == pytest.approx(many[f"blocks.11.{role}"])
        assert few[f"blocks.1.{role}"] == pytest.approx(few[f"blocks.0.{role}"] + (ANCHORS - 1) / 2)
        assert many[f"blocks.1.{role}"] == pytest.approx(
            few[f"blocks.0.{role}"] + (ANCHORS - 1) / 11
        )
    outside = ("patch_embed.proj.weight", "pos_embed", "norm.weight", "head.weight", "head.bias")
    assert [compute_rows(3)[name] for name in outside] == [
        compute_rows(12)[name] for name in outside
    ]


def test_one_block_is_the_first() -> None:
    assert (
        compute_rows(1)["blocks.0.attn.qkv.weight"] == compute_rows(3)["blocks.0.attn.qkv.weight"]
    )


@pytest.mark.slow
def test_writers_add_up_alike_at_every_depth() -> None:
    assert compute_writer_scale("blocks.7.mlp.fc2.weight", 12) == pytest.approx(sqrt(3 / 12))
    assert compute_writer_scale("blocks.7.attn.proj.weight", 3) == 1
    assert compute_writer_scale("blocks.7.mlp.fc1.weight", 12) == 1
    plain, scaled = (
        Hypernet(HYPERNET.with_(writers=writers)) for writers in ("published", "by_depth")
    )
    first, second = plain.predict(build_layers_graph(6)), scaled.predict(build_layers_graph(6))
    for name in first:
        expected = first[name] * compute_writer_scale(name, 6)
        torch.testing.assert_close(second[name], expected)
        torch.testing.assert_close(
            scaled(build_layers_graph(6))[name].detach(), expected, rtol=1e-4, atol=1e-6
        )


def test_a_step_at_any_depth_trains_the_places_of_every_depth() -> None:
    hypernet = Hypernet(HYPERNET.with_(places="relative"))
    sum(tensor.square().sum() for tensor in hypernet(build_layers_graph(2)).values()).backward()
    moved = hypernet.gnn[0].input_dist_embed.weight.grad.abs().sum(dim=1) > 0
    deep = compute_rows(9)["blocks.8.mlp.fc2.weight"]
    assert moved[int(deep)]
