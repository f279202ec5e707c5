"""Choose a path of a learngene, and build the descendant that it is.

A path through one anchor is that anchor; a path through several is a stitched model (`Spec.front`).
It has the stem of the first anchor, the final norm and the head of the last; its blocks are
numbered through, and a stitch belongs to the block after it. Only the tensors that the path needs
are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from learngene_zoo.plugin import BadFile, Json, Member, Segment, WrongCall, get_table
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.paths import Path

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Descendant, Learngene, LearngeneConfig, Spec, StateDict, Target

# From a path's number and the path to the expander's settings that lead to it.
PathNamer = Callable[[int, Path], Mapping[str, Json]]
STITCH = "stitch."


@dataclass(frozen=True)
class Candidate:
    """A path and its descendant."""

    path: Path
    member: Member

    @property
    def values(self) -> dict[str, Json]:
        """The expander's settings that lead to it, and its sizes."""
        spec = self.member.spec
        sizes = {"layers": spec.layers, "width": spec.width, "heads": spec.heads}
        return {**self.member.settings, **sizes}


def derive_spec(path: Path, anchors: Sequence[Spec], *, legacy: bool = False) -> Spec:
    """Return the shape of the model that a path through these anchors is.

    `legacy` leaves the final norm out of stitched paths, as SN-Net's released code does when it
    runs them.
    """
    front = tuple(
        Segment(
            layers=part.stop - part.start,
            width=anchors[part.anchor].width,
            heads=anchors[part.anchor].heads,
        )
        for part in path.parts[:-1]
    )
    spec = anchors[path.last].with_(layers=path.layers, front=front)
    return spec.with_(final_norm=False) if legacy and front else spec


def list_candidates(
    config: LearngeneConfig, name_path: PathNamer, *, legacy: bool = False
) -> list[Candidate]:
    """Return every path of a learngene, in the order of their numbers.

    Args:
        config: of the learngene.
        name_path: gives the expander's settings that lead to a path.
        legacy: as in `derive_spec`.

    Raises:
        BadFile: for details that are wrong.
    """
    details = read_details(config)
    anchors = details.derive_specs(config.spec)
    return [
        Candidate(
            path,
            Member(
                spec=derive_spec(path, anchors, legacy=legacy), settings=name_path(number, path)
            ),
        )
        for number, path in enumerate(details.layout.paths)
    ]


def choose_candidate(
    config: LearngeneConfig,
    name_path: PathNamer,
    target: Target,
    settings: Mapping[str, Json],
    *,
    legacy: bool = False,
) -> Candidate:
    """Return the path with the sizes of a target and the settings of an expander.

    Of several it is the path with the most parameters, then the most FLOPs. If neither settings
    nor layers are named, it is a complete anchor.

    Args:
        config: of the learngene.
        name_path: gives the expander's settings that lead to a path.
        target: the sizes; it also gives classes and image size.
        settings: of the expander; None: any.
        legacy: as in `derive_spec`.

    Raises:
        WrongCall: if there is no such path.
    """
    spec = config.spec.with_(
        classes=target.classes, image_size=target.image_size, dense=target.dense
    )
    candidates = list_candidates(replace(config, spec=spec), name_path, legacy=legacy)
    sizes = {"layers": target.layers, "width": target.width, "heads": target.heads}
    named = {name: value for name, value in {**settings, **sizes}.items() if value is not None}
    if named.keys() <= {"width", "heads"}:
        candidates = [candidate for candidate in candidates if not candidate.path.stitches]
    fitting = [candidate for candidate in candidates if candidate.values.items() >= named.items()]
    if not fitting:
        alternatives = _list_alternatives(candidates, named) or "lgzoo show lists all"
        raise WrongCall(f"there is no path with {_format_values(named)}; {alternatives}")
    return max(fitting, key=lambda candidate: candidate.member.cost())


def _list_alternatives(candidates: Sequence[Candidate], named: Mapping[str, Json]) -> str:
    """Say for each named thing the values that it can have beside the other ones."""
    phrases = []
    for name in named:
        rest = {key: value for key, value in named.items() if key != name}
        values = {
            candidate.values[name]
            for candidate in candidates
            if candidate.values.items() >= rest.items()
        }
        if values:
            condition = f"with {_format_values(rest)} " if rest else ""
            phrases.append(f"{condition}{name} can be {_format_numbers(sorted(values))}")
    return ", ".join(phrases)


def _format_values(values: Mapping[str, Json]) -> str:
    return " and ".join(f"{name} {value}" for name, value in values.items())


def _format_numbers(values: Sequence[int]) -> str:
    """Return integers in words, consecutive ones as a range."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def build_descendant(
    learngene: Learngene, candidate: Candidate, *, task: str | None, seed: int
) -> Descendant:
    """Build the descendant of a candidate, its positions resized.

    Args:
        learngene: with the tensors.
        candidate: of this learngene.
        task: of the descendant. Its head is new, unless the learngene's heads are for this task.
        seed: of a new head.

    Raises:
        BadFile: if the learngene lacks a tensor that the path needs, or has it in another shape.
    """
    from learngene_zoo.plugin import assemble, resize_positions

    config, spec, path = learngene.config, candidate.member.spec, candidate.path
    details = read_details(config)
    stored = spec.with_(
        image_size=config.spec.image_size, classes=details.classes, dense=details.dense
    )
    same_head = task is not None and task == details.task
    same_head = same_head and (spec.classes, spec.dense) == (stored.classes, stored.dense)
    state = _load_tensors(learngene, path, stored, heads=same_head)
    state = resize_positions(state, stored, spec)
    provenance = {"path": describe_path(path, details)}
    return assemble(spec, state, seed=seed, provenance=provenance)


def describe_path(path: Path, details: StitchedDetails) -> Json:
    """Return a path as JSON: each part's width and blocks, from 0, `stop` not included."""
    return [
        {"width": details.anchors[part.anchor].width, "start": part.start, "stop": part.stop}
        for part in path.parts
    ]


def map_tensor_names(path: Path, spec: Spec, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every tensor of a path's model with its name in the learngene."""
    blocks = [
        (number, block)
        for number, part in enumerate(path.parts)
        for block in range(part.start, part.stop)
    ]
    table = get_table(spec)
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


def _load_tensors(learngene: Learngene, path: Path, spec: Spec, *, heads: bool) -> StateDict:
    """Return the tensors of a path's model by their names in it, shared, not copied."""
    from learngene_zoo.plugin import get_shapes

    where, table = str(learngene.folder or "the learngene"), get_table(spec)
    needed = {
        name: shape for name, shape in get_shapes(spec).items() if heads or not table.is_head(name)
    }
    state: dict[str, torch.Tensor] = {}
    for name, source in map_tensor_names(path, spec, list(needed)):
        try:
            tensor = learngene.state[source]
        except KeyError:
            raise BadFile(f"{where} lacks the tensor {source}; extract or fetch it again") from None
        if tuple(tensor.shape) != needed[name]:
            raise BadFile(
                f"{where}: expected shape {needed[name]} for the tensor {source}, "
                f"got {tuple(tensor.shape)}; extract or fetch it again"
            )
        state[name] = tensor
    return state
