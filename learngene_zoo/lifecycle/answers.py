"""The verbs that ask models, and change nothing: compare, predict."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from learngene_zoo.artifacts.models import open_model
from learngene_zoo.lifecycle.models import own_run, own_task
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.artifacts.timm_model import TimmModel
    from learngene_zoo.comparison import Comparison
    from learngene_zoo.training.predict import Prediction


def compare(
    first: str | Path | Descendant | TimmModel,
    second: str | Path | Descendant | TimmModel,
    *,
    task: str | None = None,
    split: Literal["train", "validation", "test"] = "test",
    timed: bool = False,
    run: Run | None = None,
) -> Comparison:
    """Two models on the same images of a task (default: the one that the first was trained for), and what each costs.

    `timed` also measures latencies. Raises `WrongCall` as `evaluate` does, for either.
    """
    from learngene_zoo.comparison import compare as measured

    run = run or own_run()
    one, other = (open_model(model, offline=run.offline) for model in (first, second))
    data = open_task(task or own_task(one, "compare"), offline=run.offline)
    return measured(one, other, data, split, run, timed=timed)


def predict(
    model: str | Path | Descendant | TimmModel,
    images: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    batch_size: int = 32,
    run: Run | None = None,
) -> list[Prediction]:
    """The classes of pictures in files, the `top` most probable of each.

    A picture that cannot be read has an `error`. Raises `WrongCall` for a model without a class per image.
    """
    from learngene_zoo.training.predict import predict as predicted

    run = run or own_run()
    paths = [images] if isinstance(images, (str, Path)) else images
    return list(predicted(open_model(model, offline=run.offline), paths, run, top=top, batch_size=batch_size))
