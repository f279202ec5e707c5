"""What the `details` of both methods' learngenes hold, and which anchors fit together. Cold.

    anchors    layers, width and heads of each, from narrow to wide
    nearest    whether only neighbouring anchors are stitched
    window     how many neighbouring blocks share a stitch
    stride     by how many blocks the window slides
    task       the task that the stored heads answer (not before the extraction)
    classes    how many classes they have
    dense      whether they answer for every pixel

A method may hold more beside these. A learngene may come from anywhere, so nothing in it is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

from learngene_zoo.plugin import BadFile, Json, LearngeneConfig, Segment, ViTSpec, WrongCall, from_json, to_json
from lgzoo_pool.paths import Layout


@dataclass(frozen=True, kw_only=True)
class Details:
    """The anchors and how they are stitched. Raises `WrongCall` for anchors that are not ordered from narrow to wide."""

    anchors: tuple[Segment, ...]
    nearest: bool = True
    window: int = 2
    stride: int = 1
    task: str | None = None
    classes: int | None = None
    dense: bool = False

    def __post_init__(self) -> None:
        widths = [anchor.width for anchor in self.anchors]
        if widths != sorted(set(widths)) or len(widths) < 2:
            raise WrongCall(
                f"anchors of the widths {', '.join(map(str, widths)) or 'none'}; two or more are wanted, each wider "
                "than the one before"
            )
        self.layout  # noqa: B018  there must be one

    @cached_property
    def layout(self) -> Layout:
        """Where the anchors are stitched."""
        depths = tuple(anchor.layers for anchor in self.anchors)
        return Layout(depths=depths, nearest=self.nearest, window=self.window, stride=self.stride)

    def specs(self, spec: ViTSpec) -> tuple[ViTSpec, ...]:
        """The anchors as models with the classes and the image size of `spec`."""
        shapes = (to_json(anchor) for anchor in self.anchors)
        return tuple(spec.with_(**shape) for shape in shapes)

    def json(self) -> dict[str, Json]:
        """As they are written; what is not known yet is left out."""
        return {name: value for name, value in to_json(self).items() if value is not None}


def details_of(specs: Sequence[ViTSpec], **others: Json) -> Details:
    """The details of a learngene made of these anchors. Raises `WrongCall` if they do not fit together."""
    check_anchors(specs)
    anchors = tuple(Segment(layers=spec.layers, width=spec.width, heads=spec.heads) for spec in specs)
    return Details(anchors=anchors, **others)


def read_details(config: LearngeneConfig) -> Details:
    """What a learngene's config says. Raises `BadFile` for what cannot be."""
    known = {field.name for field in fields(Details)}
    told = {name: value for name, value in config.details.items() if name in known}
    details = from_json(Details, to_json(told), "details of the learngene")
    try:
        specs = details.specs(config.spec)
    except WrongCall as error:
        raise BadFile(f"details of the learngene: {error}") from error
    if specs[-1] != config.spec:
        last, spec = specs[-1], config.spec
        raise BadFile(
            f"the learngene's last anchor has {last.layers} layers of width {last.width} and {last.heads} heads, its spec "
            f"{spec.layers} of width {spec.width} and {spec.heads}; extract or fetch it again"
        )
    return details


def check_anchors(specs: Sequence[ViTSpec]) -> None:
    """Raises `WrongCall`, naming the first difference, unless the anchors differ in layers, width, heads and classes only.

    And unless each is plain and wider than the one before: stitches lead from narrow to wide.
    """
    for place, (before, spec) in enumerate(pairwise(specs), start=2):
        for field in fields(ViTSpec):
            ours, first = getattr(spec, field.name), getattr(before, field.name)
            if field.name not in ("layers", "width", "heads", "classes") and ours != first:
                what = field.name.replace("_", " ")
                raise WrongCall(
                    f"ancestries {place - 1} and {place} cannot be stitched: their {what} is {first} and {ours}; "
                    "take models that differ in layers and width only"
                )
        if spec.width == before.width:
            raise WrongCall(
                f"ancestries {place - 1} and {place} have the same width of {spec.width}, and stitches lead from narrow to wide; "
                "make a narrower one, as lgzoo train --width 48 --heads 3 -o narrow, and give --ancestry narrow first"
            )
        if spec.width < before.width:
            raise WrongCall(
                f"ancestries {place - 1} and {place} have the widths {before.width} and {spec.width}; "
                "stitches lead from narrow to wide: give the narrower one first"
            )
    if any(spec.stitched for spec in specs):
        raise WrongCall("an ancestry is stitched itself; take models of one width each")
