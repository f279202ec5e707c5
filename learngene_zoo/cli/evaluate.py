"""`lgzoo evaluate [MODEL]`."""

from contextlib import suppress
from typing import Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.atomic import new_file
from learngene_zoo.cli.job import Job, choice_option, job_of, job_options, print_row
from learngene_zoo.cli.options import any_model_of, complete_tasks, model_argument
from learngene_zoo.errors import BadFile, Refused
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import Json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.tasks.task import SPLITS


def evaluate(
    model: str | None,
    task: str | None,
    split: Literal["train", "validation", "test"],
    resolution: Literal["resized", "original"],
    **given: Any,
) -> None:
    """Measure the model, print the number, and write it if `-o` is given."""
    job = job_of(given)
    if job.place is not None and job.place.exists() and not (job.force or job.run.resume):
        raise Refused(f"{job.place} already exists; choose another place with -o, or replace it with --force")
    named = any_model_of(model, "finetuned", "descendant", offline=job.run.offline)
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
    "timm:deit_tiny_patch16_224 (default: ./finetuned, else ./descendant).",
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
        *job_options(None, "Also write the numbers into this JSON file."),
    ],
)
