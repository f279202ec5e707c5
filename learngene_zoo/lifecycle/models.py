"""Functions for models: train, evaluate, export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.own_data import find_origin, open_for_artifact, remember, remember_file
from learngene_zoo.artifacts.records import (
    TASKS,
    is_own_data,
    list_versions,
    parse_reference,
    parse_task,
)
from learngene_zoo.atomic import check_file
from learngene_zoo.errors import BadFile, WrongCall, ZooError, check_choice
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.opening import (
    make_run,
    open_answering,
    open_task_for,
    warn_of_other_cut,
    warn_of_random_head,
)
from learngene_zoo.lifecycle.training_warnings import warn_of_training
from learngene_zoo.pretrained.exported import check_format, check_own_export, is_exported_file
from learngene_zoo.pretrained.timm_model import open_model
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.run import Run, parse_run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe, check_type, to_json
from learngene_zoo.tasks.catalogue import SOURCE_TASK, locate_task, open_task, say_notes
from learngene_zoo.tasks.task import SPLITS, check_inputs, stamp_tasks
from learngene_zoo.text import name_option, quote_path

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.lifecycle.runtimes import Exported
    from learngene_zoo.pretrained.exported import ExportedModel
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.evaluate import Evaluation

# No augmentation: the attributes of the source task do not hold for shifted images.
TRAIN = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")


@refuse_unknown_arguments
def train(
    task: str = SOURCE_TASK,
    *,
    spec: Spec,
    recipe: Recipe = TRAIN,
    init: Literal["timm", "fan_in"] = "timm",
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
) -> Descendant:
    """Train a model of any size from scratch: an ancestry model, or a baseline.

    Args:
        task: the task to train on; it sets `spec.classes`.
        spec: the shape of the model.
        recipe: the training.
        init: the scheme of the initial weights.
        out: folder to write the model to.
        run: how to compute. None: `Run()`, with progress in a notebook.
        force: replace existing content of `out`.

    Raises:
        TrainingFailed: if the loss is still near that of guessing after a tenth of the steps.
    """
    run, task = parse_run(run, make_run), parse_reference("task", task, TASKS)
    check_type("spec", spec, Spec)
    check_type("recipe", recipe, Recipe)
    check_choice("initialisation", init, ("timm", "fan_in"))
    check_start(out, run, force)
    require_pictures(spec).check_tiled()
    from learngene_zoo.artifacts.descendant import assemble, load_descendant
    from learngene_zoo.training.fit import fit

    data = open_task(task, offline=run.offline)
    check_inputs(data)
    spec = spec.with_(classes=data.classes, dense=data.dense)
    settings = {
        "task": to_json(data.record),
        "spec": to_json(spec),
        "recipe": to_json(recipe),
        "init": init,
    }

    def make(run: Run) -> Descendant:
        say_notes([data], run)
        start = assemble(
            spec,
            {},
            seed=derive_seed(run.seed, "init"),
            scheme=init,
            mean=data.mean,
            std=data.std,
            provenance={"method": "train", "init": init, "versions": list_versions()},
        )
        return fit(start, data, recipe, run, guard=True)

    origins = {task: locate_task(data, task)} if is_own_data(task) else {}
    stamps = partial(stamp_tasks, [data])
    descendant = produce(
        make,
        load_descendant,
        out=out,
        verb="train",
        settings=settings,
        run=run,
        force=force,
        data=stamps,
    )
    warn_of_training(descendant)
    return remember(descendant, origins, load_descendant, out)


@refuse_unknown_arguments
def evaluate(
    model: str | Path | Descendant | TimmModel | ExportedModel,
    task: str | None = None,
    *,
    split: Literal["train", "validation", "test"] = "test",
    resolution: Literal["resized", "original"] = "resized",
    run: Run | None = None,
) -> Evaluation:
    """Measure the accuracy, or mIoU, of a model on one split of a task.

    Classes that the model has in another order than the task are matched by their names.

    Args:
        model: a model or a reference to one.
        task: default: the task that the model was trained for.
        split: the images to evaluate on.
        resolution: whether mIoU counts the pixels of the pictures as they are resized for the
            model, or the original ones.
        run: how to compute. None: `Run()`, with progress in a notebook.

    Raises:
        WrongCall: as `finetune` does, and for the original resolution of a task without masks.
    """
    from learngene_zoo.training.evaluate import check_head, find_class_order
    from learngene_zoo.training.evaluate import evaluate as measure
    from learngene_zoo.training.original import evaluate_originals

    run, task = parse_run(run, make_run), parse_task(task)
    check_choice("split", split, SPLITS)
    check_choice("resolution", resolution, ("resized", "original"))
    opened = open_answering(model, run)
    data = open_task_for(opened, task, "evaluate", run)
    warn_of_other_cut(data, task, split, {"the model": opened})
    folder = getattr(opened, "folder", None)
    check_head(
        opened,
        data,
        f"the model {folder}" if folder else "the model",
        quote_path(folder) if folder else "",
        is_exported=folder is not None and is_exported_file(folder),
        any_order=resolution == "resized",
    )
    if resolution == "original":
        result = evaluate_originals(opened.model(), data, split, opened.input_format, run)
    else:
        order = find_class_order(opened, data)
        result = measure(opened.model(), data, split, opened.input_format, run, order=order)
    warn_of_random_head(opened)
    return result


@refuse_unknown_arguments
def export(
    model: str | Path | Descendant | TimmModel,
    out: str | Path = "model.onnx",
    *,
    dtype: Literal["fp32", "fp16", "int8"] = "fp32",
    task: str | None = None,
    max_drop: float = 0.01,
    timed: bool = False,
    run: Run | None = None,
    force: bool = False,
) -> Exported:
    """Write a model as one file for other runtimes: ONNX or `torch.export`'s.

    `lifecycle/runtimes.py` describes the content and the checks.

    Args:
        model: a model or a reference to one; also a pretrained text model, as for `extract`.
        out: the file; its suffix chooses the format (`.onnx`, `.pt2`). Default: as for the command.
        dtype: of the weights; "int8" is for ONNX only.
        task: the data for measuring an int8 file; default: as for `evaluate`. For a model without
            classes it is needed, and may have no labels.
        max_drop: the largest accepted fall of the metric of an int8 file.
        timed: also measure latencies.
        run: how to compute. None: `Run()`, with progress in a notebook.
        force: replace existing content of `out`. With `run.resume`, only a file that was exported
            from the same model in the same dtype is replaced.

    Raises:
        Refused: with `run.resume`, for an existing file of another model or dtype.
        WrongCall: as `evaluate` does, and for a task without int8.
        ZooError: as `runtimes.export_descendant` does.
    """
    run, task = parse_run(run, make_run), parse_task(task)
    if task is not None and dtype != "int8":
        raise WrongCall(
            f"the task {task!r:.60} is used only for dtype int8; leave it out, or choose dtype int8"
        )
    check_format(Path(out), dtype)
    is_resumed = run.resume and not force and Path(out).is_file()
    check_file(Path(out), force or is_resumed)
    if is_resumed:
        check_own_export(Path(out), dtype)
    from learngene_zoo.lifecycle.runtimes import export_descendant

    descendant = _open_exportable(model, run)
    if is_resumed:
        check_own_export(Path(out), dtype, str(descendant.identity))
    data = _open_measured(descendant, task, run) if dtype == "int8" else None
    settings: dict[str, Any] = {"dtype": dtype, "task": data, "max_drop": max_drop, "timed": timed}
    warn_of_random_head(descendant)
    may_replace = force or is_resumed
    exported = export_descendant(descendant, Path(out), **settings, run=run, force=may_replace)
    if descendant.task is not None and is_own_data(descendant.task):
        with open_for_artifact(descendant):
            origin = find_origin(descendant.task)
        remember_file(Path(out), {descendant.task: origin} if origin else {})
    return exported


def _open_exportable(model: str | Path | Descendant | TimmModel, run: Run) -> Any:
    """Open any model, or a pretrained text model in transformers' layout.

    Raises as `open_model` does.
    """
    from learngene_zoo.lifecycle.analyse import assemble_ancestry
    from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec

    try:
        return open_model(model, offline=run.offline)
    except (BadFile, WrongCall):
        try:
            is_text = isinstance(read_ancestry_spec(str(model), offline=run.offline), TextSpec)
        except ZooError:
            is_text = False
        if not is_text:
            raise
    return assemble_ancestry(open_ancestry(str(model), offline=run.offline), run.seed)


def _open_measured(model: Descendant | TimmModel, task: str | None, run: Run) -> Task:
    """Open the task on which an int8 file is measured; data without labels for a model without
    classes.
    """
    if model.classes:
        return open_task_for(model, task, "export", run)
    from learngene_zoo.tasks.unlabelled.opening import open_images

    if task is None:
        raise WrongCall(
            "the model has no classes, so its features are compared in int8: give "
            f"{'texts' if isinstance(model.input_format, TextFormat) else 'images'}, with or "
            f"without labels: {name_option('task', 'folder:PATH')}"
        )
    data = open_images(task, offline=run.offline)
    check_inputs(data, model.input_format)
    return data
