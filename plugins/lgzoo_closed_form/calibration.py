"""What closed-form methods look at: some hundred unlabelled images of a task, and the weights of their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from learngene_zoo.plugin import Bounds, check_bounds


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Which pictures are seen, and how equations are weighted."""

    images: Annotated[int, "training images, without their labels", Bounds(least=1)] = 600
    tokens: Annotated[
        int, "tokens of each image that enter the equations; the prefix tokens always do", Bounds(least=2)
    ] = 64
    class_weight: Annotated[
        float, "weight of the first prefix token, the class token, in every sum of squares", Bounds(above=0)
    ] = 4.0
    ridge: Annotated[
        float,
        "how strongly solutions are drawn to the copied weights, relative to the inputs' mean square",
        Bounds(least=0),
    ] = 1e-3

    def __post_init__(self) -> None:
        check_bounds(self)
