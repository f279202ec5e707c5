"""Learning rates that depend on the ancestry model's width.

A rate that trains a small model well destroys the weights of a large pretrained one within a few
steps. docs/results/finetuning.md has measurements on a real model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from learngene_zoo.errors import refuse_unknown
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.settings import list_settings, with_settings

if TYPE_CHECKING:
    from learngene_zoo.families.spec import Spec
    from learngene_zoo.method.contract import Extractor

E = TypeVar("E", bound="Extractor")

# The largest width that has the learning rates of presets; benchmarks/archive/finetune_lr.py.
FULL_RATE = 96
# Of weights of a wider pretrained model; see benchmarks/finetune_rates.py.
INHERITED_LR, INHERITED_DECAY = 1e-4, 0.75
# The same without layer decay; see benchmarks/heal_rates.py.
FLAT_LR = 5e-5
# Of pretrained text models up to width 96, wider ones by `scale_rate`; see
# benchmarks/text_rates.py.
TEXT_LR = 1e-3


def scale_rate(lr: float, width: int) -> float:
    """Return a learning rate of models up to width 96 for a width; beyond in inverse proportion.

    Adam's best rate falls about as 1/width (Yang et al. 2022, arXiv:2203.03466, table 3);
    docs/results/finetuning.md has the measurements.
    """
    return float(f"{lr * min(1, FULL_RATE / width):.3g}")


def adapt_rates(
    extractor: E,
    ancestries: Sequence[Spec],
    *,
    random_rates: Sequence[str] = (),
    pretrained_rates: Sequence[str] = (),
    teacher_prefix: str = "teaching",
) -> E:
    """Return an extractor with learning rates for the widest ancestry model.

    Up to width 96 they are not changed.

    Args:
        extractor: with the settings of a preset.
        ancestries: the shapes of the ancestry models.
        random_rates: settings with the rate of a training from random weights, which is scaled with
            the ancestry model's width (`scale_rate`).
        pretrained_rates: settings with the rate of a training from the ancestry model's weights,
            which is at most `FLAT_LR`.
        teacher_prefix: of the settings of a teacher's fine-tuning, if there are any. Its rate is at
            most `INHERITED_LR`, with a layer decay of `INHERITED_DECAY` for image models.

    Raises:
        WrongCall: for a setting that the extractor does not have.
    """
    values = {setting.name: setting.default for setting in list_settings(extractor)}
    for name in (*random_rates, *pretrained_rates):
        if name not in values:
            raise refuse_unknown("setting", name, values)
    width = max((spec.width for spec in ancestries), default=0)
    if width <= FULL_RATE:
        return extractor
    changes = {name: scale_rate(values[name], width) for name in random_rates}
    changes |= {name: min(values[name], FLAT_LR) for name in pretrained_rates}
    if (name := f"{teacher_prefix}_lr") in values:
        changes[name] = min(values[name], INHERITED_LR)
    is_of_texts = any(isinstance(spec, TextSpec) for spec in ancestries)
    if (name := f"{teacher_prefix}_layer_decay") in values and not is_of_texts:
        changes[name] = INHERITED_DECAY
    return with_settings(extractor, changes)


def describe_changes(before: Extractor, after: Extractor) -> str:
    """Describe the settings that were changed for the ancestry models."""
    values = {setting.name: setting.default for setting in list_settings(before)}
    changes = [
        f"--{setting.name.replace('_', '-')} {setting.default} instead of {values[setting.name]}"
        for setting in list_settings(after)
        if setting.default != values[setting.name]
    ]
    return f"for this ancestry model: {', '.join(changes)}"
