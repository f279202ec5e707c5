"""One learning rate per data set, as LSAMD's Table 5 has them. Cold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from learngene_zoo.plugin import WrongCall, unknown

# Table 5 of the paper, column Ans-Net: the learning rate of each data set's search.
PAPER_RATES = {
    "cifar100": 5e-4,
    "cifar10": 1e-6,
    "tiny_imagenet": 1e-5,
    "inat2019": 1e-5,
    "food101": 1e-5,
    "cars196": 5e-4,
    "flowers102": 5e-4,
    "pets": 1e-5,
    "dtd": 1e-4,
    "caltech101": 1e-5,
    "ade20k": 1e-5,
    "voc12": 1e-5,
}


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
            raise WrongCall(f"task_lr is {text!r}; write a task's name and a rate above 0, as objects=1e-4")
    return rates


def check_rates(texts: Sequence[str], tasks: Iterable[str]) -> None:
    """Refuse a rate for a task that is neither here nor in the paper's table: most likely a misspelt name."""
    known = {*tasks, *PAPER_RATES}
    for name in rates_by_task(texts):
        if name not in known:
            raise unknown("task to set a learning rate for", name, known)
