"""How a broken law is reported, and what several laws need."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.method import Member, Method
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.catalogue import Suite

# What `plan` must not need. Blocked even if it is imported already, so that a test run cannot hide an import.
HOT = ("torch", "timm", "numpy", "datasets", "learngene_zoo.families.tensors", "learngene_zoo.artifacts.descendant")


def law(holds: bool, plugin: Method | Suite, otherwise: str) -> None:
    """Raises `AssertionError` with `otherwise`, what the method or suite does instead, unless the law holds."""
    if not holds:
        raise AssertionError(f"the {type(plugin).__name__.lower()} {plugin.name} {otherwise}")


@contextmanager
def keeping(plugin: Method | Suite, broken: str, *errors: type[BaseException]) -> Iterator[None]:
    """Within, one of these errors is the broken law `broken`."""
    try:
        yield
    except errors as error:
        raise AssertionError(f"the {type(plugin).__name__.lower()} {plugin.name} {broken}: {error}") from error


def members_of(method: Method, config: LearngeneConfig) -> Iterator[Member]:
    """The members of the method's family, one by one."""
    family = method.expander.family(config)
    law(isinstance(family, Iterable), method, f"has the family {family!r}; expected members")
    for member in family:
        law(isinstance(member, Member), method, f"has {member!r} in its family; expected a Member")
        yield member


def difference(got: StateDict, expected: StateDict) -> str:
    """The first tensor that is not bit-equal, in words; empty if there is none."""
    if set(got) != set(expected):
        return f"tensors {sorted(set(got) ^ set(expected))[:3]} are in one of them only"
    for name in expected:
        if got[name].dtype != expected[name].dtype or not torch.equal(got[name], expected[name]):
            return f"tensor {name}"
    return ""


def copied(state: StateDict) -> StateDict:
    """The same tensors in memory of their own."""
    return {name: tensor.clone() for name, tensor in state.items()}


@contextmanager
def cold(method: Method, what: str) -> Iterator[None]:
    """Within, importing anything that `plan` must not need fails."""
    blocked = mock.patch.dict(sys.modules, dict.fromkeys(HOT))
    with keeping(method, f"needs more than plain numbers for its {what}", ImportError), blocked:
        yield
