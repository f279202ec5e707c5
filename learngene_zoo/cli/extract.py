"""`lgzoo extract METHOD`: condense an ancestry model into a learngene."""

from pathlib import Path
from typing import Any, get_args

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.cli.job import (
    WholeNumber,
    format_task_option,
    make_job_options,
    print_made,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    MethodGroup,
    add_options,
    check_tasks,
    list_typed,
    make_options,
    make_task_option,
)
from learngene_zoo.cli.process.messages import print_note
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.families.picture_spec import Pool
from learngene_zoo.families.spec import LIMITS
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import PAPER, Extractor, Method
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import is_first
from learngene_zoo.text import escape_controls, quote_path


def make_ancestry_option() -> click.Option:
    """Return `--ancestry`, which is given once per ancestry model."""
    help_text = (
        "timm:NAME, hf-hub:ORG/REPO[@REV], a folder, a .safetensors file, or bundled; can be "
        "repeated."
    )
    return click.Option(["--ancestry"], multiple=True, help=help_text)


def make_preset_option(method: Method) -> click.Option:
    """Return `--preset`; the lifecycle refuses unknown names and suggests the nearest one."""
    names = ", ".join(method.presets)
    help_text = f"Preset for the settings that are not given: {names}."
    if type(method.extractor).adapt is not Extractor.adapt:
        help_text += (
            f"  Learning rates, except those of {PAPER}, are lower for ancestry models wider than "
            f"{lifecycle.FULL_RATE}."
        )
    complete = click.Choice(list(method.presets)).shell_complete
    return click.Option(["--preset"], help=f"{help_text}  [default: mini]", shell_complete=complete)


def make_image_size_option(
    help_text: str = "Image height and width in pixels, for the ancestry models and for "
    "descendants.  [default: the ancestry model's]",
) -> click.Option:
    """Return `--image-size`, by default that of an extraction."""
    return click.Option(
        ["--image-size", "--img-size", "image_size"],
        type=WholeNumber(1, LIMITS["image_size"]),
        help=help_text,
    )


def pool_option() -> click.Option:
    """Return `--pool` of an extraction."""
    help_text = (
        "Pooling before the head; avg instead of SigLIP's attention pooling.  [default: the "
        "ancestry model's]"
    )
    return click.Option(["--pool"], type=click.Choice(get_args(Pool)), help=help_text)


TASK_HELP = (
    "Task to extract from, or a suite for all of its tasks (lgzoo list tasks); can be repeated. "
    "By default, descendants are for the first task. Optional with the bundled ancestry model, and "
    "for methods that use no data."
)


def build(method: Method) -> click.Command:
    """Return the command of one method."""

    def extract(
        ancestry: tuple[str, ...],
        preset: str | None,
        image_size: int | None,
        pool: str | None,
        task: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        job = take_job(options)
        check_tasks(*task)
        learngene = lifecycle.extract(
            method.name,
            ancestries=ancestry,
            tasks=task,
            preset=preset,
            image_size=image_size,
            pool=pool,
            out=job.out,
            run=job.run,
            force=job.force,
            **list_typed(method.preset(preset)),
        )
        for record in learngene.config.ancestries:
            for part in record.left_out:
                say(f"left out of {record.source}: {part}", job)
        if image_size:
            say(f"the learngene is for images of {image_size} x {image_size} pixels", job)
        for text in learngene.list_warnings() if is_first() else ():
            click.echo(f"warning: {escape_controls(text)}", err=True)
        if task and method.tasks == "none" and not job.quiet:
            print_note(f"{method.name} uses no data; --task only sets the task of the descendants")
        print_made(job.out, job, "" if job.quiet else _describe_next(learngene, method, job.out))

    task = make_task_option(TASK_HELP, multiple=True)
    own_task = " --task folder:mine" if method.tasks != "none" else ""
    return SettingsCommand(
        method.name,
        callback=extract,
        help=f"{method.title[:1].upper()}{method.title[1:]}.\n\n{method.paper}",
        epilog="\b\nExamples:\n"
        f"  lgzoo extract {method.name}\n"
        f"  lgzoo extract {method.name} --ancestry timm:deit_tiny_patch16_224{own_task}",
        params=add_options(
            method,
            [
                make_ancestry_option(),
                task,
                make_preset_option(method),
                make_image_size_option(),
                pool_option(),
                *make_job_options("learngene"),
            ],
            make_options(method.extractor),
        ),
    )


def _describe_next(learngene: Learngene, method: Method, out: Path) -> str:
    """Return a command that builds a descendant.

    It has 7 layers, or about half of the ancestry model's if that has no more than 7. If all have
    one depth, the command has a budget: the parameters of the middle size.
    """
    members = list_members(learngene.config, method.expander, Target())
    depths = sorted({member.spec.layers for member in members} or {7})
    most = learngene.config.spec.layers
    wanted = 7 if most > 7 else most // 2
    size = f"--layers {min(depths, key=lambda layers: abs(layers - wanted))}"
    if len(depths) == 1 and len(members) > 1:
        params = sorted(member.cost().params for member in members)
        size = f"--max-params {params[len(params) // 2]}"
    folder, purpose = quote_path(out), learngene.config.purpose
    where = "" if str(out) == "learngene" else f" {folder}"
    task = format_task_option(purpose.task if purpose else None)
    return f"lgzoo expand{where} {size}{task}   (all sizes: lgzoo show {folder} --all)"


command = MethodGroup(
    "extract",
    build=build,
    help="Condense an ancestry model into a learngene.\n\nEvery method has its own options: lgzoo "
    "extract METHOD --help.",
    epilog="\b\nExamples:\n"
    "  lgzoo extract lsamd\n"
    "  lgzoo extract lsamd --task objects --task signs -o mine",
)
