"""`Family`: a kind of model, as a value. Generic code asks it and never names a family or a tensor.

To add one: a folder beside this file whose package has `FAMILY`, and its line in `spec.FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from learngene_zoo.families.spec import FAMILIES, Spec, package_of
from learngene_zoo.families.table import ParameterSpec, Table
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

if TYPE_CHECKING:
    from torch import nn

Convention = Literal["exact", "fvcore", "thop"]  # see cost.py


class Host(Protocol):
    """What builds and reads a family's modules: a Python module of the family that imports torch and timm."""

    def create(self, spec: Any, **extra: Any) -> nn.Module:
        """The module for a spec; `extra` are further arguments of timm's. Called on the meta device."""

    def open_architecture(self, name: str, **options: Any) -> nn.Module:
        """timm's module of that name, without its weights. Called on the meta device."""

    def spec_of(self, model: nn.Module) -> Spec:
        """The spec of a module. Raises `WrongCall` for one that no spec of this family describes."""

    def converted(self, state: dict[str, Any], model: nn.Module) -> StateDict:
        """Weights in another published layout, by the names of `model`."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a model of one kind is: its spec, its tensors, its cost, and what timm calls it."""

    name: str
    spec: type[Spec]
    table: Table
    flops: Callable[[Any, Convention], int]  # multiply-adds of one image
    architectures: Mapping[str, Spec]  # timm's names whose specs are known without importing timm
    registered: Mapping[str, Spec]  # the models that `import learngene_zoo.timm` adds to timm
    architecture: Callable[[Any], str]  # the registered model that becomes any of this family's, given all arguments
    arguments: Callable[[Any], dict[str, Json]]  # these arguments, timm's `model_args`
    values: Callable[[str, Mapping[str, Json], str], dict[str, Json]]  # architecture, model_args, where: a spec's JSON
    timm_modules: frozenset[str]  # the modules of timm whose models may belong to this family
    supported: str  # which of them do, for error messages
    examples: tuple[Spec, ...]  # tiny models that the contract of a method is checked on, a plain one first
    host: str  # the module that is its `Host`


def load_family(name: str) -> Family:
    """A family by name. Raises `WrongCall` for one that this version does not know."""
    found: Family = package_of(name).FAMILY
    return found


def families() -> Iterator[Family]:
    """Every family that there is."""
    return (load_family(name) for name in FAMILIES)


def family_of(spec: Spec) -> Family:
    """The family of a model."""
    return load_family(spec.family)


def table_of(spec: Spec) -> Table:
    """The table of a model's family."""
    return family_of(spec).table


def iter_parameters(spec: Spec) -> Iterator[tuple[str, ParameterSpec, Mapping[str, int]]]:
    """Name, kind and axis sizes of every tensor of the model, in the order of its state_dict."""
    return table_of(spec).parameters(spec)


def host_of(spec: Spec) -> Host:
    """What builds and reads the modules of a model's family; imports torch and timm."""
    return host(family_of(spec))


def host(kind: Family) -> Host:
    """What builds and reads the modules of a family; imports torch and timm."""
    found: Any = import_module(kind.host)
    return found  # type: ignore[no-any-return]
