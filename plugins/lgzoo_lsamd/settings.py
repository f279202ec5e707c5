"""How the search on one data set is done, and the learning rates of Table 5."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from learngene_zoo.plugin import Bounds, Recipe, WrongCall, check_bounds, unknown

POLY = Recipe(schedule="poly", power=0.9)  # the paper names the schedule, not its power

# Table 5 of the paper, column Ans-Net: the learning rate of each data set's search.
PAPER_RATES = {
    "cifar100": 5e-4, "cifar10": 1e-6, "tiny_imagenet": 1e-5, "inat2019": 1e-5, "food101": 1e-5, "cars196": 5e-4,
    "flowers102": 5e-4, "pets": 1e-5, "dtd": 1e-4, "caltech101": 1e-5, "ade20k": 1e-5, "voc12": 1e-5,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How the search on one data set is done: all that it depends on beside the ancestry model, the task and the seed."""

    routing: Annotated[Literal["batch", "image"], "who chooses the path: the majority of a batch, or each image"] = (
        "batch"
    )
    gate: Annotated[
        Literal["update", "stream", "both"],
        "what the routers learn from: the chosen block's update, its whole output, or both blocks (twice the cost)",
    ] = "update"
    noise: Annotated[
        Literal["gaussian", "printed", "none"],
        "the routers' second term: eps * softplus(x W2), the paper's printed softplus(x W2), or none",
    ] = "gaussian"
    router_lr: Annotated[float, "peak learning rate of the routers", Bounds(above=0)] = 1e-3
    balance_weight: Annotated[
        float, "weight of a loss that balances the use of base and specific blocks; 0 in the paper", Bounds(least=0)
    ] = 0.0
    shared: Annotated[bool, "carry one set of specific blocks and routers from task to task"] = False
    training: Recipe = POLY

    def __post_init__(self) -> None:
        check_bounds(self)


def rates_by_task(texts: Sequence[str]) -> dict[str, float]:
    """`("objects=1e-4",)` as `{"objects": 1e-4}`. Raises `WrongCall`."""
    rates = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            rates[name] = float(number)
        except ValueError:
            rates[name] = math.nan
        if not name or not 0 < rates[name] < math.inf:
            raise WrongCall(f"task_lr is {text!r}; expected a task's name and a rate above 0, as objects=1e-4")
    return rates


def check_rates(texts: Sequence[str], tasks: Iterable[str]) -> None:
    """Raises `WrongCall` for a task that is neither searched nor in the paper's table: most likely a misspelling."""
    known = {*tasks, *PAPER_RATES}
    for name in rates_by_task(texts):
        if name not in known:
            raise unknown("task to set a learning rate for", name, known)
