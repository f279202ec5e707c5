"""The settings of LSAMD's search on one data set, and the paper's learning rates (Table 5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from learngene_zoo.plugin import (
    OMIT_DEFAULT,
    Bounds,
    Recipe,
    WrongCall,
    check_bounds,
    refuse_unknown,
)

POLY = Recipe(schedule="poly", power=0.9)  # the paper names the schedule, not its power

# Table 5 of the paper: the learning rates of each data set's search (Ans-Net) and of its
# descendants' training (Des-Net). The tasks are those of the suite lsamd12.
PAPER_RATES = {
    "cifar100": 5e-4, "cifar10": 1e-6, "tiny-imagenet": 1e-5, "inat2019": 1e-5, "food101": 1e-5,
    "cars": 5e-4, "flowers102": 5e-4, "pets": 1e-5, "dtd": 1e-4, "caltech101": 1e-5,
    "ade20k": 1e-5, "voc2012": 1e-5,
}  # fmt: skip
PAPER_DESCENDANT_RATES = {
    "cifar100": 5e-4, "cifar10": 5e-4, "tiny-imagenet": 5e-4, "inat2019": 5e-5, "food101": 1e-5,
    "cars": 1e-5, "flowers102": 1e-4, "pets": 1e-4, "dtd": 1e-5, "caltech101": 1e-5,
    "ade20k": 1e-5, "voc2012": 1e-5,
}  # fmt: skip
PAPER = replace(POLY, epochs=50, batch_size=128, lr=1e-5)  # of both trainings


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The settings of the search on one data set.

    The search depends on these, the ancestry model, the task and the seed, and on nothing else.
    """

    routing: Annotated[
        Literal["batch", "image"], "block selection: by the majority of a batch, or for each image"
    ] = "batch"
    gate: Annotated[
        Literal["update", "stream", "both"],
        "gradient of the routers: through the chosen block's residual update, "
        "its complete output, or both blocks (twice the cost)",
    ] = "update"
    noise: Annotated[
        Literal["gaussian", "printed", "none"],
        "noise term of the routers: eps * softplus(x W2), softplus(x W2) as "
        "printed in eq. 1, or none",
    ] = "gaussian"
    router_lr: Annotated[float, "peak learning rate of the routers", Bounds(above=0)] = 1e-3
    balance_weight: Annotated[
        float,
        "weight of a load-balancing loss over base and specific blocks; not used in the paper",
        Bounds(least=0),
    ] = 0.0
    shared: Annotated[bool, "train one set of specific blocks and routers on all tasks in turn"] = (
        False
    )
    router_token: Annotated[
        Literal["class", "patches", "constant"],
        "input of the routers: the class token (of texts, the token that the head reads), "
        "the mean of the patch tokens (of texts, all but padding), or a constant (placebo)",
    ] = field(default="class", metadata=OMIT_DEFAULT)
    tie: Annotated[
        Literal["base", "random"],
        "result for equal probabilities in eq. 3: the base block (its >=), or drawn with the seed",
    ] = field(default="base", metadata=OMIT_DEFAULT)
    training: Recipe = POLY

    def __post_init__(self) -> None:
        check_bounds(self)


def parse_rates(texts: Sequence[str]) -> dict[str, float]:
    """Return `("objects=1e-4",)` as `{"objects": 1e-4}`. Raises `WrongCall`."""
    rates = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            rates[name] = float(number)
        except ValueError:
            rates[name] = math.nan
        if not name or not 0 < rates[name] < math.inf:
            raise WrongCall(
                f"task_lr is {text!r}; expected a task's name and a rate above 0, as objects=1e-4"
            )
    return rates


def check_rates(texts: Sequence[str], tasks: Iterable[str]) -> None:
    """Raise `WrongCall` for a task that is neither searched nor in the paper's table.

    Most likely its name is misspelt.
    """
    names = {*tasks, *PAPER_RATES}
    for name in parse_rates(texts):
        if name not in names:
            raise refuse_unknown("task to set a learning rate for", name, names)
