"""`lgzoo evaluate [MODEL]`: measure a model, or a probe of its features, on a task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import click

from learngene_zoo import lifecycle
from learngene_zoo.atomic import new_file, remove_drafts
from learngene_zoo.cli.extract import make_image_size_option
from learngene_zoo.cli.job import (
    Job,
    WholeNumber,
    make_choice_option,
    make_job_options,
    print_row,
    print_rows,
    take_job,
)
from learngene_zoo.cli.options import (
    check_tasks,
    complete_tasks,
    find_any_model,
    make_model_argument,
)
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import BadFile, Exists, WrongCall
from learngene_zoo.families.picture_format import Fit
from learngene_zoo.pretrained.exported import check_exported_file, is_exported_file
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import Json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks.task import SPLITS


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
    job = take_job(options)
    check_tasks(task)
    if job.path is not None and job.path.exists() and not (job.force or job.run.resume):
        raise Exists(job.path)
    if probe is not None:
        if resolution != "resized":
            raise WrongCall("--resolution is not for probes; leave it out, or leave out --probe")
        _probe(model, task, split, probe, of_probe, job)
        return
    for name, value in of_probe.items():
        if value != PROBE_DEFAULTS[name]:
            raise WrongCall(f"--{name.replace('_', '-')} needs --probe; add a probe: --probe ridge")
    named = find_evaluated_model(model, "finetuned", "descendant", offline=job.run.offline)
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
    _print([row], evaluation.is_text, job)


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
        else find_evaluated_model(None, "finetuned", "descendant", offline=job.run.offline)
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
    _print(rows, any(result.is_text for result in results), job)


# Columns that a narrow terminal may omit.
DROPS = ("draws", "images", "texts", "split")


def _print(rows: Sequence[dict[str, Any]], is_text: bool, job: Job) -> None:
    """Print one row or several; for people, numbers of texts are named so."""
    if is_text and not job.as_json:
        rows = [{name.replace("images", "texts"): row[name] for name in row} for row in rows]
    if len(rows) == 1:
        print_row(rows[0], job.as_json)
    else:
        print_rows(rows, job.as_json, drops=DROPS)


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
        for word in words:
            if word != "all" and not (word.isdecimal() and int(word) > 0):
                got = repr(word) if word == value else f"{word!r} in {value!r}"
                self.fail(
                    f"expected numbers of images of each class, e.g. 1,5,10, or all; got {got}",
                    param,
                    ctx,
                )
        return tuple(None if word == "all" else int(word) for word in words)


def find_evaluated_model(named: str | None, *places: str, offline: bool) -> str | Path:
    """Return the model as `find_any_model` does, or the path of a file of `lgzoo export`."""
    if not named or not is_exported_file(named):
        return find_any_model(named, *places, offline=offline)
    check_exported_file(Path(named))
    return named


def _write(row: dict[str, Json], job: Job) -> None:
    """Write the numbers; with --resume, keep a file that already holds them."""
    if job.run.resume and not job.force and job.out.is_file():
        with suppress(BadFile):
            if read_json(job.out) == row:
                remove_drafts(job.out)
                return
    with new_file(job.out, job.force) as draft:
        write_json(draft, row)


command = SettingsCommand(
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
        make_model_argument(),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task to evaluate on (default: the task that the model was trained for; else "
            "digits, if its ancestry model is the bundled one).",
        ),
        make_choice_option("--split", SPLITS, "test", "Split of the task."),
        make_choice_option(
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
            help="Number of random draws for each number of --shots; all images are always one "
            "draw.",
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
        make_image_size_option("Image height and width for an ancestry model, in pixels."),
        click.Option(
            ["--fit"],
            type=click.Choice(get_args(Fit)),
            help="For the probe, crop, pad or stretch images that are not square.  [default: as "
            "in finetune]",
        ),
        *make_job_options(
            None,
            "Also write the results, as --json prints them, to this file; with --probe, its rows "
            "as a list named probes. Without -o no file is written.",
            without=("tracker",),
            force_help="Replace the file of -o if it exists.",
            resume_help="Accept an existing file of -o if it has the results of this call; another "
            "one is an error.",
        ),
    ],
)
