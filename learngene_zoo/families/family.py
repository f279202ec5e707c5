"""`Family`: a kind of model, as a value: its table of tensors and what its models cost. Generic
code asks it and names no tensor.

To add one: a folder beside this file whose package has `FAMILY`, and its line in `spec.FAMILIES`.

A `Table` says what each axis of each tensor means and how the tensor starts. Shapes, parameter
counts, initial values and every operation that cuts tensors follow from it. An axis that is a
product is written with its factors from slow to fast: `qkv heads head_width` is (3, heads, head
width) flattened.

A `Cost` is known by closed form: parameters, and FLOPs of one image. There are three conventions,
because the papers differ (one FLOP is one multiply-add in all of them):

`exact`   (the default) convolutions, linear layers and attention's two matrix products; 5 per
          element of every LayerNorm or RMSNorm, 4 per number of a bilinear upsampling; nothing for
          softmax, activations, gates and additions. Every parameter of the built model counts.
`fvcore`  the same, as Learngene Pool and SN-Net published it: of stitched models their code counts
          neither class token and position embedding among the parameters nor the final norm among
          the FLOPs; it counts the final norm's parameters even where the model has none.
`thop`    (LSAMD) convolutions and linear layers; 4 per element of every LayerNorm; neither
          attention's two products nor upsampling, and no bare parameters: class token, registers,
          position embedding, layer scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from learngene_zoo.families.spec import FAMILIES, Spec, package_of
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

if TYPE_CHECKING:
    import torch
    from torch import nn


# How a tensor is initialised (see `tensors.initial`), or a function from the spec to the value that
# fills it. A "deep" matrix is the last of its branch of a block, which some families scale by
# depth; "latent" and "frequencies" belong to no layer.
Start = (
    Literal[
        "matrix",
        "deep",
        "head",
        "patches",
        "token",
        "latent",
        "positions",
        "frequencies",
        "one",
        "zero",
    ]
    | Callable[[Any], float]
)
# Fills an empty tensor by a generator: (spec, tensor, generator, number of its block or None).
Draw = Callable[[Any, "torch.Tensor", "torch.Generator", int | None], "torch.Tensor"]
Axes = tuple[tuple[str, ...], ...]
Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class ParameterSpec:
    """One kind of tensor: its name (within its block, if it is in one), its axes, its start, and
    which specs have it.
    """

    name: str
    axes: Axes
    start: Start
    present: Condition

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The tensor's shape where the axes have these sizes."""
        return tuple(math.prod(sizes[part] for part in axis) for axis in self.axes)


def parameter(
    name: str, axes: str, start: Start, present: Condition = lambda spec: True
) -> ParameterSpec:
    """A row of a table; `axes` as in "qkv heads head_width, width"."""
    return ParameterSpec(
        name, tuple(tuple(axis.split()) for axis in axes.split(",")), start, present
    )


def norm(
    name: str, axis: str, present: Condition = lambda spec: True
) -> tuple[ParameterSpec, ParameterSpec]:
    """The two rows of a LayerNorm."""
    return parameter(f"{name}.weight", axis, "one", present), parameter(
        f"{name}.bias", axis, "zero", present
    )


@dataclass(frozen=True, kw_only=True)
class Table:
    """Every tensor that a family's models can have, in the order of their state_dict, by the part
    that it belongs to.
    """

    prefix: str  # of the names of a block's tensors, before the number of the block: "blocks."
    sizes: Callable[[Any], dict[str, int]]  # the size of every axis in a plain model
    stem: tuple[ParameterSpec, ...]  # before the blocks
    block: tuple[ParameterSpec, ...]
    # Last in the first block of a later segment; axis `before`: the width it comes from.
    stitch: tuple[ParameterSpec, ...] = ()
    # After the blocks, before the head: the final norm, and pooling that has tensors.
    final_norm: tuple[ParameterSpec, ...]
    head: tuple[ParameterSpec, ...]
    # How timm starts tensors of these words, where this family differs from `tensors.initial`.
    draws: Mapping[Start, Draw] = field(default_factory=dict)

    def parameters(self, spec: Spec) -> Iterator[tuple[str, ParameterSpec, Mapping[str, int]]]:
        """Return name, kind and axis sizes of every tensor, in the order of the state_dict."""
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
        sizes = self.sizes(spec)
        yield from (
            (kind.name, kind, sizes)
            for kind in (*self.final_norm, *self.head)
            if kind.present(spec)
        )

    def find(self, name: str) -> ParameterSpec | None:
        """The kind of a tensor; None if no model of the family has one of that name."""
        return (
            self._outside.get(name)
            if self.block_of(name) is None
            else self._inside.get(self.inner_name(name))
        )

    def block_name(self, block: int, inner: str) -> str:
        """The name of a block's tensor: `blocks.3.attn.qkv.weight`."""
        return f"{self.prefix}{block}.{inner}"

    def block_of(self, name: str) -> int | None:
        """The block that a tensor is in, counted from 0; None outside of the blocks."""
        if not name.startswith(self.prefix):
            return None
        index, _, inner = name[len(self.prefix) :].partition(".")
        return int(index) if index.isdecimal() and inner else None

    def inner_name(self, name: str) -> str:
        """A block's tensor by its name within the block: `attn.qkv.weight` of
        `blocks.3.attn.qkv.weight`.
        """
        return name[len(self.prefix) :].partition(".")[2]

    def is_stem(self, name: str) -> bool:
        """Whether a tensor comes before the blocks."""
        return name in self._names_in["stem"]

    def is_final_norm(self, name: str) -> bool:
        """Whether a tensor belongs to the norm after the blocks, or to pooling."""
        return name in self._names_in["final_norm"]

    def is_head(self, name: str) -> bool:
        """Whether a tensor belongs to the classification head."""
        return name in self._names_in["head"]

    def find_parameter(self, start: Start) -> str | None:
        """The name of the stem's tensor that starts so ("positions", "patches").

        None if the family has none.
        """
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
    """What builds and reads a family's modules: a Python module of the family that imports torch
    and timm.
    """

    def create(self, spec: Any, **extra: Any) -> nn.Module:
        """The module for a spec.

        `extra` are further arguments of timm's. Called on the meta device.
        """

    def open_architecture(self, name: str, **options: Any) -> nn.Module:
        """timm's module of that name, without its weights. Called on the meta device."""

    def spec_of(self, model: nn.Module) -> Spec:
        """The spec of a module.

        Raises `WrongCall` for one that no spec of this family describes.
        """

    def trim_state(self, state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
        """A state without the parts that no spec describes, and words for what was left out.

        Mostly as it is, and none.
        """

    def convert_state(
        self, state: dict[str, Any], model: nn.Module, architecture: str
    ) -> StateDict:
        """Weights in another published layout of timm's model `architecture` ("" if unknown), by
        the names of `model`.
        """


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a model of one kind is: its spec, its tensors, its cost, and what timm calls it."""

    name: str
    spec: type[Spec]
    table: Table
    flops: Callable[[Any, Convention], int]  # multiply-adds of one image
    architectures: Mapping[str, Spec]  # timm's names whose specs are known without importing timm
    # Further models that our folders name, without arguments: bases of timm's, and what `import
    # learngene_zoo.timm` adds.
    registered: Mapping[str, Spec]
    # The registered model that becomes any of this family's, given all arguments
    architecture: Callable[[Any], str]
    arguments: Callable[[Any], dict[str, Json]]  # these arguments, timm's `model_args`
    # Architecture, model_args, where: a spec's JSON
    values: Callable[[str, Mapping[str, Json], str], dict[str, Json]]
    timm_modules: frozenset[str]  # the modules of timm whose models may belong to this family
    supported: str  # which of them do, for error messages
    # Tiny models that the contract of a method is checked on, a plain one first
    examples: tuple[Spec, ...]
    host: str  # the module that is its `Host`


def load_family(name: str) -> Family:
    """A family by name. Raises `WrongCall` for one that this version does not know."""
    loaded: Family = package_of(name).FAMILY
    return loaded


def families() -> Iterator[Family]:
    """Every family that there is."""
    return (load_family(name) for name in FAMILIES)


def family_of(spec: Spec) -> Family:
    """The family of a model."""
    return load_family(spec.family)


def table_of(spec: Spec) -> Table:
    """The table of a model's family."""
    return family_of(spec).table


def host(kind: Family) -> Host:
    """What builds and reads the modules of a family; imports torch and timm."""
    module: Any = import_module(kind.host)
    return module  # type: ignore[no-any-return]


NORM_FLOPS: Mapping[Convention, int] = {"exact": 5, "fvcore": 5, "thop": 4}  # per element
UPSAMPLING_FLOPS: Mapping[Convention, int] = {"exact": 4, "fvcore": 4, "thop": 0}  # per number


@dataclass(frozen=True, order=True)
class Cost:
    """Parameters of a model and FLOPs of one forward pass over one image."""

    params: int
    flops: int


@lru_cache(maxsize=4096)  # sorting, choosing and printing a grid ask for each cost several times
def cost(spec: Spec, convention: Convention = "exact") -> Cost:
    """Parameters and FLOPs of the model `spec` describes."""
    return Cost(count_params(spec, convention), flops(spec, convention))


def flops(spec: Spec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model."""
    return family_of(spec).flops(spec, convention)


def count_params(spec: Spec, convention: Convention = "exact") -> int:
    """Parameters of the whole model, as far as the convention counts them."""
    table, before, total = table_of(spec), None, 0
    for segment, size in zip(spec.segments, spec.sizes):
        sizes = {**table.sizes(segment), "before": before or 0}
        total += segment.layers * _count(table.block, spec, sizes, convention)
        total += _count(table.stitch, spec, sizes, convention) if before is not None else 0
        before = segment.width if size.stitch else None
    total += _count(table.stem, spec, table.sizes(spec.first), convention)
    norms = [kind for kind in table.final_norm if kind.present(spec)]
    total += _count((*norms, *table.head), spec, table.sizes(spec), convention)
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
    """Whether a convention passes over a tensor: one that belongs to no layer."""
    token = kind.start in ("token", "latent", "positions", "frequencies")
    return (convention == "fvcore" and spec.stitched and token) or (
        convention == "thop" and (token or callable(kind.start))
    )
