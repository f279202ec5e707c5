"""`Family`: a kind of model as a value, with the table of its tensors and the cost of its models.

Generic code asks the family and never uses the name of a tensor.

To add a family: a folder beside this file whose package has `FAMILY`, and a line in
`spec.FAMILIES`.

A `Table` gives the meaning of each axis of each tensor, and the initialisation of the tensor.
Shapes, parameter counts, initial values and all operations that cut tensors follow from it. An axis
that is a product is written with its factors from slow to fast: `qkv heads head_width` is (3,
heads, head width) flattened.

A `Cost` is computed in closed form: parameters, and FLOPs of one image. One FLOP is one
multiply-add. There are three conventions, because papers count differently:

`exact`   (the default) convolutions, linear layers and attention's two matrix products; 5 per
          element of every LayerNorm or RMSNorm, 4 per number of a bilinear upsampling; nothing for
          softmax, activations, gates and additions. Every parameter of the built model counts.
`fvcore`  the same, with the differences in the published numbers of Learngene Pool and SN-Net: of
          stitched models their code counts neither class token and position embedding among the
          parameters nor the final norm among the FLOPs; it counts the final norm's parameters even
          if the model has none.
`thop`    (LSAMD) convolutions and linear layers; 4 per element of every LayerNorm; neither
          attention's two products nor upsampling. Parameters outside of layers do not count: class
          token, registers, position embedding, layer scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from learngene_zoo.errors import Unavailable
from learngene_zoo.families.spec import (
    FAMILIES,
    Spec,
    import_package,
)
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

if TYPE_CHECKING:
    import torch
    from torch import nn


# How a tensor is initialised (see `initialise`), or a function from the spec to the value that
# fills it. A "deep" matrix is the last one in a branch of a block, which some families scale by
# depth. An "embedding" has a row for each word. "latent" (the query of a pooling layer) and
# "frequencies" are parameters outside of layers.
Start = (
    Literal[
        "matrix",
        "deep",
        "head",
        "patches",
        "token",
        "latent",
        "positions",
        "embedding",
        "frequencies",
        "one",
        "zero",
    ]
    | Callable[[Any], float]
)
# Fills an empty tensor with random numbers: (spec, tensor, generator, number of its block or None).
Draw = Callable[[Any, "torch.Tensor", "torch.Generator", int | None], "torch.Tensor"]
Axes = tuple[tuple[str, ...], ...]
Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class ParameterSpec:
    """A kind of tensor in a family's models.

    Attributes:
        name: name of the tensor, within its block if it is part of one.
        axes: the factors of each axis.
        start: how the tensor is initialised.
        present: whether the model of a spec has the tensor.
        reads: of a matrix, the dimension of its inputs: 1 in PyTorch's linear layers and
            convolutions (and every later dimension), 0 in transformers' `Conv1D`.
    """

    name: str
    axes: Axes
    start: Start
    present: Condition
    reads: Literal[0, 1] = 1

    @property
    def writes(self) -> int:
        """The dimension of the outputs of a matrix."""
        return 1 - self.reads

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of the tensor for these axis sizes."""
        return tuple(math.prod(sizes[part] for part in axis) for axis in self.axes)


def make_row(
    name: str,
    axes: str,
    start: Start,
    present: Condition = lambda spec: True,
    reads: Literal[0, 1] = 1,
) -> ParameterSpec:
    """Return a row of a table.

    Args:
        name: name of the tensor, within its block if it is part of one.
        axes: the axes, as in "qkv heads head_width, width".
        start: how the tensor is initialised.
        present: whether the model of a spec has the tensor.
        reads: of a matrix, the dimension of its inputs.
    """
    return ParameterSpec(
        name, tuple(tuple(axis.split()) for axis in axes.split(",")), start, present, reads
    )


def make_norm_rows(
    name: str, axis: str, present: Condition = lambda spec: True
) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the two rows of a LayerNorm."""
    return make_row(f"{name}.weight", axis, "one", present), make_row(
        f"{name}.bias", axis, "zero", present
    )


@dataclass(frozen=True, kw_only=True)
class BranchNames:
    """The layers of the attention or of the MLP of a block, by their names within the block.

    A branch adds to the residual stream x:

        x + scale * writer(...(readers(norm(x))))      if the norm comes before
        norm(x + writer(...(readers(x))))              if it comes after (`Table.norms_after`)

    Attributes:
        norm: the norm.
        readers: the linear layers that read the stream: queries, keys and values, in one layer or
            in three, or the first layers of the MLP.
        writer: the linear layer that writes to the stream.
        scale: the tensor of the layer scale; None without one.
        mixes: whether an output depends on several tokens, as in attention only.
    """

    norm: str
    readers: tuple[str, ...]
    writer: str
    scale: str | None = None
    mixes: bool


def _refuse_branches(spec: Any) -> tuple[BranchNames, ...]:
    raise NotImplementedError(f"the table of the family {spec.family!r} lists no branches")


@dataclass(frozen=True, kw_only=True)
class Table:
    """All tensors that a family's models can have, in the order of their state_dict."""

    prefix: str  # of the names of tensors in blocks, before the number of the block: "blocks."
    sizes: Callable[[Any], dict[str, int]]  # the size of every axis in a plain model
    stem: tuple[ParameterSpec, ...]  # before the blocks
    block: tuple[ParameterSpec, ...]
    # Last in the first block of a later segment; the axis `before` has the width of the segment
    # before it.
    stitch: tuple[ParameterSpec, ...] = ()
    # After the blocks, before the head: the final norm, and the tensors of pooling.
    final_norm: tuple[ParameterSpec, ...]
    head: tuple[ParameterSpec, ...]
    # The attention and the MLP of each block, in the order in which they run.
    branches: Callable[[Any], tuple[BranchNames, ...]] = _refuse_branches
    # Whether the norm of a branch comes after the sum instead of before its readers.
    norms_after: Condition = lambda spec: False
    # How timm initialises these kinds of tensors, where it differs from `initialise`.
    draws: Mapping[Start, Draw] = field(default_factory=dict)
    # The same for single tensors, by their name within the block; not for the scheme `fan_in`.
    draws_by_name: Mapping[str, Draw] = field(default_factory=dict)

    def parameters(self, spec: Spec) -> Iterator[tuple[str, ParameterSpec, Mapping[str, int]]]:
        """Yield name, kind and axis sizes of every tensor of a model, in its state_dict's order."""
        sizes = self.sizes(spec.first)
        yield from ((kind.name, kind, sizes) for kind in self.stem if kind.present(spec))
        inside = [kind for kind in self.block if kind.present(spec)]
        start, before = 0, None
        for segment, size in zip(spec.segments, spec.sizes):
            sizes = self.sizes(segment) | ({} if before is None else {"before": before})
            for block in range(start, start + segment.layers):
                kinds = inside if before is None or block > start else [*inside, *self.stitch]
                yield from ((self.block_name(block, kind.name), kind, sizes) for kind in kinds)
            start, before = start + segment.layers, segment.width if size.stitch else None
        sizes = self.sizes(spec.tail)
        yield from (
            (kind.name, kind, sizes)
            for kind in (*self.final_norm, *self.head)
            if kind.present(spec)
        )

    def find(self, name: str) -> ParameterSpec | None:
        """Return the kind of a tensor; None if models of the family have no tensor of that name."""
        return (
            self._outside.get(name)
            if self.block_of(name) is None
            else self._inside.get(self.inner_name(name))
        )

    def block_name(self, block: int, inner: str) -> str:
        """Return the full name of a tensor in a block: `blocks.3.attn.qkv.weight`."""
        return f"{self.prefix}{block}.{inner}"

    def block_of(self, name: str) -> int | None:
        """Return the number of the block that a tensor is in, from 0; None if it is in no block."""
        if not name.startswith(self.prefix):
            return None
        index, _, inner = name[len(self.prefix) :].partition(".")
        return int(index) if index.isdecimal() and inner else None

    def inner_name(self, name: str) -> str:
        """Return the name within the block: `attn.qkv.weight` for `blocks.3.attn.qkv.weight`."""
        return name[len(self.prefix) :].partition(".")[2]

    def is_stem(self, name: str) -> bool:
        """Return whether a tensor comes before the blocks."""
        return name in self._names_in["stem"]

    def is_final_norm(self, name: str) -> bool:
        """Return whether a tensor belongs to the norm after the blocks, or to pooling."""
        return name in self._names_in["final_norm"]

    def is_head(self, name: str) -> bool:
        """Return whether a tensor belongs to the classification head."""
        return name in self._names_in["head"]

    def find_parameter(self, start: Start) -> str | None:
        """Return the name of the stem's tensor with this `start` ("positions"), or None."""
        return next((kind.name for kind in self.stem if kind.start == start), None)

    @cached_property
    def _outside(self) -> dict[str, ParameterSpec]:
        return {kind.name: kind for kind in (*self.stem, *self.final_norm, *self.head)}

    @cached_property
    def _inside(self) -> dict[str, ParameterSpec]:
        return {kind.name: kind for kind in (*self.stitch, *self.block)}

    @cached_property
    def _names_in(self) -> dict[str, frozenset[str]]:
        return {
            part: frozenset(kind.name for kind in getattr(self, part))
            for part in ("stem", "final_norm", "head")
        }


Convention = Literal["exact", "fvcore", "thop"]


class Host(Protocol):
    """The module of a family that imports torch and timm or transformers.

    It builds PyTorch modules and reads their specs.
    """

    def create(self, spec: Any, **extra: Any) -> nn.Module:
        """Build the module for a spec, on the meta device.

        `extra` are further arguments of timm's.
        """

    def open_folder(self, folder: Path, spec: Any) -> nn.Module:
        """Open the folder of a model as without this package: by timm or transformers alone."""

    def open_architecture(self, name: str, **options: Any) -> nn.Module:
        """Build timm's module of that name without its weights, on the meta device."""

    def read_spec(self, model: nn.Module) -> Spec:
        """Return the spec of a module.

        Raises `WrongCall` for a module that no spec of this family describes.
        """

    def trim_state(self, state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
        """Return a state without tensors that no spec describes, and names of the removed parts.

        For most models the state is returned unchanged, with no names.
        """

    def convert_state(
        self, state: dict[str, Any], model: nn.Module, architecture: str
    ) -> StateDict:
        """Convert weights from another published layout to the names of `model`.

        Args:
            state: the tensors.
            model: timm's module.
            architecture: name of the timm model; "" if unknown.
        """


class ForwardFunctions(Protocol):
    """How the modules of a family are called; a part of its host, see forward.py.

    timm's modules need none.
    """

    def compute_logits(self, model: Any, inputs: Any) -> torch.Tensor:
        """Return the logits (B, classes); without a head the pooled features (B, width)."""

    def compute_tokens(self, model: Any, inputs: Any) -> torch.Tensor:
        """Return the tokens after the final norm, (B, N, width)."""

    def compute_pooled(self, model: Any, inputs: Any) -> torch.Tensor:
        """Return the input of the head, (B, width)."""

    def spread_pooled(self, model: Any, pooled_ND: torch.Tensor) -> StateDict:
        """Return tensors that give the pooled features a usable spread; {} if none are needed."""

    def get_classifier(self, model: Any) -> nn.Module:
        """Return the linear layer of the head; `nn.Identity` without a head."""

    def get_blocks(self, model: Any) -> Sequence[nn.Module]:
        """Return the blocks."""

    def embed_tokens(self, model: Any, inputs: Any) -> torch.Tensor:
        """Return the tokens that the first block reads, (B, N, width)."""

    def compute_hidden(
        self,
        model: Any,
        block: int,
        mixes: bool,
        tokens_BND: torch.Tensor,
        mask_BN: torch.Tensor,
    ) -> torch.Tensor:
        """Return the inputs of the writer of the attention (`mixes`) or the MLP of a block.

        Args:
            model: the module.
            block: the number of the block.
            mixes: the attention, else the MLP.
            tokens_BND: what its readers read.
            mask_BN: 0 for padding.
        """

    def observe_logits(self, model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
        """Call `keep` with the logits of every later forward pass; return the hook's handle."""

    def observe_stream(self, model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
        """Call `keep` with the stream after the last block of every later forward pass."""


@dataclass(frozen=True, kw_only=True)
class TransformersNames:
    """The names of a family in transformers: of its class, its settings and its tensors."""

    model_type: str  # in config.json
    module: str  # that defines the classes of its models
    # From a spec to the keys of config.json that fix the model.
    config: Callable[[Any], dict[str, Json]]
    # From config.json and the name of the file (for messages) to the JSON of a spec.
    values: Callable[[Mapping[str, Json], str], dict[str, Json]]
    # From the tensors of any model of this type to those of the table, and the names of the parts
    # that are left out.
    rename: Callable[[StateDict, Any], tuple[StateDict, tuple[str, ...]]]


def _refuse(*arguments: Any) -> Any:
    raise NotImplementedError("models of this family are not timm's")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of model: its spec, its tensors, its cost, and its names in timm or transformers."""

    name: str
    spec: type[Spec]
    table: Table
    flops: Callable[[Any, Convention], int]  # multiply-adds of one image or text
    # timm's names whose specs are known without importing timm.
    architectures: Mapping[str, Spec] = field(default_factory=dict)
    # Further architectures that are named in our folders, with the specs of their defaults: some of
    # timm's, and those that `import learngene_zoo.timm` registers.
    registered: Mapping[str, Spec] = field(default_factory=dict)
    # From a spec to the registered model that builds it when it gets all arguments.
    architecture: Callable[[Any], str] = _refuse
    # From a spec to these arguments, `model_args`.
    arguments: Callable[[Any], dict[str, Json]] = _refuse
    # From architecture, `model_args` and the file (for messages) to the JSON of a spec.
    values: Callable[[str, Mapping[str, Json], str], dict[str, Json]] = _refuse
    # The modules of timm whose models may belong to this family.
    timm_modules: frozenset[str] = frozenset()
    transformers: TransformersNames | None = None  # None: its models are timm's
    # Whether a model predicts each word from those before it, with the embedding as head.
    predicts_words: bool = False
    supported: str  # describes the supported models, for error messages
    # Tiny models with which methods are tested; the first one is plain.
    examples: tuple[Spec, ...]
    host: str  # name of the module that is its `Host`


def load_family(name: str) -> Family:
    """Return a family by name. Raises `WrongCall` for a name that this version does not know."""
    loaded: Family = import_package(name).FAMILY
    return loaded


def iterate_families() -> Iterator[Family]:
    """Yield every family."""
    return (load_family(name) for name in FAMILIES)


def get_family(spec: Spec) -> Family:
    """Return the family of a model."""
    return load_family(spec.family)


def find_family(config: Mapping[str, Json]) -> Family | None:
    """Return the family of a config.json of transformers by its `model_type`.

    None if no family has that type, and for a config of timm's.
    """
    for family in iterate_families():
        if family.transformers and family.transformers.model_type == config.get("model_type"):
            return None if "architecture" in config else family
    return None


def get_table(spec: Spec) -> Table:
    """Return the table of a model's family."""
    return get_family(spec).table


def load_host(kind: Family) -> Host:
    """Import the module that builds and reads a family's models, with torch and timm.

    Raises `Unavailable` if transformers is needed and is not installed.
    """
    try:
        module: Any = import_module(kind.host)
    except ModuleNotFoundError as error:
        if kind.transformers is None or error.name not in ("transformers", "tokenizers"):
            raise
        raise Unavailable(
            f"models of the family {kind.name!r} need {error.name}: pip install"
            ' "learngene-zoo[text]"'
        ) from error
    return module  # type: ignore[no-any-return]


NORM_FLOPS: Mapping[Convention, int] = {"exact": 5, "fvcore": 5, "thop": 4}  # per element
UPSAMPLING_FLOPS: Mapping[Convention, int] = {"exact": 4, "fvcore": 4, "thop": 0}  # per number


@dataclass(frozen=True, order=True)
class Cost:
    """The parameters of a model, and the FLOPs of one forward pass for one image."""

    params: int
    flops: int


@lru_cache(maxsize=4096)  # sorting, choosing and printing a grid need each cost several times
def count_cost(spec: Spec, convention: Convention = "exact") -> Cost:
    """Return the parameters and FLOPs of the model of a spec."""
    return Cost(count_params(spec, convention), count_flops(spec, convention))


def count_flops(spec: Spec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the model for one image."""
    return get_family(spec).flops(spec, convention)


def count_params(spec: Spec, convention: Convention = "exact") -> int:
    """Return the number of parameters of the model that the convention counts."""
    table, before, total = get_table(spec), None, 0
    for segment, size in zip(spec.segments, spec.sizes):
        sizes = {**table.sizes(segment), "before": before or 0}
        total += segment.layers * _count(table.block, spec, sizes, convention)
        total += _count(table.stitch, spec, sizes, convention) if before is not None else 0
        before = segment.width if size.stitch else None
    total += _count(table.stem, spec, table.sizes(spec.first), convention)
    norms = [kind for kind in table.final_norm if kind.present(spec)]
    total += _count((*norms, *table.head), spec, table.sizes(spec.tail), convention)
    unseen = 2 * spec.width if convention == "fvcore" and spec.stitched and not norms else 0
    return total + unseen


def _count(
    kinds: Iterable[ParameterSpec], spec: Spec, sizes: Mapping[str, int], convention: Convention
) -> int:
    counted = (
        kind for kind in kinds if kind.present(spec) and not _is_omitted(kind, spec, convention)
    )
    return sum(math.prod(kind.shape(sizes)) for kind in counted)


def _is_omitted(kind: ParameterSpec, spec: Spec, convention: Convention) -> bool:
    """Return whether a convention does not count a tensor, because it belongs to no layer."""
    token = kind.start in ("token", "latent", "positions", "frequencies")
    return (convention == "fvcore" and spec.stitched and token) or (
        convention == "thop" and (token or callable(kind.start))
    )
