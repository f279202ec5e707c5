"""Distillation: a student learns from labels and from the outputs of a frozen teacher.

`Distilled` is the objective of all these trainings. It compares student and teacher by a function:
`make_logits_loss` compares logits, `TokenLoss` tokens. Methods may compare other features, which
`record_features` records in forward passes that are computed anyway. `train_teacher` makes a
teacher from an ancestry model, `open_teacher` opens any other classifier, and `guide` freezes
either.

Shapes: B images, N tokens, D width, K classes. In logits of dense models K comes last, after the
patches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import (
    compute_logits,
    get_blocks,
    observe_logits,
    observe_output,
    observe_stream,
)
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.text_format import TextFormat, Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.pretrained.timm_model import open_model
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.text import quote_word
from learngene_zoo.training.evaluate import check_head
from learngene_zoo.training.heads import initialise_head
from learngene_zoo.training.objectives import count_terms
from learngene_zoo.training.tuning import tune

if TYPE_CHECKING:
    from learngene_zoo.families.picture_format import InputFormat
    from learngene_zoo.families.spec import Spec
    from learngene_zoo.families.tensors import Model
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.loader import Batch
    from learngene_zoo.tasks.task import Task

Direction = Literal["teacher-student", "student-teacher"]
# Whether the target is a teacher's distribution over classes, or its most probable class
Softness = Literal["soft", "hard"]


@dataclass(frozen=True)
class Features:
    """The outputs recorded in a forward pass: logits, and outputs of blocks by number, from 0."""

    # Logits of every call of the head: (B, K) or (B, patches, K)
    answers: list[torch.Tensor] = field(default_factory=list)
    blocks: dict[int, torch.Tensor] = field(default_factory=dict)  # after both residuals, (B, N, D)
    # Of attention: after proj, before drop path and residual
    attentions: dict[int, torch.Tensor] = field(default_factory=dict)
    # Tokens after the last block, before the final norm, (B, N, D)
    streams: list[torch.Tensor] = field(default_factory=list)
    # Of texts: which of them are no padding, int64 (B, N)
    masks: list[torch.Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> torch.Tensor:
        """The tokens after the last block, (B, N, D), if a single forward pass was recorded."""
        (tokens,) = self.streams
        return tokens

    @property
    def logits(self) -> torch.Tensor:
        """The output of the head, if a single forward pass was recorded."""
        (logits,) = self.answers
        return logits


# From the features of the student and of the teacher to named scalar losses.
FeatureLoss = Callable[[Features, Features], Mapping[str, torch.Tensor]]


class Teacher:
    """A frozen model that maps a batch to its features: the logits and the outputs of `blocks`.

    It is not a module, so that an objective that contains it does not train, save or copy (for a
    moving average) its weights.
    """

    def __init__(self, model: Model, blocks: Collection[int] = ()) -> None:
        self.model = model.eval().requires_grad_(False)
        self.blocks = tuple(blocks)

    def __deepcopy__(self, memo: object) -> Teacher:
        return self

    def __call__(self, batch: Batch) -> Features:
        """Return the features of a batch, without gradients."""
        # Not inference_mode: its tensors cannot be saved for the backward pass of trained layers.
        with torch.no_grad(), record_features(self.model, self.blocks) as features:
            compute_logits(self.model, batch.inputs)
        if isinstance(batch.inputs, Tokens):
            features.masks.append(batch.inputs.mask)
        return features


class Outsider:
    """A frozen classifier of any architecture, of which only the logits are used.

    Its batches have images for a student. They are normalised for the teacher, and resized
    (bicubic) if it takes another size.

    Args:
        model: the classifier.
        own: the input format of the teacher.
        given: the input format of the batches.
    """

    def __init__(self, model: nn.Module, own: InputFormat, given: InputFormat) -> None:
        self.model = model.eval().requires_grad_(False)
        self.own, self.given = own, given

    def __deepcopy__(self, memo: object) -> Outsider:
        return self

    def __call__(self, batch: Batch) -> Features:
        """Return the logits of a batch, without gradients."""
        with torch.no_grad():
            return Features(
                answers=[
                    compute_logits(self.model, convert_images(batch.inputs, self.given, self.own))
                ]
            )


def convert_images(
    images_BCHW: torch.Tensor, given: InputFormat, wanted: InputFormat
) -> torch.Tensor:
    """Convert images in the format `given` to the format `wanted`; their crop is kept."""

    def per_channel(values: tuple[float, ...]) -> torch.Tensor:
        return images_BCHW.new_tensor(values).view(1, -1, 1, 1)

    same = (given.mean, given.std) == (wanted.mean, wanted.std)
    if same and given.image_size == wanted.image_size:
        return images_BCHW
    pixels = images_BCHW * per_channel(given.std) + per_channel(given.mean)
    if given.image_size != wanted.image_size:
        size = (wanted.image_size, wanted.image_size)
        pixels = functional.interpolate(pixels, size, mode="bicubic", antialias=True).clamp(0, 1)
    return (pixels - per_channel(wanted.mean)) / per_channel(wanted.std)


class Distilled(nn.Module):
    """The losses of a student's objective and of its imitation of a teacher, in one forward pass.

    Args:
        objective: the objective of the task, which contains the student.
        student: the model.
        teacher: maps a batch to the teacher's features.
        imitation: compares the features of both; it is trained too if it is a module.
        weights: factors of the losses of the objective and of the imitation.
        blocks: numbers of the student's blocks whose outputs the imitation compares.
    """

    def __init__(
        self,
        objective: nn.Module,
        student: Model,
        teacher: Callable[[Any], Features],
        imitation: FeatureLoss,
        weights: tuple[float, float],
        blocks: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.objective, self.imitation = objective, imitation
        self.teacher, self.weights, self.blocks = teacher, weights, tuple(blocks)
        # In a tuple, because its parameters are registered by the objective already.
        self._student = (student,)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the losses of the objective and those of the imitation by name."""
        target = self.teacher(batch)
        with record_features(self._student[0], self.blocks) as student_features:
            labels = self.objective(batch)
        own_weight, imitated = self.weights
        return {
            **{name: own_weight * loss for name, loss in labels.items()},
            **{
                name: imitated * loss
                for name, loss in self.imitation(student_features, target).items()
            },
        }

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of the objective's losses and of the imitation's, by name."""
        return {**count_terms(self.objective, batch), **count_terms(self.imitation, batch)}


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Adds the loss of a teacher's logits to the objective of a task.

    Args:
        teacher: maps a batch to the teacher's features.
        imitation: compares the logits of both.
        weights: factors of the losses of the objective and of the imitation.
        identity: the teacher and the settings, as JSON.
    """

    teacher: Callable[[Any], Features]
    imitation: FeatureLoss
    weights: tuple[float, float]
    identity: Mapping[str, Any]

    def __call__(self, objective: nn.Module, student: Model) -> Distilled:
        """Return an objective with both losses for the student that `objective` contains."""
        return Distilled(objective, student, self.teacher, self.imitation, self.weights)


@contextmanager
def record_features(model: Model, blocks: Collection[int] = ()) -> Iterator[Features]:
    """Record the logits and the outputs of `blocks` while `model` runs in this context."""
    features = Features()
    with ExitStack() as hooks:
        for number in blocks:
            block: Any = get_blocks(model)[number]
            keep = partial(features.blocks.__setitem__, number)
            hooks.callback(observe_output(block, keep).remove)
            if hasattr(block, "attn"):
                keep = partial(features.attentions.__setitem__, number)
                hooks.callback(observe_output(block.attn, keep).remove)
        hooks.callback(observe_logits(model, features.answers.append).remove)
        hooks.callback(observe_stream(model, features.streams.append).remove)
        yield features


def make_logits_loss(softness: Softness = "soft", temperature: float = 1.0) -> FeatureLoss:
    """Return a loss `{"distillation": scalar}`, the mean over images (and patches).

    It is computed in single precision.

        soft  `compute_divergence` of the two distributions at this temperature
        hard  cross-entropy with the teacher's most probable class

    The loss raises `WrongCall` for logits of other shapes, as dense models of other patches have.
    """

    def loss(given: Features, target: Features) -> dict[str, torch.Tensor]:
        student, teacher = given.logits.float(), target.logits.float()
        if student.shape != teacher.shape:
            raise WrongCall(
                f"the teacher's logits have the shape {tuple(teacher.shape)} and the student's"
                f" {tuple(student.shape)}; choose a teacher with the same classes and patches"
            )
        if softness == "soft":
            return {"distillation": compute_divergence(student, teacher, temperature)}
        classes_N = teacher.flatten(0, -2).argmax(dim=-1)
        return {"distillation": functional.cross_entropy(student.flatten(0, -2), classes_N)}

    return loss


class LossSum(nn.Module):
    """The losses of several comparisons, each multiplied by its weight.

    Comparisons that are modules are trained too.
    """

    def __init__(self, parts: Sequence[tuple[float, FeatureLoss]]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.trained = nn.ModuleList(part for _, part in parts if isinstance(part, nn.Module))

    def forward(self, given: Features, target: Features) -> dict[str, torch.Tensor]:
        """Return all losses by name."""
        return {
            name: weight * loss
            for weight, part in self.parts
            for name, loss in part(given, target).items()
        }

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of all losses by name."""
        return {name: n for _, part in self.parts for name, n in count_terms(part, batch).items()}


class TokenLoss(nn.Module):
    """A loss `{"tokens": scalar}` between the student's last tokens and the teacher's.

    For every patch n it is

        smooth L1 (beta 2) of W s_n + b and LayerNorm(t_n), the norm without weight and bias,

    for the student's token s_n and the teacher's t_n (Wei et al., Contrastive Learning Rivals
    Masked Image Modeling in Fine-tuning via Feature Distillation, 2022). In addition to the paper,
    the teacher's class token, if it has one, is predicted by another linear map from the student's
    class token or, without one, from the mean of its patches. The maps are trained with the
    student. Of texts all tokens but padding are compared as patches are.

    Args:
        student: spec of the student.
        teacher: spec of the teacher.
        seed: seed of the maps.

    Raises:
        WrongCall: if the two divide images into different numbers of patches.
    """

    def __init__(self, student: Spec, teacher: Spec, seed: int) -> None:
        super().__init__()
        is_text = isinstance(student, TextSpec) and isinstance(teacher, TextSpec)
        if not is_text:
            _check_patches(student, teacher)
        self.student, self.teacher = student, teacher
        has_token = teacher.class_token and not is_text
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.patches = nn.Linear(student.width, teacher.width)
            self.whole = nn.Linear(student.width, teacher.width) if has_token else None

    def forward(self, given: Features, target: Features) -> dict[str, torch.Tensor]:
        """Return the distance of the patches plus that of the class token."""
        if target.masks:
            is_word_BN = target.masks[0].bool()
            words_RD = self.patches(given.tokens[is_word_BN])
            return {"tokens": measure_whitened_distance(words_RD, target.tokens[is_word_BN])}
        patches, first = split_tokens(given.tokens, self.student)
        target_patches, token = split_tokens(target.tokens, self.teacher)
        loss = measure_whitened_distance(self.patches(patches), target_patches)
        if self.whole is not None:
            answer = first if self.student.class_token else patches.mean(dim=1)
            loss = loss + measure_whitened_distance(self.whole(answer), token)
        return {"tokens": loss}

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of tokens of texts; patches are equally many in every image."""
        return {"tokens": batch.inputs.mask.sum()} if isinstance(batch.inputs, Tokens) else {}


def _check_patches(student: Spec, teacher: Spec) -> None:
    """Raise `WrongCall` if the two divide images into different numbers of patches."""
    patches, expected = (require_pictures(spec).patches for spec in (student, teacher))
    if patches != expected:
        raise WrongCall(
            f"the teacher divides an image into {expected} patches and the student into"
            f" {patches}; their tokens cannot be compared: choose another teacher, or"
            " tokens 0"
        )


def split_tokens(tokens_BND: torch.Tensor, spec: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches of a stream, and its first token."""
    return tokens_BND[:, spec.prefix_tokens :], tokens_BND[:, 0]


def measure_whitened_distance(given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean smooth L1 distance to the target, each of whose vectors is normalised.

    It is computed in single precision.
    """
    whitened = functional.layer_norm(target.float(), target.shape[-1:])
    return functional.smooth_l1_loss(given.float(), whitened, beta=2.0)


def compute_divergence(
    student: torch.Tensor,
    teacher: torch.Tensor,
    temperature: float = 1.0,
    direction: Direction = "teacher-student",
) -> torch.Tensor:
    """Return t^2 KL between softmaxes over the last axis at temperature t, averaged over the rest.

        teacher-student  KL(softmax(teacher / t) || softmax(student / t))
        student-teacher  the reverse

    The factor makes the size of the gradient independent of the temperature (Hinton, Vinyals and
    Dean, 2015, section 2.1).

    Args:
        student: logits, classes last.
        teacher: logits of the same shape.
        temperature: t.
        direction: one of the two above.
    """
    student_NK, teacher_NK = (
        functional.log_softmax(logits.flatten(0, -2) / temperature, dim=-1)
        for logits in (student, teacher)
    )
    of, against = (
        (teacher_NK, student_NK) if direction == "teacher-student" else (student_NK, teacher_NK)
    )
    return temperature**2 * functional.kl_div(against, of, reduction="batchmean", log_target=True)


def guide(
    teacher: Descendant | TimmModel, images: InputFormat | TextFormat, run: Run
) -> Teacher | Outsider:
    """Return a frozen teacher on the run's device, for batches of inputs in the format `images`.

    Raises `WrongCall` for a teacher that cannot take these inputs: of another number of channels,
    a dense one of another image size, or one of texts with another tokenizer or fewer positions.
    """
    own_format = teacher.input_format
    if isinstance(own_format, TextFormat) or isinstance(images, TextFormat):
        check_tokenizers(teacher, images)
        return Teacher(teacher.model().to(open_device(run)))
    model = teacher.model().to(open_device(run))
    if own_format.channels != images.channels or (
        teacher.dense and own_format.image_size != images.image_size
    ):
        raise WrongCall(
            f"the teacher takes images of {own_format.channels} channels and"
            f" {own_format.image_size} pixels, and the student's have {images.channels} and"
            f" {images.image_size}; choose another teacher"
        )
    alike = (own_format.mean, own_format.std, own_format.image_size) == (
        images.mean,
        images.std,
        images.image_size,
    )
    return (
        Teacher(model)
        if alike and isinstance(teacher, Descendant)
        else Outsider(model, own_format, images)
    )


def check_tokenizers(teacher: Any, student: Any) -> None:
    """Raise `WrongCall` unless a model, as a teacher, takes the texts in the student's format.

    A sentence encoder that truncates texts before its last position takes longer ones too.
    """
    own_format = teacher.input_format
    if not (isinstance(own_format, TextFormat) and isinstance(student, TextFormat)):
        takes = ("texts", "images") if isinstance(own_format, TextFormat) else ("images", "texts")
        raise WrongCall(
            f"the teacher takes {takes[0]} and the student {takes[1]}; choose another teacher"
        )
    if own_format.tokenizer != student.tokenizer or own_format.pad != student.pad:
        raise WrongCall(
            "the teacher has another tokenizer than the student; choose another teacher"
        )
    if teacher.spec.positions < student.tokens:
        raise WrongCall(
            f"the teacher takes {teacher.spec.positions} tokens and the student {student.tokens};"
            " choose another teacher"
        )


def open_teacher(
    source: str, task: Task, run: Run
) -> tuple[Descendant | TimmModel, dict[str, Any]]:
    """Open any classifier as a teacher; return it with its source and identity.

    Args:
        source: `timm:NAME`, `hf-hub:organisation/name`, or a folder.
        task: the task, whose classes it must have.
        run: the run.

    Raises:
        WrongCall: if it does not have the task's classes, and as `open_model` does.
    """
    teacher = open_model(source, offline=run.offline)
    try:
        check_head(teacher, task)
    except WrongCall as error:
        tuned = f"lgzoo finetune {quote_word(source)} --task {quote_word(task.name)} -o teacher"
        raise WrongCall(
            f"the teacher {source} does not fit the task: {error} (`{tuned}`), then use ./teacher"
        ) from error
    return teacher, {"source": source, "identity": teacher.identity}


def train_teacher(
    ancestry: Ancestry, task: Task, recipe: Recipe, run: Run
) -> tuple[Descendant, dict[str, Any]]:
    """Return the ancestry model with a head for the task, and the metrics of its fine-tuning.

    An ancestry model that was trained for the task keeps its head: nothing is computed, and the
    metrics are empty. Otherwise it gets the head of a ridge regression (`training.heads`), unless
    it has one of as many classes without names, and the whole model is fine-tuned as the part
    `teacher` of the run. The epoch to keep is chosen as in `finetune` (`choose_epoch`): no result
    on validation images is below that of the ridge regression.

    Args:
        ancestry: the ancestry model.
        task: the task of the teacher.
        recipe: the recipe of the fine-tuning.
        run: the run.
    """
    record = ancestry.record
    images: Any = {"mean": record.mean, "std": record.std, "view": record.view}
    images["files"] = ancestry.files
    model = assemble(
        ancestry.spec, ancestry.state, seed=run.seed, class_names=ancestry.class_names, **images
    )
    if ancestry.class_names == task.class_names and ancestry.spec.dense == task.dense:
        return replace(model, task=task.name), {}
    part = run.part("teacher")
    start = model.for_task(task.name, task.class_names, seed=part.seed, dense=task.dense)
    keeps_head = not ancestry.class_names and start.spec == model.spec
    inputs = (start, task, keeps_head)
    tuned = compute_once(part, "distillation.tuned_teacher", _tune_teacher, recipe, inputs)
    return start.with_state(dict(tuned.state)), dict(tuned.record)


def _tune_teacher(
    recipe: Recipe, start: Descendant, task: Task, keeps_head: bool, run: Run
) -> tuple[StateDict, dict[str, Any]]:
    """Fine-tune a teacher, from a ridge regression as its head unless it keeps its own; return its
    tensors and metrics.
    """
    if not keeps_head:
        start, head = initialise_head(start, ensure_validation(task), recipe, run)
        start = replace(start, provenance={**start.provenance, "head": head})
    tuned = tune(start, task, recipe, run, is_tested=False)
    return tuned.state, dict(tuned.provenance["metrics"])
