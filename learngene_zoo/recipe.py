"""`Recipe`: how long and how to train. A setting of every method that trains."""

from dataclasses import dataclass
from typing import Annotated, Literal

from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import Bounds, check_bounds


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """AdamW over whole epochs; the learning rate is a function of the step alone, so that a run can be resumed anywhere.

    Raises `WrongCall` for values outside their bounds, and for a batch that `accumulate` does not divide.
    """

    epochs: Annotated[int, "passes over the training images", Bounds(least=0)] = 10
    images: Annotated[int | None, "train on at most N images, sampled with the seed", Bounds(least=1)] = None
    batch_size: Annotated[int, "images per step, over all processes", Bounds(least=1)] = 128
    accumulate: Annotated[int, "split each batch into N forward passes", Bounds(least=1)] = 1
    lr: Annotated[float, "peak learning rate", Bounds(above=0)] = 5e-4
    min_lr: Annotated[float, "learning rate at the end", Bounds(least=0)] = 0.0
    schedule: Annotated[Literal["cosine", "poly", "constant"], "how the learning rate decays after warm-up"] = "cosine"
    power: Annotated[float, "exponent of the poly schedule: lr (1 - t/T)^power"] = 0.9
    warmup: Annotated[float, "epochs of linear warm-up", Bounds(least=0)] = 0.0
    weight_decay: Annotated[
        float, "AdamW's weight decay of matrices (biases, norms and tokens have none)", Bounds(least=0)
    ] = 0.05
    clip: Annotated[float | None, "clip the gradient to this norm"] = None
    drop_path: Annotated[
        float, "stochastic depth, rising linearly to this rate at the last block", Bounds(least=0, below=1)
    ] = 0.0
    label_smoothing: Annotated[float, "share of the target spread over all classes", Bounds(least=0, below=1)] = 0.0
    mixup: Annotated[float, "mixup's alpha; 0 is off", Bounds(least=0)] = 0.0
    cutmix: Annotated[float, "cutmix's alpha; 0 is off", Bounds(least=0)] = 0.0
    augment: Annotated[Literal["none", "light", "rand"], "none, shifts (and flips where allowed), or RandAugment"] = (
        "light"
    )
    ema: Annotated[
        float | None, "keep an exponential moving average of the weights with this decay", Bounds(least=0, below=1)
    ] = None
    compile: Annotated[bool, "torch.compile the objective"] = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.batch_size % self.accumulate:
            raise WrongCall(
                f"accumulate is {self.accumulate}, which does not divide the batch size of {self.batch_size}"
            )
