"""Fine-tuning with validation after every epoch, early stopping and a result on test images.

The verb `finetune` and the teachers of extractions use `tune`. Everything else that trains on
labels uses `fit`, which validates once, at the end. `watch` validates after every epoch and keeps
the best weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from torch import nn

from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json, Recipe
from learngene_zoo.tasks.splits.cutting import ensure_validation, limit_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.evaluate import Evaluation, evaluate, judge
from learngene_zoo.training.fit import M, copy_trained_weights, describe_chance, prepare_training
from learngene_zoo.training.heads import calibrate_head
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import choose_metric
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
    validation_images: int | None = None,
    distillation: Callable[[nn.Module, Any], nn.Module] | None = None,
    is_tested: bool = True,
) -> M:
    """Train all weights of a model on a task, validate every epoch, and evaluate the kept weights.

    If the task has no validation images, a tenth of its training images are used instead; its test
    images decide nothing. A training that diverges ends there: the weights of the epoch chosen
    until then are kept, or those before training, and the metrics have a `warning`.

    Args:
        start: the model.
        task: the task; the model's head must fit it.
        recipe: settings of the training.
        run: folder, seed, device and so on.
        keep: "best" keeps the weights of `choose_epoch`, with epoch 0 among them; "last" those of
            the last epoch.
        patience: stop after this many epochs without a better one; None: never.
        validation_images: validate on at most this many images, in proportion to the classes; None:
            all.
        distillation: returns another objective, a `Distilled`, for that of the task and the model.
        is_tested: evaluate the kept weights on test images, and write the report.

    Returns:
        The trained model, with a report among its files, `report.html`, if it is tested.

    Raises:
        WrongCall: for a model whose head does not fit the task.
    """
    has_validation = task.sizes["validation"] > 0
    task = limit_validation(ensure_validation(task), validation_images)
    model, objective, loader = prepare_training(start, task, recipe, run)
    if distillation is not None:
        objective = distillation(objective, model)
    watch = Watch(run=run, keep=keep, patience=patience)

    def measure(current: nn.Module, average: nn.Module | None) -> Validation:
        result = evaluate(current, task, "validation", start.input_format, run)
        return Validation(
            value=result.value,
            text=f"validation {result.metric} {result.value:.4f}",
            images=result.images if result.metric == "accuracy" else 0,
        )

    steps = train(objective, loader, recipe, run, label=f"training on {task.name}", lines=False)
    failure = watch.follow(steps, model, measure, recipe.epochs)
    if watch.keeps_start():
        calibrate_head(model, cast(Mapping[str, Any], start.provenance.get("head", {})))
    judged = judge(model, task, "test", start.input_format, run) if is_tested else None
    metric = choose_metric(task).name
    history = [epoch.json(metric) for epoch in watch.history]
    best = watch.describe_kept(history)
    training: dict[str, Json] = {}
    if recipe.epochs:
        failed = _describe_failure(failure, best, metric, task, recipe)
        training = {"kept_epoch": best["epoch"], "history": history, **failed}
    metrics: dict[str, Json] = {
        "task": task.name,
        **{key: value for key, value in best.items() if key.startswith("validation")},
        "validation_images": task.sizes["validation"],
        **({} if has_validation else {"validation_taken_from": "train"}),
        **(_describe_test(judged.evaluation) if judged else {}),
        "training_images": loader.images,
        "epochs": recipe.epochs,
        **training,
    }
    tuned = copy_trained_weights(start, model, task, recipe, run, metrics)
    if judged is None:
        return tuned
    return replace(tuned, files={**tuned.files, "report.html": report(tuned, task, judged)})


def _describe_test(test: Evaluation) -> dict[str, Json]:
    """Return the metrics of an evaluation on test images."""
    low, high = test.interval
    return {
        f"test_{test.metric}": test.value,
        "test_interval": [low, high],
        "test_images": test.images,
    }


def _describe_failure(
    failure: str, kept: Mapping[str, Json], metric: str, task: Task, recipe: Recipe
) -> dict[str, Json]:
    """Return the metrics' record of a training that diverged or learnt nothing; {} of others.

    Args:
        failure: the error of a training that diverged, else "".
        kept: the record of the kept epoch.
        metric: the name of the metric.
        task: the task.
        recipe: settings of the training.
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
