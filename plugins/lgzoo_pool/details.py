"""What the learngenes of both methods hold in `details`, and which anchors can be stitched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from learngene_zoo.plugin import YOUNG, BadFile, Json, LearngeneConfig, Segment, Spec, WrongCall, details_of, to_json
from lgzoo_pool.paths import Layout, Unequal

FREE = ("layers", "width", "heads", "classes")  # what may differ between the anchors of a network


@dataclass(frozen=True, kw_only=True)
class StitchedDetails:
    """The anchors and how they are stitched. Raises `WrongCall` for anchors that are not in order, narrow to wide."""

    anchors: tuple[Segment, ...]  # from narrow to wide
    nearest: bool = True  # whether only neighbouring anchors are stitched
    window: int = 2  # how many neighbouring blocks share a stitch
    stride: int = 1  # by how many blocks the window slides
    unequal: Unequal = field(
        default="window", metadata=YOUNG
    )  # how a deeper anchor is stitched to a shallower one before it
    task: str | None = None  # the task of the stored heads; None before the extraction
    classes: int | None = None  # how many classes they have
    dense: bool = False  # whether they give a class for every pixel

    def __post_init__(self) -> None:
        widths = [anchor.width for anchor in self.anchors]
        if widths != sorted(set(widths)) or len(widths) < 2:
            found = ", ".join(map(str, widths)) or "none"
            raise WrongCall(f"expected two or more anchors, each wider than the one before; got the widths {found}")
        self.layout  # noqa: B018  it raises for windows that are out of bounds

    @classmethod
    def of(
        cls,
        specs: Sequence[Spec],
        *,
        nearest: bool = True,
        window: int = 2,
        stride: int = 1,
        unequal: Unequal = "window",
    ) -> StitchedDetails:
        """The details of a network of these anchors. Raises `WrongCall` if they cannot be stitched."""
        check_anchors(specs)
        anchors = tuple(Segment(layers=spec.layers, width=spec.width, heads=spec.heads) for spec in specs)
        alike = len({anchor.layers for anchor in anchors}) == 1
        return cls(
            anchors=anchors,
            nearest=nearest,
            window=window,
            stride=stride,
            unequal="window" if alike else unequal,
        )

    @cached_property
    def layout(self) -> Layout:
        """Where the anchors are stitched."""
        depths = tuple(anchor.layers for anchor in self.anchors)
        return Layout(depths=depths, nearest=self.nearest, window=self.window, stride=self.stride, unequal=self.unequal)

    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """The anchors as models with the classes and the image size of `spec`."""
        return tuple(spec.with_(layers=one.layers, width=one.width, heads=one.heads) for one in self.anchors)

    def json(self) -> dict[str, Json]:
        """As they are written; what is not known yet is left out."""
        return {name: value for name, value in to_json(self).items() if value is not None}


def read_details(config: LearngeneConfig) -> StitchedDetails:
    """The details of a learngene. Raises `BadFile` for those that do not fit its spec."""
    details = details_of(config, StitchedDetails)
    try:
        last = details.specs(config.spec)[-1]
    except WrongCall as error:
        raise BadFile(f"details of the {config.method} learngene: {error}") from error
    if last != config.spec:
        spec = config.spec
        raise BadFile(
            f"the {config.method} learngene's last anchor has {last.layers} layers of width {last.width} and {last.heads} "
            f"heads, but its spec has {spec.layers} of width {spec.width} and {spec.heads}; extract or fetch it again"
        )
    return details


def check_anchors(specs: Sequence[Spec]) -> None:
    """Raises `WrongCall`, naming it, for a difference other than in layers, width, heads and classes.

    And unless each is plain and wider than the one before: stitches lead from narrow to wide.
    """
    for place, (before, spec) in enumerate(pairwise(specs), start=2):
        which = f"ancestries {place - 1} and {place}"
        first, second = to_json(before), to_json(spec)
        name = next((name for name in first if name not in FREE and first[name] != second[name]), None)
        if name is not None:
            raise WrongCall(
                f"{which} cannot be stitched: their {name.replace('_', ' ')} is {first[name]} and {second[name]}; "
                "use models that differ in layers and width only"
            )
        if spec.width == before.width:
            raise WrongCall(
                f"{which} have the same width of {spec.width}, and stitches lead from narrow to wide; make a narrower "
                "one, as lgzoo train --width 48 --heads 3 -o narrow, and give --ancestry narrow first"
            )
        if spec.width < before.width:
            raise WrongCall(
                f"{which} have the widths {before.width} and {spec.width}; "
                "stitches lead from narrow to wide: give the narrower one first"
            )
    if any(spec.stitched for spec in specs):
        raise WrongCall("an ancestry is itself a stitched model; use models of a single width")
