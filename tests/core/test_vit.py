"""From module to spec to module: bitwise the same outputs; modules that a spec cannot describe are
refused.
"""

import math

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.tensors import (
    build_empty,
    build_model,
    get_shapes,
    get_state_dict,
    initialise,
)
from learngene_zoo.families.vit.host import read_spec, trim_state
from learngene_zoo.families.vit.names import ARCHITECTURE, choose_architecture, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec

TINY = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
AIM = {
    **{
        "norm": "rms",
        "norm_eps": 1e-5,
        "mlp": "swiglu",
        "activation": "silu",
        "embed_norm": True,
        "fc_norm": False,
    },
    **{
        "class_token": False,
        "pool": "avg",
        "qkv_bias": False,
        "proj_bias": False,
        "mlp_ratio": 2.75,
    },
}
VARIANTS = [
    {},
    {"class_token": False, "pool": "avg"},
    {"registers": 3},
    {"registers": 3, "no_embed_class": True},
    {"class_token": False, "registers": 2, "pool": "max"},
    {"layer_scale": 1e-5},
    {"pool": "avg"},
    {"pool": "avg", "fc_norm": False},
    {"fc_norm": True},
    {"pool": "avgmax", "registers": 1},
    {"qk_norm": True},
    {"pre_norm": True},
    {"final_norm": False},
    {"qkv_bias": False},
    {"proj_bias": False},
    {"mlp_ratio": 2.7},
    {"channels": 1},
    {"classes": 0},
    {"dynamic_image_size": True},
    *[{"activation": activation} for activation in ("gelu_tanh", "quick_gelu", "silu")],
    {"norm_eps": 1e-5},
    {"norm_eps": 1e-5, "pre_norm": True, "activation": "quick_gelu"},
    {"norm_eps": 1e-5, "scale_norms": True, "pool": "avg", "qk_norm": True},
    {"norm": "rms", "qk_norm": True, "pool": "avg"},
    {"norm": "rms", "embed_norm": True},
    {"pool": "map", "class_token": False, "activation": "gelu_tanh"},
    {"pool": "map", "registers": 2, "pool_prefix": True, "final_norm": False},
    {"pool": "avg", "pool_prefix": True},
    {"post_norm": True},
    {"post_norm": True, "norm": "rms", "pool": "map", "qk_norm": True},
    {"mlp": "swiglu_packed", "activation": "silu", "mlp_ratio": 5.33334},
    {"mlp": "swiglu_packed", "registers": 4, "layer_scale": 1e-5, "scale_norms": True},
    AIM,
    {**AIM, "norm_eps": 1e-6, "fc_norm": None},
    {
        **AIM,
        "norm": "layer",
        "norm_eps": 1e-6,
        "embed_norm": False,
        "proj_bias": True,
        "pool": "map",
        "fc_norm": None,
    },
]


def built_by_timm(spec: ViTSpec, **further: object) -> VisionTransformer:
    """Return timm's model with weights that distinguish every tensor."""
    torch.manual_seed(0)
    model = timm.create_model(
        choose_architecture(spec), **{**list_arguments(spec), **further}
    ).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.05 * torch.randn_like(tensor))
    return model


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_there_and_back_is_the_same_function(changes: dict) -> None:
    spec = TINY.with_(**changes)
    model = built_by_timm(spec)
    spec_of_model = read_spec(model)
    assert spec_of_model.hidden == spec.hidden
    assert spec_of_model.with_(mlp_ratio=spec.mlp_ratio) == spec
    again = build_model(spec_of_model, get_state_dict(model))
    images_BCHW = IMAGES_BCHW[:, : spec.channels]
    assert torch.equal(again(images_BCHW), model(images_BCHW))
    assert not again.training


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_shapes_are_those_of_timm_in_its_order(changes: dict) -> None:
    spec = TINY.with_(**changes)
    with torch.device("meta"):
        model = timm.create_model(
            choose_architecture(spec), weight_init="skip", **list_arguments(spec)
        )
    assert list(get_shapes(spec).items()) == [
        (name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()
    ]


def test_a_hidden_width_that_no_ratio_hits_exactly() -> None:
    for hidden in range(1, 100, 2):
        model = build_empty(
            TINY.with_(layers=1, width=28, mlp_ratio=math.nextafter(hidden / 28, math.inf))
        )
        assert read_spec(model).hidden == model.blocks[0].mlp.fc1.out_features


def test_images_of_another_size_where_the_model_takes_them() -> None:
    spec = TINY.with_(dynamic_image_size=True)
    assert build_model(spec, initialise(spec, 0))(torch.zeros(1, 3, 48, 48)).shape == (1, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"act_layer": "hard_swish"}, "Hardswish"),
        ({"norm_layer": "simplenorm"}, "SimpleNorm"),
        pytest.param(
            {"norm_layer": lambda *a, **k: nn.LayerNorm(*a, eps=1e-12, **k)},
            "norm_eps is 1e-12",
            id="eps",
        ),
        ({"mlp_layer": timm.layers.GluMlp}, "a GluMlp whose gate is last"),
        ({"mlp_layer": timm.layers.GatedMlp}, "GatedMlp"),
        ({"block_fn": timm.models.vision_transformer.ParallelScalingBlock}, "ParallelScalingBlock"),
        ({"attn_layer": "diff"}, "DiffAttention"),
        ({"embed_norm_layer": "rmsnorm"}, "RmsNorm.* for patch_embed.norm"),
        ({"global_pool": "prr"}, "pooling 'prr'"),
        ({"global_pool": ""}, "pooling ''"),
        ({"pos_embed": "none"}, "no position embedding"),
        ({"scale_attn_norm": True}, "blocks.0.attn.norm"),
        ({"scale_mlp_norm": True}, "Identity for blocks.0.attn.norm"),
        ({"img_size": (32, 16)}, r"images of \(32, 16\)"),
        ({"patch_size": (8, 4)}, r"patches of \(8, 4\)"),
        ({"dynamic_img_size": True, "dynamic_img_pad": True}, "padded images"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_a_spec_cannot_say_is_refused(changes: dict, message: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(
            ARCHITECTURE, weight_init="skip", **{**list_arguments(TINY), **changes}
        )
    with pytest.raises(WrongCall, match=message) as error:
        read_spec(model)
    assert "supported are" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_block_unlike_the_others_is_refused() -> None:
    model = build_empty(TINY)
    model.blocks[1].mlp.act = nn.ReLU()
    with pytest.raises(WrongCall, match=r"ReLU\(\) for blocks.1.mlp.act"):
        read_spec(model)
    model = build_empty(TINY)
    model.blocks[1].attn.num_heads = 2
    with pytest.raises(WrongCall, match=r"attention of 2 heads of \d+ for blocks\.1\.attn"):
        read_spec(model)


@pytest.mark.parametrize(
    "make",
    [lambda: timm.create_model("beit_base_patch16_224"), lambda: nn.Linear(1, 1)],
    ids=["beit", "linear"],
)
def test_what_is_no_plain_vit_is_refused(make: object) -> None:
    with torch.device("meta"), pytest.raises(WrongCall, match="is not a plain ViT; supported are"):
        read_spec(make())  # type: ignore[operator]


def test_a_distilled_model_is_read_without_its_distillation_token() -> None:
    sizes = {
        "depth": 2,
        "embed_dim": 32,
        "num_heads": 4,
        "img_size": 32,
        "patch_size": 8,
        "num_classes": 5,
    }
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", **sizes).eval()
    assert read_spec(distilled) == TINY
    state, left_out = trim_state(get_state_dict(distilled))
    assert left_out == ("distillation token and its head",)
    model = build_model(TINY, state)
    tokens = distilled.patch_embed(IMAGES_BCHW) + state["pos_embed"][:, 1:]
    first = (state["cls_token"] + distilled.pos_embed[:, :1]).expand(2, -1, -1)
    with torch.no_grad():
        expected = distilled.head(
            distilled.norm(distilled.blocks(torch.cat([first, tokens], dim=1)))[:, 0]
        )
        assert torch.equal(model(IMAGES_BCHW), expected)
    assert trim_state(state) == (state, ())


def test_training_only_layers_do_not_matter() -> None:
    assert (
        read_spec(
            built_by_timm(
                TINY, drop_path_rate=0.3, proj_drop_rate=0.1, patch_drop_rate=0.2, drop_rate=0.1
            )
        )
        == TINY
    )


def test_no_random_number_is_drawn() -> None:
    before = torch.random.get_rng_state()
    build_model(TINY, initialise(TINY, 0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_empty_model_is_as_if_timm_had_built_it() -> None:
    ours, theirs = build_empty(TINY), timm.create_model(ARCHITECTURE, **list_arguments(TINY))
    assert ours._model_args == theirs._model_args
    assert ours.weight_init_mode == theirs.weight_init_mode
    assert all(tensor.device.type == "meta" for tensor in ours.parameters())
