"""A form: how the matrices of a block are made of factors that all layers share and a scaler of the layer's own (`factored.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from learngene_zoo.plugin import check_bounds, table_of
from lgzoo_baselines.weight_selection import Select

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Spec, StateDict

Shape = tuple[int, ...]
Draws = dict[str, tuple[Shape, float]]  # shape and standard deviation of each tensor
Std = Callable[[Shape], float]  # that the entries of a matrix of this shape are to have


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """How the matrices of a block are made of factors and scalers. Plain numbers, so that a part of a run is kept under them.

    `adapted` names the factors that belong to a size, and learn anew for another one.
    """

    adapted: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_bounds(self)

    @abstractmethod
    def draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """The factors, and the scalers of one block by the names of its matrices, of an auxiliary model.

        Raises `WrongCall` for a shape whose matrices cannot be made so.
        """

    @abstractmethod
    def matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """The matrix of this kind."""

    def indices(self, whole: Spec, small: Spec) -> dict[str, list[int]]:
        """Which entries of a model's axes a narrower one has: the first heads, channels and hidden neurons."""
        return Select(whole_heads=True, elements="consecutive").indices(whole, small)

    def narrowed(self, factors: StateDict, scalers: StateDict, small: Spec) -> tuple[StateDict, StateDict]:
        """Factors and scalers of a narrower model, of the first heads and channels; as they are, where only the depth changes."""
        return factors, scalers

    def made(self, factors: Mapping[str, Tensor], layer: Mapping[str, Tensor], kinds: Mapping[str, Shape]) -> StateDict:
        """The tensors of one block from its scalers and vectors."""
        return {name: self.matrix(name, factors, tensor) if name in kinds else tensor for name, tensor in layer.items()}


def matrices(spec: Spec) -> dict[str, Shape]:
    """The matrices of a block, by their names within it."""
    table = table_of(spec)
    shapes = {name: kind.shape(sizes) for name, kind, sizes in table.parameters(spec) if table.block_of(name) == 0}
    return {table.inner_name(name): shape for name, shape in shapes.items() if len(shape) == 2}


def fan_in(matrix: Shape) -> float:
    """1 / sqrt(fan in)."""
    return matrix[1] ** -0.5
