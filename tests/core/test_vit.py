"""From module to spec to module: the same outputs, bit for bit; what a spec cannot say is refused."""

import copy
import io
import math
import mmap
import pickle

import pytest
import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import model as arena
from learngene_zoo.families.initialisation import initial
from learngene_zoo.families.model import check_state, empty, model_of, shapes, state_of
from learngene_zoo.families.vit.reading import spec_of
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.families.vit.table import block_of, inner_name, is_head, is_last_norm, is_stem, kind_of
from learngene_zoo.families.vit.timm_config import ARCHITECTURE

TINY = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
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
    {"dynamic_image_size": True, "image_size": 30},
]


def built_by_timm(**arguments: object) -> VisionTransformer:
    """timm's model with weights that tell every tensor apart."""
    torch.manual_seed(0)
    model = timm.create_model(ARCHITECTURE, **{**TINY.timm_args(), **arguments}).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.05 * torch.randn_like(tensor))
    return model


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_there_and_back_is_the_same_function(changes: dict) -> None:
    spec = TINY.with_(**changes)
    model = built_by_timm(**spec.timm_args())
    found = spec_of(model)
    assert found.hidden == spec.hidden
    assert found.with_(mlp_ratio=spec.mlp_ratio).timm_args() == spec.timm_args()
    again = model_of(found, state_of(model))
    images_BCHW = IMAGES_BCHW[:, : spec.channels]
    assert torch.equal(again(images_BCHW), model(images_BCHW))
    assert not again.training


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_shapes_are_those_of_timm_in_its_order(changes: dict) -> None:
    spec = TINY.with_(**changes)
    with torch.device("meta"):
        model = timm.create_model(ARCHITECTURE, weight_init="skip", **spec.timm_args())
    assert list(shapes(spec).items()) == [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]


def test_a_hidden_width_that_no_ratio_hits_exactly() -> None:
    for hidden in range(1, 100, 2):
        model = empty(TINY.with_(layers=1, width=28, mlp_ratio=math.nextafter(hidden / 28, math.inf)))
        assert spec_of(model).hidden == model.blocks[0].mlp.fc1.out_features


def test_images_of_another_size_where_the_model_takes_them() -> None:
    spec = TINY.with_(dynamic_image_size=True)
    assert model_of(spec, initial(spec, 0))(torch.zeros(1, 3, 48, 48)).shape == (1, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"act_layer": "silu"}, "SiLU"),
        ({"act_layer": "gelu_tanh"}, "GELUTanh"),
        ({"norm_layer": "rmsnorm"}, "RmsNorm"),
        ({"norm_layer": lambda *a, **k: nn.LayerNorm(*a, eps=1e-5, **k)}, "eps=1e-05"),
        ({"mlp_layer": timm.layers.SwiGLU}, "SwiGLU"),
        ({"mlp_layer": timm.layers.GluMlp}, "GluMlp"),
        ({"block_fn": timm.models.vision_transformer.ParallelScalingBlock}, "ParallelScalingBlock"),
        ({"block_fn": timm.models.vision_transformer.ResPostBlock}, "ResPostBlock"),
        ({"attn_layer": "diff"}, "DiffAttention"),
        ({"embed_norm_layer": "layernorm"}, "LayerNorm.* for patch_embed.norm"),
        ({"global_pool": "map"}, "pooling 'map'"),
        ({"global_pool": ""}, "pooling ''"),
        ({"pos_embed": "none"}, "no position embedding"),
        ({"scale_attn_norm": True}, "blocks.0.attn.norm"),
        ({"scale_mlp_norm": True}, "blocks.0.mlp.norm"),
        ({"img_size": (32, 16)}, r"images of \(32, 16\)"),
        ({"patch_size": (8, 4)}, r"patches of \(8, 4\)"),
        ({"dynamic_img_size": True, "dynamic_img_pad": True}, "padded images"),
        ({"pool_include_prefix": True, "global_pool": "avg"}, "pool_include_prefix"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_a_spec_cannot_say_is_refused(arguments: dict, message: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(ARCHITECTURE, weight_init="skip", **{**TINY.timm_args(), **arguments})
    with pytest.raises(WrongCall, match=message) as error:
        spec_of(model)
    assert "supported are" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_block_unlike_the_others_is_refused() -> None:
    model = empty(TINY)
    model.blocks[1].mlp.act = nn.ReLU()
    with pytest.raises(WrongCall, match=r"ReLU\(\) for blocks.1.mlp.act"):
        spec_of(model)
    model = empty(TINY)
    model.blocks[1].attn.num_heads = 2
    with pytest.raises(WrongCall, match=r"attention of 2 heads for blocks\.1\.attn"):
        spec_of(model)


@pytest.mark.parametrize(
    "make", [lambda: VisionTransformerDistilled(depth=1), lambda: nn.Linear(1, 1)], ids=["distilled", "linear"]
)
def test_what_is_no_plain_vit_is_refused(make: object) -> None:
    with torch.device("meta"), pytest.raises(WrongCall, match="is no plain ViT; supported are"):
        spec_of(make())  # type: ignore[operator]


def test_training_only_layers_do_not_matter() -> None:
    assert spec_of(built_by_timm(drop_path_rate=0.3, proj_drop_rate=0.1, patch_drop_rate=0.2, drop_rate=0.1)) == TINY


def test_no_random_number_is_drawn() -> None:
    before = torch.random.get_rng_state()
    model_of(TINY, initial(TINY, 0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_empty_model_is_as_if_timm_had_built_it() -> None:
    ours, theirs = empty(TINY), timm.create_model(ARCHITECTURE, **TINY.timm_args())
    assert ours._model_args == theirs._model_args
    assert ours.weight_init_mode == theirs.weight_init_mode
    assert all(tensor.device.type == "meta" for tensor in ours.parameters())


# --- memory ---------------------------------------------------------------------------------------------------------

LARGE = ViTSpec(layers=2, width=256, heads=4, image_size=32, patch_size=8, classes=5)  # 6 MB: worth large pages


@pytest.fixture(params=["large pages", "no large pages", "a kernel without"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The three ways in which a model may get its memory."""
    if request.param == "no large pages":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    if request.param == "a kernel without":

        class Refusing(mmap.mmap):
            def madvise(self, *arguments: int) -> None:
                raise OSError(22, "Invalid argument")

        monkeypatch.setattr(arena.mmap, "mmap", Refusing)
    return request.param


def test_the_memory_is_the_models_own(memory: str) -> None:
    state = initial(LARGE, 0)
    before = {name: tensor.clone() for name, tensor in state.items()}
    first, second = model_of(LARGE, state), model_of(LARGE, state)
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.fill_(7.0)
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.state_dict().items())


def test_blocks_that_share_their_source_do_not_share_memory(memory: str) -> None:
    one = {inner_name(name): tensor for name, tensor in initial(LARGE, 0).items() if block_of(name) == 0}
    twice = {name: one[inner_name(name)] if block_of(name) is not None else t for name, t in initial(LARGE, 0).items()}
    model = model_of(LARGE, twice)
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight.zero_()
    assert model.blocks[1].mlp.fc1.weight.abs().sum() > 0


def test_every_parameter_is_an_ordinary_tensor(memory: str) -> None:
    model = model_of(LARGE, initial(LARGE, 0))
    places = set()
    for name, tensor in model.named_parameters():
        storage = tensor.untyped_storage()
        assert (tensor.is_leaf, tensor.requires_grad, tensor.is_contiguous()) == (True, True, True), name
        assert (storage.nbytes(), tensor.storage_offset()) == (4 * tensor.numel(), 0), name
        assert storage.data_ptr() % 64 == 0, name
        places.add(storage.data_ptr())
    assert len(places) == len(shapes(LARGE))


def test_it_trains_copies_pickles_and_moves_into_shared_memory(memory: str) -> None:
    model = model_of(LARGE, initial(LARGE, 0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(IMAGES_BCHW).square().sum().backward()
    optimizer.step()
    wanted = model(IMAGES_BCHW)
    assert torch.equal(copy.deepcopy(model)(IMAGES_BCHW), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(model))(IMAGES_BCHW), wanted)
    assert torch.equal(model.share_memory()(IMAGES_BCHW), wanted)
    assert torch.allclose(copy.deepcopy(model).double()(IMAGES_BCHW.double()).float(), wanted, atol=1e-4)
    buffer = io.BytesIO()
    torch.save(model.head.state_dict(), buffer)
    assert buffer.tell() < 20_000  # the head alone, not the whole arena


def test_the_memory_outlives_the_model(memory: str) -> None:
    state = initial(LARGE, 0)
    weight = model_of(LARGE, state).blocks[1].mlp.fc2.weight
    others = [model_of(LARGE, initial(LARGE, seed)) for seed in (1, 2, 3)]
    assert all(not torch.equal(weight, other.blocks[1].mlp.fc2.weight) for other in others)
    assert torch.equal(weight, state["blocks.1.mlp.fc2.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_in_and_out(dtype: torch.dtype) -> None:
    state = initial(LARGE, 0)
    stored = {name: tensor.to(dtype) for name, tensor in state.items()}
    assert all(tensor.dtype == torch.float32 for tensor in model_of(LARGE, stored).parameters())
    narrow = model_of(LARGE, state, dtype=dtype)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in narrow.state_dict().items())


# --- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("blocks.1.norm1.weight"), "lacks the tensor blocks.1.norm1.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "holds the tensor extra, which this model does not have"),
        (
            lambda state: state.update(cls_token=torch.zeros(1, 1, 31)),
            r"cls_token has shape \(1, 1, 31\); \(1, 1, 32\)",
        ),
        (lambda state: state.update(cls_token=torch.zeros(1, 1, 32, dtype=torch.int32)), "no floating point numbers"),
    ],
)
def test_loading_is_strict(change: object, message: str) -> None:
    state = dict(initial(TINY, 0))
    change(state)  # type: ignore[operator]
    with pytest.raises(BadFile, match=message) as error:
        check_state(state, TINY, "FILE")
    assert str(error.value).startswith("FILE")
    with pytest.raises(BadFile, match=message):
        model_of(TINY, state)


def test_what_a_name_says() -> None:
    names = list(shapes(TINY))
    assert [name for name in names if is_head(name)] == ["head.weight", "head.bias"]
    assert [name for name in names if is_last_norm(name)] == ["norm.weight", "norm.bias"]
    assert [name for name in names if is_stem(name)] == names[:4]
    assert [block_of(name) for name in ("blocks.11.norm1.bias", "norm.weight", "blocks.x.y", "blocks")] == [
        11,
        None,
        None,
        None,
    ]
    assert kind_of("blocks.3.mlp.fc1.bias") is not None
    assert kind_of("mlp.fc1.bias") is kind_of("blocks.3") is kind_of("blocks.0.head.weight") is None


# --- initialisation -------------------------------------------------------------------------------------------------

WIDE = ViTSpec(layers=2, width=192, heads=3, image_size=64, patch_size=8, classes=50, registers=2, layer_scale=0.1)


def test_a_tensor_is_a_function_of_seed_and_name() -> None:
    whole, part = initial(TINY, 3), initial(TINY.with_(layers=5), 3, names=["blocks.1.mlp.fc1.weight"])
    assert list(part) == ["blocks.1.mlp.fc1.weight"]
    assert torch.equal(part["blocks.1.mlp.fc1.weight"], whole["blocks.1.mlp.fc1.weight"])
    assert not torch.equal(whole["blocks.0.mlp.fc1.weight"], whole["blocks.1.mlp.fc1.weight"])
    assert not torch.equal(initial(TINY, 4)["head.weight"], whole["head.weight"])


def test_timm_starts_as_timm_does() -> None:
    ours = initial(WIDE, 0)
    theirs = timm.create_model(ARCHITECTURE, **WIDE.timm_args()).state_dict()
    for name, tensor in theirs.items():
        # Of few numbers neither the deviation nor the largest says much.
        if tensor.numel() > 1000:
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), rel=0.1), name
            assert ours[name].abs().max().item() == pytest.approx(tensor.abs().max().item(), rel=0.3), name
        elif "token" not in name and "patch_embed" not in name:
            assert torch.equal(ours[name], tensor), name
    assert ours["cls_token"].abs().max() < 1e-5


def test_fan_in_has_unit_gain() -> None:
    drawn = initial(WIDE, 0, "fan_in")
    assert drawn["blocks.0.mlp.fc2.weight"].std().item() == pytest.approx(768**-0.5, rel=0.02)
    assert drawn["patch_embed.proj.weight"].std().item() == pytest.approx(192**-0.5, rel=0.02)
    assert drawn["pos_embed"].std().item() == pytest.approx(0.02, rel=0.05)
    assert drawn["patch_embed.proj.bias"].abs().sum() == 0
    assert drawn["blocks.0.ls1.gamma"].unique().tolist() == pytest.approx([0.1])
