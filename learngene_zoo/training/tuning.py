"""Fine-tuning that is watched: validation after every epoch, the best weights kept, early stopping,
the figure on test images.

`tune` is what the verb `finetune` does; everything else that trains on labels uses `fit`, which
looks at validation images once, at the end. `watch` describes what happens after every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from torch import nn

from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.tasks.splits import ensure_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import evaluate, judge
from learngene_zoo.training.fit import M, describe_chance, prepare_training, with_trained_weights
from learngene_zoo.training.heads import calibrate_head
from learngene_zoo.training.loop import train
from learngene_zoo.training.report import report
from learngene_zoo.training.watch import Epoch as Epoch
from learngene_zoo.training.watch import Keep, Validation, Watch
from learngene_zoo.training.watch import choose_epoch as choose_epoch


def tune(
    start: M,
    task: Task,
    recipe: Recipe,
    run: Run,
    *,
    keep: Keep = "best",
    patience: int | None = None,
    lesson: Callable[[nn.Module, Any], nn.Module] | None = None,
) -> M:
    """Train all weights of `start` on a task, validated after every epoch, and evaluate what is
    kept on the test images.

    `keep`: the weights of the epoch that `choose_epoch` names from the validation images, epoch 0
    included, or those of the last. `patience`: stop after so many epochs without a better one.
    Where the task has no validation images, a tenth of its training images are; its test images
    decide nothing. A training that diverges ends there: the weights of the epoch chosen until then
    are kept, or those before training, and a `warning` in the metrics says so. `lesson` makes
    another objective, a `Distilled`, of the task's and the model. The result has a report of it
    all, `report.html`, among its files. Raises as `fit` does.
    """
    sizes, task = task.sizes, ensure_validation(task)
    model, objective, loader = prepare_training(start, task, recipe, run)
    if lesson is not None:
        objective = lesson(objective, model)
    watch = Watch(run=run, keep=keep, patience=patience)

    def measure(current: nn.Module, average: nn.Module | None) -> Validation:
        result = evaluate(current, task, "validation", start.input_format, run)
        return Validation(
            value=result.value,
            text=f"validation {result.metric} {result.value:.4f}",
            images=result.images if result.metric == "accuracy" else 0,
        )

    failure = ""
    if recipe.epochs:
        steps = train(objective, loader, recipe, run, label=f"training on {task.name}", lines=False)
        failure = watch.follow(steps, model, measure, recipe.epochs)
    if watch.keeps_start():
        calibrate_head(model, cast(Mapping[str, Any], start.provenance.get("head", {})))
    judged = judge(model, task, "test", start.input_format, run)
    test = judged.evaluation
    history = [epoch.json(test.metric) for epoch in watch.history]
    best = watch.describe_kept(history)
    warnings = _describe_failure(failure, best, test.metric, task, recipe) if best else {}
    low, high = test.interval
    metrics: dict[str, Json] = {
        "task": task.name,
        **{key: value for key, value in best.items() if key.startswith("validation")},
        "validation_images": task.sizes["validation"],
        **({} if sizes == task.sizes else {"validation_taken_from": "train"}),
        f"test_{test.metric}": test.value,
        "test_interval": [low, high],
        "test_images": test.images,
        "training_images": loader.images,
        "epochs": recipe.epochs,
        **({"kept_epoch": best["epoch"], "history": history} if best else {}),
        **warnings,
    }
    tuned = with_trained_weights(start, model, task, recipe, run, metrics)
    return replace(tuned, files={**tuned.files, "report.html": report(tuned, task, judged)})


def _describe_failure(
    failure: str, kept: Mapping[str, Json], metric: str, task: Task, recipe: Recipe
) -> dict[str, Json]:
    """Return what the metrics record of a training that diverged or learnt nothing.

    Nothing of any other.
    """
    value: Any = kept[f"validation_{metric}"]
    chance = describe_chance(value, task, recipe)
    at_chance: dict[str, Json] = {"at_chance": True} if chance else {}
    if not failure:
        return {**at_chance, "warning": chance} if chance else {}
    epoch = (
        f"the weights of epoch {kept['epoch']}" if kept["epoch"] else "the weights before training"
    )
    reason = failure.partition(";")[0]
    sentence = (
        f"the training diverged: {reason}; {epoch} are kept (validation {metric} {value:.4f})"
    )
    advice = chance or f"train again with a smaller lr ({recipe.lr:g} was used), or with clip 1"
    return {"diverged": True, **at_chance, "warning": f"{sentence}; {advice}"}
