"""The objective of a recovery: the student's tokens predict the teacher's, by linear maps.

As in Proteus (Zhang et al. 2025, Accessing Vision Foundation Models via ImageNet-1K) there are
three levels of targets: the class token and the patches after the last block, and the streams after
matched blocks. Every token is normalised over its channels, without weight and bias, on both sides
(Wei et al. 2022, Contrastive Learning Rivals Masked Image Modeling in Fine-tuning via Feature
Distillation). With the normalised tokens s_n of the student and t_n of the teacher the losses are

    patches  the mean smooth L1 distance (beta 2) of W s_n + b and t_n over the patches n
    token    the same of the class token
    cosine   1 - cos(W s + b, t) of the class token
    streams  the mean over the matched blocks of the distance of all tokens, as of the patches

with one map (W, b) for the patches, one for the class token and one for each matched block.

Of texts the patches are all tokens but padding, and the class token is the feature that the head
reads: the mean of these tokens, the first or the last one. Where student and teacher have the same
width, both are compared without a map, so that the similarities of texts are those of the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import compute_logits, pool_words
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.training.distillation import (
    Features,
    Teacher,
    convert_images,
    measure_whitened_distance,
    record_features,
    split_tokens,
)

if TYPE_CHECKING:
    from learngene_zoo.families.picture_format import InputFormat
    from learngene_zoo.families.spec import Spec
    from learngene_zoo.families.tensors import Model
    from learngene_zoo.families.text_format import TextFormat
    from learngene_zoo.tasks.loader import Batch

PATCHES, TOKEN, COSINE, STREAMS = "patches", "token", "cosine", "streams"


@dataclass(frozen=True, kw_only=True)
class Side:
    """A model's shape and images, and the numbers of its blocks that are compared."""

    spec: Spec
    input_format: InputFormat | TextFormat
    blocks: tuple[int, ...]


class Recovery(nn.Module):
    """The losses of a student's tokens, compared with those of a frozen teacher.

    Head and final norm of the student are not trained: the losses do not depend on them.

    Args:
        model: the student.
        teacher: the frozen teacher, which records its compared blocks.
        student_side: shape, images and compared blocks of the student.
        teacher_side: the same of the teacher; its blocks are in the order of the student's.
        weights: the factor of each loss, by name; a loss with factor 0 is left out.
        max_patches: in training, compare this many patches of each image, drawn at every step.
            None: all.

    Raises:
        WrongCall: if the two divide images into different numbers of patches, and if no loss is
            left.
    """

    def __init__(
        self,
        model: Model,
        teacher: Teacher,
        student_side: Side,
        teacher_side: Side,
        weights: Mapping[str, float],
        max_patches: int | None = None,
    ) -> None:
        super().__init__()
        student, ancestry = student_side.spec, teacher_side.spec
        check_comparable(student, ancestry)
        self.model, self.teacher = model, teacher
        self.student_side, self.teacher_side = student_side, teacher_side
        is_text = isinstance(student, TextSpec)
        has_token, has_streams = ancestry.class_token or is_text, bool(student_side.blocks)
        possible = [PATCHES, *[TOKEN, COSINE] * has_token, *[STREAMS] * has_streams]
        self.weights = {name: weights[name] for name in possible if weights[name]}
        self.max_patches = max_patches
        if not self.weights:
            raise WrongCall("no loss is left: the weights of all possible ones are 0")
        self.names = [
            *[PATCHES] * (PATCHES in self.weights),
            *[TOKEN] * (TOKEN in self.weights or COSINE in self.weights),
            *(name_stream(block) for block in student_side.blocks if STREAMS in self.weights),
        ]
        is_direct = is_text and student.width == ancestry.width
        mapped = [name for name in self.names if not is_direct or name not in (PATCHES, TOKEN)]
        self.maps = nn.ModuleDict(
            {name: nn.utils.skip_init(nn.Linear, student.width, ancestry.width) for name in mapped}
        )

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the weighted losses of a batch by name."""
        student, teacher = self.read_tokens(batch, self._draw_patches())
        answers = {
            name: self.maps[name](tokens) if name in self.maps else tokens
            for name, tokens in student.items()
        }
        losses = {name: measure_whitened_distance(answers[name], teacher[name]) for name in answers}
        streams = [losses[name] for name in losses if name not in (PATCHES, TOKEN)]
        if streams:
            losses[STREAMS] = torch.stack(streams).mean()
        if TOKEN in answers:
            cosine_B = functional.cosine_similarity(answers[TOKEN].float(), teacher[TOKEN], dim=-1)
            losses[COSINE] = 1 - cosine_B.mean()
        return {name: weight * losses[name] for name, weight in self.weights.items()}

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of words that a loss of texts compares; other losses count images."""
        if not isinstance(batch.inputs, Tokens):
            return {}
        num_words = batch.inputs.mask.sum()
        return {name: num_words for name in (PATCHES, STREAMS) if name in self.weights}

    def read_tokens(
        self, batch: Batch, chosen: torch.Tensor | None = None
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the normalised tokens of the student and of the teacher, by the maps' names.

        Those of streams are the patches, after the class token if both have one.

        Args:
            batch: images in the student's format.
            chosen: the numbers of the patches to return. None: all.
        """
        mine, other = self.student_side, self.teacher_side
        is_text = isinstance(batch.inputs, Tokens)
        formats: Any = (mine.input_format, other.input_format)
        inputs = batch.inputs if is_text else convert_images(batch.inputs, *formats)
        target = self.teacher(batch._replace(inputs=inputs))
        with record_features(self.model, mine.blocks) as features:
            compute_logits(self.model, batch.inputs)
        if is_text:
            return tuple(  # type: ignore[return-value]
                self._select_words(read, side, batch.inputs.mask)
                for read, side in ((features, mine), (target, other))
            )
        return self._select(features, mine, chosen), self._select(target, other, chosen)

    def _select_words(
        self, features: Features, side: Side, mask_BN: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the normalised tokens of texts, (tokens, D), and their features, (B, D)."""
        is_word_BN, tokens = mask_BN.bool(), dict[str, torch.Tensor]()
        if PATCHES in self.names:
            tokens[PATCHES] = normalise(features.tokens[is_word_BN])
        if TOKEN in self.names:
            # Both sides as the ancestry model's head reads them.
            pooled_BD = pool_words(features.tokens, mask_BN, self.teacher_side.spec.pool)
            tokens[TOKEN] = normalise(pooled_BD)
        if STREAMS in self.weights:
            for name, number in zip(self.student_side.blocks, side.blocks, strict=True):
                tokens[name_stream(name)] = normalise(features.blocks[number][is_word_BN])
        return tokens

    def _select(
        self, features: Features, side: Side, chosen: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        def pick(patches_BND: torch.Tensor) -> torch.Tensor:
            return patches_BND if chosen is None else patches_BND[:, chosen]

        tokens: dict[str, torch.Tensor] = {}
        patches_BND, first_BD = split_tokens(features.tokens, side.spec)
        if PATCHES in self.names:
            tokens[PATCHES] = normalise(pick(patches_BND))
        if TOKEN in self.names:
            tokens[TOKEN] = normalise(first_BD if side.spec.class_token else patches_BND.mean(1))
        if STREAMS in self.weights:
            have_token = self.student_side.spec.class_token and self.teacher_side.spec.class_token
            for name, number in zip(self.student_side.blocks, side.blocks, strict=True):
                patches_BND, first_BD = split_tokens(features.blocks[number], side.spec)
                parts = [*[first_BD[:, None]] * have_token, pick(patches_BND)]
                tokens[name_stream(name)] = normalise(torch.cat(parts, dim=1))
        return tokens

    def _draw_patches(self) -> torch.Tensor | None:
        """Draw the patches to compare in this step; None: all of them."""
        spec, most = self.student_side.spec, self.max_patches
        if not self.training or most is None or isinstance(spec, TextSpec):
            return None
        count = require_pictures(spec).patches
        if most >= count:
            return None
        return torch.randperm(count)[:most]  # the loop seeds torch before every step


def check_comparable(student: Spec, teacher: Spec) -> None:
    """Raise `WrongCall` unless both have the same patches of an image, or the same words."""
    if isinstance(student, TextSpec) and isinstance(teacher, TextSpec):
        if student.vocabulary != teacher.vocabulary:
            raise WrongCall(
                f"the teacher knows {teacher.vocabulary} words and the descendant "
                f"{student.vocabulary}; choose another teacher"
            )
        return
    student, teacher = require_pictures(student), require_pictures(teacher)
    if (student.patches, student.channels) != (teacher.patches, teacher.channels):
        raise WrongCall(
            f"the teacher divides an image of {teacher.channels} channels into {teacher.patches} "
            f"patches and the descendant one of {student.channels} into {student.patches}; choose "
            "another teacher"
        )


def name_stream(block: int) -> str:
    """Return the name of the map of a block of the student."""
    return f"stream{block}"


def normalise(tokens: torch.Tensor) -> torch.Tensor:
    """Return tokens (..., D) with mean 0 and variance 1 over their channels, float32."""
    return functional.layer_norm(tokens.float(), tokens.shape[-1:])
