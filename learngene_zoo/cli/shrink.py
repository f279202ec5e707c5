"""`lgzoo shrink [MODEL]`: from a pretrained model and a budget to a finished small model."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.cli.extract import make_image_size_option
from learngene_zoo.cli.job import (
    ANY_TASK,
    ANY_TEXTS,
    Job,
    Row,
    advise,
    make_job_options,
    print_row,
    print_rows,
    print_table,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    check_tasks,
    complete_tasks,
    list_typed,
    make_auto_options,
    make_budget_options,
    make_options,
    make_task_option,
    read_settings,
)
from learngene_zoo.cli.plan import list_sizes
from learngene_zoo.cli.sections import DetailOption, SettingsCommand, SizeOption, TrainingOption
from learngene_zoo.cli.train import (
    BATCH,
    DECAY,
    RATE,
    WARMUP,
    advise_training,
    print_training_warning,
)
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.shrinking.request import ShrinkConfig
from learngene_zoo.method.sizes import Budget
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import to_json
from learngene_zoo.text import format_count, format_seconds, quote_path

DROPS = ("MB", "ms", "params")  # columns that a narrow terminal may omit
SHORT = {"validation": "val"}  # headings, so that the parameters fit into 80 columns
BOUNDS = ("max_megabytes", "max_drop")
COUNTS = ("candidates", "tries", "heal", "heal_epochs", "probe_images")
MIN_SHOWN = 10  # seconds; a shorter time is printed as less than this
LEFT_OUT = ("images", "teacher", "share", "temperature", "answers")  # settings of `finetune`


def shrink(
    model: str,
    task: str | None,
    images: str | None,
    image_size: int | None,
    max_params: int | None,
    max_flops: int | None,
    max_latency: float | None,
    export: str,
    only_plan: bool,
    **options: Any,
) -> int:
    """Make the small model and print the table, or print the plan.

    Returns 1 if the fine-tuning of the result diverged before it learnt anything, else 0.
    """
    job = take_job(options)
    check_tasks(task, images)
    budget = Budget(max_params=max_params, max_flops=max_flops, max_latency=max_latency)
    request: dict[str, Any] = {
        "task": task,
        "images": images,
        "budget": budget,
        "config": read_settings(ShrinkConfig()),
        "image_size": image_size,
        "run": job.run,
        **list_typed(lifecycle.FINETUNE),
        **list_typed(lifecycle.FinetuneConfig()),
    }
    if only_plan:
        _print_plan(model, request, job)
        return 0
    result = lifecycle.shrink(model, **request, export=export, out=job.out, force=job.force)
    if not is_first():
        return 0
    _print_result(result, job)
    return _print_advice(result, job)


def _print_plan(model: str, request: dict[str, Any], job: Job) -> None:
    """Print the candidates and the estimated time."""
    candidates, seconds = lifecycle.plan_shrink(model, **request)
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    first = candidates[0].member.spec
    noun = "text" if isinstance(first, TextSpec) else "image"
    original = read_ancestry_spec(model, offline=job.run.offline)
    sizes = {} if isinstance(first, TextSpec) else {"image_size": first.image_size}
    params = count_cost(original.with_(classes=first.classes, dense=False, **sizes)).params
    rows: list[Row] = [
        {"method": candidate.method, **list_sizes([candidate.member], "exact")[0]}
        for candidate in candidates
    ]
    title = f"candidates; the original has {format_count(params)} parameters"
    print_rows(rows, job.as_json, title, quiet=job.quiet)
    duration = (
        f"about {format_seconds(seconds)}" if seconds >= MIN_SHOWN else f"less than {MIN_SHOWN}s"
    )
    last = "heal" if request["task"] is None else "train"
    say(
        f"{duration} to extract, build, probe and {last}, at the present speed of this machine; "
        f"reading {noun}s, exporting and measuring latencies are not included",
        job,
    )


def _print_result(result: Any, job: Job) -> None:
    """Print the table, and the paths of everything that was written."""
    from learngene_zoo.artifacts.card import name_library
    from learngene_zoo.lifecycle.shrinking.report import describe_columns, list_cells

    table = result.table
    paths = {
        "model": str(job.out),
        "exported": None if result.exported is None else str(result.exported),
        "report": str(result.report),
    }
    if job.as_json:
        print_rows([_make_row(table, row, paths) for row in table.rows], as_json=True)
        return
    cells = [list_cells(table, row) for row in table.rows]
    numeric = [name not in ("", "method") for name, _ in cells[0]]
    print_table(
        [SHORT.get(name, name) for name, _ in cells[0]],
        [[text for _, text in row] for row in cells],
        numeric,
        partial(describe_columns, table),
        drops=DROPS,
        quiet=job.quiet,
    )
    print_row({name: path for name, path in paths.items() if path}, as_json=False)
    for text in table.describe():
        say(text, job)
    library = name_library(result.model.spec)
    if library == "learngene_zoo":
        say("timm opens the model after `import learngene_zoo.timm`", job)
    elif table.noun == "text":
        say(f"{library} opens the folder of the model", job)
    out = quote_path(job.out)
    if table.task is not None:
        sample = "--text TEXT" if table.noun == "text" else "PICTURE"
        advise(f"lgzoo predict {out} {sample}", job.quiet)
    else:
        data = ANY_TEXTS if table.noun == "text" else ANY_TASK
        advise(f"lgzoo finetune {out} --task {data}   (with labels)", job.quiet)


def _print_advice(result: Any, job: Job) -> int:
    """Print the advice of `lgzoo finetune` about the fine-tuning of the result.

    Returns 1 if it diverged before the model learnt anything, else 0.
    """
    if result.table.task is None:
        return 0
    metrics, recipe = result.model.provenance["metrics"], result.model.provenance["recipe"]
    if metrics.get("kept_epoch") == 0:
        say(advise_training(metrics, recipe, result.table.noun), job)
    return print_training_warning(metrics)


def _make_row(table: Any, row: Any, paths: dict[str, str | None]) -> Row:
    """Return one flat row; that of the model which is kept has the paths and the drop."""
    none = dict.fromkeys(["drop", *paths])
    facts = {"drop": table.drop, **paths} if row.kept else none
    return {**to_json(row), **facts}


command = SettingsCommand(
    "shrink",
    callback=shrink,
    help="Make a small model from a pretrained one, in one command: candidates that fit the budget "
    "are built without training and probed, the best ones are fine-tuned (without labels: healed), "
    "and the best of these is exported.\n\n"
    "MODEL is timm:NAME, hf-hub:ORG/REPO[@REV], a folder or a .safetensors file (default: the "
    "bundled model). A text model takes text tasks. Give at least one bound.",
    epilog="\b\nExamples:\n"
    "  lgzoo shrink --task digits --max-params 500K\n"
    "  lgzoo shrink timm:vit_small_patch14_dinov2 --task folder:mine --max-drop 1\n"
    "  lgzoo shrink timm:deit_small_patch16_224 --task folder:mine --max-params 5M\n"
    "  lgzoo shrink timm:deit_tiny_patch16_224 --images folder:mine --max-flops 1G\n"
    "  lgzoo shrink folder/of/a/model --task csv:reviews.csv --max-params 15M\n"
    "  lgzoo shrink --task digits --max-params 500K --plan",
    params=[
        click.Argument(["model"], required=False, default=BUNDLED),
        make_task_option("Task to fine-tune on; also folder:PATH or csv:PATH (lgzoo list tasks)."),
        DetailOption(
            ["--images"],
            metavar="TASK",
            shell_complete=complete_tasks,
            help="Images or texts without labels that extractions and healing use, as for `lgzoo "
            "heal` (default: the training images of --task). Without --task, candidates are "
            "compared by how well they predict the original's features of these images, and the "
            "best ones are healed instead of fine-tuned.",
        ),
        *make_budget_options(),
        make_image_size_option(),
        *make_options(ShrinkConfig(), without=COUNTS, kind=SizeOption),
        *make_options(ShrinkConfig(), without=BOUNDS),
        click.Option(
            ["--export"],
            type=click.Choice(["auto", "onnx", "pt2", "none"]),
            default="auto",
            show_default=True,
            help="Format of the exported file beside the model; auto: onnx, if its packages are "
            "installed.",
        ),
        click.Option(
            ["--plan", "only_plan"],
            is_flag=True,
            help="Print the candidates and an estimated time, and start nothing.",
        ),
        *make_options(lifecycle.FinetuneConfig(), without=LEFT_OUT, kind=TrainingOption),
        *make_auto_options(lifecycle.FINETUNE, lifecycle.AUTO_SETTINGS, lr=RATE, batch_size=BATCH),
        *make_options(
            lifecycle.FINETUNE,
            without=(*lifecycle.AUTO_SETTINGS, *LEFT_OUT),
            defaults={"layer_decay": DECAY, "warmup": WARMUP},
        ),
        *make_job_options("shrunk", without=("tracker",)),
    ],
)
