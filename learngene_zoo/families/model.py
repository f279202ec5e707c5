"""Between a spec, its tensors and timm's module: `empty`, `model_of`, `state_of`, `spec_of`, `shapes`, `initial`.

Fresh memory for all parameters of a model at once.

Most of the time of building a large model from tensors that are at hand goes into the kernel handing out memory in pages
of 4 KiB. One mapping with large pages takes a third of it. Where that cannot be had, ordinary tensors are allocated.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from learngene_zoo.errors import BadFile
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.families.vit.table import placed
from learngene_zoo.families.vit.timm_config import architecture_name
from learngene_zoo.storage import StateDict, Tensors

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def shapes(spec: ViTSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by closed form, in the order of timm's state_dict."""
    return dict(_shapes(spec))


@lru_cache(maxsize=8)  # asked for several times of each model that is built
def _shapes(spec: ViTSpec) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, kind.shape(sizes)) for name, kind, sizes in placed(spec))


def empty(spec: ViTSpec, **extra: Any) -> VisionTransformer:
    """timm's module for a spec (ours where it is dense or stitched), its parameters on the meta device.

    `extra` are further arguments of timm's (dropout).

    No random number is drawn.
    """
    import timm

    if spec.dense or spec.front:
        import learngene_zoo.families.vit.stitched  # noqa: F401  registers it, and the dense ones
    with torch.device("meta"), _Unset():
        model = timm.create_model(architecture_name(spec), weight_init="skip", **spec.timm_args(), **extra)
    # As if built without `weight_init`: who calls `init_weights` or saves the arguments later gets timm's defaults.
    model.weight_init_mode = ""
    getattr(model, "_model_args", {}).pop("weight_init", None)
    return model


class _Unset(TorchFunctionMode):
    """Parameters get no first numbers: on the meta device that is a third of what building a module takes."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def model_of(spec: ViTSpec, state: StateDict, *, dtype: torch.dtype = torch.float32, **extra: Any) -> VisionTransformer:
    """A model with these tensors, in eval mode, trainable, in memory of its own: `state` stays as it is.

    Raises `BadFile` if a tensor is missing, extra or of another shape.
    """
    check_state(state, spec, "this state")
    model = empty(spec, **extra)
    owned = uninitialised(shapes(spec), dtype)
    for name, tensor in owned.items():
        tensor.copy_(state[name])
    model.load_state_dict(owned, strict=True, assign=True)
    return model.eval()


def state_of(model: torch.nn.Module) -> StateDict:
    """The tensors of a model, sharing its memory, without gradients."""
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def check_state(state: StateDict, spec: ViTSpec, where: str) -> None:
    """Raises `BadFile`, naming the first tensor that is missing, extra or of another shape than `spec` wants."""
    wanted, found = shapes(spec), shapes_in(state)
    for name, shape in wanted.items():
        if name not in found:
            raise BadFile(f"{where} lacks the tensor {name} of shape {shape}")
        if found[name] != shape:
            raise BadFile(f"{where}: the tensor {name} has shape {found[name]}; {shape} is wanted")
        if not (state.floating(name) if isinstance(state, Tensors) else state[name].is_floating_point()):
            raise BadFile(f"{where}: the tensor {name} holds no floating point numbers")
    extra = sorted(set(found) - set(wanted))
    if extra:
        raise BadFile(f"{where} holds the tensor {extra[0]}, which this model does not have")


def shapes_in(state: StateDict) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor; of a file's tensors from its header alone."""
    if isinstance(state, Tensors):
        return state.shapes()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


_ALIGNMENT = 64  # bytes; what torch's own allocator gives

_LARGE_PAGE = 2 * 2**20


def uninitialised(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """One tensor per name, of arbitrary contents. Each has a storage of its own size, as `torch.empty` would give."""
    step = _ALIGNMENT // dtype.itemsize
    places, end = {}, 0
    for name, shape in shapes.items():
        places[name] = end
        end += -(-math.prod(shape) // step) * step
    memory = _large_pages(end * dtype.itemsize)
    if memory is None:
        return {name: torch.empty(shape, dtype=dtype, device="cpu") for name, shape in shapes.items()}
    return {
        name: torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=places[name] * dtype.itemsize).view(
            shape
        )
        for name, shape in shapes.items()
    }


def _large_pages(size: int) -> mmap.mmap | None:
    """Private memory that the kernel may back with large pages; None where that is impossible or not worth it."""
    if size < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages
        return None
    return memory
