"""Functions that evaluate models without changing them: compare, predict, probe, recommend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import TASKS, parse_reference, parse_task
from learngene_zoo.errors import BadFile, WrongCall, check_choice, suggest_path
from learngene_zoo.families.picture_format import Fit
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.expansion import expand
from learngene_zoo.lifecycle.opening import (
    check_image_size,
    make_run,
    open_answering,
    open_task_for,
    resize_images,
    warn_of_other_cut,
    warn_of_random_head,
)
from learngene_zoo.lifecycle.rates import choose_fit
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.installed import find_method
from learngene_zoo.method.sizes import Budget, Member, Target, parse_budget
from learngene_zoo.pretrained.timm_model import open_model
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import Run, parse_run
from learngene_zoo.runs.sharing import share_results
from learngene_zoo.settings import Json, check_whole, convert_scalar, to_json, with_settings
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import SPLITS, check_kind, name_kind

if TYPE_CHECKING:
    from PIL.Image import Image

    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.lifecycle.comparison import Comparison
    from learngene_zoo.lifecycle.recommendation import RankedDescendant
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.pretrained.exported import ExportedModel
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.tasks.task import Task
    from learngene_zoo.training.predict import Prediction
    from learngene_zoo.training.probes import ProbeResult


@refuse_unknown_arguments
def compare(
    first: str | Path | Descendant | TimmModel,
    second: str | Path | Descendant | TimmModel,
    task: str | None = None,
    *,
    split: Literal["train", "validation", "test"] = "test",
    timed: bool = False,
    run: Run | None = None,
) -> Comparison:
    """Compare two models on the same images of a task, and the cost of each.

    Args:
        first: a model or a reference to one.
        second: a model or a reference to one.
        task: default: the one that the first model was trained for.
        split: the images to evaluate on.
        timed: also measure latencies.
        run: how to compute. None: `Run()`, with progress in a notebook.

    Raises:
        WrongCall: as `evaluate` does, for either model.
    """
    from learngene_zoo.lifecycle.comparison import compare as compare_models

    run, task = parse_run(run, make_run), parse_task(task)
    check_choice("split", split, SPLITS)
    first_model, second_model = (
        open_model(model, offline=run.offline) for model in (first, second)
    )
    data = open_task_for(first_model, task, "compare", run)
    models = {"the first model": first_model, "the second model": second_model}
    warn_of_other_cut(data, task, split, models)
    result = compare_models(first_model, second_model, data, split, run, timed=timed)
    for model in (first_model, second_model):
        warn_of_random_head(model)
    return result


@refuse_unknown_arguments
def probe(
    model: str | Path | Descendant | TimmModel,
    *,
    task: str | None = None,
    kind: Literal["ridge", "knn"] = "ridge",
    split: Literal["validation", "test"] = "test",
    shots: int | Literal["all"] | Sequence[int | Literal["all"] | None] | None = None,
    draws: int = 5,
    k: int | None = None,
    images: int | None = None,
    image_size: int | None = None,
    fit: Fit | None = None,
    run: Run | None = None,
) -> list[ProbeResult]:
    """Measure the accuracy of a probe of a model's features (`training.probes`).

    The model is not trained.

    Args:
        model: any model that `evaluate` takes, except an exported file; or an ancestry model, as
            for `extract`, with or without a head.
        task: default as of `evaluate`.
        kind: a ridge regression onto the classes, or the nearest training images.
        split: the images that the probe classifies.
        shots: training images of each class that the probe is fitted to, one result for each; None
            or "all": all.
        draws: number of random draws for each number of shots; all images are always one draw.
        k: number of nearest neighbours. None: 20, or 5 if a class has fewer than 20 training images
            on average.
        images: maximum number of training images. None: all.
        image_size: in pixels; the position embedding is resampled. None: the model's.
        fit: treatment of pictures that are not square. None: as in `finetune`.
        run: how to compute. None: `Run()`, with progress in a notebook.

    Raises:
        WrongCall: for a count that is not a whole number or below 1, for a task with a class per
            pixel, and as `evaluate` does.
        BadData: if the training images show fewer than two classes.
        TrainingFailed: for features that are not finite.
    """
    run, task = parse_run(run, make_run), parse_task(task)
    check_choice("kind of probe", kind, ("ridge", "knn"))
    check_choice("split for a probe", split, ("validation", "test"))
    if fit is not None:
        check_choice("fit", fit, get_args(Fit))
    counts = parse_shots(shots)
    check_whole("draws", draws)
    for name, number in {"k": k, "images": images}.items():
        if number is not None:
            check_whole(name, number)
    opened = _open_probed(model, image_size, run)
    from learngene_zoo.tasks.splits.cutting import ensure_validation
    from learngene_zoo.training.probes import compute_features, run_probe

    data = open_task_for(opened, task, "evaluate", run)
    warn_of_other_cut(data, task, split, {"the model": opened})
    if data.dense:
        raise WrongCall(
            f"{data.name} has a class for every pixel; a probe needs one for every image"
        )
    if split == "validation":
        data = ensure_validation(data)
    module = opened.model()
    input_format = opened.with_fit(fit or choose_fit(opened, data)).input_format
    train = compute_features(module, data, "train", input_format, run, images=images)
    held_out = compute_features(module, data, split, input_format, run)
    return [
        run_probe(train, held_out, data, split, kind, shots=number, draws=draws, k=k, seed=run.seed)
        for number in counts
    ]


def parse_shots(shots: int | str | Iterable[int | str | None] | None) -> list[int | None]:
    """Return the numbers of images of each class; None, or "all", stands for all images.

    Raises `WrongCall` for a value that is neither a whole number from 1 on nor "all".
    """
    listed = list(shots) if isinstance(shots, Iterable) and not isinstance(shots, str) else [shots]
    numbers = map(convert_scalar, listed)
    counts: list[Any] = [None if number == "all" else number for number in numbers]
    for number in counts:
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise WrongCall(f'shots is {number!r:.40}; expected whole numbers, or "all"')
        if number is not None:
            check_whole("shots", number)
    return counts


def _open_probed(
    model: str | Path | Descendant | TimmModel, image_size: int | None, run: Run
) -> Any:
    """Open any model, or else an ancestry model, for images of a chosen size."""
    from learngene_zoo.pretrained.ancestry import open_ancestry

    check_image_size(model, image_size, run.offline)
    try:
        opened = open_model(model, offline=run.offline)
    except (BadFile, WrongCall) as reason:
        if not isinstance(model, str | Path):
            raise
        try:
            ancestry = open_ancestry(str(model), offline=run.offline)
        except (BadFile, WrongCall):
            raise reason from None
        opened = assemble_ancestry(ancestry, run.seed)
    return resize_images(opened, image_size)


def assemble_ancestry(ancestry: Ancestry, seed: int) -> Descendant:
    """Return an ancestry model as a model that can be probed; a missing head is initialised."""
    from learngene_zoo.artifacts.descendant import assemble

    record = ancestry.record
    provenance: dict[str, Json] = {"ancestries": [to_json(record)]}
    return assemble(
        ancestry.spec,
        ancestry.state,
        seed=seed,
        mean=record.mean,
        std=record.std,
        view=record.view,
        provenance=provenance,
        files=ancestry.files,
    )


@refuse_unknown_arguments
def predict(
    model: str | Path | Descendant | TimmModel | ExportedModel,
    images: str | Path | Image | Iterable[str | Path | tuple[str, str] | Image],
    *,
    top: int = 5,
    batch_size: int = 32,
    run: Run | None = None,
) -> list[Prediction]:
    """Return the most probable classes of each picture or text.

    Args:
        model: any model that `evaluate` takes.
        images: paths of pictures, and folders, which are searched with their subfolders
            ("folder:PATH" too), and images of Pillow. A picture that cannot be read has an `error`
            in its result. For a text model: a text, or a list of texts or pairs of texts, such
            as `predict(model, ["a text", "another"])` and `predict(model, [("first", "second")])`.
        top: number of classes for each picture.
        batch_size: pictures per forward pass.
        run: how to compute. None: `Run()`, with progress in a notebook.

    Raises:
        WrongCall: for a model without a class per image, and for a folder without pictures.
    """
    from learngene_zoo.training.predict import predict as predict_files

    run = parse_run(run, make_run)
    opened = open_answering(model, run)
    paths: Iterable[Any] = [images] if isinstance(images, (str, Path)) else images
    paths = _check_inputs(paths, isinstance(opened.input_format, TextFormat))
    if not isinstance(opened.input_format, TextFormat):
        paths = [path for word in paths for path in _list_paths(word)]
    predictions = list(predict_files(opened, paths, run, top=top, batch_size=batch_size))
    if any(prediction.error is None for prediction in predictions):
        warn_of_random_head(opened)
    return predictions


def _check_inputs(inputs: Any, is_text: bool) -> list[Any]:
    """Return the inputs of `predict` as a list. Raises `WrongCall` for one of another type."""
    from PIL.Image import Image

    listed = list(inputs) if isinstance(inputs, Iterable) else [inputs]
    if is_text:
        return [_check_text(value) for value in listed]
    for value in listed:
        if not isinstance(value, (str, os.PathLike, Image)):
            raise WrongCall(
                f"images has a value of type {type(value).__name__}; expected paths of images, or "
                "images of Pillow (Image.fromarray makes one of an array)"
            )
    return listed


def _check_text(value: Any) -> str | tuple[str, ...]:
    """Return a text, or a pair of texts as a tuple. Raises `WrongCall` for any other value."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (tuple, list)):
        name = type(value).__name__
        raise WrongCall(f"images has a value of type {name}; expected texts or pairs of texts")
    if len(value) != 2 or not all(isinstance(part, str) for part in value):
        raise WrongCall(f"images has the value {value!r:.60}; expected a text or a pair of texts")
    return tuple(value)


def _list_paths(word: str | Path | Image) -> Sequence[str | Path | Image]:
    """Return the pictures below a folder, or the path of a picture, or an image as it is.

    Raises `WrongCall` for a folder that does not exist or has no pictures.
    """
    from learngene_zoo.tasks.listing import list_pictures, list_suffixes

    if not isinstance(word, (str, os.PathLike)):
        return [word]
    is_folder = isinstance(word, str) and word.startswith("folder:")
    path = Path(str(word).removeprefix("folder:")).expanduser() if is_folder else Path(word)
    if is_folder and not path.is_dir():
        remedy = suggest_path(path, "give an image or a folder of images", Path.is_dir)
        raise WrongCall(f"no folder {path}; {remedy}")
    if not path.exists() and path.suffix.lower() not in list_suffixes():
        remedy = suggest_path(path, "give an image or a folder of images")
        raise WrongCall(f"{path} does not exist; {remedy}")
    if not path.is_dir():
        return [word]
    pictures = list_pictures(path).pictures
    if not pictures:
        raise WrongCall(f"no images in {path} or its subfolders; give a folder with images")
    return pictures


def recommend(
    task: str,
    learngenes: str | Path | Learngene | Sequence[str | Path | Learngene] = (),
    *,
    budget: Budget | None = None,
    images: int | None = 1_000,
    sizes: int = 3,
    run: Run | None = None,
    report: Callable[[str, Member, float, int, int], None] = lambda *_: None,
    **bounds: Any,
) -> list[RankedDescendant]:
    """Rank the descendants to build for a task by a probe, before any training.

    Args:
        task: the task with the images or texts.
        learngenes: the learngenes to build from, or references to them; default: all on the shelf.
        budget: bounds of the descendants. Latency is not measured.
        images: number of training images or texts for the probe, the same for all. None: all.
        sizes: maximum number of descendants of each learngene.
        run: how to compute. None: `Run()`, with progress in a notebook.
        report: called after each probe with the learngene, the size, the result of the probe, the
            number of finished probes and their total.
        bounds: bounds of `budget` by name, as numbers or as on the command line
            (`max_params="500K"`).

    Returns:
        The descendants, best first; see `recommendation.rank_descendants`.

    Raises:
        WrongCall: if nothing fits, and for a task with a class per pixel.
    """
    run, task = parse_run(run, make_run), parse_reference("task", task, TASKS)
    budget = parse_budget(budget or Budget(), bounds)
    if budget.max_latency is not None:
        raise WrongCall(
            "recommend does not measure latency; leave out max_latency, or use it with expand"
        )
    sizes = check_whole("sizes", sizes)
    images = None if images is None else check_whole("images", images)
    if isinstance(learngenes, (str, Path, Learngene)) or not isinstance(learngenes, Iterable):
        learngenes = [learngenes]
    listed = [*learngenes] or shelf.list_learngenes()
    sources = [shelf.find_with_config(named, run.offline)[0] for named in listed]
    from learngene_zoo.lifecycle.recommendation import rank_descendants

    data = open_task(task, offline=run.offline)
    opened = _select_learngenes(
        [shelf.open_learngene(source, offline=run.offline) for source in sources],
        data,
        are_named=bool(learngenes),
    )
    labels = _label_learngenes(opened)
    members = _list_offers(opened, data, budget, sizes)
    if not members:
        raise WrongCall(
            f"none of {shelf.abbreviate_names([_name_learngene(named) for named in listed])} "
            "has a descendant within these budgets"
        )

    def build_offers() -> Iterator[tuple[str, Member, Descendant]]:
        for activity.num_done, (gene, member) in enumerate(members):
            expander = with_settings(
                find_method(gene.config, gene.folder or "it").expander, member.settings
            )
            descendant = expand(
                gene, target=replace(member.target, task=task), expander=expander, run=run
            )
            yield labels[id(gene)], member, descendant

    progress = count(1)

    def count_and_report(name: str, member: Member, probe: float) -> None:
        report(name, member, probe, next(progress), len(members))

    with share_results(), report_activity("building and probing models", len(members)) as activity:
        return rank_descendants(build_offers(), data, run, images=images, report=count_and_report)


def _name_learngene(learngene: str | Path | Learngene) -> str:
    if isinstance(learngene, Learngene):
        return str(learngene.folder or learngene.config.method)
    return str(learngene)


def _label_learngenes(learngenes: Iterable[Learngene]) -> dict[int, str]:
    """Return a reference to each learngene, by its `id`; those in memory, without one, are counted.

    The method is no reference to a learngene in memory: it names the one on the shelf.
    """
    labels: dict[int, str] = {}
    numbers = count(1)
    for gene in learngenes:
        if gene.folder:
            labels[id(gene)] = shelf.make_reference(gene.folder)
        elif id(gene) not in labels:
            number = next(numbers)
            labels[id(gene)] = "in memory" if number == 1 else f"in memory {number}"
    return labels


def _select_learngenes(
    learngenes: Iterable[Learngene], task: Task, are_named: bool
) -> list[Learngene]:
    """Return the learngenes whose models take the samples of a task, images or texts.

    Raises `WrongCall` if there are none, or if one that was named does not.
    """
    selected = []
    for gene in learngenes:
        takes_texts = isinstance(gene.config.spec, TextSpec)
        if are_named:
            check_kind(task, takes_texts)
        if takes_texts == task.is_text:
            selected.append(gene)
    if not selected:
        kind = name_kind(task.is_text)
        raise WrongCall(
            f"{task.name} is {kind} task, and no learngene that comes with the package is of "
            f"{kind} model; name one (lgzoo extract)"
        )
    return selected


def _list_offers(
    learngenes: Iterable[Learngene], task: Task, budget: Budget, sizes: int
) -> list[tuple[Learngene, Member]]:
    """Return up to `sizes` members of each learngene that fit the budget, with a head for the task.

    Within bounds they are the largest ones, as of `shrink`; without, evenly spaced in cost.
    """
    from learngene_zoo.lifecycle.latency import select_fitting
    from learngene_zoo.lifecycle.recommendation import choose_evenly, choose_largest

    target = Target(classes=task.classes, dense=task.dense)
    offers = []
    for gene in learngenes:
        expander = find_method(gene.config, gene.folder or "it").expander
        members = select_fitting(list_members(gene.config, expander, target), budget)
        choose = choose_largest if budget else choose_evenly
        offers += [(gene, member) for member in choose(members, sizes)]
    return offers
