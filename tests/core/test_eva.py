"""The family `eva`: small models of every kind equal timm's, tensor by tensor and number by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.eva import host
from learngene_zoo.families.eva.names import ARCHITECTURES, choose_architecture
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.family import count_flops, count_params
from learngene_zoo.families.tensors import (
    build_model,
    get_shapes,
    initialise,
    resize_positions,
    take_blocks,
)
from learngene_zoo.families.timm_config import find_architecture, read_spec, write_timm_config
from learngene_zoo.lifecycle.comparison import make_flop_counter
from learngene_zoo.settings import from_json, to_json

# One of every kind of block, rotary positions, norms and pooling; the rest differ from one of these
# by size.
KINDS = [
    "vit_small_patch16_dinov3",
    "vit_small_patch16_dinov3_qkvb",
    "vit_small_plus_patch16_dinov3",
    "vit_7b_patch16_dinov3",
    "vit_small_patch16_lingbot",
    "eva02_tiny_patch14_336",
    "eva02_base_patch14_448",
    "eva02_base_patch16_clip_224",
    "eva02_enormous_patch14_clip_224",
    "eva_giant_patch14_224",
    "eva_giant_patch14_clip_224",
    "vit_mediumd_patch16_rope_reg1_gap_256",
    "vit_small_patch16_rope_224",
    "vit_small_patch16_rope_ape_224",
    "vit_small_patch16_rope_mixed_224",
    "vit_small_patch16_rope_mixed_ape_224",
    "vit_pe_core_tiny_patch16_384",
    "vit_pe_lang_large_patch14_448",
    "vit_pe_spatial_tiny_patch16_512",
]


def small(name: str) -> EvaSpec:
    """Return a small model of this architecture."""
    architecture = ARCHITECTURES[name]
    return architecture.with_(
        layers=3,
        width=64 if architecture.pool == "map" else 24,
        heads=2,
        image_size=4 * architecture.patch_size,
        classes=5,
    )


def timms(name: str, spec: EvaSpec) -> nn.Module:
    """Return timm's model of this name and size, without other arguments."""
    sizes = {"depth": spec.layers, "embed_dim": spec.width, "num_heads": spec.heads}
    sizes |= {"img_size": spec.image_size, "num_classes": spec.classes}
    return timm.create_model(name, **sizes).eval()


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, EvaSpec, nn.Module]:
    spec = small(request.param)
    return request.param, spec, timms(request.param, spec)


def test_tensors_and_outputs_are_timms(kind: Any) -> None:
    _, spec, theirs = kind
    assert [(name, tuple(tensor.shape)) for name, tensor in theirs.state_dict().items()] == list(
        get_shapes(spec).items()
    )
    images = torch.randn(
        2, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        assert torch.equal(build_model(spec, theirs.state_dict())(images), theirs(images))


def test_the_spec_is_read_off_the_module(kind: Any) -> None:
    _, spec, theirs = kind
    assert host.read_spec(theirs) == spec


def test_costs_are_what_hooks_count(kind: Any) -> None:
    _, spec, theirs = kind
    products, attention, normed = _count(
        theirs.requires_grad_(False), torch.zeros(1, 3, *[spec.image_size] * 2)
    )
    assert count_params(spec) == sum(tensor.numel() for tensor in theirs.parameters())
    assert count_flops(spec) == products + attention + 5 * normed
    assert count_flops(spec, "thop") == products + 4 * normed


def _count(model: nn.Module, images: torch.Tensor) -> tuple[int, int, int]:
    """Return multiply-adds of layers and of attention by torch's counter, and elements of norms."""
    normed: list[int] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: normed.append(output.numel()))
        for module in model.modules()
        if isinstance(module, nn.LayerNorm)
    ]
    with make_flop_counter() as counter, torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    by_operation = {
        str(operation): count // 2
        for operation, count in counter.get_flop_counts()["Global"].items()
    }
    attention = sum(count for operation, count in by_operation.items() if "attention" in operation)
    return sum(by_operation.values()) - attention, attention, sum(normed)


def test_a_folder_says_what_the_spec_says(kind: Any) -> None:
    _, spec, _ = kind
    assert from_json(EvaSpec, to_json(spec), "FILE") == spec
    config = write_timm_config(spec, mean=(0.5,) * 3, std=(0.5,) * 3, class_names=(), licence="mit")
    assert read_spec(config, "FILE") == spec


def test_it_starts_as_timm_does(kind: Any) -> None:
    name, small_spec, _ = kind
    torch.manual_seed(0)
    spec = small_spec.with_(width=128, registers=small_spec.registers and 16, classes=50)
    ours = initialise(spec, 0)
    theirs = timm.create_model(choose_architecture(spec), **spec.timm_args()).state_dict()
    for name, tensor in theirs.items():
        if tensor.numel() > 1000:  # of few numbers neither the deviation nor the largest says much
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), rel=0.15), name
            assert ours[name].abs().max().item() == pytest.approx(
                tensor.abs().max().item(), rel=0.35
            ), name
        elif tensor.unique().numel() == 1:
            assert torch.equal(ours[name], tensor), name


def test_the_query_of_the_pooling_is_truncated_as_timms() -> None:
    spec = small("vit_pe_core_tiny_patch16_384").with_(width=4096)
    initial_state = initialise(spec, 0, names=["attn_pool.latent"])["attn_pool.latent"] * 64
    assert initial_state.abs().max() <= 2
    assert initial_state.std().item() == pytest.approx(0.88, abs=0.03)


def test_rotary_frequencies_are_turned_and_not_stretched() -> None:
    spec = small("vit_small_patch16_rope_mixed_224").with_(width=128)
    ours = initialise(spec, 0)["rope.freqs"]
    theirs = timm.create_model(choose_architecture(spec), **spec.timm_args()).state_dict()[
        "rope.freqs"
    ]
    torch.testing.assert_close(ours.square().sum(0), theirs.square().sum(0))
    first, second = ours.chunk(2, dim=-1)  # at right angles
    assert (first * second).sum(0).abs().max() < 1e-6


def test_fan_in_scales_every_matrix() -> None:
    initial_state = initialise(
        small("eva02_base_patch14_448").with_(width=192, classes=100), 0, "fan_in"
    )
    for name in (
        "blocks.2.attn.proj.weight",
        "blocks.2.mlp.fc2.weight",
        "head.weight",
        "blocks.0.attn.q_proj.weight",
    ):
        assert initial_state[name].std().item() == pytest.approx(
            initial_state[name].shape[1] ** -0.5, rel=0.05
        ), name


def test_learned_frequencies_go_with_their_blocks() -> None:
    spec = small("vit_small_patch16_rope_mixed_224")
    state = initialise(spec, 0)
    selected = take_blocks(state, spec, [2, 0, 2, 1])
    assert selected["rope.freqs"].shape == get_shapes(spec.with_(layers=4))["rope.freqs"]
    assert torch.equal(selected["rope.freqs"][:, 0], state["rope.freqs"][:, 2])
    assert take_blocks(state, spec, range(3))["rope.freqs"] is state["rope.freqs"]


@pytest.mark.parametrize(
    "name", ["eva02_tiny_patch14_336", "vit_small_patch16_dinov3", "vit_pe_core_tiny_patch16_384"]
)
def test_other_images_have_timms_positions(name: str) -> None:
    """As timm's `set_input_size`: absolute positions are resampled, rotary ones scaled to their
    reference grid.
    """
    spec = small(name)
    theirs = timms(name, spec)
    larger = spec.with_(image_size=7 * spec.patch_size)
    state = resize_positions(theirs.state_dict(), spec, larger)
    theirs.set_input_size(img_size=larger.image_size)
    images = torch.randn(
        1, 3, larger.image_size, larger.image_size, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        assert torch.equal(build_model(larger, state)(images), theirs.eval()(images))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("vit_small_patch16_dinov3", {"global_pool": "token"}),
        ("vit_small_patch16_lingbot", {"global_pool": "avg"}),
        ("vit_base_patch16_rope_224", {"global_pool": "avg"}),
        ("vit_small_patch16_rope_224", {"global_pool": "avg"}),
        ("vit_pe_spatial_tiny_patch16_512", {"use_post_transformer_norm": True}),
        ("eva02_tiny_patch14_336", {"global_pool": "token"}),
        ("eva02_tiny_patch14_336", {"use_fc_norm": False, "qk_norm": False, "drop_path_rate": 0.1}),
        ("vit_pe_core_tiny_patch16_384", {"global_pool": "avg", "use_fc_norm": None}),
    ],
)
def test_arguments_that_others_saved_mean_what_timm_makes_of_them(
    name: str, args: dict[str, Any]
) -> None:
    sizes = {"depth": 2, "embed_dim": 24, "num_heads": 2}
    cfg = {"num_classes": 5, "input_size": [3, 64, 64]}
    theirs = host.read_spec(timm.create_model(name, **args, **sizes, num_classes=5))
    theirs = theirs.with_(
        image_size=read_spec({"architecture": name, "pretrained_cfg": cfg}, "FILE").image_size
    )
    ours = read_spec(
        {"architecture": name, "model_args": {**sizes, **args}, "pretrained_cfg": cfg}, "FILE"
    )
    assert replace(ours, pool_heads=None, pool_mlp_ratio=None) == theirs


@pytest.mark.parametrize(
    "argument", [{"qk_norm": True}, {"num_kv_heads": 2}, {"rope_mrope_section": [1, 2, 3]}]
)
def test_an_argument_that_no_spec_expresses_is_refused(argument: dict[str, Any]) -> None:
    with pytest.raises(
        BadFile, match=f"model_args has '{next(iter(argument))}', which is not supported"
    ):
        read_spec({"architecture": "eva02_tiny_patch14_336", "model_args": argument}, "FILE")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"heads": 12},
            (
                "rotary positions need a multiple of 4 channels per head, but 12 heads of a width"
                " of 24 have 2"
            ),
        ),
        ({"norm_eps": 1e-3}, "norm_eps is 0.001; models of the family 'eva' have 1e-06 or 1e-05"),
        (
            {"image_size": 30},
            "patches of 14 pixels do not tile an image of 30; choose an image size of 28 or 42",
        ),
        (
            {"pool": "map", "pool_heads": 7},
            "the pooling has 7 heads, which do not divide a width of 24",
        ),
        ({"pool": "token", "class_token": False}, "pool 'token' needs a class token"),
        ({"mlp": "swiglu"}, "models of the family 'eva' have no mlp"),
    ],
)
def test_numbers_that_describe_no_model_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        small("eva02_tiny_patch14_336").with_(**changes)


def test_patches_must_tile_the_images_also_where_their_size_is_dynamic() -> None:
    with pytest.raises(WrongCall, match="patches of 16 pixels do not tile an image of 40"):
        small("vit_small_patch16_dinov3").with_(image_size=40)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"img_size": (64, 32)}, r"images of \(64, 32\)"),
        (
            {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": 1},
            "attn.num_kv_heads 1; only 2 is supported",
        ),
        ({"qk_norm": True}, "blocks.0.attn.q_norm"),
        ({"global_pool": ""}, "the pooling ''"),
        ({"rope_type": "mrope"}, "a RotaryEmbeddingMRope"),
        ({"norm_layer": timm.layers.RmsNorm}, "a RmsNorm"),
    ],
)
def test_a_module_that_no_spec_describes_is_refused(changes: dict[str, Any], says: str) -> None:
    sizes = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": 56}
    model = timm.create_model("eva02_tiny_patch14_336", **{**sizes, **changes})
    with pytest.raises(WrongCall, match=says):
        host.read_spec(model)


def test_a_model_is_named_after_the_architecture_that_it_is() -> None:
    for name in (
        "vit_base_patch16_dinov3",
        "eva02_large_patch14_448",
        "vit_large_patch16_rope_mixed_ape_224",
    ):
        assert choose_architecture(ARCHITECTURES[name].with_(layers=7, classes=10)) == name
        assert find_architecture(name) is ARCHITECTURES[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["vit_tiny_patch16_dinov3_qkvb"],
        ["eva02_tiny_patch14_336"],
        ["vit_small_patch16_rope_mixed_ape_224"],
        ["vit_pe_core_tiny_patch16_384"],
        pytest.param(
            [name for name, known in ARCHITECTURES.items() if known.layers * known.width < 13_000],
            marks=pytest.mark.exhaustive,
            id="all",
        ),
    ],
    ids=lambda names: names[0],
)
def test_the_architectures_that_are_known_are_timms(names: list[str]) -> None:
    from learngene_zoo.families.timm_config import read_architecture

    for name in names:
        assert read_architecture(name) == ARCHITECTURES[name], name
