"""The `details` of the learngenes of both methods, and the check that anchors can be stitched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from learngene_zoo.plugin import (
    OMIT_DEFAULT,
    BadFile,
    LearngeneConfig,
    Segment,
    Spec,
    WrongCall,
    parse_details,
    to_json,
)
from lgzoo_pool.paths import StitchLayout, Unequal

FREE = ("layers", "width", "heads", "classes")  # what may differ between the anchors of a network


@dataclass(frozen=True, kw_only=True)
class StitchedDetails:
    """The anchors and how they are stitched.

    Raises `WrongCall` for anchors that are not in order, narrow to wide.
    """

    anchors: tuple[Segment, ...]  # from narrow to wide
    nearest: bool = True  # whether only neighbouring anchors are stitched
    window: int = 2  # how many neighbouring blocks share a stitch
    stride: int = 1  # by how many blocks the window slides
    # How a deeper anchor is stitched to a shallower one before it.
    unequal: Unequal = field(default="window", metadata=OMIT_DEFAULT)
    task: str | None = None  # the task of the stored heads; None before the extraction
    classes: int | None = None  # how many classes they have
    dense: bool = False  # whether they give a class for every pixel

    def __post_init__(self) -> None:
        widths = [anchor.width for anchor in self.anchors]
        if widths != sorted(set(widths)) or len(widths) < 2:
            words = ", ".join(map(str, widths)) or "none"
            raise WrongCall(
                "expected two or more anchors, each wider than the one before; "
                f"got the widths {words}"
            )
        self.layout  # noqa: B018  it raises for windows that are out of bounds

    @classmethod
    def from_specs(
        cls,
        specs: Sequence[Spec],
        *,
        nearest: bool = True,
        window: int = 2,
        stride: int = 1,
        unequal: Unequal = "window",
    ) -> StitchedDetails:
        """Return the details of a network of anchors with these shapes, narrow to wide.

        The other arguments are the fields of these names; `unequal` is recorded for anchors of
        unequal depths only.

        Raises `WrongCall` if the anchors cannot be stitched.
        """
        check_anchors(specs)
        anchors = tuple(
            Segment(layers=spec.layers, width=spec.width, heads=spec.heads) for spec in specs
        )
        is_equal_depth = len({anchor.layers for anchor in anchors}) == 1
        return cls(
            anchors=anchors,
            nearest=nearest,
            window=window,
            stride=stride,
            unequal="window" if is_equal_depth else unequal,
        )

    @cached_property
    def layout(self) -> StitchLayout:
        """The pairs of blocks at which the anchors are stitched, and the paths."""
        depths = tuple(anchor.layers for anchor in self.anchors)
        return StitchLayout(
            depths=depths,
            nearest=self.nearest,
            window=self.window,
            stride=self.stride,
            unequal=self.unequal,
        )

    def derive_specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the anchors' shapes with the classes and the image size of `spec`."""
        return tuple(
            spec.with_(layers=anchor.layers, width=anchor.width, heads=anchor.heads)
            for anchor in self.anchors
        )


def read_details(config: LearngeneConfig) -> StitchedDetails:
    """Return the details of a learngene. Raises `BadFile` for those that do not fit its spec."""
    details = parse_details(config, StitchedDetails)
    try:
        last = details.derive_specs(config.spec)[-1]
    except WrongCall as error:
        raise BadFile(f"details of the {config.method} learngene: {error}") from error
    if last != config.spec:
        spec = config.spec
        raise BadFile(
            f"the {config.method} learngene's last anchor has {last.layers} layers of width "
            f"{last.width} and {last.heads} heads, but its spec has {spec.layers} of width "
            f"{spec.width} and {spec.heads}; extract or fetch it again"
        )
    return details


def check_anchors(specs: Sequence[Spec]) -> None:
    """Check that models with these shapes, in this order, can be stitched.

    They may differ in layers, width, heads and classes only. Each must be plain and wider than the
    one before: stitches lead from narrow to wide.

    Raises `WrongCall` that names the difference.
    """
    for number, (before, spec) in enumerate(pairwise(specs), start=2):
        names = f"ancestries {number - 1} and {number}"
        first, second = to_json(before), to_json(spec)
        field_name = next(
            (name for name in first if name not in FREE and first[name] != second[name]), None
        )
        if field_name is not None:
            raise WrongCall(
                f"{names} cannot be stitched: their {field_name.replace('_', ' ')} is "
                f"{first[field_name]} and {second[field_name]}; "
                "use models that differ in layers and width only"
            )
        if spec.width == before.width:
            raise WrongCall(
                f"{names} have the same width of {spec.width}, and stitches lead from narrow to "
                "wide; make a narrower one, as lgzoo train --width 48 --heads 3 -o narrow, and "
                "name it first"
            )
        if spec.width < before.width:
            raise WrongCall(
                f"{names} have the widths {before.width} and {spec.width}; "
                "stitches lead from narrow to wide: give the narrower one first"
            )
    if any(spec.stitched for spec in specs):
        raise WrongCall("an ancestry is itself a stitched model; use models of a single width")
