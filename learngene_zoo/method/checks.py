"""Checks of the settings of an extraction, and of what a method returned: types, tensors, sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from learngene_zoo.artifacts.records import LearngeneConfig, check_metrics
from learngene_zoo.errors import BadFile, BadPlugin, WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.contract import Expander, Extractor
from learngene_zoo.method.installed import METHODS, describe_method, report_failure
from learngene_zoo.method.sizes import AXES, Member, Target
from learngene_zoo.settings import list_settings
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    import torch

    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.storage import StateDict

T = TypeVar("T")


def check_axes(expander: Expander, spec: Spec, target: Target) -> None:
    """Raise `WrongCall` if `target` differs from `spec` in a size that the expander cannot change.

    `spec` is the learngene's.
    """
    axes = expander.list_axes(spec)
    for name, value in target.axes().items():
        if name not in axes and getattr(spec, name) not in (None, value):
            free = ", ".join(axis for axis in AXES if axis in axes)
            raise WrongCall(
                f"{name} is {value}, but all descendants of this learngene have {name} "
                f"{getattr(spec, name)}; sizes that can be chosen: {free}"
            )


def check_built(expander: Expander, spec: Spec, target: Target, built_spec: Spec) -> None:
    """Raise `BadPlugin` unless `built_spec` has the sizes that `target` names.

    `spec` is the shape of the learngene that it was built from.
    """
    axes = expander.list_axes(spec)
    fixed = {name: getattr(spec, name) for name in AXES if name not in axes}
    for name, value in {**fixed, **target.axes()}.items():
        if getattr(built_spec, name) != value:
            kind, got = type(expander), getattr(built_spec, name)
            raise BadPlugin(
                f"{kind.__module__}.{kind.__qualname__} built a model with {name} {got} instead of "
                f"{value}; an expander builds the sizes that are asked for, raises WrongCall, or "
                f"does not have {name} in its `axes`"
            )


def check_layer_decay(extractor: Extractor, ancestries: Sequence[Spec]) -> None:
    """Check that no training of text models has a layer decay. Raises `WrongCall`."""
    if not any(isinstance(spec, TextSpec) for spec in ancestries):
        return
    for setting in list_settings(extractor):
        if setting.name.endswith("layer_decay") and setting.default != 1:
            raise WrongCall(
                f"{setting.name} is {setting.default}, but text models have one learning rate "
                "for all layers; leave it out"
            )


def check_learngene(name: str, learngene: Learngene) -> None:
    """Raise `BadPlugin` for tensors, details or metrics of a method that could not be read again.

    Tensors that are still in a file are not read: reading them checks that they are finite.
    """
    for tensor_name, fault in _find_faults_of_tensors(learngene.state):
        raise BadPlugin(f"{describe_method(name)} returned the tensor {tensor_name} {fault}")
    for kind in ("details", "metrics"):
        for field_name, fault in _find_faults_of_json(getattr(learngene.config, kind, {})):
            raise BadPlugin(
                f"{describe_method(name)} returned the {kind} field {field_name} {fault}"
            )
    try:
        check_metrics(getattr(learngene.config, "metrics", {}), "metrics")
    except BadFile as error:
        raise BadPlugin(f"{describe_method(name)} returned {error}") from None


def check_descendant(name: str, descendant: Descendant) -> None:
    """Raise `BadPlugin` unless the tensors that a method built are those of the model's shape.

    Tensors that are still in a file are not read: reading them checks that they are finite.
    """
    from learngene_zoo.families.tensors import check_state

    for tensor_name, fault in _find_faults_of_tensors(descendant.state):
        raise BadPlugin(f"{describe_method(name)} built the tensor {tensor_name} {fault}")
    try:
        check_state(
            descendant.state, descendant.spec, f"the model that {describe_method(name)} built"
        )
    except BadFile as error:
        raise BadPlugin(str(error)) from None
    for tensor_name in sorted(descendant.inherited - set(descendant.state)):
        raise BadPlugin(
            f"{describe_method(name)} records the tensor {tensor_name!r} as inherited, which its "
            "model does not have"
        )


def describe_forgotten_tensors(name: str, descendant: Descendant, stored: StateDict) -> str:
    """Return which tensors are initialised that should probably be inherited; "" if there are none.

    These are all tensors, if a method that inherits gave none, or tensors of partly inherited
    blocks, and of a partly inherited stem (what is before the blocks).

    A method may leave whole blocks, or what is before and after them, to the initialisation. A
    random tensor among inherited ones of its block is probably one that the method forgot. So is
    one of equal numbers, such as the scales of a norm, if the learngene has other numbers for it; a
    method that merges them into the layers after the norm stores none.

    Args:
        name: of the method.
        descendant: what it built.
        stored: the tensors of the learngene.
    """
    from learngene_zoo.families.family import get_table

    if not descendant.inherited and METHODS.load(name).inherits:
        return f"all weights of this model are random, as {describe_method(name)} gave none"
    table = get_table(descendant.spec)
    parts = {
        tensor_name: "stem" if table.is_stem(tensor_name) else table.block_of(tensor_name)
        for tensor_name in descendant.state
    }
    begun = {parts.get(tensor_name) for tensor_name in descendant.inherited} - {None}
    forgotten = [
        tensor_name
        for tensor_name, part in parts.items()
        if part in begun
        and tensor_name not in descendant.inherited
        and _is_forgotten(descendant.state[tensor_name], stored.get(tensor_name))
    ]
    if not forgotten:
        return ""
    more = f" and {count_noun(len(forgotten) - 1, 'more tensor')}" if forgotten[1:] else ""
    return (
        f"{forgotten[0]}{more} of partly inherited layers {'are' if more else 'is'} not inherited, "
        f"as {describe_method(name)} does not build {'them' if more else 'it'}"
    )


def _is_forgotten(built: torch.Tensor, stored: torch.Tensor | None) -> bool:
    """Return whether an initialised tensor is random, or not the one that a learngene has."""
    if built.unique().numel() > 1:
        return True
    return (
        stored is not None
        and stored.shape == built.shape
        and not bool((stored.to(built) == built).all())
    )


def _find_faults_of_tensors(state: StateDict) -> Iterator[tuple[object, str]]:
    """Yield the names of tensors that cannot be stored, each with the value and the expectation."""
    import torch

    from learngene_zoo.storage import MAX_TENSOR_NAME, Tensors, is_finite

    if isinstance(state, Tensors):
        for name in state:
            if not state.is_floating(name):
                yield name, "of another type; expected floating-point numbers"
        return
    for name, tensor in state.items():
        if not isinstance(name, str) or len(name) > MAX_TENSOR_NAME:
            expected = f"a string of at most {MAX_TENSOR_NAME} characters"
            yield f"{name!r:.80}", f"by this name; expected {expected}"
        elif not isinstance(tensor, torch.Tensor):
            kind = type(tensor)
            yield name, f"of type {kind.__module__}.{kind.__qualname__}; expected a torch.Tensor"
        elif tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            yield name, f"of type {tensor.dtype}; expected floating-point numbers of 16 to 64 bits"
        elif not is_finite(tensor.detach()):
            yield name, "with values that are not finite; expected finite numbers"


def _find_faults_of_json(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of values that JSON cannot express, each with the value and the expectation.

    `name` is that of the value; parts of a value are named as `loss[2]` or `stage.loss`.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _find_faults_of_json(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _find_faults_of_json(part, f"{name}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield name, f"of {value}; expected a finite number"
    elif not isinstance(value, str | int | float | None):
        kind = type(value)
        yield name, f"of type {kind.__module__}.{kind.__qualname__}; expected numbers or texts"


def list_members(config: LearngeneConfig, expander: Expander, target: Target) -> list[Member]:
    """Return the members of an expander's grid with the sizes that `target` names.

    A member is left out if its settings differ from an optional setting that `expander` has. Raises
    `WrongCall` if `target` names a size that the expander cannot change.
    """
    check_axes(expander, config.spec, target)
    spec = config.spec.with_(
        classes=target.classes, image_size=target.image_size, dense=target.dense
    )
    sizes = target.axes()
    fixed = {
        s.name: s.default for s in list_settings(expander) if s.optional and s.default is not None
    }
    with report_failure(config.method):
        members = list(expander.family(replace(config, spec=spec)))
    return [
        member
        for member in members
        if all(getattr(member.spec, name) == value for name, value in sizes.items())
        and all(member.settings.get(name, value) == value for name, value in fixed.items())
    ]


def check_returned(function: Extractor | Expander, kind: type[T], result: object) -> T:
    """Return the result of a plugin's `function`. Raises `BadPlugin` if it is not a `kind`."""
    if not isinstance(result, kind):
        name = f"{type(function).__module__}.{type(function).__qualname__}"
        raise BadPlugin(f"{name} returned {type(result).__name__}; expected {kind.__name__}")
    return result
