"""`Spec`: the numbers that fix a model of any family, and `InputFormat`: the images that it takes.

A family is one folder beside this file; its package has an attribute `FAMILY` (see family.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args

from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown
from learngene_zoo.settings import FLAT, OMIT_DEFAULT, Bounds, Json, check_bounds, to_json

# The package of each family by name. Saved JSON names the family; the default is `vit`.
FAMILIES = {name: f"learngene_zoo.families.{name}" for name in ("vit", "eva", "gpt2", "bert")}
DEFAULT_FAMILY = "vit"

# The input of the head: the class token, a mean or maximum of the other tokens, or the output of an
# attention layer over them.
Pool = Literal["token", "avg", "avgmax", "max", "map"]

# timm's names of the fields that every family has.
TIMM_NAMES = {
    "layers": "depth",
    "width": "embed_dim",
    "heads": "num_heads",
    "classes": "num_classes",
    "image_size": "img_size",
    "patch_size": "patch_size",
    "channels": "in_chans",
    "mlp_ratio": "mlp_ratio",
}
Interpolation = Literal["bicubic", "bilinear", "nearest", "lanczos", "hamming", "box"]
# Far larger than any existing model; they catch a config.json that would exhaust the memory.
LIMITS = {
    "layers": 512,
    "width": 16384,
    "heads": 512,
    "classes": 1_000_000,
    "image_size": 8192,
    "patch_size": 512,
    "channels": 64,
}


@dataclass(frozen=True, kw_only=True)
class View:
    """How an image is resized and cropped to a square of `image_size` pixels, in timm's words.

    `center` resizes the shorter side to image_size / crop_pct and crops the centre. `squash`
    resizes both sides to that size. `border` resizes the longer side to it and pads the shorter one
    with the mean colour; with a crop_pct of 1 the image is seen completely and undistorted. Raises
    `WrongCall` for a `crop_pct` below 0.1 or above 1.
    """

    crop_pct: Annotated[float, Bounds(least=0.1, most=1)] = field(
        default=1.0, metadata=OMIT_DEFAULT
    )
    interpolation: Interpolation = field(default="bicubic", metadata=OMIT_DEFAULT)
    crop_mode: Literal["center", "squash", "border"] = field(
        default="center", metadata=OMIT_DEFAULT
    )

    def __post_init__(self) -> None:
        check_bounds(self)


USUAL_VIEW = View()
Fit = Literal["crop", "pad", "stretch"]
_CROP_MODES: dict[Fit, Literal["center", "border", "squash"]] = {
    "crop": "center",
    "pad": "border",
    "stretch": "squash",
}


def fit_view(view: View, fit: Fit | None) -> View:
    """Return a view that crops, pads or stretches images; for None `view` as it is.

    A view that does not crop afterwards, or did not crop before, gets a crop_pct of 1.
    """
    if fit is None:
        return view
    crop_pct = view.crop_pct if fit == "crop" and view.crop_mode == "center" else 1.0
    return replace(view, crop_mode=_CROP_MODES[fit], crop_pct=crop_pct)


# The smallest standard deviation of images, whose values are 0 to 1. One far below it is 0 in
# float32, and normalisation divides by it.
MIN_STD = 1e-6


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Square images of `image_size` pixels with values from 0 to 1, normalised per channel.

    The normalised value is (value - mean) / std.
    """

    image_size: int
    channels: int = 3
    mean: tuple[float, ...]
    std: tuple[float, ...]
    view: View = field(default=USUAL_VIEW, metadata=FLAT)

    @property
    def fill(self) -> tuple[int, ...]:
        """The colour of padding, from 0 to 255 for each channel: the mean."""
        return tuple(round(255 * value) for value in self.mean)

    @property
    def identity(self) -> Json:
        """The JSON of all values, which identifies images in this format."""
        return ["InputFormat", to_json(self)]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive blocks of equal size. Raises `WrongCall` for sizes beyond `LIMITS`."""

    layers: Annotated[int, Bounds(most=LIMITS["layers"])]
    width: Annotated[int, Bounds(most=LIMITS["width"])]
    heads: Annotated[int, Bounds(most=LIMITS["heads"])]
    # Channels of all attention heads together, and the MLP ratio. None: the width, and the MLP
    # ratio of the last segment.
    attention_width: Annotated[int | None, Bounds(most=LIMITS["width"])] = field(
        default=None, metadata=OMIT_DEFAULT
    )
    mlp_ratio: float | None = field(default=None, metadata=OMIT_DEFAULT)
    # Whether a linear layer, the stitch, connects this segment with the next one. Without it both
    # have the same width.
    stitch: bool = field(default=True, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_bounds(self)


MAX_SEGMENTS = 32
_SEGMENT = tuple(item.name for item in fields(Segment))


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A model as plain numbers, to which each family adds its fields.

    Two models with equal specs have the same tensors and the same function. `PictureSpec` and
    `TextSpec` add the inputs. Raises `WrongCall` for numbers that describe no model: heads that do
    not divide the width, sizes beyond `LIMITS`.
    """

    layers: int
    width: int
    heads: int
    classes: int = 1000

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            if name in self.__dataclass_fields__:  # texts have no image size
                least = 0 if name == "classes" else 1
                check_between(name, getattr(self, name), least, most)
        check_between("mlp_ratio", self.mlp_ratio, 0.01, 64)
        if self.heads_width % self.heads:
            raise WrongCall(
                f"{self.heads} heads do not divide a width of {self.heads_width}; try"
                f" {self._fitting_heads()}"
            )

    @property
    def family(self) -> str:
        """The name of the family.

        Families other than `vit` replace this property by a field, so that it is saved.
        """
        return DEFAULT_FAMILY

    @classmethod
    def variant(cls, data: Mapping[str, Json]) -> type[Spec]:
        """Return the class of a saved spec by its family (see `settings.from_json`).

        Raises `WrongCall` for an unknown family.
        """
        spec_class: type[Spec] = import_package(data.get("family", DEFAULT_FAMILY)).FAMILY.spec
        return spec_class

    @property
    def mlp_ratio(self) -> float:
        """The hidden width of each MLP divided by the width.

        A field of `PictureSpec` and `TextSpec`, which is saved after those of the inputs.
        """
        return 4.0

    @property
    def image_size(self) -> int | None:
        """The height and width of its images in pixels; None for texts."""
        return None

    @property
    def channels(self) -> int:
        """The channels of its images; 0 for texts."""
        return 0

    @property
    def class_token(self) -> bool:
        """Whether the first learned token is a class token."""
        return False

    @property
    def registers(self) -> int:
        """The number of further learned tokens before those of the input."""
        return 0

    @property
    def prefix_tokens(self) -> int:
        """The number of learned tokens before those of the input."""
        return int(self.class_token) + self.registers

    @property
    def pools_by_attention(self) -> bool:
        """Whether an attention layer pools the tokens; dense models have no pooling."""
        return self.pool == "map" and not self.dense

    @property
    def supports_rotary(self) -> bool:
        """Whether models of this family may have rotary positions."""
        return False

    @property
    def varies_by_block(self) -> bool:
        """Whether models of this family may have blocks of several sizes."""
        return False

    @property
    def tokens(self) -> int:
        """The number of tokens in every block, for an input of the largest size."""
        raise NotImplementedError

    @property
    def dense(self) -> bool:
        """Whether the model gives one class per pixel instead of one per image."""
        return False

    @property
    def pool(self) -> str:
        """The pooling, which selects the input of the head."""
        return "token"

    @property
    def segments(self) -> tuple[Self, ...]:
        """For each segment, from first to last, the plain model that has its sizes.

        A segment is a run of blocks of equal size; a plain model is its only segment. In a model of
        several segments `layers` counts all blocks, and the other sizes are those of the last
        segment, as are the final norm and the head. A linear layer, the stitch, connects each
        segment with the next one, or both have the same width.
        """
        return (self,)

    @property
    def sizes(self) -> tuple[Segment, ...]:
        """The size of each segment, from first to last."""
        return tuple(
            Segment(layers=part.layers, width=part.width, heads=part.heads)
            for part in self.segments
        )

    @property
    def stitched(self) -> bool:
        """Whether a stitch connects two segments."""
        return any(segment.stitch for segment in self.sizes[:-1])

    @property
    def plain(self) -> bool:
        """Whether all blocks have the same size, and the heads together the width of the model."""
        return len(self.segments) == 1 and self.heads_width == self.width

    @property
    def first(self) -> Self:
        """The plain model that the stem belongs to."""
        return self.segments[0]

    @property
    def tail(self) -> Self:
        """The plain model whose sizes the layers after the blocks have."""
        return self

    @property
    def heads_width(self) -> int:
        """The channels of all attention heads together; the width, unless heads were removed."""
        return self.width

    @property
    def head_width(self) -> int:
        """The channels of one attention head."""
        return self.heads_width // self.heads

    @property
    def hidden(self) -> int:
        """The width of the hidden layer of each MLP."""
        return int(self.width * self.mlp_ratio)

    def with_(self, **changes: Any) -> Self:
        """Return this spec with other values; a value of None leaves a field unchanged.

        Raises `WrongCall` for a field that the family does not have, and for numbers that describe
        no model.
        """
        changed = {
            name: value
            for name, value in changes.items()
            if value not in (None, getattr(self, name, None))
        }
        absent = sorted(set(changed) - {field.name for field in fields(self)})
        if absent:
            raise WrongCall(f"models of the family {self.family!r} have no {absent[0]}")
        return replace(self, **changed)

    def with_pool(self, pool: str | None) -> Self:
        """Return this spec with another pooling; None leaves it unchanged.

        Raises `WrongCall` for a pooling that the family does not have.
        """
        if pool not in (None, self.pool):
            raise WrongCall(
                f"pool is {pool!r:.40}; models of the family {self.family!r} have pool"
                f" {self.pool!r} only"
            )
        return self

    def _fitting_heads(self) -> int:
        """Return the number of heads nearest to this spec's that divides the width."""
        divisors = [
            n
            for n in range(1, min(self.heads_width, LIMITS["heads"]) + 1)
            if self.heads_width % n == 0
        ]
        return min(divisors, key=lambda n: (abs(n - self.heads), n))


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
        """Raise `WrongCall` if patches do not tile the image and the image size is fixed."""
        if self.image_size % self.patch_size and not self.dynamic_image_size:
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


# transformers' names of activations.
TextActivation = Literal[
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu"
]
TEXT_LIMITS = {"vocabulary": 1_000_000, "positions": 1_048_576}


@dataclass(frozen=True, kw_only=True)
class TextSpec(Spec):
    """A model of texts, which are sequences of at most `positions` words of a vocabulary.

    Raises `WrongCall` for numbers that describe no model.

    Attributes:
        vocabulary: the number of words, the rows of their embedding.
        positions: the number of rows of the position embedding.
        pad_token: the word that fills up the shorter texts of a batch, on the right. None: a batch
            holds texts of equal length only.
        bos_token: the word that begins texts, if there is one.
        eos_token: the word that ends texts, if there is one.
    """

    vocabulary: int
    positions: int
    mlp_ratio: float = 4.0
    pad_token: int | None = None
    bos_token: int | None = None
    eos_token: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in TEXT_LIMITS.items():
            check_between(name, getattr(self, name), 1, most)
        for name in ("pad_token", "bos_token", "eos_token"):
            word = getattr(self, name)
            if word is not None:
                check_between(name, word, 0, self.vocabulary - 1)

    @property
    def tokens(self) -> int:
        """The number of tokens in every block, for a text of the largest length."""
        return self.positions


def require_pictures(spec: Spec) -> PictureSpec:
    """Return the spec of a model of images. Raises `WrongCall` for a model of texts."""
    if not isinstance(spec, PictureSpec):
        raise WrongCall(
            f"this needs a model of images; models of the family {spec.family!r} take texts"
        )
    return spec


def find_mlp_ratio(width: int, hidden: Json, where: str) -> float:
    """Return the smallest MLP ratio whose hidden width, rounded down, is `hidden`.

    Raises `BadFile` for a hidden width that is not a whole number above 0; `where` names the file.
    """
    if type(hidden) is not int or hidden < 1 or width < 1:
        raise BadFile(f"{where}: the hidden width is {hidden!r:.40}; expected a whole number")
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def refuse_untiled(patch_size: int, image_size: int) -> WrongCall:
    """Return the error for an image that patches do not tile, with the nearest sizes of images."""
    below = image_size // patch_size * patch_size
    sizes = [str(size) for size in (below, below + patch_size) if size]
    return WrongCall(
        f"patches of {patch_size} pixels do not tile an image of {image_size}; choose an image "
        f"size of {' or '.join(sizes)}"
    )


def check_between(name: str, value: float, least: float, most: float) -> None:
    """Raise `WrongCall` for a value below `least` or above `most`, and for NaN.

    Args:
        name: name of the value in the message.
        value: the value to check.
        least: smallest allowed value.
        most: largest allowed value.
    """
    if not least <= value <= most:
        raise WrongCall(f"{name} is {value}; it must be between {least} and {most}")


def unify_sides(value: Json, where: str) -> Json:
    """Return an argument of timm's that is one number, or two equal ones, as one number.

    Raises `BadFile` for two different numbers.
    """
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise BadFile(f"{where} is {value}; only square images and patches are supported")
        return value[0]
    return value


def import_package(family: str) -> Any:
    """Import and return the package of a family.

    Raises `WrongCall` for a family that this version does not know.
    """
    if family not in FAMILIES:
        raise refuse_unknown("family", str(family), FAMILIES)
    return import_module(FAMILIES[family])


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
