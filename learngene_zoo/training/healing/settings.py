"""Settings of a recovery without labels: the recipe, and the losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from learngene_zoo.settings import OMIT_DEFAULT, Bounds, Recipe, check_bounds

HEAL = Recipe(epochs=5, batch_size=32, lr=5e-5, warmup=1.0)
# Settings of a recipe that need labels, and the one whose option names the images.
WITHOUT_MEANING = ("images", "label_smoothing", "mixup", "cutmix")
MAX_HELD_OUT = 1000  # images of the losses
MAX_PROBED = 5000  # training images of a probe, and images that it classifies


@dataclass(frozen=True, kw_only=True)
class HealConfig:
    """The settings of `heal` in addition to the recipe."""

    maps: Annotated[
        Literal["learnt", "fixed", "refit"],
        "linear maps from the student's tokens to the teacher's, which start at least squares: "
        "learnt with the student, fixed, or fitted again after every epoch",
    ] = "learnt"
    map_images: Annotated[int, "training images that the maps are fitted to", Bounds(least=1)] = 512
    max_images: Annotated[
        int | None, "train on at most N images, sampled with the seed", Bounds(least=1)
    ] = None
    max_patches: Annotated[
        int | None, "compare N random patches of each image in a step (none: all)", Bounds(least=1)
    ] = None
    blocks: Annotated[
        int,
        "compare the streams after at most N blocks before the last, evenly spaced",
        Bounds(least=0),
    ] = 3
    match: Annotated[
        Literal["recorded", "even"],
        "blocks of the teacher to compare with: those that the model records, or evenly spaced",
    ] = "recorded"
    patch_weight: Annotated[float, "weight of the loss of the patches", Bounds(least=0)] = 1.0
    token_weight: Annotated[float, "weight of the loss of the class token", Bounds(least=0)] = 1.0
    cosine_weight: Annotated[
        float, "weight of the cosine distance of the class token", Bounds(least=0)
    ] = 1.0
    stream_weight: Annotated[float, "weight of the loss of the streams", Bounds(least=0)] = 1.0
    fit: Annotated[
        Literal["crop", "pad", "stretch"] | None,
        "for images that are not square: crop the ends, pad with the mean colour, or stretch "
        "(none: stretch if the model crops, else as the model is configured)",
    ] = None
    keep: Annotated[
        Literal["best", "last"],
        "weights to keep: of the best epoch, the start included, or of the last epoch",
    ] = "best"
    patience: Annotated[
        int | None, "stop after N epochs without a better result", Bounds(least=1)
    ] = None
    rounds: Annotated[
        int,
        "build MODEL again through N - 1 sizes between the ancestry model's and its own, and heal "
        "each of them",
        Bounds(least=1, most=10),
    ] = field(default=1, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss, by the names that `objective` gives them."""
        return {
            "patches": self.patch_weight,
            "token": self.token_weight,
            "cosine": self.cosine_weight,
            "streams": self.stream_weight,
        }


HEALING = HealConfig()
