"""Choice of the sizes of a healing in rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.shrinking.candidates import is_free
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import Expander, Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member, Target
from learngene_zoo.runs.run import get_world_size
from learngene_zoo.settings import Json, list_settings, with_settings

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant

# The sizes that change from round to round.
STEPS = ("layers", "width", "heads", "mlp_ratio")
# Records of a descendant that rounds would discard, and the verbs that write them.
DISCARDED = {"trained_on": "fine-tuned", "healed": "healed", "control": "built as a control"}


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """How a descendant is built in rounds: its method, the settings, and a size for each round."""

    method: Method
    expander: Expander
    members: tuple[Member, ...]  # the last one is the descendant


def check_unchanged(start: Descendant) -> None:
    """Check that a descendant can be built again in rounds, before its ancestry model is opened.

    Raises `WrongCall` for one that was changed since it was built, for blocks of several sizes, and
    under torchrun.
    """
    where = str(start.folder or "the model")
    if get_world_size() > 1:
        raise WrongCall("healing in rounds runs in one process; start it without torchrun")
    changed = next((name for name in DISCARDED if name in start.provenance), None)
    if changed is not None:
        raise WrongCall(
            f"{where} was {DISCARDED[changed]}, which rounds would discard: they build it again "
            "from the ancestry model; give a model that `lgzoo expand` built, or leave out rounds"
        )
    if not start.spec.plain:
        raise WrongCall(f"{where} has blocks of several sizes; heal it without rounds")


def plan_rounds(start: Descendant, larger: Spec, rounds: int) -> RoundPlan:
    """Choose the sizes of the rounds.

    Args:
        start: the descendant, whose method and size are used, and not its weights.
        larger: the shape of the ancestry model.
        rounds: the number of rounds, at least 2.

    Raises:
        WrongCall: for a method that trains or uses labels, and if there are no sizes between.
    """
    method = _find_method(start, larger)
    expander = with_settings(method.expander, _read_settings(start, method))
    members: list[Member] = []
    for left in range(rounds, 1, -1):
        members.append(_choose_member(method, expander, larger, start.spec, left))
        larger = members[-1].spec
    last = _list_members(method, expander, larger, start.spec)
    same = [member for member in last if list_steps(member.spec) == list_steps(start.spec)]
    if not same:
        raise WrongCall(
            f"{method.name} does not build {describe_steps(start.spec)} from "
            f"{describe_steps(larger)}; heal without rounds"
        )
    return RoundPlan(method=method, expander=expander, members=(*members, same[0]))


def _find_method(start: Descendant, larger: Spec) -> Method:
    """Return the method of a descendant. Raises `WrongCall` for one that trains or uses labels."""
    where = str(start.folder or "the model")
    name = str(start.provenance.get("method", ""))
    METHODS.check_unused(name)
    if name not in METHODS.references():
        raise WrongCall(
            f"{where} does not record a method that is installed; heal it without rounds"
        )
    method = METHODS.load(name)
    if not is_free(method, larger) or (method.tasks != "none" and method.uses_labels):
        raise WrongCall(
            f"{where} was built by {name}; rounds need a method that extracts without training and "
            "without labels, such as closed_form or first_k"
        )
    return method


def _read_settings(start: Descendant, method: Method) -> dict[str, Json]:
    """Return the recorded settings of the expansion, without references to anybody's data."""
    recorded: Any = start.provenance.get("settings")
    names = {setting.name for setting in list_settings(method.expander)}
    pairs = recorded.items() if isinstance(recorded, Mapping) else ()
    return {
        name: value
        for name, value in pairs
        if name in names and not (isinstance(value, str) and is_own_data(value))
    }


def _list_members(method: Method, expander: Expander, larger: Spec, spec: Spec) -> list[Member]:
    """Return what the method builds from a shape with the head of `spec`.

    Raises `WrongCall` for a shape that the method does not take.
    """
    config = replace(method.extractor.outline([larger]), method=method.name)
    target = Target(classes=spec.classes, dense=spec.dense)
    return list_members(config, expander, target)


def _choose_member(
    method: Method, expander: Expander, larger: Spec, smaller: Spec, steps: int
) -> Member:
    """Return the size nearest to one of `steps` equal steps from a shape to a smaller one.

    Sizes are compared by their logarithms, and those within the two shapes are considered. Of two
    that are equally near the larger one is returned.
    """
    above, below = list_steps(larger), list_steps(smaller)
    goal = [math.log(a) + (math.log(b) - math.log(a)) / steps for a, b in zip(above, below)]
    between = [
        (round(sum((math.log(size) - value) ** 2 for size, value in zip(sizes, goal)), 9), member)
        for member in _list_members(method, expander, larger, smaller)
        if above != (sizes := list_steps(member.spec)) != below
        and all(b <= size <= a for a, size, b in zip(above, sizes, below))
    ]
    if not between:
        raise WrongCall(
            f"{method.name} builds no size between {describe_steps(larger)} and "
            f"{describe_steps(smaller)}; heal in fewer rounds"
        )
    return min(between, key=lambda pair: (pair[0], -pair[1].cost().params))[1]


def list_steps(spec: Spec) -> tuple[float, ...]:
    """Return the sizes of a shape that change from round to round."""
    return tuple(getattr(spec, name) for name in STEPS)


def describe_steps(spec: Spec) -> str:
    """Return the sizes of a shape in words."""
    return f"{spec.layers} layers of width {spec.width} with {spec.heads} heads"
