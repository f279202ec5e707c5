"""`SegmentedSpec`: models of images whose blocks may have several sizes, by segments."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.spec import PictureSpec, Segment
from learngene_zoo.settings import Json

MAX_SEGMENTS = 32
_SEGMENT = tuple(item.name for item in fields(Segment))


class SegmentedSpec(PictureSpec):
    """A model whose first blocks, the segments in `front`, may have other sizes than the rest."""

    @property
    def front(self) -> tuple[Segment, ...]:
        """The segments before the last one; empty for a plain model."""
        return ()

    @property
    def attention_width(self) -> int | None:
        """Channels of all heads together, if heads were removed; None: the width."""
        return None

    @property
    def segments(self) -> tuple[Self, ...]:
        """For each segment, from first to last, the plain model that has its sizes.

        A plain model is its only segment.
        """
        return self._cut if self.front else (self,)

    @cached_property
    def _cut(self) -> tuple[Self, ...]:
        return tuple(replace(self, **self._list_changes(size)) for size in self.sizes)

    def _list_changes(self, size: Segment) -> dict[str, Any]:
        """Return the fields of the plain model of a segment that differ from this spec's."""
        return {
            "front": (),
            "layers": size.layers,
            "width": size.width,
            "heads": size.heads,
            "attention_width": size.attention_width,
            "mlp_ratio": self.mlp_ratio if size.mlp_ratio is None else size.mlp_ratio,
        }

    @property
    def sizes(self) -> tuple[Segment, ...]:
        """The size of each segment, from first to last."""
        last = self.layers - sum(segment.layers for segment in self.front)
        return (
            *self.front,
            Segment(
                layers=last,
                width=self.width,
                heads=self.heads,
                attention_width=self.attention_width,
            ),
        )

    @property
    def heads_width(self) -> int:
        """The channels of all attention heads together."""
        return self.width if self.attention_width is None else self.attention_width

    def check_front(self) -> None:
        """Raise `WrongCall` for segments that describe no model."""
        if len(self.front) >= MAX_SEGMENTS:
            raise WrongCall(
                f"there are {len(self.front) + 1} segments; a stitched model has at most"
                f" {MAX_SEGMENTS}"
            )
        layers = [segment.layers for segment in self.front]
        if min(layers) < 1 or self.layers <= sum(layers):
            raise WrongCall(
                f"the segments in front have {' + '.join(map(str, layers))} of {self.layers}"
                " layers; every segment needs at least 1, including the last"
            )
        self.segments  # noqa: B018  raises unless each segment describes a model
        for before, after in pairwise(self.sizes):
            if not before.stitch and before.width != after.width:
                raise WrongCall(
                    f"segments of widths {before.width} and {after.width} need a stitch between"
                    " them"
                )


def write_segment(segment: Segment) -> list[Json]:
    """Return a segment in the form that our modules take.

    These are layers, width and heads; then, if one of them is not the default, attention width,
    MLP ratio and whether a stitch follows.
    """
    usual = Segment(layers=segment.layers, width=segment.width, heads=segment.heads)
    return [getattr(segment, name) for name in (_SEGMENT[:3] if segment == usual else _SEGMENT)]


def read_segments(value: Json, where: str) -> Json:
    """Return the segments in front of the last one in the form that a spec has them.

    Raises `BadFile` for another form; `where` names the file and the argument.
    """
    if not isinstance(value, list) or not all(
        isinstance(item, list) and len(item) in (3, 6) for item in value
    ):
        words = (
            "[layers, width, heads] or [layers, width, heads, attention width, MLP ratio, stitch]"
        )
        raise BadFile(f"{where}: expected a list of segments, each {words}")
    return [dict(zip(_SEGMENT, item)) for item in value]
