"""The laws of expanders: families, promised sizes, seeds, and the record of inherited tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import get_family, load_host
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.tensors import make_example_inputs
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.checks import describe_forgotten_tensors
from learngene_zoo.method.contract import Method
from learngene_zoo.method.sizes import AXES, Member, Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import to_json, with_settings
from learngene_zoo.storage import StateDict
from learngene_zoo.testing.laws import (
    copy_state,
    describe,
    find_difference,
    forbid_hot_imports,
    iterate_members,
    report_broken_promise,
    require,
)
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    from torch import nn

MAX_MEMBERS = 10_000
MAX_BUILT = 24  # members that are built; of a larger family a sample, evenly spaced
CLASSES = 5  # of the descendants that are built; no tiny task has as many
SEED = 5
MEMBERS = "the expander builds every member of its family"
SIZES = "a size that cannot be built is refused with WrongCall"


def check_family(method: Method, config: LearngeneConfig) -> list[Member]:
    """Check that a family is finite, not empty, constant, and has the classes of its config.

    Returns the family.
    """
    config = replace(config, spec=config.spec.with_(classes=CLASSES))
    with (
        report_broken_promise(
            method, "the family is known from plain numbers, and the same every time"
        ),
        forbid_hot_imports(method, "family"),
    ):
        members, again = (
            list(islice(iterate_members(method, config), MAX_MEMBERS + 1)) for _ in range(2)
        )
    require(bool(members), method, "has an empty family")
    require(len(members) <= MAX_MEMBERS, method, f"has a family of more than {MAX_MEMBERS} members")
    require(members == again, method, "has a family that changes from call to call")
    other = [member for member in members if member.spec.classes != CLASSES]
    require(not other, method, f"has a member without the classes of its config: {other[:1]}")
    return members


def check_members(
    method: Method, learngene: Learngene, members: Sequence[Member], folder: Path
) -> None:
    """Check that every member is built as promised, and twice the same.

    For the first and the last, the record must also explain each tensor, and timm must reopen them.
    """
    config, before = to_json(learngene.config), copy_state(learngene.state)
    inherits = False
    for index, member in enumerate(sample_members(members)):
        descendant = _expand_member(method, learngene, member)
        changed = find_difference(learngene.state, before) or (
            "its config" if to_json(learngene.config) != config else ""
        )
        require(not changed, method, f"changes the learngene that it expands: {changed}")
        outputs = check_member(method, member, descendant)
        changed = find_difference(_expand_member(method, learngene, member).state, descendant.state)
        require(
            not changed,
            method,
            f"builds two different models with {_name_member(member)} from one seed: {changed}",
        )
        inherits = inherits or bool(descendant.inherited)
        if member in (members[0], members[-1]):
            check_inherited(method, learngene, member, descendant)
            _check_reopened(method, descendant, outputs, folder / f"member-{index}")
    require(
        inherits or not method.inherits,
        method,
        "inherits nothing; if that is meant, declare `inherits=False`",
    )
    require(
        not inherits or method.inherits,
        method,
        "declares `inherits=False`, but its descendants inherit tensors",
    )


def sample_members(members: Sequence[Member]) -> list[Member]:
    """Return at most `MAX_BUILT` members, including the first and the last."""
    if len(members) <= MAX_BUILT:
        return list(members)
    return [members[round(i * (len(members) - 1) / (MAX_BUILT - 1))] for i in range(MAX_BUILT)]


def check_member(method: Method, member: Member, descendant: Descendant) -> torch.Tensor:
    """Check that a descendant has the shape and parameters of its member.

    Returns its outputs, (2, classes).
    """
    require(
        descendant.spec == member.spec,
        method,
        f"promised {member.spec} and built {descendant.spec}",
    )
    with report_broken_promise(method, MEMBERS, describe(member.spec)):
        model = descendant.model()
    params = sum(parameter.numel() for parameter in model.parameters())
    require(
        params == member.cost().params,
        method,
        f"promised {member.cost().params} parameters and built {params}",
    )
    with report_broken_promise(
        method, "every model that is built takes its inputs", describe(member.spec)
    ):
        outputs = _compute_outputs(model, descendant)
    require(
        tuple(outputs.shape) == (2, CLASSES),
        method,
        f"builds a model whose outputs have shape {tuple(outputs.shape)}",
    )
    require(
        bool(outputs.isfinite().all()),
        method,
        f"builds a model whose outputs are not finite: {member.spec}",
    )
    return outputs


def check_inherited(
    method: Method, learngene: Learngene, member: Member, descendant: Descendant
) -> None:
    """Check that exactly the tensors recorded as inherited depend on the learngene.

    All others depend on the seed. A warning names those that the method seems to have forgotten.
    """
    other = _expand_member(method, replace(learngene, state=_shift_state(learngene.state)), member)
    for name, tensor in descendant.state.items():
        same = torch.equal(other.state[name], tensor)
        if name in descendant.inherited:
            how = (
                "although it is all zeros"
                if not tensor.any()
                else "but it is the same for another learngene"
            )
            require(not same, method, f"records tensor {name} as inherited, {how}")
        else:
            require(
                same,
                method,
                f"takes tensor {name} from the learngene and does not record it as inherited",
            )
    if descendant.inherited and (
        note := describe_forgotten_tensors(method.name, descendant, learngene.state)
    ):
        warnings.warn(f"{note} ({describe(member.spec)})", stacklevel=2)
    drawn_names = [
        name
        for name, tensor in descendant.state.items()
        if name not in descendant.inherited and tensor.unique().numel() > 1
    ]
    reseeded = _expand_member(method, learngene, member, seed=SEED + 1)
    differs = not drawn_names or any(
        not torch.equal(reseeded.state[name], descendant.state[name]) for name in drawn_names
    )
    require(
        differs,
        method,
        f"ignores the seed of an expansion: tensor {drawn_names[:1]} is drawn, and the same with "
        "another seed",
    )


def _shift_state(state: StateDict) -> StateDict:
    """Return the tensors with other numbers of about the same size."""
    generator = torch.Generator().manual_seed(0)
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    noise = {
        name: 0.01 * torch.randn(t.shape, generator=generator).to(t.dtype)
        for name, t in floats.items()
    }
    return {**state, **{name: tensor + noise[name] for name, tensor in floats.items()}}


def check_sizes(method: Method, learngene: Learngene, members: Sequence[Member]) -> None:
    """Check that another size on each axis is built, or refused with `WrongCall`.

    So are more layers than those of any member of the family. An impossible size must be refused.
    """
    spec = learngene.config.spec
    deeper = 1 + max(member.spec.layers for member in members)
    with report_broken_promise(method, SIZES, f"layers={deeper}"), suppress(WrongCall):
        _expand(method, learngene, Target(classes=CLASSES, layers=deeper)).model()
    for name in AXES:
        value = getattr(spec, name)
        if value is None:  # texts have no image size
            continue
        for other in (2 * value, type(value)(value / 2)):
            with report_broken_promise(method, SIZES, f"{name}={other}"), suppress(WrongCall):
                _expand(
                    method, learngene, replace(Target(classes=CLASSES), **{name: other})
                ).model()
    impossible = {
        "layers": 10**6,
        "heads": spec.width + 1,
        "image_size": (spec.image_size or 0) + 1,
    }
    for name, other in (("layers", 0), *impossible.items()):
        with report_broken_promise(method, SIZES, f"{name}={other}"), suppress(WrongCall):
            _expand(method, learngene, Target(**{name: other}))  # type: ignore[arg-type]
            require(False, method, f"builds an impossible descendant, of {name} {other}")


def _expand_member(
    method: Method, learngene: Learngene, member: Member, seed: int = SEED
) -> Descendant:
    with report_broken_promise(
        method,
        "the expander takes the settings of every member of its family",
        describe(member.spec),
    ):
        expander = with_settings(method.expander, member.settings)
    with report_broken_promise(method, MEMBERS, describe(member.spec)):
        return _expand(replace(method, expander=expander), learngene, member.target, seed)


def _expand(method: Method, learngene: Learngene, target: Target, seed: int = SEED) -> Descendant:
    return lifecycle.expand(learngene, target=target, expander=method.expander, run=Run(seed=seed))


def _check_reopened(
    method: Method, descendant: Descendant, outputs: torch.Tensor, folder: Path
) -> None:
    kind = get_family(descendant.spec)
    opener = "timm" if kind.transformers is None else "transformers"
    with report_broken_promise(
        method, f"{opener} opens every model that is built", describe(descendant.spec)
    ):
        descendant.save(folder)
        again = load_host(kind).open_folder(folder, descendant.spec)
    change = (_compute_outputs(again, descendant) - outputs).abs().max().item()
    require(
        change == 0,
        method,
        f"builds a model that {opener} reopens with outputs that differ by {change}",
    )


@torch.no_grad()
def _compute_outputs(model: nn.Module, descendant: Descendant) -> torch.Tensor:
    """Return the outputs for two fixed random inputs, (2, classes)."""
    spec, generator = descendant.spec, torch.Generator().manual_seed(0)
    if isinstance(spec, TextSpec):
        inputs = torch.randint(spec.vocabulary, (2, spec.positions), generator=generator)
    else:
        inputs = torch.randn(make_example_inputs(spec, 2).shape, generator=generator)
    return compute_logits(model.eval(), inputs)


def _name_member(member: Member) -> str:
    return f"{count_noun(member.spec.layers, 'layer')} of width {member.spec.width}"
