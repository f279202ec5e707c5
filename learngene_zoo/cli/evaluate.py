"""`lgzoo evaluate [MODEL]`, `lgzoo compare FIRST SECOND` and `lgzoo predict MODEL IMAGE...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.shelf import is_card
from learngene_zoo.atomic import new_file, remove_drafts
from learngene_zoo.cli.job import (
    Job,
    WholeNumber,
    choice_option,
    interval_text,
    job_of,
    job_options,
    print_row,
    print_rows,
    say,
)
from learngene_zoo.cli.options import any_model_of, check_tasks, complete_tasks, model_argument
from learngene_zoo.errors import BadData, BadFile, Exists, WrongCall
from learngene_zoo.families.spec import Fit
from learngene_zoo.hub.client import reference_to_hub
from learngene_zoo.pretrained.exported import is_exported_file
from learngene_zoo.pretrained.timm_model import is_timm_source
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, read_json, write_json
from learngene_zoo.tasks.task import SPLITS
from learngene_zoo.text import count_noun, printable

if TYPE_CHECKING:
    from learngene_zoo.lifecycle.comparison import Comparison, Contender
    from learngene_zoo.training.predict import Prediction


def evaluate(
    model: str | None,
    task: str | None,
    split: Literal["train", "validation", "test"],
    resolution: Literal["resized", "original"],
    probe: Literal["knn", "ridge"] | None,
    **options: Any,
) -> None:
    """Measure the model, print the number, and write it if `-o` is given."""
    of_probe = {name: options.pop(name) for name in PROBE_DEFAULTS}
    job = job_of(options)
    check_tasks(task)
    if job.path is not None and job.path.exists() and not (job.force or job.run.resume):
        raise Exists(job.path)
    if probe is not None:
        _probe(model, task, split, probe, of_probe, job)
        return
    for name, value in of_probe.items():
        if value != PROBE_DEFAULTS[name]:
            raise WrongCall(f"--{name.replace('_', '-')} needs --probe; add a probe: --probe ridge")
    named = _find_model(model, "finetuned", "descendant", offline=job.run.offline)
    evaluation = lifecycle.evaluate(
        named, task=task, split=split, resolution=resolution, run=job.run
    )
    low, high = evaluation.interval
    row = {
        "task": evaluation.task,
        "split": evaluation.split,
        "metric": evaluation.metric,
        "value": evaluation.value,
        "low": low,
        "high": high,
        "images": evaluation.images,
        **({"resolution": evaluation.resolution} if evaluation.resolution else {}),
    }
    if job.path is not None and is_first():
        _write(row, job)
        row["path"] = str(job.out)
    print_row(row, job.as_json)


# Options that only a probe has, with their defaults.
PROBE_DEFAULTS: dict[str, Any] = {
    "shots": None,
    "draws": 5,
    "k": None,
    "images": None,
    "image_size": None,
    "fit": None,
}


def _probe(
    model: str | None,
    task: str | None,
    split: str,
    kind: Literal["knn", "ridge"],
    of_probe: dict[str, Any],
    job: Job,
) -> None:
    """Print a row for every number of shots, and write them if `-o` is given."""
    if split == "train":
        raise WrongCall(
            "a probe is fitted to the training images; evaluate it with --split test or --split "
            "validation"
        )
    source = (
        model
        if model is not None
        else _find_model(None, "finetuned", "descendant", offline=job.run.offline)
    )
    shots = of_probe.pop("shots") or (None,)
    results = lifecycle.probe(
        source,
        task=task,
        kind=kind,
        split=split,  # type: ignore[arg-type]
        shots=shots,
        run=job.run,
        **of_probe,
    )
    rows: list[dict[str, Any]] = []
    for result in results:
        low, high = result.interval
        rows.append(
            {
                "task": result.task,
                "split": result.split,
                "probe": result.probe,
                "shots": result.shots if result.shots is not None else "all",
                **({"k": result.k} if result.k else {}),
                "training_images": result.training_images,
                "draws": result.draws,
                "value": result.value,
                "low": low,
                "high": high,
                "images": result.images,
            }
        )
    if job.path is not None and is_first():
        _write({"probes": rows}, job)
    if len(rows) == 1:
        print_row(rows[0], job.as_json)
    else:
        print_rows(rows, job.as_json)


class Shots(click.ParamType):
    """Numbers of images of each class, separated by commas; `all` is every image."""

    name = "shots"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, ...]:
        """Return the numbers of shots; None is every image. Raises click's usage error."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word == "all" or (word.isdecimal() and int(word) > 0) for word in words):
            self.fail(
                f"expected numbers of images of each class, e.g. 1,5,10, or all; got {value!r}",
                param,
                ctx,
            )
        return tuple(None if word == "all" else int(word) for word in words)


def _find_model(named: str | None, *places: str, offline: bool) -> str | Path:
    """Return the model as `any_model_of` does, or the path of a file that `lgzoo export` wrote."""
    return (
        named
        if named and is_exported_file(named)
        else any_model_of(named, *places, offline=offline)
    )


def _write(row: dict[str, Json], job: Job) -> None:
    """Write the numbers; with --resume, keep a file that already holds them."""
    if job.run.resume and not job.force and job.out.is_file():
        with suppress(BadFile):
            if read_json(job.out) == row:
                remove_drafts(job.out)
                return
    with new_file(job.out, job.force) as draft:
        write_json(draft, row)


command = click.Command(
    "evaluate",
    callback=evaluate,
    help="Measure the accuracy of a model on one split of a task (mIoU for segmentation), with "
    "its 95 % interval. With --probe, measure the accuracy of a probe of its features instead, "
    "without training the model.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, the name of a timm classifier such "
    "as timm:deit_tiny_patch16_224, or an ONNX file written by lgzoo export (default: "
    "./finetuned, else ./descendant).",
    epilog="\b\nExamples:\n"
    "  lgzoo evaluate\n"
    "  lgzoo evaluate finetuned --split validation --json\n"
    "  lgzoo evaluate descendant --task digits --probe ridge --shots 1,5,10,all",
    params=[
        model_argument(),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task to evaluate on (default: the task of the catalogue that the model was "
            "trained for; else digits, if its ancestry model is the bundled one).",
        ),
        choice_option("--split", SPLITS, "test", "Split of the task."),
        choice_option(
            "--resolution",
            ["resized", "original"],
            "resized",
            "Pixels for mIoU: of the image as resized for the model, or of the original image.",
        ),
        click.Option(
            ["--probe"],
            type=click.Choice(["knn", "ridge"]),
            help="Evaluate the features instead of the head, by k nearest neighbours or ridge "
            "regression. MODEL may then also be an ancestry model.",
        ),
        click.Option(
            ["--shots"],
            type=Shots(),
            metavar="N,...",
            help="Training images of each class to which the probe is fitted, e.g. 1,5,10, or "
            "all.  [default: all]",
        ),
        click.Option(
            ["--draws"],
            type=WholeNumber(1),
            default=5,
            show_default=True,
            help="Number of random draws for each number of shots.",
        ),
        click.Option(
            ["--k"],
            type=WholeNumber(1),
            help="Number of nearest neighbours.  [default: 20; 5 if a class has fewer than 20 "
            "training images on average]",
        ),
        click.Option(
            ["--images"],
            type=WholeNumber(1),
            help="Maximum number of training images for the probe.",
        ),
        click.Option(
            ["--image-size", "--img-size", "image_size"],
            type=WholeNumber(1),
            help="Image height and width for an ancestry model, in pixels.",
        ),
        click.Option(
            ["--fit"],
            type=click.Choice(get_args(Fit)),
            help="For the probe, crop, pad or stretch images that are not square.  [default: as "
            "in finetune]",
        ),
        *job_options(None, "Also write the results to this JSON file.", without=("tracker",)),
    ],
)


def compare(
    first: str,
    second: str,
    task: str | None,
    split: Literal["train", "validation", "test"],
    latency: bool,
    **options: Any,
) -> None:
    """Evaluate both models, and print their results and the difference."""
    job = job_of(options)
    check_tasks(task)
    models = [any_model_of(named, offline=job.run.offline) for named in (first, second)]
    comparison = lifecycle.compare(
        models[0], models[1], task=task, split=split, timed=latency, run=job.run
    )
    if job.as_json:
        print_row(_flat(first, second, comparison), as_json=True)
        return
    test = comparison.first.evaluation
    title = f"{test.metric} on {test.images} {test.split} images of {test.task}"
    rows = [
        _contender(name, contender)
        for name, contender in ((first, comparison.first), (second, comparison.second))
    ]
    print_rows(rows, False, title, drops=("latency", "flops", "params"))
    print_row({"difference (second less first)": _difference(comparison)}, as_json=False)
    if comparison.difference.low <= 0 <= comparison.difference.high:
        say("the interval includes 0: these images do not show which model is better", job)


def _contender(name: str, contender: Contender) -> dict[str, Any]:
    measured = interval_text(contender.evaluation.value, *contender.evaluation.interval)
    facts = {"model": name, f"{contender.evaluation.metric} (95 %)": measured}
    return {
        **facts,
        "params": contender.params,
        "flops": contender.flops,
        **({"latency": contender.latency} if contender.latency else {}),
    }


def _difference(comparison: Comparison) -> str:
    gain = comparison.difference
    text = (
        f"{100 * gain.value:+.2f} points, 95 % interval {100 * gain.low:+.2f} to "
        f"{100 * gain.high:+.2f}"
    )
    if comparison.p is None:
        return text
    return (
        f"{text}; correct only with the first: {comparison.only_first}, only with the second: "
        f"{comparison.only_second} (McNemar p = {comparison.p:.2g})"
    )


def _flat(first: str, second: str, comparison: Comparison) -> dict[str, Any]:
    test, gain = comparison.first.evaluation, comparison.difference
    row: dict[str, Any] = {
        "task": test.task,
        "split": test.split,
        "metric": test.metric,
        "images": test.images,
    }
    for word, name, contender in (
        ("first", first, comparison.first),
        ("second", second, comparison.second),
    ):
        low, high = contender.evaluation.interval
        facts = {"": name, "_value": contender.evaluation.value, "_low": low, "_high": high}
        facts |= {
            "_params": contender.params,
            "_flops": contender.flops,
            "_latency": contender.latency,
        }
        row |= {word + key: value for key, value in facts.items() if value is not None}
    row |= {"difference": gain.value, "low": gain.low, "high": gain.high}
    return row | (
        {
            "p": comparison.p,
            "only_first": comparison.only_first,
            "only_second": comparison.only_second,
        }
        if comparison.p is not None
        else {}
    )


compare_command = click.Command(
    "compare",
    callback=compare,
    help="Evaluate two models on the same images: the accuracy of each (mIoU for segmentation), "
    "the difference with a paired 95 % interval, parameters and FLOPs.\n\n"
    "FIRST and SECOND are folders, organisation/name@revision on the Hub, or names of timm "
    "classifiers, trained for the task.",
    epilog="\b\nExamples:\n"
    "  lgzoo compare deit finetuned --task folder:photos\n"
    "  lgzoo compare deit finetuned --task folder:photos --latency --json",
    params=[
        click.Argument(["first"]),
        click.Argument(["second"]),
        click.Option(
            ["--task"],
            help="Task to evaluate on (default: the task that the first model was trained for).",
        ),
        choice_option("--split", SPLITS, "test", "Split of the task."),
        click.Option(["--latency"], is_flag=True, help="Also measure the latency for one image."),
        *[
            option
            for option in job_options(None)
            if option.name not in ("out", "force", "resume", "tracker")
        ],
    ],
)


def predict(model: str, images: tuple[str, ...], top: int, batch_size: int, **options: Any) -> int:
    """Print the classes of every picture as it is read; return 1 if a picture cannot be read."""
    job = job_of(options)
    # A model is a folder, so that a file is the first picture, for the default model.
    if Path(model).is_file() and not is_exported_file(model):
        model, images = "", (model, *images)
    model, images = _sort_words(model, images)
    named = _find_model(model, "finetuned", offline=job.run.offline)
    missing = [word for word in images if word != "-" and not os.path.exists(word)]
    if len(missing) == len(images):  # before anything is loaded
        raise BadData(f"{missing[0]} does not exist; give an image or a folder of images")
    from learngene_zoo.training.predict import predict as predicted

    opened = lifecycle.models.open_answering(named, job.run)
    broken = 0
    rows: list[dict[str, Any]] = []
    activity = click.get_current_context().with_resource(report_activity("pictures"))
    for prediction in predicted(
        opened, _paths(images, job), job.run, top=top, batch_size=batch_size
    ):
        activity.note = f"{len(rows)} done"
        if prediction.error is not None:
            broken += 1
            if is_first():
                click.echo(f"error: {printable(prediction.error)}", err=True)
            rows.append({"image": prediction.image, "error": prediction.error})
            continue
        rows.append(_as_row(prediction))
        if is_first() and not job.as_json:
            click.echo(printable(_line(prediction)))
    if job.as_json:
        print_rows(rows, as_json=True)
    if broken < len(rows):
        lifecycle.models.note_random_head(opened)
    if broken and len(rows) > 1:
        say(f"{broken} of {count_noun(len(rows), 'picture')} could not be read", job)
    return 1 if broken else 0


def _sort_words(model: str, images: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the model, "" for the default one, and the pictures from the words of a call.

    Raises `WrongCall` for a missing picture in the model's position, and if there are no pictures.
    """
    if _is_lost_picture(model):
        raise WrongCall(
            f"{model} does not exist; give an existing image, or a model before the image: lgzoo "
            "predict finetuned photo.jpg"
        )
    if not images and Path(model).is_dir() and not (Path(model) / CONFIG).is_file():
        return "", (model,)  # a folder of pictures
    if not images:
        exists = (
            Path(model).exists()
            or reference_to_hub(model)
            or is_card(model)
            or is_timm_source(model)
        )
        problem = (
            "missing argument 'IMAGES...'" if not model or exists else f"{model} does not exist"
        )
        raise WrongCall(f"{problem}; lgzoo predict finetuned photo.jpg")
    return model, images


def _is_lost_picture(word: str) -> bool:
    """Return whether a word has a picture's suffix, but no such file exists."""
    from learngene_zoo.tasks.listing import list_suffixes

    is_named_so = os.path.splitext(word)[1].lower() in list_suffixes()
    return is_named_so and not os.path.exists(word) and not is_timm_source(word)


def _as_row(prediction: Prediction) -> dict[str, Any]:
    best = {
        "image": prediction.image,
        "class": prediction.classes[0],
        "probability": prediction.probabilities[0],
    }
    return {
        **best,
        "classes": list(prediction.classes),
        "probabilities": list(prediction.probabilities),
    }


def _line(prediction: Prediction) -> str:
    answers = (
        f"{name} {share:.3f}" for name, share in zip(prediction.classes, prediction.probabilities)
    )
    return f"{prediction.image}: {', '.join(answers)}"


def _paths(images: Sequence[str], job: Job) -> Iterator[str]:
    """Yield paths of pictures: a file, all pictures below a folder, for `-` the lines of stdin."""
    for word in images:
        if word == "-":
            yield from _lines_of_stdin()
        elif Path(word).is_dir():
            yield from _list_below(word, job)
        else:
            yield word


def _lines_of_stdin() -> Iterator[str]:
    """Yield the lines that are not blank. Raises `WrongCall` at the first that is not a path."""
    for line in filter(str.strip, sys.stdin):
        if "\0" in line:
            raise WrongCall(
                "stdin is not text; - expects paths, one per line; to classify one image, give "
                "its path instead of -"
            )
        yield line.rstrip("\n")


def _list_below(folder: str, job: Job) -> Sequence[str]:
    """Return the pictures below a folder, and print how many files are left out, and why."""
    from learngene_zoo.tasks.listing import describe_left_out, list_pictures

    listing = list_pictures(folder)
    lines = [describe_left_out(listing.left_out), _describe_dangling(listing.dangling)]
    if not listing.pictures:
        notes = "".join(f" ({line})" for line in lines if line)
        raise WrongCall(
            f"no images in {folder} or its subfolders{notes}; give a folder with images"
        )
    for line in filter(None, lines):
        say(f"note: {line}", job)
    return listing.pictures


def _describe_dangling(links: Sequence[str]) -> str:
    leads = "leads" if len(links) == 1 else "lead"
    return (
        f"{count_noun(len(links), 'link')} that {leads} nowhere left out; first: {links[0]}"
        if links
        else ""
    )


predict_command = click.Command(
    "predict",
    callback=predict,
    help="Classify images: print the most probable classes of each.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, the name of a timm classifier, or "
    "an ONNX file written by lgzoo export (default, if the first argument is an image or a folder "
    "of images: ./finetuned). IMAGES are files, folders (searched with their subfolders, links "
    "followed), or - for paths from stdin, one per line. An image that cannot be read is reported "
    "on stderr; the other images are still classified, and the exit code is 1.",
    epilog="\b\nExamples:\n"
    "  lgzoo predict finetuned photo.jpg\n"
    "  lgzoo predict finetuned photos --json\n"
    "  find . -name '*.jpg' | lgzoo predict finetuned -",
    params=[
        click.Argument(["model"], metavar="[MODEL]"),
        click.Argument(["images"], nargs=-1, metavar="IMAGES..."),
        click.Option(
            ["--top"],
            type=WholeNumber(1),
            default=5,
            show_default=True,
            help="Number of classes for each image.",
        ),
        click.Option(
            ["--batch-size"],
            type=WholeNumber(1),
            default=32,
            show_default=True,
            help="Images per forward pass.",
        ),
        *[
            option
            for option in job_options(None)
            if option.name not in ("out", "force", "resume", "tracker", "workers", "seed")
        ],
    ],
)
