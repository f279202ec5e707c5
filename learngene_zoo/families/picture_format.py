"""`InputFormat`: the images that a model takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from learngene_zoo.errors import check_choice
from learngene_zoo.settings import FLAT, OMIT_DEFAULT, Bounds, Json, check_bounds, to_json

Interpolation = Literal["bicubic", "bilinear", "nearest", "lanczos", "hamming", "box"]


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
    check_choice("fit", fit, _CROP_MODES)
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
