"""From a learngene to a descendant: the paths that there are, the one that is chosen, and its tensors.

A path through one anchor is that anchor; a path through several is a stitched model (`Spec.front`). It has the stem
of the first anchor, the final norm and the head of the last one; its blocks are numbered through, and a stitch belongs
to the block after it. Only the tensors that the path needs are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from learngene_zoo.plugin import BadFile, Json, Member, Segment, WrongCall, table_of
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.paths import Path

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Descendant, Learngene, LearngeneConfig, Spec, StateDict, Target

# From a path's number and the path to the expander's settings that lead to it.
Names = Callable[[int, Path], Mapping[str, Json]]
STITCH = "stitch."


@dataclass(frozen=True)
class Candidate:
    """A path and the descendant that it is."""

    path: Path
    member: Member

    @property
    def values(self) -> dict[str, Json]:
        """What it can be chosen by: the expander's settings and its sizes."""
        spec = self.member.spec
        return {**self.member.settings, "layers": spec.layers, "width": spec.width, "heads": spec.heads}


def spec_of(path: Path, anchors: Sequence[Spec], *, legacy: bool = False) -> Spec:
    """The model that a path through these anchors is.

    `legacy` leaves the final norm out of stitched paths, as SN-Net's released code does when it runs them.
    """
    front = tuple(
        Segment(layers=part.stop - part.start, width=anchors[part.anchor].width, heads=anchors[part.anchor].heads)
        for part in path.parts[:-1]
    )
    spec = anchors[path.last].with_(layers=path.layers, front=front)
    return spec.with_(final_norm=False) if legacy and front else spec


def choices(config: LearngeneConfig, names: Names, *, legacy: bool = False) -> list[Candidate]:
    """Every path of a learngene, in the order of their numbers. Raises `BadFile` for details that are wrong."""
    details = read_details(config)
    anchors = details.specs(config.spec)
    return [
        Candidate(path, Member(spec=spec_of(path, anchors, legacy=legacy), settings=names(number, path)))
        for number, path in enumerate(details.layout.paths)
    ]


def choose(
    config: LearngeneConfig, names: Names, target: Target, settings: Mapping[str, Json], *, legacy: bool = False
) -> Candidate:
    """The path that a target and the expander's `settings` (None: any) name, with the target's classes and image size.

    Of several it is the one with the most parameters, then the most FLOPs. Where neither settings nor layers are named
    it is a whole anchor. Raises `WrongCall` if there is none.
    """
    spec = config.spec.with_(classes=target.classes, image_size=target.image_size, dense=target.dense)
    every = choices(replace(config, spec=spec), names, legacy=legacy)
    sizes = {"layers": target.layers, "width": target.width, "heads": target.heads}
    named = {name: value for name, value in {**settings, **sizes}.items() if value is not None}
    if named.keys() <= {"width", "heads"}:
        every = [choice for choice in every if not choice.path.stitches]
    fitting = [choice for choice in every if choice.values.items() >= named.items()]
    if not fitting:
        raise WrongCall(f"there is no path with {_listed(named)}; {_possible(every, named) or 'lgzoo show lists all'}")
    return max(fitting, key=lambda choice: choice.member.cost())


def _possible(every: Sequence[Candidate], named: Mapping[str, Json]) -> str:
    """For each named thing the values that it can have beside the others, where there are any."""
    found = []
    for name in named:
        others = {key: value for key, value in named.items() if key != name}
        values = sorted({choice.values[name] for choice in every if choice.values.items() >= others.items()})
        if values:
            found.append(f"{f'with {_listed(others)} ' if others else ''}{name} can be {_numbers(values)}")
    return ", ".join(found)


def _listed(values: Mapping[str, Json]) -> str:
    return " and ".join(f"{name} {value}" for name, value in values.items())


def _numbers(values: Sequence[int]) -> str:
    """Integers in words, consecutive ones as a range."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def build(learngene: Learngene, choice: Candidate, *, task: str | None, seed: int) -> Descendant:
    """The descendant of a choice, its positions resized.

    Its head is fresh, unless `task` is the one that the learngene's heads are for. Raises `BadFile` if the learngene
    lacks a tensor that the path needs, or has one of another shape.
    """
    from learngene_zoo.plugin import assemble, resize_positions

    config, spec = learngene.config, choice.member.spec
    details = read_details(config)
    stored = spec.with_(image_size=config.spec.image_size, classes=details.classes, dense=details.dense)
    same_head = task is not None and task == details.task
    same_head = same_head and (spec.classes, spec.dense) == (stored.classes, stored.dense)
    held = _held(learngene, choice.path, stored, heads=same_head)
    parts = resize_positions(held, stored, spec)
    mean, std = config.normalisation
    return assemble(spec, parts, seed=seed, mean=mean, std=std, provenance={"path": described(choice.path, details)})


def described(path: Path, details: StitchedDetails) -> Json:
    """A path as JSON: for each part the width and the blocks of the anchor, counted from 0, without `stop`."""
    return [
        {"width": details.anchors[part.anchor].width, "start": part.start, "stop": part.stop} for part in path.parts
    ]


def sources(path: Path, spec: Spec, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """For every tensor of a path's model its name in the learngene."""
    blocks = [(number, block) for number, part in enumerate(path.parts) for block in range(part.start, part.stop)]
    table = table_of(spec)
    for name in names:
        block = table.block_of(name)
        if block is None:
            anchor = path.first if table.is_stem(name) else path.last
            yield name, f"anchors.{anchor}.{name}"
            continue
        inner, (number, source) = table.inner_name(name), blocks[block]
        if inner.startswith(STITCH):
            yield name, f"{path.stitches[number - 1].name}.{inner.removeprefix(STITCH)}"
        else:
            yield name, f"anchors.{path.parts[number].anchor}.{table.block_name(source, inner)}"


def _held(learngene: Learngene, path: Path, spec: Spec, *, heads: bool) -> StateDict:
    """The tensors of a path's model by their names in it, shared, not copied."""
    from learngene_zoo.plugin import shapes

    where = str(learngene.folder or "the learngene")
    needed = {name: shape for name, shape in shapes(spec).items() if heads or not table_of(spec).is_head(name)}
    held: dict[str, torch.Tensor] = {}
    for name, source in sources(path, spec, list(needed)):
        try:
            tensor = learngene.state[source]
        except KeyError:
            raise BadFile(f"{where} lacks the tensor {source}; extract or fetch it again") from None
        if tuple(tensor.shape) != needed[name]:
            raise BadFile(
                f"{where}: expected shape {needed[name]} for the tensor {source}, got {tuple(tensor.shape)}; "
                "extract or fetch it again"
            )
        held[name] = tensor
    return held
