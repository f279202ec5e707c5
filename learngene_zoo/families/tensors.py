"""The tensors of a model by name: shapes, initial values, building a module, selecting tensors.

Names and axes are defined by the table of a spec (surgery.py maps along axes). Operations are pure,
StateDict -> StateDict: no argument is mutated, tensors that do not change are shared, and of a
state on disk only the tensors in the result are read, once each.

When a large model is built from tensors in memory, most of the time goes into the kernel handing
out memory in pages of 4 KiB. A single mapping with large pages for all parameters takes a third of
that time; without large pages, ordinary tensors are allocated.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from learngene_zoo.errors import BadFile, Unavailable, WrongCall, WrongTensor
from learngene_zoo.families.family import ParameterSpec, Table, get_family, get_table, load_host
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.picture_spec import PictureSpec, require_pictures
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_format import TextFormat, Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.seeds import derive_seed
from learngene_zoo.storage import StateDict, Tensors
from learngene_zoo.text import format_count

# A family's module, such as timm's VisionTransformer; its attributes depend on the family.
Model = Any


def get_shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter, in the order of the model's state_dict."""
    return dict(_get_shapes(spec))


@lru_cache(maxsize=8)  # building a model needs them several times
def _get_shapes(spec: Spec) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(
        (name, kind.shape(sizes)) for name, kind, sizes in get_table(spec).parameters(spec)
    )


def build_empty(spec: Spec, **extra: Any) -> Model:
    """Build the module for a spec on the meta device; no random number is drawn.

    `extra` are further arguments of timm's (dropout).
    """
    builder = load_host(get_family(spec))
    with torch.device("meta"), _Unset():
        return builder.create(spec, **extra)


class _Unset(TorchFunctionMode):
    """Skip the initialisation of parameters: a third of the time, even on the meta device."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def build_model(
    spec: Spec, state: StateDict, *, dtype: torch.dtype = torch.float32, **extra: Any
) -> Model:
    """Build a model with these tensors in newly allocated memory, in eval mode and trainable.

    `state` is not changed.

    Args:
        spec: the model to build.
        state: its tensors by name.
        dtype: the precision of the model.
        extra: further arguments of timm's (dropout).

    Raises:
        BadFile: if a tensor is missing, unexpected or of another shape.
    """
    check_state(state, spec, "this state")
    model = build_empty(spec, **extra)
    owned = allocate_tensors(get_shapes(spec), dtype)
    for name, tensor in owned.items():
        tensor.copy_(state[name])
    model.load_state_dict(owned, strict=True, assign=True)
    _compute_buffers(model)
    return model.eval()


def _compute_buffers(model: torch.nn.Module) -> None:
    """Fill the buffers of a model from the meta device that are computed once and never saved.

    For example tables of rotary positions.
    """
    for module in model.modules():
        unset = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        for name in unset:
            setattr(module, name, torch.empty_like(module.get_buffer(name), device="cpu"))
        if unset:
            module.init_non_persistent_buffers()  # type: ignore[operator]


def make_example_inputs(
    form: Spec | InputFormat | TextFormat, count: int, device: torch.device | None = None
) -> Any:
    """Return inputs of the largest size: images of zeros, (count, C, H, W), or `Tokens`.

    Args:
        form: the model or its input format.
        count: the number of inputs.
        device: where they lie; None: the default device.
    """
    if isinstance(form, TextFormat | TextSpec):
        pad = form.pad if isinstance(form, TextFormat) else form.pad_token
        length = form.tokens
        ids = torch.full((count, length), int(pad == 0), device=device)  # no padding
        return Tokens(ids, torch.ones_like(ids))
    images = form if isinstance(form, InputFormat) else require_pictures(form)
    size = images.image_size
    return torch.zeros(count, images.channels, size, size, device=device)


def get_state_dict(model: torch.nn.Module) -> StateDict:
    """Return the tensors of a model without gradients; they share its memory."""
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def check_state(state: StateDict, spec: Spec, where: str) -> None:
    """Raise `BadFile` if the tensors of a state are not those of the model of `spec`.

    The message names the first tensor that is missing, unexpected or of another shape or type, and
    `where` the file.
    """
    expected, actual = get_shapes(spec), read_shapes(state)
    for name, shape in expected.items():
        if name not in actual:
            raise BadFile(f"{where} lacks the tensor {name} of shape {shape}")
        if actual[name] != shape:
            raise BadFile(f"{where}: the tensor {name} has shape {actual[name]}; expected {shape}")
        if not (
            state.is_floating(name)
            if isinstance(state, Tensors)
            else state[name].is_floating_point()
        ):
            raise BadFile(f"{where}: the tensor {name} does not hold floating-point numbers")
    extra = sorted(set(actual) - set(expected))
    if extra:
        raise BadFile(f"{where} has the tensor {extra[0]}, which this model does not have")


def read_shapes(state: StateDict) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor; for a file, from its header alone."""
    if isinstance(state, Tensors):
        return state.shapes()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


_ALIGNMENT = 64  # bytes, as torch's own allocator
_LARGE_PAGE = 2 * 2**20


def allocate_tensors(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return uninitialised tensors of these shapes.

    Each has a separate storage of its size, as if made by `torch.empty`.
    """
    places, end = {}, 0  # in bytes
    for name, shape in shapes.items():
        places[name] = end
        end += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    check_memory(end)
    memory = _map_large_pages(end)
    if memory is None:
        return {
            name: torch.empty(shape, dtype=dtype, device="cpu") for name, shape in shapes.items()
        }
    return {
        name: (
            torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=places[name]).view(
                shape
            )
        )
        for name, shape in shapes.items()
    }


def check_memory(needed: int) -> None:
    """Raise `Unavailable` if this machine has less memory than `needed`, in bytes.

    Allocating more could end the process.
    """
    if needed > measure_memory():
        raise Unavailable(
            f"these tensors need {format_count(needed)}B, and this machine has"
            f" {format_count(measure_memory())}B of memory; choose a smaller size"
        )


def measure_memory() -> int:
    """Return the memory of this machine in bytes; 2^63 if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**63


def _map_large_pages(size: int) -> mmap.mmap | None:
    """Return private memory that the kernel may back with large pages.

    None if that is impossible, or if `size` is less than one large page.
    """
    if size < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages
        return None
    return memory


Scheme = Literal["timm", "fan_in"]


def initialise(
    spec: Spec, seed: int, scheme: Scheme = "timm", names: Iterable[str] | None = None
) -> StateDict:
    """Return randomly initialised tensors of a model: all, or those in `names`.

    `timm`    as timm or transformers initialise models of the family. timm's `VisionTransformer`:
              matrices and positions N(0, 0.02), the patch embedding uniform within 1/sqrt(fan in),
              tokens N(0, 1e-6), the query of a pooling layer N(0, 1/sqrt(width)), truncated at two
              standard deviations. timm truncates the other normal distributions at 2, which is 100
              standard deviations and has no effect. Embeddings of words N(0, 0.02). Exceptions of a
              family are in its table's `draws` and `draws_by_name`.
    `fan_in`  matrices and patch embedding N(0, 1/sqrt(fan in)): larger values at small widths.

    In both, biases are 0 (except the patch embedding's under `timm`, and a gate's, which are 1),
    norms 1 and 0 (under `timm`, 1e-5 for a ViT's norms after attention and MLP), and layer scales
    their value. A tensor is a function of the seed, its name and its shape, so that models of two
    sizes have the same tensors where name and shape are the same.

    Args:
        spec: the model.
        seed: seed of the random numbers.
        scheme: one of the two above.
        names: names of the tensors to return. None: all.
    """
    chosen = set(get_shapes(spec) if names is None else names)
    check_memory(
        sum(4 * math.prod(shape) for name, shape in get_shapes(spec).items() if name in chosen)
    )
    return {
        name: _start(
            kind,
            spec,
            sizes,
            derive_seed(seed, "initial", name),
            scheme,
            get_table(spec).block_of(name),
        )
        for name, kind, sizes in get_table(spec).parameters(spec)
        if name in chosen
    }


def fill_missing_tensors(
    spec: Spec, parts: StateDict, seed: int, scheme: Scheme = "timm"
) -> StateDict:
    """Return all tensors of a model: the given parts, and initial values for all others.

    The parts are shared, not copied.

    Args:
        spec: the model.
        parts: tensors by name.
        seed: seed of the initial values.
        scheme: as in `initialise`.

    Raises:
        WrongTensor: for a part that this model does not have, or of another shape.
    """
    expected, actual = get_shapes(spec), read_shapes(parts)
    for name, shape in actual.items():
        if name not in expected:
            raise WrongTensor(f"the model to build has no tensor {name}; leave it out")
        if expected[name] != shape:
            raise WrongTensor(
                f"the tensor {name} has shape {shape}; the model to build needs {expected[name]}"
            )
    fresh = initialise(spec, seed, scheme, names=[name for name in expected if name not in actual])
    return {name: parts[name] if name in actual else fresh[name] for name in expected}


_MATRICES = ("matrix", "deep", "head", "patches")  # scaled by `fan_in`


def _start(
    kind: ParameterSpec,
    spec: Spec,
    sizes: Mapping[str, int],
    seed: int,
    scheme: Scheme,
    block: int | None,
) -> torch.Tensor:
    tensor = torch.empty(kind.shape(sizes), device="cpu")
    generator = torch.Generator().manual_seed(seed)
    table = get_table(spec)
    if scheme == "timm" and kind.name in table.draws_by_name:
        return table.draws_by_name[kind.name](spec, tensor, generator, block)
    if kind.start in table.draws and (scheme == "timm" or kind.start not in _MATRICES):
        return table.draws[kind.start](spec, tensor, generator, block)
    if callable(kind.start):
        return tensor.fill_(kind.start(spec))
    if kind.start == "one":
        return tensor.fill_(1.0)
    if kind.start == "token":
        return tensor.normal_(std=1e-6, generator=generator)
    if kind.start == "latent":
        edge = math.erf(math.sqrt(2))  # of the truncation, at two standard deviations
        uniform = tensor.uniform_(-edge, edge, generator=generator)
        return uniform.erfinv_().mul_(math.sqrt(2 / spec.width))
    if kind.start in ("positions", "embedding"):
        return tensor.normal_(std=0.02, generator=generator)
    if kind.start == "patches" and scheme == "timm":
        images = require_pictures(spec)
        bound = 1 / math.sqrt(images.channels * images.patch_size**2)
        return tensor.uniform_(-bound, bound, generator=generator)
    if kind.start == "zero" or tensor.dim() == 1:
        return tensor.zero_()
    std = 0.02 if scheme == "timm" else 1 / math.sqrt(count_inputs(kind, tensor))
    return tensor.normal_(std=std, generator=generator)


def count_inputs(kind: ParameterSpec, tensor: torch.Tensor) -> int:
    """Return the number of inputs of each output of a matrix or convolution, its fan in."""
    return tensor.select(kind.writes, 0).numel()


def select_tensors(state: StateDict, keep: Callable[[str], bool]) -> StateDict:
    """Return the tensors whose names `keep` accepts."""
    return {name: state[name] for name in state if keep(name)}


def remove_head(state: StateDict, spec: Spec) -> StateDict:
    """Return all tensors except those of the classification head."""
    table = get_table(spec)
    return select_tensors(state, lambda name: not table.is_head(name))


def take_blocks(state: StateDict, spec: Spec, sources: Sequence[int]) -> StateDict:
    """Return a state whose block `i` is block `sources[i]` of `state`; repeated blocks are shared.

    All other tensors stay as they are, except that tensors outside of the blocks with an axis
    `layers` are indexed along it. `take_blocks(state, spec, range(layers))` is `state`, and the
    operation composes. Of a state on disk only the tensors in the result are read, once each.

    Args:
        state: tensors of a model.
        spec: a spec of the same family.
        sources: numbers of blocks in `state`, from 0.

    Raises:
        WrongCall: if `state` lacks a block.
    """
    table = get_table(spec)
    inner: dict[int, list[str]] = {}
    for name in state:
        block = table.block_of(name)
        if block is not None:
            inner.setdefault(block, []).append(table.inner_name(name))
    absent = [source for source in sources if source not in inner]
    if absent:
        raise WrongCall(
            f"there is no block {absent[0]}; expected one of {', '.join(map(str, sorted(inner)))}"
        )
    read = {
        (i, name): state[table.block_name(i, name)]
        for i in sorted(set(sources))
        for name in inner[i]
    }
    selected = {
        table.block_name(i, name): read[source, name]
        for i, source in enumerate(sources)
        for name in inner[source]
    }
    before = {
        name: _of_layers(table, name, state[name], sources) for name in state if table.is_stem(name)
    }
    after = select_tensors(
        state, lambda name: table.block_of(name) is None and not table.is_stem(name)
    )
    return {**before, **selected, **after}


def find_axis_of_layers(table: Table, name: str) -> int | None:
    """Return the axis along which a tensor outside of the blocks has a value for each block.

    None if it has no such axis.
    """
    kind = table.find(name)
    return None if kind is None or ("layers",) not in kind.axes else kind.axes.index(("layers",))


def _of_layers(
    table: Table, name: str, tensor: torch.Tensor, sources: Sequence[int]
) -> torch.Tensor:
    axis = find_axis_of_layers(table, name)
    if axis is None or list(sources) == list(range(tensor.shape[axis])):
        return tensor
    return tensor.index_select(axis, torch.tensor(list(sources)))


def resize_positions(state: StateDict, spec_from: Spec, spec_to: Spec) -> StateDict:
    """Resample the position embedding to the patch grid of `spec_to`.

    timm's bicubic `resample_abs_pos_embed` is applied. Equal grids, models without position
    embedding, and text models leave everything unchanged.

    Args:
        state: tensors of the model of `spec_from`.
        spec_from: the model.
        spec_to: the model whose grid the positions are for.

    Raises:
        WrongCall: if the specs have position embeddings for different numbers of tokens before the
            patches.
    """
    table = get_table(spec_from)
    name = table.find_parameter("positions")
    if not isinstance(spec_from, PictureSpec) or name is None or name not in state:
        return dict(state)
    spec_to = require_pictures(spec_to)
    if spec_from.grid == spec_to.grid:
        return {name: state[name] for name in state}
    before, after = (table.sizes(spec)["positions"] - spec.patches for spec in (spec_from, spec_to))
    if before != after:
        raise WrongCall(
            f"expected positions for {after} tokens before the patches, got {before}; keep class"
            " token and registers as they are"
        )
    from timm.layers import resample_abs_pos_embed

    positions = resample_abs_pos_embed(
        state[name],
        new_size=[spec_to.grid] * 2,
        old_size=[spec_from.grid] * 2,
        num_prefix_tokens=before,
    )
    return {other: positions if other == name else state[other] for other in state}


def shuffle_tensors(state: StateDict, names: Iterable[str], seed: int) -> StateDict:
    """Permute the entries of the named tensors, each by a function of the seed and its name.

    The distribution of each tensor is kept, so that this control separates the effect of inherited
    values from that of inherited scale.
    """
    chosen = set(names)
    return {
        name: _permute_tensor(state[name], name, seed) if name in chosen else state[name]
        for name in state
    }


def _permute_tensor(tensor: torch.Tensor, name: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "shuffled", name))
    return tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].view(tensor.shape)


def cast(state: StateDict, dtype: torch.dtype) -> StateDict:
    """Convert floating-point tensors to another precision; shared tensors stay shared."""
    tensors = {name: state[name] for name in state}
    converted = {
        id(tensor): tensor.to(dtype) for tensor in tensors.values() if tensor.is_floating_point()
    }
    return {name: converted.get(id(tensor), tensor) for name, tensor in tensors.items()}
