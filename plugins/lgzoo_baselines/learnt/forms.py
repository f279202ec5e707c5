"""Factorisations: matrices of factors that all layers share and a scaler for each layer.

`factored.py` trains them and expands them; WAVE, FINE and SWEET each define one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from learngene_zoo.plugin import check_bounds, get_table
from lgzoo_baselines.weights.weight_selection import select_elements

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Spec, StateDict

Shape = tuple[int, ...]
Draws = dict[str, tuple[Shape, float]]  # shape and standard deviation of each tensor
Std = Callable[[Shape], float]  # the standard deviation of a matrix of this shape


@dataclass(frozen=True, kw_only=True)
class Factorisation(ABC):
    """Compute the matrices of a block from factors and scalers.

    Fields are plain numbers, so that they can be a part of a run's key. `adapted` names the factors
    that belong to a size, and learn again for another one.
    """

    adapted: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_bounds(self)

    @abstractmethod
    def list_draws(self, spec: Spec, std: Std) -> tuple[Draws, Draws]:
        """Return the draws of an auxiliary model's factors, and of the scalers of one block.

        Scalers have the names of a block's matrices.

        Args:
            spec: the shape of the auxiliary model.
            std: the standard deviation that the matrices are to have.

        Raises:
            WrongCall: for a shape whose matrices cannot be factorised.
        """

    @abstractmethod
    def build_matrix(self, kind: str, factors: Mapping[str, Tensor], scaler: Tensor) -> Tensor:
        """Return the matrix of this kind, `attn.qkv.weight` for example."""

    def select_entries(self, spec: Spec, smaller: Spec) -> dict[str, list[int]]:
        """Return the entries of a model's axes that a narrower model inherits.

        They are the first heads, channels and hidden neurons.
        """
        return select_elements(spec, smaller, "consecutive", whole_heads=True)

    def narrow(
        self, factors: StateDict, scalers: StateDict, smaller: Spec
    ) -> tuple[StateDict, StateDict]:
        """Return factors and scalers of a narrower model, of the first heads and channels.

        They do not change where only the depth does.
        """
        return factors, scalers

    def build_block(
        self,
        factors: Mapping[str, Tensor],
        layer: Mapping[str, Tensor],
        kinds: Mapping[str, Shape],
    ) -> StateDict:
        """Return the tensors of one block.

        Args:
            factors: by their names.
            layer: scalers, by the names of the matrices, and vectors of the block.
            kinds: the matrices of a block, as `list_matrices` returns them.
        """
        return {
            name: self.build_matrix(name, factors, tensor) if name in kinds else tensor
            for name, tensor in layer.items()
        }


def list_matrices(spec: Spec) -> dict[str, Shape]:
    """Return the shapes of the matrices of a block, by their names within it."""
    table = get_table(spec)
    shapes = {
        name: kind.shape(sizes)
        for name, kind, sizes in table.parameters(spec)
        if table.block_of(name) == 0
    }
    return {table.inner_name(name): shape for name, shape in shapes.items() if len(shape) == 2}


def compute_fan_in_std(shape: Shape) -> float:
    """Return 1 / sqrt(fan in)."""
    return shape[1] ** -0.5
