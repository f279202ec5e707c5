"""Settings of `finetune` and `heal` that depend on the model: rates, layer decay, fit, augment."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import WrongCall
from learngene_zoo.method.rates import FLAT_LR, scale_rate
from learngene_zoo.method.rates import FULL_RATE as FULL_RATE
from learngene_zoo.method.rates import INHERITED_DECAY as INHERITED_DECAY
from learngene_zoo.method.rates import INHERITED_LR as INHERITED_LR
from learngene_zoo.method.rates import TEXT_LR as TEXT_LR
from learngene_zoo.runs.run import get_world_size
from learngene_zoo.settings import Recipe
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.families.picture_format import Fit
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task

FINETUNE = Recipe(epochs=20, batch_size=64, lr=3e-3, warmup=1.0)
# The steps of warm-up of a pretrained model, and the steps of an epoch from which it has the usual
# batches and learning rate; with fewer, the steps and the size of small batches. See
# benchmarks/few_images.py.
WARMUP_STEPS, SMALL_BATCH_STEPS, SMALLEST_BATCH = 5, 8, 8
# Learning rates of `heal`, of the same models and of all others; see benchmarks/heal_rates.py.
INHERITED_HEAL_LR, HEAL_LR = FLAT_LR, 1e-3


def choose_rates(model: Descendant | TimmModel) -> tuple[float, float]:
    """Return the default learning rate and layer decay of `finetune` for a model.

    A pretrained text model has `TEXT_LR`, scaled with the width of its ancestry model. An image
    model that inherits from an ancestry model wider than `FULL_RATE`, or is one of timm's wider
    than that, has `INHERITED_LR` and `INHERITED_DECAY`. Any other has `choose_rate` its width. Only
    the second kind has a layer decay. docs/results/finetuning.md has the measurements.
    """
    if _is_text(model) and is_pretrained(model):
        return scale_rate(TEXT_LR, _find_inherited_width(model) or model.width), 1.0
    if _find_inherited_width(model) > FULL_RATE:
        return INHERITED_LR, INHERITED_DECAY
    return choose_rate(model.width), 1.0


def adapt_to_steps(
    recipe: Recipe, samples: int, *, is_text: bool = False, has_batch_size: bool = False
) -> Recipe:
    """Return the recipe of a pretrained model for a number of training images or texts.

    The first steps of Adam move every weight by the learning rate, whatever its gradient is. With
    few steps in an epoch, the warm-up of a recipe is over before the moving averages have seen
    more than one or two batches, and inherited features are lost. If an epoch has fewer than
    `WARMUP_STEPS` steps, the batches of images are therefore smaller (`choose_small_batch`), with a
    learning rate in proportion to the square root of their size. If there are still too few steps,
    the learning rate on images falls in proportion to them, and the warm-up has at least
    `WARMUP_STEPS` steps (but at most half of the training). On texts only the warm-up changes, as a
    lower rate has a larger head (`training.heads.limit_scale`). docs/results/finetuning.md has the
    measurements.

    Args:
        recipe: with the learning rate and the warm-up of a training with more samples.
        samples: the number of training images or texts of the task.
        is_text: whether they are texts.
        has_batch_size: whether the caller chose the batch size, which then stays.
    """
    count = min(samples, recipe.images or samples)
    steps = math.ceil(count / recipe.batch_size)
    if not 0 < steps < WARMUP_STEPS:
        return recipe
    size = recipe.batch_size
    if not (is_text or has_batch_size):
        size = choose_small_batch(count, size, recipe.accumulate)
        steps = math.ceil(count / size)
    factor = 1.0 if is_text else math.sqrt(size / recipe.batch_size) * min(1, steps / WARMUP_STEPS)
    warmup = max(recipe.warmup, min(WARMUP_STEPS / steps, recipe.epochs / 2))
    return replace(recipe, batch_size=size, lr=float(f"{recipe.lr * factor:.3g}"), warmup=warmup)


def choose_small_batch(images: int, most: int, accumulate: int = 1) -> int:
    """Return the largest power of two with which an epoch has at least `SMALL_BATCH_STEPS` steps.

    It is at least `SMALLEST_BATCH`, a multiple of the number of processes and of the parts of a
    batch, `accumulate`, and at most `most`.
    """
    size = SMALLEST_BATCH
    while size < most and size % math.lcm(get_world_size(), accumulate):
        size *= 2
    while 2 * size <= most and math.ceil(images / (2 * size)) >= SMALL_BATCH_STEPS:
        size *= 2
    return min(size, most)


def choose_heal_rate(model: Descendant) -> float:
    """Return the default learning rate of `heal` for a model.

    docs/results/heal.md has the measurements.
    """
    return INHERITED_HEAL_LR if _find_inherited_width(model) > FULL_RATE else HEAL_LR


def choose_fit(model: Descendant | TimmModel, task: Task) -> Fit | None:
    """Return the default fit of pictures that are not square; None: as the model has it.

    A model that crops and gets a new head stretches instead (docs/results/finetuning.md has the
    measurements). A model that does not crop, keeps its head, or has a class for every pixel is
    left as it is.
    """
    from learngene_zoo.training.heads import has_trained_head

    form: Any = model.input_format
    if _is_text(model) or task.dense or form.view.crop_mode != "center":
        return None
    if has_trained_head(model, task):
        return None
    return "stretch"


def check_text_recipe(recipe: Recipe) -> None:
    """Raise `WrongCall` for a recipe that augments or mixes texts, or that decays their rate."""
    if recipe.augment != "none":
        raise WrongCall(f"augment is {recipe.augment!r}, but texts are not augmented; leave it out")
    if recipe.mixup or recipe.cutmix:
        raise WrongCall("mixup and cutmix cannot mix texts; set both to 0")
    if recipe.layer_decay != 1:
        raise WrongCall(
            f"layer_decay is {recipe.layer_decay}, but text models have one learning rate for "
            "all layers; leave it out"
        )


def is_pretrained(model: Descendant | TimmModel) -> bool:
    """Return whether some weights of a model were inherited or trained; timm's models count."""
    from learngene_zoo.artifacts.descendant import Descendant

    return (
        not isinstance(model, Descendant)
        or bool(model.inherited)
        or "trained_on" in model.provenance
    )


def _is_text(model: Descendant | TimmModel) -> bool:
    """Return whether a model takes texts."""
    from learngene_zoo.families.text_format import TextFormat

    return isinstance(model.input_format, TextFormat)


def _find_inherited_width(model: Descendant | TimmModel) -> int:
    """Return the width of the widest ancestry model; 0 if nothing was inherited.

    For a model of timm's, return the model's width.
    """
    from learngene_zoo.artifacts.descendant import Descendant

    if not isinstance(model, Descendant):
        return model.width
    records: Any = model.provenance.get("ancestries") if model.inherited else None
    specs = [record.get("spec") for record in records or () if isinstance(record, dict)]
    widths = [spec.get("width") for spec in specs if isinstance(spec, dict)]
    return max((width for width in widths if isinstance(width, int)), default=0)


def describe_batches(recipe: Recipe, samples: int, noun: str, *, is_default: bool) -> str:
    """Return a line that names the epochs, the steps and the batches of a training.

    Args:
        recipe: the recipe of the training.
        samples: the number of training images or texts of the task.
        noun: the word for one sample, "image" or "text".
        is_default: whether the batch size is `choose_small_batch` of the samples, or the usual one.
    """
    from learngene_zoo.tasks.epochs import count_steps

    count = min(samples, recipe.images or samples)
    steps = count_steps(count, recipe.batch_size)
    epochs = f"{count_noun(recipe.epochs, 'epoch')} of {count_noun(steps, 'step')}"
    size = f"in batches of {count_noun(min(recipe.batch_size, count), noun)}"
    reason = ""
    if is_default and recipe.batch_size < FINETUNE.batch_size:
        most = (WARMUP_STEPS - 1) * FINETUNE.batch_size
        reason = f" ({FINETUNE.batch_size} with more than {most} training {noun}s)"
    return f"training: {epochs}, {size}{reason}"


def describe_rates(
    model: Descendant | TimmModel,
    recipe: Recipe,
    samples: int,
    *,
    has_rate: bool = False,
    has_decay: bool = False,
) -> str:
    """Return a line that names the default rates and the reason for them; "" without defaults.

    Args:
        model: the model before training.
        recipe: the recipe of the training.
        samples: the number of training images or texts of the task.
        has_rate: whether the caller chose the learning rate.
        has_decay: whether the caller chose the layer decay.
    """
    usual, usual_decay = choose_rates(model)
    width = _find_inherited_width(model)
    is_decayed = recipe.layer_decay == usual_decay != 1 and not has_decay
    values = [] if has_rate else [f"the learning rate is {recipe.lr:g}"]
    values += [f"the layer decay{'' if values else ' is'} {recipe.layer_decay:g}"] * is_decayed
    if not values:
        return ""
    reason, kind = f"models of width {model.width}", ""
    if _is_text(model) and is_pretrained(model):
        width, kind = width or model.width, "text "
    if width > FULL_RATE or kind:
        reason = f"pretrained {kind}models of width {width}"
        if width != model.width:
            reason = f"{kind}models that inherit from an ancestry model of width {width}"
    line = f"{' and '.join(values)}, the default{'s' if values[1:] else ''} of {reason}"
    if recipe.lr < usual and not has_rate:
        steps = math.ceil(min(samples, recipe.images or samples) / recipe.batch_size)
        reason = f"for batches of {recipe.batch_size}"
        if steps < WARMUP_STEPS:
            reason = f"as an epoch has only {count_noun(steps, 'step')}"
        line += f"; that is {recipe.lr / usual:.2g} times the usual {usual:g}, {reason}"
    return line


def choose_rate(width: int) -> float:
    """Return the usual learning rate for a width: 3e-3 up to 96, beyond in inverse proportion."""
    return scale_rate(FINETUNE.lr, width)
