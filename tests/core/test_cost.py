"""The closed forms equal the papers' counters exactly."""

import json
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import RmsNorm
from torch import nn

from learngene_zoo.families.family import count_cost, count_flops, count_params
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.names import choose_architecture, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.comparison import make_flop_counter

TABLE_2 = json.loads((Path(__file__).parents[1] / "data" / "lsamd_table2.json").read_text())["rows"]
TINY = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)
NORMS = (nn.LayerNorm, RmsNorm)
VARIANTS = [
    {},
    {"class_token": False, "pool": "avg"},
    {"registers": 3},
    {"registers": 3, "no_embed_class": True},
    {"layer_scale": 1e-5},
    {"pool": "avg", "fc_norm": False},
    {"fc_norm": True},
    {"pool": "avgmax"},
    {"qk_norm": True},
    {"pre_norm": True},
    {"final_norm": False},
    {"qkv_bias": False},
    {"proj_bias": False},
    {"mlp_ratio": 2.7},
    {"channels": 1},
    {"classes": 0},
    {"dynamic_image_size": True},
    {"norm_eps": 1e-5, "activation": "quick_gelu", "scale_norms": True, "qk_norm": True},
    {"norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu", "embed_norm": True, "mlp_ratio": 2.75},
    {"mlp": "swiglu_packed"},
    {"post_norm": True},
    {"pool": "map", "class_token": False},
    {"pool": "map", "pool_prefix": True, "registers": 2},
]


@pytest.mark.parametrize(
    ("name", "wanted_params", "wanted_flops"),
    [
        ("deit_tiny_patch16_224", 5_717_416, 1_258_411_200),
        ("deit_small_patch16_224", 22_050_664, 4_608_338_304),
        ("deit_base_patch16_224", 86_567_656, 17_582_740_224),
    ],
)
def test_deit_as_fvcore_counts_it(name: str, wanted_params: int, wanted_flops: int) -> None:
    spec = find_architecture(name)
    assert spec is not None
    assert (count_cost(spec).params, count_cost(spec).flops) == (wanted_params, wanted_flops)


@pytest.mark.parametrize("row", TABLE_2, ids=lambda row: f"{row['layers']}-layers")
def test_the_second_table_of_lsamd(row: dict) -> None:
    spec = find_architecture("deit_base_patch16_224")
    assert spec is not None
    costs = count_cost(spec.with_(layers=row["layers"], classes=100), "thop")
    assert (costs.params, costs.flops) == (row["params"], row["flops"])
    assert round(costs.params / 1e6, 2) == row["published_params_m"]
    assert round(costs.flops / 1e9, 2) == row["published_flops_g"]


def test_a_block_of_a_usual_vit() -> None:
    for d in (32, 192, 384, 768):
        first, second = (count_params(TINY.with_(width=d, layers=layers)) for layers in (1, 2))
        assert second - first == 12 * d * d + 13 * d


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_against_the_model_itself(changes: dict) -> None:
    spec = TINY.with_(**changes)
    model = (
        timm.create_model(choose_architecture(spec), **list_arguments(spec))
        .eval()
        .requires_grad_(False)
    )
    products, attention, normed = _count(model, torch.zeros(1, spec.channels, 32, 32))
    assert count_params(spec) == sum(tensor.numel() for tensor in model.parameters())
    assert count_flops(spec) == products + attention + 5 * normed
    assert count_flops(spec, "thop") == products + 4 * normed


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_thop_sees_only_the_parameters_of_layers(changes: dict) -> None:
    spec = TINY.with_(**changes)
    model = timm.create_model(choose_architecture(spec), **list_arguments(spec))
    seen = (nn.Linear, nn.Conv2d, *NORMS)
    layers = [module for module in model.modules() if isinstance(module, seen)]
    assert count_params(spec, "thop") == sum(
        tensor.numel() for layer in layers for tensor in layer.parameters()
    )


def _count(model: nn.Module, images: torch.Tensor) -> tuple[int, int, int]:
    """Return multiply-adds of layers and of attention by torch's counter, and elements of norms."""
    normed = []
    for module in model.modules():
        if isinstance(module, NORMS):
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
