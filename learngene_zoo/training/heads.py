"""Initialise the head of a classifier by ridge regression of its features onto the classes.

A random head learns slowly at a learning rate that suits pretrained weights, and at a rate that
suits the head those weights are destroyed within a few steps. The head of a linear probe costs one
forward pass over the training images (docs/results/finetuning.md has measurements). A head with a
class for every pixel reads the patches: the regression is onto the most frequent class of the
pixels of each patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import nn

from learngene_zoo.families.family import get_table
from learngene_zoo.families.forward import compute_logits, find_classifier, spread_pooled
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import gather_values, open_device
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.loader import sample_images
from learngene_zoo.text import count_noun
from learngene_zoo.training.probes import Features, Ridge, compute_features, fit_ridge

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.families.text_format import TextFormat
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.runs.run import Run
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.tasks.transforms import Augment

M = TypeVar("M", bound="Descendant | TimmModel")

MAX_IMAGES = 10_000  # training images that a head is fitted to
MAX_PATCHES = 100_000  # patches that a head with a class for every pixel is fitted to
# The learning rate times the sum of a class's absolute weights. It bounds the change of the logit
# in a step of Adam that moves all features by the learning rate; see `limit_scale`.
MAX_LOGIT_STEP = 0.03
# The largest change of a logit of texts in a first step of Adam that moves every weight before the
# head by the learning rate; see `measure_sensitivity`. Its gradient is of so many texts and
# classes.
MAX_MODEL_STEP, GRADIENT_TEXTS, GRADIENT_CLASSES = 0.3, 64, 4


def initialise_head(start: M, task: Task, recipe: Recipe, run: Run) -> tuple[M, dict[str, Json]]:
    """Fit the head of a model to the training images, and return the model and a record of the fit.

    If the training augments its images, the regression sees each of them twice: as it is, and
    augmented. The head is scaled so that its softmax gives probabilities. The scale is the one with
    the greatest likelihood of the leave-one-out predictions, unless it is too large for the
    learning rate (`limit_scale`; for texts `measure_sensitivity`). A model without a linear head
    is returned unchanged, with the reason in the record. The fit is a part of the run: a resumed
    run loads it.

    Args:
        start: the model.
        task: the task that the head is for.
        recipe: the recipe of the training that follows, for its `augment`, `lr` and `images`; at
            most `MAX_IMAGES` images are used.
        run: the run, for its folder, seed and device.

    Raises:
        BadData: if the training images show fewer than two classes.
        TrainingFailed: for features that are not finite.
    """
    reason = _find_obstacle(start, task)
    if reason:
        return start, {"init": "random", "reason": reason}
    images = min(recipe.images or task.sizes["train"], MAX_IMAGES)
    if task.dense:
        images = max(1, min(images, MAX_PATCHES // count_patches(start.model())))
    seed = derive_seed(run.seed, "data")  # the images that the training will see
    augment = "none" if task.dense or task.is_text else recipe.augment
    part = compute_once(
        run.part("head"),
        "finetune.head",
        _fit_part,
        None,
        (start, task, images, seed, augment, recipe.lr),
    )
    changed = {name: part.state[name].to(start.state[name].dtype) for name in part.state}
    record: dict[str, Json] = part.record  # type: ignore[assignment]
    return cast(M, start.with_state({**start.state, **changed})), {"init": "ridge", **record}


def describe_head(record: Mapping[str, Any]) -> str:
    """Describe how a head was initialised, from the record of `initialise_head`."""
    if record["init"] == "random":
        return f"the head starts from random weights ({record['reason']})"
    share = f"{100 * record['left_out_accuracy']:.1f} %"
    rows = f"{record['patches']} patches of " if "patches" in record else ""
    images = f"{rows}{count_noun(record['images'], record.get('noun', 'image'))}"
    copies = ", each also augmented" if record.get("augmented") else ""
    return (
        f"the head starts from a ridge regression on {images}{copies} (leave-one-out accuracy "
        f"{share})"
    )


def _find_obstacle(start: Descendant | TimmModel, task: Task) -> str:
    """Return why a model cannot get the head of a ridge regression, or "" if it can."""
    return "" if find_linear_heads(start.model()) else "no linear head"


def find_linear_heads(model: Any) -> list[str]:
    """Return the names of the linear layers that compute a model's logits.

    There are several if the model averages their logits, as DeiT's two.
    """
    classifier: Any = find_classifier(model)
    layers = classifier if isinstance(classifier, tuple | list | nn.ModuleList) else [classifier]
    names = {module: name for name, module in model.named_modules()}
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return []
    return [names[layer] for layer in layers]


def list_head_tensors(model: Any) -> list[str]:
    """Return the names of the weights and biases of the linear heads of a model."""
    modules = dict(model.named_modules())
    return [
        f"{layer}.{name}"
        for layer in find_linear_heads(model)
        for name, _ in modules[layer].named_parameters()
    ]


def count_patches(model: Any) -> int:
    """Return the number of patches of an image in a timm model."""
    return int(model.patch_embed.num_patches)


def _fit_part(
    _: None,
    start: Descendant | TimmModel,
    task: Task,
    images: int,
    seed: int,
    augment: Augment,
    lr: float,
    run: Run,
) -> tuple[StateDict, dict[str, Json]]:
    """Fit the head; return its tensors by their names in the model, and a record of the fit."""
    model: Any = start.model()
    kinds: list[Augment] = ["none"] if augment == "none" else ["none", augment]

    def measure(kind: Augment) -> Features:
        return compute_features(
            model, task, "train", start.input_format, run, images=images, seed=seed, augment=kind
        )

    passes = [measure(kind) for kind in kinds]
    spread = spread_pooled(model, torch.from_numpy(passes[0].values)) if task.is_text else {}
    if spread:
        model.load_state_dict({**model.state_dict(), **spread})
        passes = [measure(kind) for kind in kinds]
    features = Features(*(np.concatenate(column) for column in zip(*passes)))
    has_bias = any(name.endswith(".bias") for name in list_head_tensors(model))
    ridge = fit_ridge(features, task.classes, copies=len(passes), intercept=has_bias)
    if task.is_text:
        model.load_state_dict({**model.state_dict(), **_scale_head(model, ridge, 1.0)})
        form: Any = start.input_format
        sensitivity = measure_sensitivity(model, task, form, seed, run)
    else:
        sensitivity = float(np.abs(ridge.weight).sum(axis=1).mean())
    scale = limit_scale(ridge.scale, sensitivity, lr, is_text=task.is_text)
    state = {**spread, **_scale_head(model, ridge, scale)}
    accuracy = float((ridge.left_out.argmax(axis=1) == passes[0].labels).mean())
    return state, {
        "images": min(images, task.sizes["train"]),
        **({"noun": "text"} if task.is_text else {}),
        **({"patches": len(features.labels)} if task.dense else {}),
        **({"spread_pooler": True} if spread else {}),
        **({"augmented": True} if len(passes) > 1 else {}),
        "penalty": ridge.penalty,
        "scale": scale,
        "sensitivity": sensitivity,
        **({"calibrated_scale": ridge.scale} if scale < ridge.scale else {}),
        "left_out_accuracy": accuracy,
    }


def _scale_head(model: Any, ridge: Ridge, scale: float) -> StateDict:
    """Return the tensors of all linear heads of a model, by name."""
    parts = {"weight": ridge.weight, "bias": ridge.bias}
    return {
        name: torch.from_numpy(scale * parts[name.rpartition(".")[2]]).float()
        for name in list_head_tensors(model)
    }


def measure_sensitivity(
    model: Any, task: Task, input_format: TextFormat, seed: int, run: Run
) -> float:
    """Return the sum of the absolute gradients of a logit with respect to all weights but the head.

    It is proportional to the scale of the head. The first steps of Adam move every weight by the
    learning rate, so that times this sum is the change of the logit. The first token of a text,
    which the head of an encoder reads, differs little between texts if the ancestry model takes the
    mean of all tokens. A head that separates such texts reacts to the smallest change of any
    weight: with the first three blocks of MiniLM a single step with a learning rate of 3e-6 raises
    the loss from 0.2 to 9.

    Args:
        model: the module, with the head that is measured.
        task: its first `GRADIENT_TEXTS` training texts of the sample are used.
        input_format: the texts that the model takes.
        seed: of the sample.
        run: the run, for its device.
    """
    loader = sample_images(
        task,
        "train",
        input_format,
        replace(run, workers=0),
        images=GRADIENT_TEXTS,
        batch_size=GRADIENT_TEXTS,
        seed=seed,
    )
    batch, device = next(iter(loader.epoch(0))), open_device(run)
    sums: list[float] = []
    if len(batch.inputs):  # under torchrun the processes share the texts
        heads = set(list_head_tensors(model))
        parameters = [
            parameter
            for name, parameter in model.to(device).named_parameters()
            if name not in heads
        ]
        with torch.enable_grad():
            logits_BK = compute_logits(model, batch.inputs.to(device)).float()
            logits_K = (logits_BK - logits_BK.mean(dim=1, keepdim=True)).mean(dim=0)
            for logit in logits_K[:GRADIENT_CLASSES]:
                gradients = torch.autograd.grad(
                    logit, parameters, retain_graph=True, allow_unused=True
                )
                sums.append(sum(float(part.abs().sum()) for part in gradients if part is not None))
    every = [value for part in gather_values(sums) for value in part]
    return sum(every) / len(every)


def limit_scale(calibrated: float, sensitivity: float, lr: float, *, is_text: bool) -> float:
    """Return the scale of a head before a training: the calibrated one, or a smaller one.

    Features with a small variance have large weights in a regression, and a step of Adam moves
    every feature by about the learning rate, in the direction of these weights. If the sum of the
    weights is large, a single step changes logits by more than they differ, and inherited features
    are lost before the head can adapt. For images the scale is at least 1, at which the logits are
    the values that the regression predicts; no predicted class depends on the scale.

    Args:
        calibrated: the scale at which the softmax gives probabilities.
        sensitivity: change of a logit for each unit of the learning rate, at a scale of 1: of
            images the mean over classes of the sum of absolute weights, of texts
            `measure_sensitivity`.
        lr: the learning rate.
        is_text: whether the model takes texts.
    """
    step = max(lr * sensitivity, 1e-30)
    limit = MAX_MODEL_STEP / step if is_text else max(1.0, MAX_LOGIT_STEP / step)
    return min(calibrated, limit)


def rescale_head(start: M, lr: float) -> M:
    """Return a model that `initialise_head` returned with the scale for another learning rate.

    The record of the fit in its provenance has the new scale. A model with a random head is
    returned unchanged.
    """
    record = start.provenance.get("head", {})
    if "sensitivity" not in record:
        return start
    calibrated = record.get("calibrated_scale", record["scale"])
    is_text = record.get("noun") == "text"
    scale = limit_scale(calibrated, record["sensitivity"], lr, is_text=is_text)
    if scale == record["scale"]:
        return start
    factor = scale / record["scale"]
    changed = {name: factor * start.state[name] for name in list_head_tensors(start.model())}
    kept = {name: value for name, value in record.items() if name != "calibrated_scale"}
    kept |= {"scale": scale, **({"calibrated_scale": calibrated} if scale < calibrated else {})}
    rescaled = start.with_state({**start.state, **changed})
    return cast(M, replace(rescaled, provenance={**start.provenance, "head": kept}))


@torch.no_grad()
def calibrate_head(module: nn.Module, record: Mapping[str, Any]) -> None:
    """Give the logits of a head that was not trained the calibrated scale, in place.

    `record` is that of `initialise_head`; without a calibrated scale nothing changes.
    """
    if "calibrated_scale" not in record:
        return
    factor = record["calibrated_scale"] / record["scale"]
    for name in list_head_tensors(module):
        module.get_parameter(name).mul_(factor)


def has_trained_head(model: Descendant | TimmModel, task: Task) -> bool:
    """Return whether `model.for_task` keeps the head because it knows the classes of the task.

    Such a head is inherited, or was trained on the task.
    """
    from learngene_zoo.artifacts.descendant import Descendant

    if not isinstance(model, Descendant):
        return model.class_names == tuple(task.class_names)
    is_kept = model.has_head_for(task.name, task.class_names, dense=task.dense)
    head = {name for name in model.state if get_table(model.spec).is_head(name)}
    return is_kept and bool(head) and (head <= model.inherited or "trained_on" in model.provenance)
