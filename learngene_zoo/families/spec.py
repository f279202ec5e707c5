"""`Spec`: the numbers that fix a model of any family.

A family is one folder beside this file; its package has an attribute `FAMILY` (see family.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Annotated, Any, Self

from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown
from learngene_zoo.settings import OMIT_DEFAULT, Bounds, Json, check_bounds, convert_scalar
from learngene_zoo.text import name_option

# The package of each family by name. Saved JSON names the family; the default is `vit`.
FAMILIES = {name: f"learngene_zoo.families.{name}" for name in ("vit", "eva", "gpt2", "bert")}
DEFAULT_FAMILY = "vit"

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


@dataclass(frozen=True, kw_only=True)
class _ImageSize:
    image_size: Annotated[int | None, Bounds(least=1, most=LIMITS["image_size"])]

    def __post_init__(self) -> None:
        check_bounds(self)


def parse_image_size(value: Any) -> int | None:
    """Return an image size in pixels, or None. Raises `WrongCall` for another value."""
    return _ImageSize(image_size=value).image_size


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
                least, value = 0 if name == "classes" else 1, convert_scalar(getattr(self, name))
                if type(value) is not int:
                    raise WrongCall(f"{name} is {value!r:.40}; expected a whole number")
                check_between(name, value, least, most)
                object.__setattr__(self, name, value)
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
            raise WrongCall(
                f"models of the family {self.family!r} have no {absent[0]}; leave out "
                f"{name_option(absent[0])}"
            )
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


def find_mlp_ratio(width: int, hidden: Json, where: str) -> float:
    """Return the smallest MLP ratio whose hidden width, rounded down, is `hidden`.

    Raises `BadFile` for a hidden width that is not a whole number above 0; `where` names the file.
    """
    if type(hidden) is not int or hidden < 1 or width < 1:
        raise BadFile(f"{where}: the hidden width is {hidden!r:.40}; expected a whole number")
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


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


def import_package(family: str) -> Any:
    """Import and return the package of a family.

    Raises `WrongCall` for a family that this version does not know.
    """
    if family not in FAMILIES:
        raise refuse_unknown("family", str(family), FAMILIES)
    return import_module(FAMILIES[family])
