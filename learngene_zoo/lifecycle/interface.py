"""Compare the tokens of a descendant with those of its ancestry model, on images without labels.

A model whose width and grid of patches are those of the ancestry model can replace it below other
parts (a language model, a decoder, a detector). The numbers show how much these parts will notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.spec import Spec
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.text import name_option
from learngene_zoo.training.distillation import convert_images
from learngene_zoo.training.evaluate import use_evaluation_mode

if TYPE_CHECKING:
    from torch import nn

    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.tasks.task import Task

MAX_IMAGES, BATCH_SIZE = 256, 16


@dataclass(frozen=True, kw_only=True)
class TokenAgreement:
    """How well tokens agree with those of the ancestry model, after the final norm.

    Attributes:
        images: the number of images.
        patch_r2: 1 - (squared error) / (variance of each channel), over all patches.
        patch_cosine: the mean cosine of two patches.
        token_r2: the same of the class token; None if there is none.
        token_cosine: the mean cosine of two class tokens.
    """

    images: int
    patch_r2: float
    patch_cosine: float
    token_r2: float | None = None
    token_cosine: float | None = None


@dataclass
class _TokenSums:
    """Sums over tokens, in double precision."""

    count: int = 0
    error: float = 0.0
    cosine: float = 0.0
    total: Any = 0.0  # for each channel
    squared: Any = 0.0

    def add(self, given_ND: torch.Tensor, target_ND: torch.Tensor) -> None:
        """Add the tokens of some images."""
        given_ND, target_ND = given_ND.double(), target_ND.double()
        self.count += len(target_ND)
        self.error += float((given_ND - target_ND).square().sum())
        self.cosine += float(functional.cosine_similarity(given_ND, target_ND, dim=-1).sum())
        self.total = self.total + target_ND.sum(0)
        self.squared = self.squared + target_ND.square().sum(0)

    def compute(self) -> tuple[float, float]:
        """Return R2 and the mean cosine."""
        variance = float((self.squared - self.total.square() / self.count).sum())
        return 1 - self.error / max(variance, 1e-12), self.cosine / self.count


def check_interface(spec: Spec, ancestry: Spec, name: str) -> None:
    """Raise `WrongCall` for a model whose tokens have another width or grid than the ancestry's.

    Args:
        spec: the model.
        ancestry: the ancestry model.
        name: the model in messages.
    """
    mine_patch, theirs_patch = (require_pictures(shape).patch_size for shape in (spec, ancestry))
    for words, mine, theirs in (
        ("is {} wide", spec.width, ancestry.width),
        ("has images of {} pixels", spec.image_size, ancestry.image_size),
        ("has patches of {} pixels", mine_patch, theirs_patch),
        ("has {} tokens before the patches", spec.prefix_tokens, ancestry.prefix_tokens),
    ):
        if mine != theirs:
            raise WrongCall(
                f"{name} {words.format(mine)}, and its ancestry model {theirs}, so it does not "
                "keep the interface; expand it at the width and the image size of the ancestry "
                f"model, or leave out {name_option('keep_interface')}"
            )


def measure_agreement(
    model: nn.Module,
    input_format: InputFormat,
    spec: Spec,
    ancestry: Ancestry,
    data: Task,
    run: Run,
) -> TokenAgreement:
    """Return the agreement of a model's tokens with those of its ancestry model.

    Args:
        model: timm's module.
        input_format: its images.
        spec: its shape; `check_interface` accepts it.
        ancestry: the ancestry model.
        data: images without labels, of which at most `MAX_IMAGES` are used.
        run: how to compute.

    Raises:
        TrainingFailed: if tokens are not finite.
    """
    device = open_device(run)
    mine: Any = model.to(device)
    teacher: Any = ancestry.model().to(device)
    patches, first, images = _TokenSums(), _TokenSums(), 0
    loader = sample_images(
        data, "train", input_format, run, images=MAX_IMAGES, batch_size=BATCH_SIZE
    )
    with (
        use_evaluation_mode(mine, device, run),
        report_activity("comparing tokens, batch", loader.steps) as activity,
    ):
        for activity.num_done, batch in enumerate(loader.epoch(0), start=1):
            given_BCHW = batch.inputs.to(device)
            wanted_BCHW = convert_images(given_BCHW, input_format, ancestry.input_format)
            given_BND = mine.forward_features(given_BCHW).float().cpu()
            target_BND = teacher.forward_features(wanted_BCHW).float().cpu()
            start, images = spec.prefix_tokens, images + len(given_BND)
            patches.add(given_BND[:, start:].flatten(0, 1), target_BND[:, start:].flatten(0, 1))
            if spec.class_token:
                first.add(given_BND[:, 0], target_BND[:, 0])
    r2, cosine = patches.compute()
    if not -1 <= cosine <= 1.0001:
        raise TrainingFailed(f"tokens of the model or of its ancestry model on {data.name} are nan")
    token_r2, token_cosine = first.compute() if spec.class_token else (None, None)
    return TokenAgreement(
        images=images,
        patch_r2=r2,
        patch_cosine=cosine,
        token_r2=token_r2,
        token_cosine=token_cosine,
    )
