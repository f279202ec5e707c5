"""`lgzoo predict MODEL IMAGE...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from learngene_zoo.artifacts.models import open_model
from learngene_zoo.cli.job import job_of, job_options, print_rows
from learngene_zoo.cli.options import any_model_of
from learngene_zoo.errors import WrongCall
from learngene_zoo.runs.run import is_first
from learngene_zoo.text import printable

if TYPE_CHECKING:
    from learngene_zoo.training.predict import Prediction


def predict(model: str, images: tuple[str, ...], top: int, batch_size: int, **given: Any) -> int:
    """Print the classes of every picture as they are known; 1 if one of them cannot be read."""
    from learngene_zoo.training.predict import predict as predicted

    job = job_of(given)
    opened = open_model(any_model_of(model, offline=job.run.offline), offline=job.run.offline)
    broken, rows = 0, []
    for found in predicted(opened, _paths(images), job.run, top=top, batch_size=batch_size):
        if found.error is not None:
            broken += 1
            if is_first():
                click.echo(f"error: {printable(found.error)}", err=True)
            rows.append({"image": found.image, "error": found.error})
        elif job.as_json:
            rows.append(_row(found))
        elif is_first():
            click.echo(printable(_line(found)))
    if job.as_json:
        print_rows(rows, as_json=True)
    return 1 if broken else 0


def _row(found: Prediction) -> dict[str, Any]:
    best = {"image": found.image, "class": found.classes[0], "probability": found.probabilities[0]}
    return {**best, "classes": list(found.classes), "probabilities": list(found.probabilities)}


def _line(found: Prediction) -> str:
    answers = (f"{name} {share:.3f}" for name, share in zip(found.classes, found.probabilities))
    return f"{found.image}: {', '.join(answers)}"


def _paths(images: Sequence[str]) -> Iterator[str]:
    """The files that the words name: a file, all pictures below a folder, and for `-` a path in every line of stdin."""
    for word in images:
        if word == "-":
            yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        elif Path(word).is_dir():
            yield from _below(Path(word))
        else:
            yield word


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


command = click.Command(
    "predict",
    callback=predict,
    help="Name what is on pictures: for each the most probable classes.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, or a classifier of timm's by name. IMAGES are files, folders (all pictures "
    "in them), or - for paths from stdin, one a line. A picture that cannot be read is one line on stderr, and the exit code is then 1.",
    epilog="\b\nExamples:\n  lgzoo predict finetuned photo.jpg\n  lgzoo predict finetuned photos --json\n"
    "  find . -name '*.jpg' | lgzoo predict finetuned -",
    params=[
        click.Argument(["model"]),
        click.Argument(["images"], nargs=-1, required=True),
        click.Option(["--top"], type=click.IntRange(1), default=5, show_default=True, help="Name this many classes."),
        click.Option(
            ["--batch-size"],
            type=click.IntRange(1),
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
