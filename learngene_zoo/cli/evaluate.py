"""What a model is worth: `lgzoo evaluate [MODEL]`, `lgzoo compare FIRST SECOND` and `lgzoo predict MODEL IMAGE...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.exported import is_exported_file
from learngene_zoo.atomic import new_file
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
from learngene_zoo.errors import BadFile, Exists, WrongCall
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import Json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks.task import SPLITS
from learngene_zoo.text import printable

if TYPE_CHECKING:
    from learngene_zoo.comparison import Comparison, Contender
    from learngene_zoo.training.predict import Prediction


def evaluate(
    model: str | None,
    task: str | None,
    split: Literal["train", "validation", "test"],
    resolution: Literal["resized", "original"],
    **given: Any,
) -> None:
    """Measure the model, print the number, and write it if `-o` is given."""
    job = job_of(given)
    check_tasks(task)
    if job.place is not None and job.place.exists() and not (job.force or job.run.resume):
        raise Exists(job.place)
    named = _find_model(model, "finetuned", "descendant", offline=job.run.offline)
    found = lifecycle.evaluate(named, task=task, split=split, resolution=resolution, run=job.run)
    low, high = found.interval
    row = {
        "task": found.task,
        "split": found.split,
        "metric": found.metric,
        "value": found.value,
        "low": low,
        "high": high,
        "images": found.images,
        **({"resolution": found.resolution} if found.resolution else {}),
    }
    if job.place is not None and is_first():
        _write(row, job)
        row["path"] = str(job.out)
    print_row(row, job.as_json)


def _find_model(named: str | None, *places: str, offline: bool) -> str | Path:
    """As `any_model_of`, or a file that `lgzoo export` wrote."""
    return named if named and is_exported_file(named) else any_model_of(named, *places, offline=offline)


def _write(row: dict[str, Json], job: Job) -> None:
    """Write the numbers; with --resume, the call that was interrupted may have done so already."""
    if job.run.resume and not job.force and job.out.is_file():
        with suppress(BadFile):
            if read_json(job.out) == row:
                return
    with new_file(job.out, job.force) as draft:
        write_json(draft, row)


command = click.Command(
    "evaluate",
    callback=evaluate,
    help="Measure the accuracy of a model on one split of a task (mIoU for segmentation), with its 95 % interval.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, or any classifier of timm's by its name, such as "
    "timm:deit_tiny_patch16_224 (default: ./finetuned, else ./descendant), or an ONNX file that lgzoo export wrote.",
    epilog="\b\nExamples:\n  lgzoo evaluate\n  lgzoo evaluate finetuned --split validation --json",
    params=[
        model_argument(),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task to measure on (default: the task of the catalogue that the model was trained for; else digits, if its ancestry model is the bundled one).",
        ),
        choice_option("--split", SPLITS, "test", "Split of the task."),
        choice_option(
            "--resolution",
            ["resized", "original"],
            "resized",
            "Pixels that mIoU counts: as the model sees them, or all.",
        ),
        *job_options(None, "Also write the numbers into this JSON file.", without=("tracker", "seed")),
    ],
)


def compare(
    first: str,
    second: str,
    task: str | None,
    split: Literal["train", "validation", "test"],
    latency: bool,
    **given: Any,
) -> None:
    """Measure both, and print how each does and the difference."""
    job = job_of(given)
    check_tasks(task)
    models = [any_model_of(named, offline=job.run.offline) for named in (first, second)]
    found = lifecycle.compare(models[0], models[1], task=task, split=split, timed=latency, run=job.run)
    if job.as_json:
        print_row(_flat(first, second, found), as_json=True)
        return
    test = found.first.evaluation
    title = f"{test.metric} on {test.images} {test.split} images of {test.task}"
    rows = [_contender(name, one) for name, one in ((first, found.first), (second, found.second))]
    print_rows(rows, False, title, drops=("latency", "flops", "params"))
    print_row({"difference (second less first)": _difference(found)}, as_json=False)
    if found.difference.low <= 0 <= found.difference.high:
        say("the interval includes 0: these images do not tell which is better", job)


def _contender(name: str, one: Contender) -> dict[str, Any]:
    measured = interval_text(one.evaluation.value, *one.evaluation.interval)
    facts = {"model": name, f"{one.evaluation.metric} (95 %)": measured}
    return {**facts, "params": one.params, "flops": one.flops, **({"latency": one.latency} if one.latency else {})}


def _difference(found: Comparison) -> str:
    gain = found.difference
    text = f"{100 * gain.value:+.2f} points, 95 % interval {100 * gain.low:+.2f} to {100 * gain.high:+.2f}"
    if found.p is None:
        return text
    return f"{text}; right only by the first {found.only_first}, only by the second {found.only_second} (McNemar p = {found.p:.2g})"


def _flat(first: str, second: str, found: Comparison) -> dict[str, Any]:
    test, gain = found.first.evaluation, found.difference
    row: dict[str, Any] = {"task": test.task, "split": test.split, "metric": test.metric, "images": test.images}
    for word, name, one in (("first", first, found.first), ("second", second, found.second)):
        low, high = one.evaluation.interval
        facts = {"": name, "_value": one.evaluation.value, "_low": low, "_high": high}
        facts |= {"_params": one.params, "_flops": one.flops, "_latency": one.latency}
        row |= {word + key: value for key, value in facts.items() if value is not None}
    row |= {"difference": gain.value, "low": gain.low, "high": gain.high}
    return row | (
        {"p": found.p, "only_first": found.only_first, "only_second": found.only_second} if found.p is not None else {}
    )


compare_command = click.Command(
    "compare",
    callback=compare,
    help="Evaluate two models on the same images: the accuracy of each (mIoU for segmentation), the difference with a paired 95 % "
    "interval, parameters and FLOPs.\n\n"
    "FIRST and SECOND are folders, organisation/name@revision on the Hub, or classifiers of timm's by name, trained for the task.",
    epilog="\b\nExamples:\n  lgzoo compare deit finetuned --task folder:photos\n"
    "  lgzoo compare deit finetuned --task folder:photos --latency --json",
    params=[
        click.Argument(["first"]),
        click.Argument(["second"]),
        click.Option(["--task"], help="Task to measure on (default: the one that the first was trained for)."),
        choice_option("--split", SPLITS, "test", "Split of the task."),
        click.Option(["--latency"], is_flag=True, help="Also measure the seconds that one image takes."),
        *[option for option in job_options(None) if option.name not in ("out", "force", "resume", "tracker")],
    ],
)


def predict(model: str, images: tuple[str, ...], top: int, batch_size: int, **given: Any) -> int:
    """Print the classes of every picture as they are known; 1 if one of them cannot be read."""
    job = job_of(given)
    if Path(model).is_file() and not is_exported_file(
        model
    ):  # a model is a folder: this is the first picture, for the model at hand
        model, images = "", (model, *images)
    if not images:
        raise WrongCall("missing argument 'IMAGES...'; lgzoo predict finetuned photo.jpg")
    named = _find_model(model, "finetuned", offline=job.run.offline)
    from learngene_zoo.training.predict import predict as predicted

    opened = lifecycle.models.open_answering(named, job.run)
    broken, rows = 0, []
    for found in predicted(opened, _paths(images), job.run, top=top, batch_size=batch_size):
        if found.error is not None:
            broken += 1
            if is_first():
                click.echo(f"error: {printable(found.error)}", err=True)
            rows.append({"image": found.image, "error": found.error})
        elif job.as_json:
            rows.append(_as_row(found))
        elif is_first():
            click.echo(printable(_line(found)))
    if job.as_json:
        print_rows(rows, as_json=True)
    return 1 if broken else 0


def _as_row(found: Prediction) -> dict[str, Any]:
    best = {"image": found.image, "class": found.classes[0], "probability": found.probabilities[0]}
    return {**best, "classes": list(found.classes), "probabilities": list(found.probabilities)}


def _line(found: Prediction) -> str:
    answers = (f"{name} {share:.3f}" for name, share in zip(found.classes, found.probabilities))
    return f"{found.image}: {', '.join(answers)}"


def _paths(images: Sequence[str]) -> Iterator[str]:
    """The files that the words name: a file, all pictures below a folder, and for `-` a path in every line of stdin."""
    for word in images:
        if word == "-":
            yield from _lines_of_stdin()
        elif Path(word).is_dir():
            yield from _below(Path(word))
        else:
            yield word


def _lines_of_stdin() -> Iterator[str]:
    """The lines that say something. Raises `WrongCall` at the first one that is no path."""
    for line in filter(str.strip, sys.stdin):
        if "\0" in line:
            raise WrongCall("stdin is not text; - reads paths, one a line, and no pictures: give the picture's path")
        yield line.rstrip("\n")


def _below(folder: Path) -> list[str]:
    from learngene_zoo.tasks.images import SUFFIXES

    found = [
        os.path.join(place, file)
        for place, _, files in os.walk(folder)
        for file in files
        if os.path.splitext(file)[1].lower() in SUFFIXES
    ]
    if not found:
        raise WrongCall(f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))})")
    return sorted(found)


predict_command = click.Command(
    "predict",
    callback=predict,
    help="Name what is on pictures: for each the most probable classes.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, or a classifier of timm's by name (default, where the first word is a "
    "file: ./finetuned), or an ONNX file that lgzoo export wrote. IMAGES are files, folders (all pictures in them), or - for paths from stdin, one a line. A picture that cannot be read is one line on stderr, and the exit code is then 1.",
    epilog="\b\nExamples:\n  lgzoo predict finetuned photo.jpg\n  lgzoo predict finetuned photos --json\n"
    "  find . -name '*.jpg' | lgzoo predict finetuned -",
    params=[
        click.Argument(["model"], metavar="[MODEL]"),
        click.Argument(["images"], nargs=-1, metavar="IMAGES..."),
        click.Option(["--top"], type=WholeNumber(1), default=5, show_default=True, help="Name this many classes."),
        click.Option(
            ["--batch-size"],
            type=WholeNumber(1),
            default=32,
            show_default=True,
            help="Pictures that are computed at once.",
        ),
        *[
            option
            for option in job_options(None)
            if option.name not in ("out", "force", "resume", "tracker", "workers", "seed")
        ],
    ],
)
