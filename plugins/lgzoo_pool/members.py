"""From a path to the model it is, and the families of both expanders. Cold.

A path through one anchor is that anchor; a path through several is a stitched model (`ViTSpec.front`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from learngene_zoo.plugin import Json, LearngeneConfig, Member, Segment, Target, ViTSpec, WrongCall
from lgzoo_pool.details import Details, read_details
from lgzoo_pool.paths import Path

# From a path's number and the path to the expander's settings that lead to it.
Names = Callable[[int, Path, Details], Mapping[str, Json]]


@dataclass(frozen=True)
class Choice:
    """A path and the descendant that it is."""

    path: Path
    member: Member

    @property
    def spec(self) -> ViTSpec:
        """The descendant's shape."""
        return self.member.spec


def spec_of(path: Path, anchors: Sequence[ViTSpec], *, legacy: bool = False) -> ViTSpec:
    """The model that a path through these anchors is.

    `legacy` leaves the last norm out of stitched paths, as SN-Net's released code does when it runs them.
    """
    front = tuple(
        Segment(layers=part.stop - part.start, width=anchors[part.anchor].width, heads=anchors[part.anchor].heads)
        for part in path.parts[:-1]
    )
    spec = anchors[path.last].with_(layers=path.layers, front=front)
    return spec.with_(final_norm=False) if legacy and front else spec


def choices(config: LearngeneConfig, names: Names, *, legacy: bool = False) -> list[Choice]:
    """Every path of a learngene, in the order of their numbers. Raises `BadFile` for details that cannot be."""
    details = read_details(config)
    anchors = details.specs(config.spec)
    return [
        Choice(path, Member(spec=spec_of(path, anchors, legacy=legacy), settings=names(number, path, details)))
        for number, path in enumerate(details.layout.paths)
    ]


def choose(
    config: LearngeneConfig, names: Names, target: Target, asked: Mapping[str, Json], *, legacy: bool = False
) -> Choice:
    """The path that a target and the expander's settings `asked` (None: any) name, with the target's classes and images.

    Of several it is the one with the most parameters, then the most FLOPs. Where neither settings nor layers are named it is
    a whole anchor. Raises `WrongCall` if there is none.
    """
    spec = config.spec.with_(classes=target.classes, image_size=target.image_size, dense=target.dense)
    named = {name: value for name, value in asked.items() if value is not None}
    shape = {"layers": target.layers, "width": target.width, "heads": target.heads}
    shape = {name: value for name, value in shape.items() if value is not None}
    every = choices(replace(config, spec=spec), names, legacy=legacy)
    with_settings = [c for c in every if all(c.member.settings[name] == value for name, value in named.items())]
    if not with_settings:
        raise WrongCall(f"there is no path with {_told(named)}; {_known(every, named)}")
    if not named and target.layers is None:
        with_settings = [choice for choice in with_settings if not choice.path.stitches]
    fitting = [c for c in with_settings if all(getattr(c.spec, name) == value for name, value in shape.items())]
    if not fitting:
        raise WrongCall(f"there is no path with {_told({**named, **shape})}; {_near(with_settings, shape)}")
    return max(fitting, key=lambda choice: choice.member.cost())


def _told(values: Mapping[str, Json]) -> str:
    return " and ".join(f"{name} {value}" for name, value in values.items())


def _known(every: Sequence[Choice], named: Mapping[str, Json]) -> str:
    """For every setting the values that it may have, the others being as they were asked for."""
    said = []
    for name in named:
        others = {key: value for key, value in named.items() if key != name}
        fitting = [c for c in every if all(c.member.settings[key] == value for key, value in others.items())]
        values = sorted({c.member.settings[name] for c in fitting})
        beside = f"with {_told(others)} " if others else ""
        said.append(f"{beside}{name} may be {_listed(values)}")
    return ", ".join(said)


def _near(every: Sequence[Choice], shape: Mapping[str, Json]) -> str:
    """The shapes there are, where only one of their numbers is not as it was asked for."""
    said = []
    for name in shape:
        others = {key: value for key, value in shape.items() if key != name}
        fitting = [c for c in every if all(getattr(c.spec, key) == value for key, value in others.items())]
        if fitting:
            said.append(f"{name} may be {_listed(sorted({getattr(c.spec, name) for c in fitting}))}")
    return ", ".join(said) or "`lgzoo show` lists those there are"


def _listed(values: Sequence[Json]) -> str:
    """Whole numbers in words: runs as a range."""
    if not values:
        return "none"
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))
