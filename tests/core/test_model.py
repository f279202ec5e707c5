"""Models have their own memory, and are built only from the tensors of their spec."""

import copy
import io
import mmap
import pickle

import pytest
import torch

from learngene_zoo.errors import BadFile, Unavailable
from learngene_zoo.families import tensors as models
from learngene_zoo.families.tensors import (
    allocate_tensors,
    build_model,
    check_state,
    get_shapes,
    initialise,
)
from learngene_zoo.families.vit.spec import TABLE, ViTSpec

TINY = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LARGE = ViTSpec(
    layers=2, width=256, heads=4, image_size=32, patch_size=8, classes=5
)  # 6 MB: worth large pages


@pytest.fixture(params=["large pages", "no large pages", "a kernel without"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with the three ways in which a model may get its memory."""
    if request.param == "no large pages":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    if request.param == "a kernel without":

        class Refusing(mmap.mmap):
            def madvise(self, *arguments: int) -> None:
                raise OSError(22, "Invalid argument")

        monkeypatch.setattr(models.mmap, "mmap", Refusing)
    return request.param


def test_the_memory_is_the_models_own(memory: str) -> None:
    state = initialise(LARGE, 0)
    before = {name: tensor.clone() for name, tensor in state.items()}
    first, second = build_model(LARGE, state), build_model(LARGE, state)
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.fill_(7.0)
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.state_dict().items())


def test_blocks_that_share_their_source_do_not_share_memory(memory: str) -> None:
    single = {
        TABLE.inner_name(name): tensor
        for name, tensor in initialise(LARGE, 0).items()
        if TABLE.block_of(name) == 0
    }
    twice = {
        name: single[TABLE.inner_name(name)] if TABLE.block_of(name) is not None else t
        for name, t in initialise(LARGE, 0).items()
    }
    model = build_model(LARGE, twice)
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight.zero_()
    assert model.blocks[1].mlp.fc1.weight.abs().sum() > 0


def test_every_parameter_is_an_ordinary_tensor(memory: str) -> None:
    model = build_model(LARGE, initialise(LARGE, 0))
    places = set()
    for name, tensor in model.named_parameters():
        storage = tensor.untyped_storage()
        assert (tensor.is_leaf, tensor.requires_grad, tensor.is_contiguous()) == (
            True,
            True,
            True,
        ), name
        assert (storage.nbytes(), tensor.storage_offset()) == (4 * tensor.numel(), 0), name
        assert storage.data_ptr() % 64 == 0, name
        places.add(storage.data_ptr())
    assert len(places) == len(get_shapes(LARGE))


def test_it_trains_copies_pickles_and_moves_into_shared_memory(memory: str) -> None:
    model = build_model(LARGE, initialise(LARGE, 0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(IMAGES_BCHW).square().sum().backward()
    optimizer.step()
    expected = model(IMAGES_BCHW)
    assert torch.equal(copy.deepcopy(model)(IMAGES_BCHW), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(IMAGES_BCHW), expected)
    assert torch.equal(model.share_memory()(IMAGES_BCHW), expected)
    assert torch.allclose(
        copy.deepcopy(model).double()(IMAGES_BCHW.double()).float(), expected, atol=1e-4
    )
    buffer = io.BytesIO()
    torch.save(model.head.state_dict(), buffer)
    assert buffer.tell() < 20_000  # the head alone, not the whole memory


def test_the_memory_outlives_the_model(memory: str) -> None:
    state = initialise(LARGE, 0)
    weight = build_model(LARGE, state).blocks[1].mlp.fc2.weight
    others = [build_model(LARGE, initialise(LARGE, seed)) for seed in (1, 2, 3)]
    assert all(not torch.equal(weight, other.blocks[1].mlp.fc2.weight) for other in others)
    assert torch.equal(weight, state["blocks.1.mlp.fc2.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_in_and_out(dtype: torch.dtype) -> None:
    state = initialise(LARGE, 0)
    stored = {name: tensor.to(dtype) for name, tensor in state.items()}
    assert all(tensor.dtype == torch.float32 for tensor in build_model(LARGE, stored).parameters())
    narrow = build_model(LARGE, state, dtype=dtype)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in narrow.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop("blocks.1.norm1.weight"),
            "lacks the tensor blocks.1.norm1.weight",
        ),
        (
            lambda state: state.update(extra=torch.zeros(1)),
            "has the tensor extra, which this model does not have",
        ),
        (
            lambda state: state.update(cls_token=torch.zeros(1, 1, 31)),
            r"cls_token has shape \(1, 1, 31\); expected \(1, 1, 32\)",
        ),
        (
            lambda state: state.update(cls_token=torch.zeros(1, 1, 32, dtype=torch.int32)),
            "does not hold floating-point numbers",
        ),
    ],
)
def test_loading_is_strict(change: object, message: str) -> None:
    state = dict(initialise(TINY, 0))
    change(state)  # type: ignore[operator]
    with pytest.raises(BadFile, match=message) as error:
        check_state(state, TINY, "FILE")
    assert str(error.value).startswith("FILE")
    with pytest.raises(BadFile, match=message):
        build_model(TINY, state)


def test_tensors_that_no_memory_holds_are_refused_before_they_are_asked_for() -> None:
    huge = ViTSpec(layers=512, width=16384, heads=128, mlp_ratio=64.0)
    with pytest.raises(
        Unavailable, match=r"these tensors need \S+TB, and this machine has \S+ of memory"
    ):
        initialise(huge, 0)
    with pytest.raises(Unavailable, match="choose a smaller size"):
        allocate_tensors(get_shapes(huge), torch.float16)
    assert set(initialise(huge, 0, names=["norm.weight"])) == {"norm.weight"}
