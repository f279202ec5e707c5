"""Calibration of closed-form methods: unlabelled images, and the weights of their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import Bounds, InputFormat, WrongCall, check_bounds, require_pictures

if TYPE_CHECKING:
    from learngene_zoo.plugin import LearngeneConfig, Run, Target, Task


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Number of images and of recorded tokens, and weights of the equations."""

    images: Annotated[int, "training images, without their labels", Bounds(least=1)] = 600
    tokens: Annotated[
        int,
        "tokens recorded of each image: the prefix tokens and randomly drawn patches",
        Bounds(least=2),
    ] = 32
    class_weight: Annotated[
        float,
        "weight of the class token (the first prefix token) in every sum of squares",
        Bounds(above=0),
    ] = 4.0
    ridge: Annotated[
        float,
        "penalty on the change of the copied weights, relative to the mean square of the inputs",
        Bounds(least=0),
    ] = 1e-3

    def __post_init__(self) -> None:
        check_bounds(self)


def open_calibration_task(
    named: str | None, seen: str | None, target: Target, run: Run, alternative: str = ""
) -> Task:
    """Open the task whose training images are the calibration images.

    Args:
        named: the task that the user names for calibration; it comes first.
        seen: the task of the extraction. If it is data of the learngene's maker that this machine
            does not have, the target's task is opened instead.
        target: the size of the descendant, with its task.
        run: whether the Hub may be asked.
        alternative: the end of the error message, with another thing that the user can do.

    Raises:
        WrongCall: if none of these can be opened.
    """
    from learngene_zoo.plugin import find_origin, is_own_data, name_option, open_seen, open_task

    if named is not None or (seen and not is_own_data(seen)):
        return open_task(named or seen or "", offline=run.offline)
    if seen and find_origin(seen) is not None:
        return open_seen(seen, "calibration", offline=run.offline)
    if target.task is not None:
        return open_task(target.task, offline=run.offline)
    raise WrongCall(
        f"this learngene has seen {seen or 'no images'}, which is opened only if you name it; name "
        f"some pictures with {name_option('calibration', 'folder:PATH')} (their labels are not "
        f"used){alternative}"
    )


def derive_input_format(config: LearngeneConfig) -> InputFormat:
    """Return the format of the images that the ancestry model takes."""
    (mean, std), spec = config.normalisation, require_pictures(config.spec)
    return InputFormat(
        image_size=spec.image_size, channels=spec.channels, mean=mean, std=std, view=config.view
    )
