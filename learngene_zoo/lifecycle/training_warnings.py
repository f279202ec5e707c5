"""Python warnings about a training: it failed, few samples chose the weights, or it is missing.

The command line prints its own lines about these and ignores the warnings.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learngene_zoo.errors import TrainingWarning
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.runs.run import is_first
from learngene_zoo.text import count_noun

MIN_VALIDATION = 30  # fewer compare epochs too coarsely to be used without a note
PACKAGE = f"{Path(__file__).resolve().parents[1]}/"


def warn_of_training(
    model: Any, metrics: Mapping[str, Any] | None = None, *, keep: str = "best"
) -> None:
    """Warn once if a training failed, else if few validation samples chose the weights.

    Args:
        model: the model after the training.
        metrics: those of the training; None: those that the model records.
        keep: the weights that are kept, of the "best" or of the "last" epoch.
    """
    metrics = metrics or model.provenance.get("metrics") or {}
    few, kept = describe_few(metrics, name_sample(model)), metrics.get("kept_epoch")
    if metrics.get("warning"):
        warn(str(metrics["warning"]))
    elif few and kept is not None and keep == "best":
        warn(f"epoch {kept} of {metrics['epochs']} is kept, chosen by {few}")


def warn(text: str) -> None:
    """Give a `TrainingWarning` that points at the caller of the package; none for an empty text."""
    if text and is_first():
        warnings.warn(text, TrainingWarning, stacklevel=_count_own_frames())


def name_sample(model: Any) -> str:
    """Return the word for one sample of a model: "image" or "text"."""
    return "text" if isinstance(getattr(model, "spec", None), TextSpec) else "image"


def describe_few(metrics: Mapping[str, Any], noun: str) -> str:
    """Return the number of validation samples if it is small; "" if there are enough."""
    samples = metrics.get("validation_images", MIN_VALIDATION)
    if samples >= MIN_VALIDATION:
        return ""
    counted = count_noun(samples, f"validation {noun}")
    return f"only {counted}, where one is {100 / samples:.0f} points"


def describe_choice(epoch: int, metrics: Mapping[str, Any], noun: str) -> str:
    """Describe the choice of the kept epoch, which is at least 1.

    It names the epoch with the best validation result if another one, as good as that, is kept, and
    the number of validation samples if it is small.
    """
    history = metrics.get("history", ())
    names = [key for row in history[:1] for key in row if key.startswith("validation_")]
    values = {row["epoch"]: row[names[0]] for row in history if names}
    best = max(values, key=values.__getitem__, default=epoch)
    is_best = values.get(epoch) == values.get(best)
    reason = "" if is_best else f" (the last one within a standard error of the best, epoch {best})"
    few = describe_few(metrics, noun)
    chosen = f", chosen by {few}" if few else ""
    return f"epoch {epoch} of {metrics['epochs']} is kept{reason}{chosen}"


@contextmanager
def ignore_training_warnings() -> Iterator[None]:
    """Ignore the warnings about trainings that are steps of another function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        yield


def _count_own_frames() -> int:
    """Return the `stacklevel`, for a call in `warn`, of the first frame outside of the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
