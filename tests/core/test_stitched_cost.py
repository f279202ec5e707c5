"""The cost of stitched models: by hand, against counters, and the exact numbers in the tables of
Learngene Pool and SN-Net.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo.families.family import count_cost, count_flops, count_params
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.comparison import make_flop_counter

DATA = Path(__file__).parents[1] / "data"
POOL = json.loads((DATA / "pool_tables.json").read_text())["rows"]
SNNET = json.loads((DATA / "snnet_release.json").read_text())["rows"]
TINY = ViTSpec(
    layers=3,
    width=32,
    heads=4,
    image_size=32,
    patch_size=8,
    classes=5,
    front=(Segment(layers=1, width=16, heads=2),),
)
THREE = TINY.with_(
    layers=4, front=(Segment(layers=1, width=16, heads=2), Segment(layers=2, width=24, heads=3))
)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"class_token": False, "pool": "avg"},
    {"registers": 3, "layer_scale": 1e-5, "pre_norm": True},
    {"qk_norm": True, "no_embed_class": True},
    {"final_norm": False},
    {"dense": True},
    {"classes": 0, "mlp_ratio": 2.7},
]


@pytest.mark.parametrize(
    "row", POOL, ids=lambda row: f"{row['blocks']} blocks, {row['low']}-{row['high']}"
)
def test_the_tables_of_learngene_pool(row: dict[str, Any]) -> None:
    costs = count_cost(pool_path(row["low"], row["high"]), "fvcore")
    assert (costs.params, costs.flops) == (row["params"], row["flops"])
    assert round(costs.params / 1e6, 2) == row["published_params_m"]
    misprint = (row["low"], row["high"]) == (0, 9)
    assert (round(costs.flops / 1e9, 2) == row["published_flops_g"]) is not misprint
    built = count_cost(pool_path(row["low"], row["high"]))
    assert (built.params, built.flops) == (row["params_built"], row["flops_built"])


def pool_path(low: int, high: int) -> ViTSpec:
    """Return DeiT-B with this many blocks of a quarter of its width, then this many of its full
    width.
    """
    base, tiny = (
        find_architecture("deit_base_patch16_224"),
        find_architecture("deit_tiny_patch16_224"),
    )
    assert base is not None
    assert tiny is not None
    if not high:
        return tiny.with_(layers=low)
    front = (Segment(layers=low, width=192, heads=3),) if low else ()
    return base.with_(layers=low + high, front=front)


def test_the_71_configurations_that_snnet_released() -> None:
    results = [count_cost(spec, "fvcore") for spec in snnet_paths()]
    assert [(item.params, item.flops) for item in results] == [
        (row["params"], row["flops"]) for row in SNNET
    ]
    costs = [count_cost(spec) for spec in snnet_paths()]
    assert costs[:3] == results[:3], "anchors are counted whole by either"
    assert all(ours.params > theirs.params for ours, theirs in zip(costs[3:], results[3:]))


def snnet_paths() -> Iterator[ViTSpec]:
    """Return DeiT-Ti, -S and -B, then the paths from each to the next, by windows.

    The final norm is left out.
    """
    anchors = [find_architecture(f"deit_{size}_patch16_224") for size in ("tiny", "small", "base")]
    yield from (anchor for anchor in anchors if anchor)
    for first, last in pairwise(anchors):
        assert first is not None
        assert last is not None
        pairs = {(j, k): None for i in range(11) for j in (i, i + 1) for k in (i, i + 1)}
        for j, k in pairs:
            front = (Segment(layers=j + 1, width=first.width, heads=first.heads),)
            yield last.with_(layers=j + 1 + 12 - k, front=front, final_norm=False)


def test_parameters_and_flops_by_hand() -> None:
    """1 block of width 16, a stitch, 2 blocks of width 32; 17 tokens."""
    stem = 16 * 192 + 16 + 17 * 16 + 16
    tail = 2 * 32 + 5 * 32 + 5
    assert (
        count_params(TINY)
        == stem + (12 * 16**2 + 13 * 16) + (16 * 32 + 32) + 2 * (12 * 32**2 + 13 * 32) + tail
    )
    narrow, wide = (17 * 12 * d**2 + 2 * 17**2 * d + 5 * 17 * d * 2 for d in (16, 32))
    expected = 16 * 192 * 16 + narrow + 17 * 16 * 32 + 2 * wide + 5 * 17 * 32 + 5 * 32
    assert count_flops(TINY) == expected
    assert count_flops(TINY, "fvcore") == expected - 5 * 17 * 32


def test_what_the_papers_leave_out() -> None:
    tokens, norm = (1 + 17) * 16, 2 * 32
    bare = TINY.with_(final_norm=False)
    assert (
        count_params(TINY, "fvcore") == count_params(bare, "fvcore") == count_params(TINY) - tokens
    )
    assert count_params(bare) == count_params(TINY) - norm
    assert count_flops(bare) == count_flops(bare, "fvcore") == count_flops(TINY, "fvcore")
    plain = TINY.with_(front=())
    assert count_cost(plain, "fvcore") == count_cost(plain)


@pytest.mark.parametrize("spec", [TINY, THREE], ids=["two segments", "three"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_against_the_model_itself(changes: dict[str, Any], spec: ViTSpec) -> None:
    spec = spec.with_(**changes)
    model = build_model(spec, initialise(spec, 0))
    products, attention, normed = _count(model, torch.zeros(1, 3, 32, 32))
    enlarged = spec.classes * 32**2 if spec.dense else 0
    assert count_params(spec) == sum(tensor.numel() for tensor in model.parameters())
    assert count_flops(spec) == products + attention + 5 * normed + 4 * enlarged
    assert count_flops(spec, "thop") == products + 4 * normed


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_thop_sees_only_the_parameters_of_layers(changes: dict[str, Any]) -> None:
    spec = THREE.with_(**changes)
    seen = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.LayerNorm)
    layers = [
        module
        for module in build_model(spec, initialise(spec, 0)).modules()
        if isinstance(module, seen)
    ]
    assert count_params(spec, "thop") == sum(
        tensor.numel() for layer in layers for tensor in layer.parameters()
    )


@pytest.mark.parametrize("spec", [TINY, THREE], ids=["two segments", "three"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_its_cost_is_what_fvcore_counts(changes: dict[str, Any], spec: ViTSpec) -> None:
    fvcore = pytest.importorskip("fvcore.nn")
    spec = spec.with_(**changes)
    model = build_model(spec, initialise(spec, 0))
    for block in model.blocks:
        block.attn.fused_attn = False  # one operation, which fvcore has no count for
    counted = fvcore.FlopCountAnalysis(model, torch.zeros(1, 3, 32, 32)).unsupported_ops_warnings(
        False
    )
    assert count_flops(spec) == counted.uncalled_modules_warnings(False).total()


def _count(model: torch.nn.Module, images: torch.Tensor) -> tuple[int, int, int]:
    """Return multiply-adds of layers and of attention by torch's counter, and elements of norms."""
    normed = []
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.register_forward_hook(
                lambda module, inputs, output: normed.append(output.numel())
            )
    with make_flop_counter() as counter, torch.no_grad():
        model(images)
    by_operation = {
        str(operation): count // 2
        for operation, count in counter.get_flop_counts()["Global"].items()
    }
    attention = sum(count for operation, count in by_operation.items() if "attention" in operation)
    return sum(by_operation.values()) - attention, attention, sum(normed)
