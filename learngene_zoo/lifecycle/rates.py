"""The recipe of `finetune`, and the learning rate, layer decay and fit of pictures that it takes for a model if none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from learngene_zoo.settings import Recipe

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.timm_model import TimmModel
    from learngene_zoo.families.spec import Fit
    from learngene_zoo.tasks.task import Task

FINETUNE = Recipe(epochs=20, batch_size=64, lr=3e-3, warmup=1.0)
FULL_RATE = 96  # the largest width that has FINETUNE's learning rate; see benchmarks/finetune_lr.py
# Of models that inherit from an ancestry model wider than that; see benchmarks/finetune_rates.py.
INHERITED_LR, INHERITED_DECAY = 5e-5, 0.75


def choose_rates(model: Descendant | TimmModel) -> tuple[float, float]:
    """Return the learning rate and the layer decay with which `finetune` trains a model if none is named.

    A model that inherits from an ancestry model wider than `FULL_RATE`, or is one of timm's as wide as that, has
    `INHERITED_LR` and `INHERITED_DECAY`. Any other has `rate_for` its width, and no layer decay. docs/training.md has what
    was measured.
    """
    if _find_inherited_width(model) > FULL_RATE:
        return INHERITED_LR, INHERITED_DECAY
    return rate_for(model.width), 1.0


def choose_fit(model: Descendant | TimmModel, task: Task) -> Fit | None:
    """Return how pictures that are not square are fitted to a model for a task if nobody says it; None: as the model has it.

    A model that crops and gets a new head stretches instead: docs/training.md has what was measured. A model that does neither,
    or that keeps its head, and one with a class for every pixel, see pictures as they did.
    """
    from learngene_zoo.training.heads import has_trained_head

    if task.dense or model.input_format.view.crop_mode != "center" or has_trained_head(model, task):
        return None
    return "stretch"


def is_pretrained(model: Descendant | TimmModel) -> bool:
    """Return whether some of a model's weights were inherited or trained; a model of timm's counts as such."""
    from learngene_zoo.artifacts.descendant import Descendant

    return not isinstance(model, Descendant) or bool(model.inherited) or "trained_on" in model.provenance


def _find_inherited_width(model: Descendant | TimmModel) -> int:
    """Return the width of the widest ancestry model; of a model of timm's its own; 0 if nothing was inherited."""
    from learngene_zoo.artifacts.descendant import Descendant

    if not isinstance(model, Descendant):
        return model.width
    records: Any = model.provenance.get("ancestries") if model.inherited else None
    specs = [record.get("spec") for record in records or () if isinstance(record, dict)]
    widths = [spec.get("width") for spec in specs if isinstance(spec, dict)]
    return max((width for width in widths if isinstance(width, int)), default=0)


def describe_rates(model: Descendant | TimmModel, recipe: Recipe) -> str:
    """Return a line that says which rates were the defaults, and why."""
    width = _find_inherited_width(model)
    if width > FULL_RATE:
        rates = f"the learning rate was {recipe.lr:g} and the layer decay {recipe.layer_decay:g}"
        return f"{rates}, the defaults of models with weights of a pretrained one {width} wide"
    return f"the learning rate was {recipe.lr:g}, the default of models {model.width} wide"


def rate_for(width: int) -> float:
    """Return the usual learning rate for a model of this width: 3e-3 up to 96, beyond in inverse proportion.

    Adam's best rate falls about as 1/width (Yang et al. 2022, arXiv:2203.03466, table 3); docs/training.md has what was measured.
    """
    return float(f"{FINETUNE.lr * min(1, FULL_RATE / width):.3g}")
