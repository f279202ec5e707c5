"""What the two controls share: they hold another learngene whole, and expand it by its own method first. Cold.

`details` of a control's learngene: `of` (as it was asked for), `config` (the other learngene's), and, once extracted,
`sha256` of the other's weights file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from learngene_zoo import registry
from learngene_zoo.plugin import (
    BadFile,
    Expander,
    Learngene,
    LearngeneConfig,
    Member,
    Target,
    WrongCall,
    from_json,
    to_json,
    with_settings,
)
from learngene_zoo.plugin import find_artifact as find
from learngene_zoo.plugin import load_learngene as load
from learngene_zoo.plugin import read_learngene_config as read_config

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Run


def outline_of(control: str, of: str) -> LearngeneConfig:
    """The config of the control over the learngene `of`: a folder, a card or a method's name."""
    other = read_config(find(of))
    return LearngeneConfig(
        method=control,
        spec=other.spec,
        ancestries=other.ancestries,
        tasks=other.tasks,
        details={"of": of, "config": to_json(other)},
    )


def hold(control: str, of: str) -> Learngene:
    """The other learngene's tensors under the control's config."""
    import hashlib

    from learngene_zoo.plugin import WEIGHTS

    config, folder = outline_of(control, of), find(of)
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    return Learngene(config=replace(config, details={**config.details, "sha256": digest}), state=load(folder).state)


def held_config(config: LearngeneConfig) -> LearngeneConfig:
    """The config of the learngene that a control holds. Raises `BadFile`."""
    return from_json(LearngeneConfig, config.details.get("config"), f"details.config of a {config.method} learngene")


def family_of(config: LearngeneConfig, base: tuple[str, ...]) -> list[Member]:
    """The family of the held learngene; what its own expander must be told travels as this one's setting `base`."""
    held = replace(held_config(config), spec=config.spec)
    members = expander_of(held, base).family(held)
    return [Member(spec=member.spec, settings=_settings(base, member)) for member in members]


def _settings(base: tuple[str, ...], member: Member) -> dict[str, Any]:
    told = tuple(f"{name}={json.dumps(to_json(value))}" for name, value in member.settings.items())
    return {"base": (*base, *told)} if told else {}


def expand_held(learngene: Learngene, target: Target, base: tuple[str, ...], run: Run) -> Descendant:
    """The descendant that the held learngene's own method builds."""
    held = replace(learngene, config=held_config(learngene.config))
    return expander_of(held.config, base)(held, target, run)


def expander_of(config: LearngeneConfig, base: tuple[str, ...]) -> Expander:
    """The expander of a learngene's method with the settings `base` names, each as `name=value`.

    A value is JSON, or text as it stands. Raises `WrongCall`.
    """
    expander = registry.load(config.method).expander
    values = dict(map(_setting, base))
    changed = with_settings(expander, values)
    try:
        return from_json(type(expander), to_json(changed), f"base of {config.method}")
    except BadFile as error:
        raise WrongCall(str(error)) from error


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WrongCall(f"base is {text!r}; write NAME=VALUE, as expansion=cyclic")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value
