"""Probes of frozen features: how well the features of a model fit a task without training.

    ridge   a ridge regression onto the classes, in closed form, of all training images or of a few
            per class
    knn     the nearest training images, weighted by their similarity, as in the evaluation of DINO
            and DINOv2

The ridge regression also initialises the head of a classifier for fine-tuning, see `heads.py`.

Shapes: N images, R rows (one per image, or one for each of its C copies), D features, K classes, E
directions in which the features vary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from learngene_zoo.errors import BadData, TrainingFailed
from learngene_zoo.families.forward import compute_pooled
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.intervals import compute_crossed_interval
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, gather_values, open_device
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import check_whole
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.tasks.task import IGNORED
from learngene_zoo.tasks.transforms import Augment
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    from torch import nn

    from learngene_zoo.tasks.loader import Batches
    from learngene_zoo.tasks.task import Task

Kind = Literal["knn", "ridge"]
Array = np.ndarray
BATCH_SIZE = 128

# Penalties of the ridge regression per image. Features are standardised, so that a penalty of 1
# halves a direction of unit variance.
PENALTIES = tuple(10.0**power for power in np.arange(-4.0, 1.01, 0.5))
FEW_SHOT_PENALTY = 2.0**10  # as in big_vision's few-shot regression; not per image
MAX_SCALE = 100.0  # of the logits
MAX_CALIBRATION_IMAGES = 4000
# Caron et al. 2021 (DINO); Oquab et al. 2023 (DINOv2)
NEIGHBOURS, FEW_NEIGHBOURS, TEMPERATURE = 20, 5, 0.07
MIN_IMAGES_PER_CLASS = 20  # average from which on `NEIGHBOURS` vote, not `FEW_NEIGHBOURS`


class Features(NamedTuple):
    """Features of images, float32 (N, D), with their classes, int64 (N,)."""

    values: Array
    labels: Array


def iterate_features(
    model: Any, loader: Batches
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield the head's inputs, float32 (B, D), classes (B,) and indices (B,) of each batch.

    All are on the CPU. For a model with a class for every pixel, B counts the patches, each with
    the most frequent class of its pixels; patches of which all pixels are ignored are left out.

    Args:
        model: a module that `families.forward` can call, in eval mode.
        loader: batches of images in the model's input format.
    """
    device = next(model.parameters()).device
    for batch in loader.epoch(0):
        if not len(batch.inputs):
            continue
        with torch.no_grad():
            inputs = compute_pooled(model, batch.inputs.to(device)).float().cpu()
        if inputs.dim() == 2:
            yield inputs, batch.labels, batch.indices
            continue
        labels_BN = find_patch_labels(
            batch.labels, model.patch_embed.patch_size, loader.task.classes
        )
        indices_BN = batch.indices[:, None].expand_as(labels_BN)
        is_kept_BN = labels_BN != IGNORED
        yield inputs[is_kept_BN], labels_BN[is_kept_BN], indices_BN[is_kept_BN]


def find_patch_labels(
    labels_BHW: torch.Tensor, patch_size: tuple[int, int], num_classes: int
) -> torch.Tensor:
    """Return the most frequent class of the pixels of every patch, int64 (B, patches).

    It is `IGNORED` for a patch of which all pixels are ignored.

    Args:
        labels_BHW: class of each pixel.
        patch_size: height and width of a patch.
        num_classes: the number of classes.
    """
    rows, columns = (side // patch for side, patch in zip(labels_BHW.shape[-2:], patch_size))
    height, width = patch_size
    labels_BHW = labels_BHW[:, : rows * height, : columns * width]  # as the patch embedding cuts it
    patches_BNP = labels_BHW.unflatten(1, (rows, height)).unflatten(3, (columns, width))
    patches_BNP = patches_BNP.transpose(2, 3).flatten(3).flatten(1, 2)
    counts_BNK = torch.stack(
        [(patches_BNP == label).sum(-1) for label in range(num_classes)], dim=-1
    )
    most_BN, labels_BN = counts_BNK.max(-1)
    return labels_BN.masked_fill(most_BN == 0, IGNORED)


def compute_features(
    model: nn.Module,
    task: Task,
    split: Literal["train", "validation", "test"],
    input_format: InputFormat | TextFormat,
    run: Run,
    *,
    images: int | None = None,
    seed: int | None = None,
    augment: Augment = "none",
) -> Features:
    """Return the features of the images of a split, in the order of the split.

    For a model with a class for every pixel these are the features of its patches, see
    `iterate_features`. Under torchrun the processes share the images, and all return the same
    features.

    Args:
        model: a timm module.
        task: the task.
        split: the split of the task.
        input_format: the images that the model takes.
        run: the run, for its device, seed and workers.
        images: use at most this many images of the split, sampled as for a training. None: all.
        seed: seed of the sample. None: that of a training of the run.
        augment: how images are augmented, as in the first epoch of a training.

    Raises:
        BadData: for a split without images.
        TrainingFailed: for features that are not finite.
    """
    device = open_device(run)
    loader = sample_images(
        task,
        split,
        input_format,
        run,
        images=images,
        batch_size=BATCH_SIZE,
        seed=seed,
        augment=augment,
        by_length=True,
    )
    model = model.to(device).eval()
    parts: list[tuple[Array, Array, Array]] = []
    title = f"features of {split} {task.sample_noun}s of {task.name}, batch"
    with report_activity(title, loader.steps) as activity:
        for activity.num_done, part in enumerate(iterate_features(model, loader), start=1):
            parts.append(tuple(tensor.numpy() for tensor in part))  # type: ignore[arg-type]
    parts = [part for process in gather_values(parts) for part in process]
    if not parts:
        raise BadData(f"the split {split} of {task.name} has no {task.sample_noun}s")
    values_ND, labels_N, indices_N = (np.concatenate(column) for column in zip(*parts))
    num_bad = int((~np.isfinite(values_ND)).any(axis=1).sum())
    if num_bad:
        raise TrainingFailed(
            f"the model's features are not finite for {num_bad} of {len(values_ND)} "
            f"{task.sample_noun}s of {task.name}; create the model again"
        )
    order_N = np.argsort(indices_N, kind="stable")
    return Features(values_ND[order_N], labels_N[order_N])


@dataclass(frozen=True)
class Ridge:
    """A ridge regression of standardised features onto one-hot classes.

    The intercept is not penalised; without one, `bias` is 0.
    """

    weight: Array  # float64 (K, D), for features that are not standardised
    bias: Array  # float64 (K,)
    penalty: float  # per image
    # float64 (N, K): the leave-one-out prediction for each image (its first row)
    left_out: Array
    scale: float  # factor from predicted values to logits, see `calibrate_scale`

    def predict(self, features_ND: Array) -> Array:
        """Return the values of the classes, float64 (N, K); the largest is the predicted class."""
        return predict_linear(features_ND, self.weight, self.bias)


def predict_linear(features_ND: Array, weight_KD: Array, bias_K: Array) -> Array:
    """Return the values of the classes by a linear probe, float64 (N, K)."""
    return features_ND.astype(np.float64) @ weight_KD.T + bias_K


def fit_ridge(
    features: Features,
    num_classes: int,
    penalty: float | None = None,
    copies: int = 1,
    *,
    intercept: bool = True,
) -> Ridge:
    """Fit a ridge regression onto the classes, in closed form by one eigendecomposition.

    Leave-one-out predictions follow from the fit to all images. With fitted values y^ and the
    matrix H that maps targets y to them, the predictions for an image's rows by the regression on
    all other images are y_i - (I - H_ii)^-1 (y_i - y^_i), where H_ii is the block of these rows
    (for a single row, Hastie, Tibshirani and Friedman, The Elements of Statistical Learning,
    section 7.10.1).

    Args:
        features: features with their classes.
        num_classes: the number of classes.
        penalty: per row, on the squared weights of standardised features. None: the one of
            `PENALTIES` with the greatest likelihood of the leave-one-out predictions, scaled to
            logits. (The smallest squared error classifies fewer images correctly: of 426
            photographs of 12 classes 66.1 % of others, against 68.5 %.)
        copies: how many rows show the same image, differently augmented: with N images, rows i, N +
            i, 2 N + i and so on.
        intercept: whether the regression has an intercept. Without one the features are divided by
            their standard deviations and not centred, so that their mean takes the place of a
            constant, and the targets are one-hot classes minus 1/K.

    Raises:
        BadData: if the images show fewer than two classes.
    """
    labels_R = features.labels
    if len(np.unique(labels_R)) < 2:
        raise BadData(
            f"{count_noun(len(labels_R) // copies, 'sample')} of one class; a linear probe needs "
            "at least two classes; use more samples"
        )
    num_rows, num_images = len(labels_R), len(labels_R) // copies
    targets_RK = np.eye(num_classes)[labels_R]
    mean_D, scale_D, standard_RD = standardise(features.values)
    target_mean_K, constant = targets_RK.mean(axis=0), 1 / num_rows  # and its share of the leverage
    if not intercept:
        targets_RK -= 1 / num_classes
        target_mean_K, constant = np.zeros(num_classes), 0.0
        scale_D = np.where(scale_D > 0, scale_D, 1 / np.maximum(np.abs(mean_D), 1.0))
        mean_D, standard_RD = np.zeros_like(mean_D), features.values * scale_D
    directions_DE, coordinates_RE, eigenvalues_E = decompose(standard_RD)
    products_EK = coordinates_RE.T @ targets_RK
    coordinates_NCE = coordinates_RE.reshape(copies, num_images, -1).transpose(1, 0, 2)
    # Loss, scale, penalty, coefficients, predictions
    best: tuple[float, float, float, Array, Array] | None = None
    for candidate in PENALTIES if penalty is None else (penalty,):
        damped_E = eigenvalues_E + candidate * num_rows
        coefficients_EK = products_EK / damped_E[:, None]
        fitted_RK = target_mean_K + coordinates_RE @ coefficients_EK
        errors_NCK = (targets_RK - fitted_RK).reshape(copies, num_images, -1).transpose(1, 0, 2)
        leverage_NCC = constant + (coordinates_NCE / damped_E) @ coordinates_NCE.transpose(0, 2, 1)
        error_NK = np.linalg.solve((1 + 1e-9) * np.eye(copies) - leverage_NCC, errors_NCK)[:, 0]
        left_out_NK = targets_RK[:num_images] - error_NK
        scale, loss = calibrate_scale(left_out_NK, labels_R[:num_images])
        if best is None or loss < best[0]:
            best = loss, scale, candidate, coefficients_EK, left_out_NK
    assert best is not None
    _, scale, chosen, coefficients_EK, left_out_NK = best
    own_labels_N = labels_R[:num_images]
    if (left_out_NK.argmax(axis=1) == own_labels_N).all():
        # The likelihood only rises with the scale: assume one more image that is wrong
        scale, _ = calibrate_scale(left_out_NK, own_labels_N, num_wrong=1)
    weight_KD = (directions_DE @ coefficients_EK).T * scale_D
    return Ridge(weight_KD, target_mean_K - weight_KD @ mean_D, chosen, left_out_NK, scale)


def calibrate_scale(
    values_NK: Array, labels_N: Array, *, num_wrong: int = 0
) -> tuple[float, float]:
    """Return the factor from predicted values to logits, and the logits' mean cross-entropy.

    It is the factor from 1 to `MAX_SCALE` with the greatest likelihood, which is concave in it,
    found by golden section search on at most `MAX_CALIBRATION_IMAGES` images.

    Args:
        values_NK: predicted values.
        labels_N: the classes.
        num_wrong: additional images whose class has the second largest value, which is less than
            the largest one by the mean difference of the two, as in the rule of succession. With
            one, probabilities of N images that are all predicted correctly average N / (N + 1).
    """
    if len(values_NK) > MAX_CALIBRATION_IMAGES:
        # At random: every k-th image may be of one class.
        draws = np.random.Generator(np.random.PCG64(len(values_NK)))
        chosen = np.sort(draws.permutation(len(values_NK))[:MAX_CALIBRATION_IMAGES])
        values_NK, labels_N = values_NK[chosen], labels_N[chosen]
    shifted_NK = values_NK - values_NK.max(axis=1, keepdims=True)
    own_N = np.take_along_axis(shifted_NK, labels_N[:, None], axis=1)[:, 0]

    margin = float(-np.partition(shifted_NK, -2, axis=1)[:, -2].mean())

    def measure_loss(log_scale: float) -> float:
        scale = float(np.exp(log_scale))
        losses_N = np.log(np.exp(scale * shifted_NK).sum(axis=1)) - scale * own_N
        wrong = np.log1p(np.exp(-scale * margin)) + scale * margin
        return float((losses_N.sum() + num_wrong * wrong) / (len(losses_N) + num_wrong))

    low, high, ratio = 0.0, float(np.log(MAX_SCALE)), (5**0.5 - 1) / 2
    while high - low > 0.01:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if measure_loss(left) <= measure_loss(right) else (left, high)
    middle = (low + high) / 2
    return float(np.exp(middle)), measure_loss(middle)


def standardise(values_ND: Array) -> tuple[Array, Array, Array]:
    """Return mean (D,), reciprocal standard deviation (D,) and standardised values (N, D).

    The reciprocal is 0 for features that do not vary.
    """
    mean_D = values_ND.mean(axis=0, dtype=np.float64)
    std_D = values_ND.std(axis=0, dtype=np.float64)
    scale_D = np.where(std_D > 1e-6, 1 / np.maximum(std_D, 1e-6), 0.0)
    return mean_D, scale_D, (values_ND - mean_D) * scale_D


def decompose(standard_ND: Array) -> tuple[Array, Array, Array]:
    """Return principal directions (D, E), coordinates (N, E), and their sums of squares (E,)."""
    num_images, num_features = standard_ND.shape
    gram = (
        standard_ND.T @ standard_ND if num_images >= num_features else standard_ND @ standard_ND.T
    )
    eigenvalues, vectors = np.linalg.eigh(gram)
    is_kept = eigenvalues > 1e-10 * max(float(eigenvalues[-1]), 1e-300)
    eigenvalues_E, vectors = eigenvalues[is_kept], vectors[:, is_kept]
    if num_images >= num_features:
        return vectors, standard_ND @ vectors, eigenvalues_E
    singular_E = np.sqrt(eigenvalues_E)
    return standard_ND.T @ (vectors / singular_E), vectors * singular_E, eigenvalues_E


def is_right_left_out(features: Features) -> Array:
    """Return for each image whether its leave-one-out prediction is correct, bool (N,).

    Classes without an image do not count. Raises `BadData` if the images show fewer than two
    classes.
    """
    present, labels_N = np.unique(features.labels, return_inverse=True)
    ridge = fit_ridge(Features(features.values, labels_N), len(present))
    return np.asarray(ridge.left_out.argmax(axis=1) == labels_N)


def classify_by_neighbours(train: Features, queries_ND: Array, num_classes: int, k: int) -> Array:
    """Return the class of each query by its k nearest training images, int64 (N,).

    Similarity is the cosine of features. Each neighbour votes for its class with weight
    exp(similarity / 0.07), as in DINO and DINOv2 (Caron et al. 2021, Emerging Properties in
    Self-Supervised Vision Transformers).

    Args:
        train: features of the training images.
        queries_ND: features of the images to classify.
        num_classes: the number of classes.
        k: how many neighbours vote.
    """
    kept_MD = _normalise(train.values)
    predicted = []
    for start in range(0, len(queries_ND), 1024):
        similarity_NM = _normalise(queries_ND[start : start + 1024]) @ kept_MD.T
        nearest_Nk = np.argpartition(-similarity_NM, min(k, len(kept_MD)) - 1, axis=1)[:, :k]
        weight_Nk = np.exp(np.take_along_axis(similarity_NM, nearest_Nk, axis=1) / TEMPERATURE)
        votes_NK = np.zeros((len(similarity_NM), num_classes))
        rows_Nk = np.broadcast_to(np.arange(len(similarity_NM))[:, None], nearest_Nk.shape)
        np.add.at(votes_NK, (rows_Nk, train.labels[nearest_Nk]), weight_Nk)
        predicted.append(votes_NK.argmax(axis=1))
    return np.concatenate(predicted)


def _normalise(values_ND: Array) -> Array:
    values_ND = values_ND.astype(np.float64)
    return values_ND / np.maximum(np.linalg.norm(values_ND, axis=1, keepdims=True), 1e-12)


def choose_neighbours(num_images: int, num_classes: int) -> int:
    """Return how many neighbours vote: 20, or 5 if classes have fewer than 20 images on average."""
    return NEIGHBOURS if num_images >= MIN_IMAGES_PER_CLASS * num_classes else FEW_NEIGHBOURS


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The accuracy of a probe on a split that it was not fitted to."""

    probe: Kind
    task: str
    split: str
    value: float  # the mean over the draws
    interval: tuple[float, float]  # 95 %, over images and draws
    images: int
    training_images: int  # per draw
    shots: int | None = None  # training images per class; None: all
    draws: int = 1
    k: int | None = None  # neighbours
    is_text: bool = False  # whether images, training images and shots are texts


def run_probe(
    train: Features,
    held_out: Features,
    task: Task,
    split: str,
    kind: Kind,
    *,
    shots: int | None = None,
    draws: int = 5,
    k: int | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Fit a probe to features of training images and evaluate it on held-out images.

    Args:
        train: features of the training images.
        held_out: features of the images to classify.
        task: the task.
        split: name of the split of the held-out images.
        kind: `ridge`, the regression of `fit_ridge`; or `knn`, see `classify_by_neighbours`.
        shots: fit it to this many images of each class (fewer where a class has fewer), `draws`
            times with different images, as in big_vision's few-shot evaluation; the penalty of the
            regression is then big_vision's, 1024 in total. None: all images, once.
        draws: how often images are drawn.
        k: the number of neighbours that vote. None: see `choose_neighbours`.
        seed: seed of the draws.

    Raises:
        WrongCall: for shots, draws or k that is not a whole number, or below 1.
        BadData: if the training images show fewer than two classes.
    """
    for name, count in {"shots": shots, "draws": draws, "k": k}.items():
        if count is not None:
            check_whole(name, count)
    flags, counts = [], []
    for draw in range(1 if shots is None else draws):
        sample = (
            train if shots is None else draw_shots(train, shots, derive_seed(seed, "shots", draw))
        )
        counts.append(len(sample.labels))
        if kind == "knn":
            k = k or choose_neighbours(len(sample.labels), task.classes)
            predicted_N = classify_by_neighbours(sample, held_out.values, task.classes, k)
        else:
            penalty = None if shots is None else FEW_SHOT_PENALTY / len(sample.labels)
            predicted_N = (
                fit_ridge(sample, task.classes, penalty).predict(held_out.values).argmax(axis=1)
            )
        flags.append((predicted_N == held_out.labels).tolist())
    return ProbeResult(
        probe=kind,
        task=task.name,
        split=split,
        value=float(np.mean(flags)),
        interval=compute_crossed_interval(flags),
        images=len(held_out.labels),
        training_images=round(float(np.mean(counts))),
        shots=shots,
        draws=len(flags),
        k=k if kind == "knn" else None,
        is_text=task.is_text,
    )


def draw_shots(features: Features, shots: int, seed: int) -> Features:
    """Return the features of `shots` randomly drawn images of each class.

    A class with fewer images contributes all of them.
    """
    generator = np.random.default_rng(seed)
    chosen = [
        generator.permutation(np.flatnonzero(features.labels == label))[:shots]
        for label in np.unique(features.labels)
    ]
    indices = np.sort(np.concatenate(chosen))
    return Features(features.values[indices], features.labels[indices])
