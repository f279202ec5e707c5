"""`lgzoo finetune [MODEL]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import job_of, job_options
from learngene_zoo.cli.options import SettingsCommand, chosen, model_argument, model_of, options_of
from learngene_zoo.cli.output import print_made
from learngene_zoo.tasks.catalogue import is_own_data
from learngene_zoo.text import shell_word


def finetune(model: Path | None, task: str | None, **given: Any) -> None:
    """Train the model and write it."""
    job = job_of(given)
    lifecycle.finetune(
        model_of(model, "descendant"),
        task=task,
        recipe=chosen(lifecycle.FINETUNE),
        out=job.out,
        run=job.run,
        force=job.force,
    )
    where = "" if str(job.out) == "finetuned" else f" {shell_word(str(job.out))}"
    data = f" --task {shell_word(task)}" if task and is_own_data(task) else ""
    print_made(job.out, job, f"lgzoo evaluate{where}{data}")


command = SettingsCommand(
    "finetune",
    callback=finetune,
    help="Train every weight of a model on a task.\n\n"
    "MODEL is a folder (default: ./descendant). A model of another number of classes gets a fresh head.",
    epilog="\b\nExamples:\n  lgzoo finetune\n  lgzoo finetune descendant --task digits --epochs 20 --lr 3e-4\n"
    "  lgzoo finetune --task folder:photos",
    params=[
        model_argument(),
        click.Option(
            ["--task"],
            help="What to train on (default: the task of the catalogue that the model was built for, else digits).",
        ),
        *options_of(lifecycle.FINETUNE),
        *job_options("finetuned"),
    ],
)
