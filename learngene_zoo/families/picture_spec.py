"""`PictureSpec` and `SegmentedSpec`: image models, also with blocks of several sizes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self, get_args

from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown
from learngene_zoo.families.spec import Segment, Spec
from learngene_zoo.settings import Json

# The input of the head: the class token, a mean or maximum of the other tokens, or the output of an
# attention layer over them.
Pool = Literal["token", "avg", "avgmax", "max", "map"]

MAX_SEGMENTS = 32
_SEGMENT = tuple(item.name for item in fields(Segment))


@dataclass(frozen=True, kw_only=True)
class PictureSpec(Spec):
    """A model of square images, divided into patches.

    Raises `WrongCall` for numbers that describe no model.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    mlp_ratio: float = 4.0

    @property
    def class_token(self) -> bool:
        """Whether a class token comes before the patches."""
        return True

    @property
    def no_embed_class(self) -> bool:
        """Whether only the patches have a position embedding."""
        return False

    @property
    def dynamic_image_size(self) -> bool:
        """Whether the model takes images of other sizes than `image_size`."""
        return False

    @property
    def grid(self) -> int:
        """The number of patches along each side of the image."""
        return self.image_size // self.patch_size

    @property
    def patches(self) -> int:
        """The number of patches of an image."""
        return self.grid**2

    @property
    def tokens(self) -> int:
        """The number of tokens in every block."""
        return self.prefix_tokens + self.patches

    @property
    def positions(self) -> int:
        """The number of rows of the position embedding."""
        return self.patches if self.no_embed_class else self.tokens

    def with_(self, **changes: Any) -> Self:
        """Return this spec with other values; a value of None leaves a field unchanged.

        Raises `WrongCall` also for sizes of images and patches with which the patches do not tile
        the image.
        """
        spec = super().with_(**changes)
        if (spec.image_size, spec.patch_size) != (self.image_size, self.patch_size):
            spec.check_tiled()
        return spec

    def with_pool(self, pool: str | None) -> Self:
        """Return this spec with another pooling and the same norms; None leaves it unchanged.

        Raises `WrongCall` for a pooling that the family does not have, or for which this model
        lacks the tensors.
        """
        if pool is not None and pool not in get_args(Pool):
            raise refuse_unknown("pooling", pool, get_args(Pool))
        if pool == "map" != self.pool:
            raise WrongCall(
                "pool 'map' needs an attention layer, which this model lacks; use pool 'avg'"
            )
        return self.with_(pool=pool)

    def check_tiled(self) -> None:
        """Raise `WrongCall` if patches do not tile the image."""
        if self.image_size % self.patch_size:
            raise refuse_untiled(self.patch_size, self.image_size)


class SegmentedSpec(PictureSpec):
    """A model whose first blocks, the segments in `front`, may have other sizes than the rest."""

    @property
    def front(self) -> tuple[Segment, ...]:
        """The segments before the last one; empty for a plain model."""
        return ()

    @property
    def varies_by_block(self) -> bool:
        """Whether models of this family may have blocks of several sizes."""
        return True

    @property
    def attention_width(self) -> int | None:
        """Channels of all heads together, if heads were removed; None: the width."""
        return None

    @property
    def segments(self) -> tuple[Self, ...]:
        """For each segment, from first to last, the plain model that has its sizes.

        A plain model is its only segment.
        """
        return self._plain_segments if self.front else (self,)

    @cached_property
    def _plain_segments(self) -> tuple[Self, ...]:
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


def require_pictures(spec: Spec) -> PictureSpec:
    """Return the spec of an image model. Raises `WrongCall` for a text model."""
    if not isinstance(spec, PictureSpec):
        raise WrongCall(
            f"this needs an image model; models of the family {spec.family!r} take texts"
        )
    return spec


def refuse_untiled(patch_size: int, image_size: int) -> WrongCall:
    """Return the error for an image that patches do not tile, with the nearest sizes of images."""
    below = image_size // patch_size * patch_size
    sizes = [str(size) for size in (below, below + patch_size) if size]
    return WrongCall(
        f"patches of {patch_size} pixels do not tile an image of {image_size}; choose an image "
        f"size of {' or '.join(sizes)}"
    )


def unify_sides(value: Json, where: str) -> Json:
    """Return an argument of timm's that is one number, or two equal ones, as one number.

    Raises `BadFile` for two different numbers.
    """
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise BadFile(f"{where} is {value}; only square images and patches are supported")
        return value[0]
    return value


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
