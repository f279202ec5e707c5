"""Open the model and the task of a function for models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.own_data import (
    LocalOrigin,
    find_origin,
    open_for_artifact,
    recall,
)
from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.errors import WrongCall, ZooError
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.spec import parse_image_size
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.lifecycle.training_warnings import warn
from learngene_zoo.runs.folder import has_results, locate_run
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import DEFAULT_TARGET, locate_task, open_task
from learngene_zoo.tasks.task import check_inputs
from learngene_zoo.text import is_in_notebook, name_option, quote_path

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.exported import ExportedModel
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task


def make_run() -> Run:
    """Return the default `Run`, which shows a progress bar in notebooks."""
    return Run(progress=is_in_notebook(), lines=is_in_notebook())


def resume_if_begun(path: Path, run: Run) -> Run:
    """Return the run of a verb that writes to `path`, as a part of another verb.

    It is resumed if an interrupted run of that verb has results there, or has finished.
    """
    has_begun = path.exists() or has_results(locate_run(path))
    return replace(run, folder=None, plan="", name="", resume=has_begun)


def open_answering(model: str | Path | Descendant | TimmModel | ExportedModel, run: Run) -> Any:
    """Open a model for evaluation only: any model, or a file that `export` wrote.

    Raises `WrongCall` for a device or a precision that a file does not have.
    """
    from learngene_zoo.pretrained.exported import ExportedModel, open_classifier

    opened = (
        model
        if isinstance(model, ExportedModel)
        else open_classifier(model, offline=run.offline, threads=run.threads)
    )
    if isinstance(opened, ExportedModel) and (
        run.device not in ("auto", "cpu") or run.precision != "fp32"
    ):
        raise WrongCall(
            f"{opened.folder} always runs on the CPU, in the precision of the file; leave out "
            f"{name_option('device')} and {name_option('precision')}"
        )
    return opened


def check_image_size(
    model: str | Path | Descendant | TimmModel, image_size: int | None, offline: bool
) -> None:
    """Check that a model takes images of a size, before its weights are read.

    Models that are not of a known family are checked by `resize_images`. Raises `WrongCall` for a
    size that the model does not take.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    if parse_image_size(image_size) is None or not isinstance(model, str | Path):
        return
    try:
        spec = read_ancestry_spec(str(model), offline=offline)
    except ZooError:
        return
    if isinstance(spec, PictureSpec):
        spec.with_(image_size=image_size)


def open_resized(
    model: str | Path | Descendant | TimmModel, image_size: int | None, offline: bool
) -> Descendant | TimmModel:
    """Open a model for images of a size, see `resize_images`; None: as it is."""
    from learngene_zoo.pretrained.timm_model import open_model

    check_image_size(model, image_size, offline)
    return resize_images(open_model(model, offline=offline), image_size)


def resize_images(model: Descendant | TimmModel, image_size: int | None) -> Descendant | TimmModel:
    """Return a model for images of another size; None leaves it unchanged.

    Raises `WrongCall` for a text model, and for a size that the model does not take.
    """
    image_size = parse_image_size(image_size)
    if image_size is None:
        return model
    if isinstance(model.input_format, TextFormat):
        raise WrongCall(f"image_size is {image_size}, but the model takes texts; leave it out")
    return model.with_image_size(image_size)


def warn_of_random_head(model: Any) -> None:
    """Print a note if the head of a descendant is random, and warn with the same text.

    The note is printed in commands, which ignore the warning.
    """
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.families.family import get_table

    if not isinstance(model, Descendant) or "trained_on" in model.provenance:
        return
    head = {name for name in model.state if get_table(model.spec).is_head(name)}
    if head and not head & model.inherited:
        named = f"of {model.folder} " if model.folder else ""
        text = (
            f"the head {named}is random: its predictions are at chance until the model is "
            "fine-tuned"
        )
        print_note(text, "random head")
        warn(text)


def warn_of_other_cut(data: Task, task: str | None, split: str, models: Mapping[str, Any]) -> None:
    """Print a note, and warn, if training images of a model may be in a split that was cut.

    A split is cut from the list of the training images, so other files are chosen if the list has
    changed since the model was made. The note is printed in commands, which ignore the warning.

    Args:
        data: the opened task.
        task: the reference by which the user named it; None if it is the first model's.
        split: the split to evaluate on.
        models: the models by their names in the note, such as "the first model".
    """
    reference = task or data.name
    if split not in data.cut_splits or not is_own_data(reference):
        return
    if task is None:
        used = recall(next(iter(models.values()))).get(reference)
    else:
        used = locate_task(data, task)
    if used is None:
        return
    names = (reference, data.name)
    others = [name for name, model in models.items() if _has_other_data(model, names, used)]
    if others:
        noun, folder = data.sample_noun, reference.startswith("folder:")
        remedy = f"in the folders train/ and {split}/" if folder else "as splits of the data"
        text = (
            f"{reference} differs from the data that {' and '.join(others)} was made from, and its "
            f"{split} {noun}s are cut from the list of its files: they may have been training "
            f"{noun}s; keep both apart, {remedy}"
        )
        print_note(text, "other cut")
        warn(text)


def _has_other_data(model: Any, names: Collection[str], used: LocalOrigin) -> bool:
    """Return whether a model was made on this machine from another version of these data."""
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.exported import ExportedModel

    if not isinstance(model, Descendant | ExportedModel):
        return False
    return any(
        origin.stamp != used.stamp
        for name, origin in recall(model).items()
        if name in names or origin.location == used.location
    )


def open_task_for(
    model: Descendant | TimmModel | ExportedModel, task: str | None, verb: str, run: Run
) -> Task:
    """Open the task that the user named, or else the model's own.

    For a model without a task from the bundled ancestry, it is the default task. Raises `WrongCall`
    if the user has to give the task: for any other model without a task, and for a downloaded model
    whose task is data on its author's machine, and for a task of other inputs than the model's.
    """
    reference = task or _find_task(model, verb)
    with open_for_artifact(model, [reference] if task is None and is_own_data(reference) else []):
        data = open_task(reference, offline=run.offline)
    check_inputs(data, model.input_format)
    return data


def find_origins(
    data: Task, task: str | None, model: Descendant | TimmModel
) -> dict[str, LocalOrigin]:
    """Return the locations of the ancestry models that a model records, and of the user's own data
    that `open_task_for` has opened.
    """
    named = [data.name] if task is None and is_own_data(data.name) else []
    origins = recall_origins(model, named)
    if task is not None and is_own_data(data.name):
        origins[data.name] = locate_task(data, task)
    return origins


def recall_origins(
    model: Descendant | TimmModel, names: Sequence[str] = ()
) -> dict[str, LocalOrigin]:
    """Return the known locations of the ancestry models that a model records, and of other data
    that it names.
    """
    records: Any = model.provenance.get("ancestries") or []
    sources = [str(record.get("source", "")) for record in records if isinstance(record, dict)]
    with open_for_artifact(model):
        origins = {name: find_origin(name) for name in (*names, *sources)}
    return {name: origin for name, origin in origins.items() if origin is not None}


def _find_task(model: Descendant | TimmModel | ExportedModel, verb: str) -> str:
    if model.task is not None:
        return model.task
    if shelf.needs_task(model.task, model.provenance):
        data = "csv:PATH" if isinstance(model.input_format, TextFormat) else "folder:PATH"
        call = f"lgzoo {verb} {quote_path(model.folder or 'MODEL')} --task {data}"
        raise WrongCall(f"the model does not record a task to use; give the task: {call}")
    return DEFAULT_TARGET
