"""`Recipe`: how long and how to train. A setting of every method that trains. Cold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from learngene_zoo.errors import WrongCall


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """AdamW over whole epochs; the learning rate is a function of the step alone, so that a run can be resumed anywhere.

    Raises `WrongCall` for values that cannot be meant.
    """

    epochs: Annotated[int, "passes over the training images"] = 10
    images: Annotated[int | None, "use only so many training images, chosen by the seed"] = None
    batch_size: Annotated[int, "images per step, over all processes"] = 128
    accumulate: Annotated[int, "split each step's batch into so many forward passes"] = 1
    lr: Annotated[float, "peak learning rate"] = 5e-4
    min_lr: Annotated[float, "learning rate at the end"] = 0.0
    schedule: Annotated[Literal["cosine", "poly", "constant"], "how the rate falls after warm-up"] = "cosine"
    power: Annotated[float, "exponent of the poly schedule: lr (1 - t/T)^power"] = 0.9
    warmup: Annotated[float, "epochs of linear warm-up"] = 0.0
    weight_decay: Annotated[float, "AdamW's decay of matrices (biases, norms and tokens have none)"] = 0.05
    clip: Annotated[float | None, "largest norm of the gradient"] = None
    drop_path: Annotated[float, "stochastic depth, rising linearly to this at the last block"] = 0.0
    label_smoothing: Annotated[float, "share of the target spread over all classes"] = 0.0
    mixup: Annotated[float, "mixup's alpha; 0 is off"] = 0.0
    cutmix: Annotated[float, "cutmix's alpha; 0 is off"] = 0.0
    augment: Annotated[Literal["none", "light", "rand"], "none, shifts (and flips where allowed), or RandAugment"] = (
        "light"
    )
    ema: Annotated[float | None, "decay of an exponential moving average of the weights, which is what is kept"] = None
    compile: Annotated[bool, "torch.compile the objective"] = False

    def __post_init__(self) -> None:
        positive = {"batch_size": self.batch_size, "accumulate": self.accumulate, "lr": self.lr}
        for name, value in positive.items():
            if not value > 0:
                raise WrongCall(f"{name} is {value}; it must be above 0")
        if self.images is not None and self.images < 1:
            raise WrongCall(f"images is {self.images}; it must be at least 1")
        if self.epochs < 0:
            raise WrongCall(f"epochs is {self.epochs}; it must not be negative")
        if self.batch_size % self.accumulate:
            raise WrongCall(f"accumulate {self.accumulate} does not divide the batch of {self.batch_size}")
        for name in ("min_lr", "warmup", "weight_decay", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise WrongCall(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("drop_path", "label_smoothing", "ema"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise WrongCall(f"{name} is {value}; it must lie between 0 and 1")
