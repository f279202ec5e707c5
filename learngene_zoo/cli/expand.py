"""`lgzoo expand [LEARNGENE]` and `lgzoo plot [LEARNGENE]`, with options of the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.artifacts.records import CONTROLS, Control
from learngene_zoo.cli.job import (
    choose_task,
    format_task_option,
    make_job_options,
    make_json_option,
    print_lines,
    print_made,
    print_row,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    add_options,
    check_tasks,
    complete_learngenes,
    make_budget_options,
    make_options,
    make_size_options,
    read_settings,
)
from learngene_zoo.cli.process.messages import print_note
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import WrongCall, ZooError
from learngene_zoo.hub.client import parse_hub_reference
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import find_method
from learngene_zoo.method.sizes import Budget, Target
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.text import count_noun, format_count, quote_path

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.families.spec import Spec

DEFAULT = Path("learngene")
MAX_GROWTH = 2  # times the layers of the ancestry model; a deeper descendant gets a note
# Key of `click.Context.meta` for the learngene of the command line and its method.
LEARNGENE_KEY = "learngene_zoo.cli.expand"


def find(reference: str | None, offline: bool = False) -> Path:
    """Return the folder of a learngene, by default `DEFAULT`.

    Raises `WrongCall` if there is no such learngene.
    """
    if reference is not None:
        return shelf.find(reference, offline=offline)
    if DEFAULT.is_dir():
        return DEFAULT
    ready = shelf.abbreviate_names(shelf.list_learngenes()) or "empty"
    raise WrongCall(
        f"there is no learngene at ./{DEFAULT}; make one with `lgzoo extract closed_form`, or name "
        f"one on the shelf ({ready})"
    )


class ExpandCommand(SettingsCommand):
    """A command whose last options are those of the expander of the learngene's method."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the learngene among the words, then parse with its expander's options as well."""
        try:
            folder = find(self._find_name(args), offline="--offline" in args)
            ctx.meta[LEARNGENE_KEY] = folder, find_method(read_config(folder), folder)
        except ZooError:
            if not (ctx.resilient_parsing or any(word in ctx.help_option_names for word in args)):
                raise  # help and completion work without a learngene
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the common options, then the expander's."""
        learngene: tuple[Path, Method] | None = ctx.meta.get(LEARNGENE_KEY)
        common = super().get_params(ctx)
        return add_expander(learngene[1], common) if learngene else common

    def _find_name(self, args: list[str]) -> str | None:
        """Return the word of the command line that names the learngene.

        A word after an option that only the expander knows may be that option's value, so a word
        that does not follow an option is preferred.
        """
        probe = click.Command(
            self.name,
            params=self.params[1:],  # without LEARNGENE, so that it stays among the rest
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        with probe.make_context(self.name, list(args), resilient_parsing=True) as context:
            rest = context.args
        before = ["", *rest]
        plain = [
            word
            for last, word in zip(before, rest)
            if not word.startswith("-") and not _takes_value(last)
        ]
        after_option = [
            word
            for last, word in zip(before, rest)
            if not word.startswith("-") and _takes_value(last)
        ]
        return next(iter(plain), None) or next(filter(_is_learngene, after_option), None)


def add_expander(method: Method, common: Sequence[click.Parameter]) -> list[click.Parameter]:
    """Return the options of a method's expander and the common options of a command."""
    return add_options(method, common, make_options(method.expander))


def _takes_value(word: str) -> bool:
    return word.startswith("-") and "=" not in word


def _is_learngene(word: str) -> bool:
    """Return whether a word names a learngene; without contacting the Hub, as it may be a value."""
    try:
        if parse_hub_reference(word) is not None:
            return True
        shelf.find(word)
    except ZooError:
        return False
    return True


def expand(
    learngene: str | None,
    max_params: int | None,
    max_flops: int | None,
    max_latency: float | None,
    control: Control | None,
    ancestry: str | None,
    **options: Any,
) -> None:
    """Build one descendant and write it."""
    job, target = take_job(options), read_settings(Target())
    check_tasks(target.task)
    if ancestry is not None:
        check_source(ancestry)
    folder, method = click.get_current_context().meta[LEARNGENE_KEY]
    budget = Budget(max_params=max_params, max_flops=max_flops, max_latency=max_latency)
    descendant = lifecycle.expand(
        folder,
        target=target,
        budget=budget,
        expander=read_settings(method.expander),
        control=control,
        out=job.out,
        run=replace(job.run, ancestry=ancestry),
        force=job.force,
    )
    is_largest = False
    if budget:
        members = lifecycle.plan(
            folder, expander=read_settings(method.expander), target=target, offline=True
        )
        is_largest = _is_like(descendant.spec, members[-1].spec)
    addition = ", the largest listed size (lgzoo show, --all)" if is_largest else ""
    say(f"{_describe_size(descendant)}{addition}", job)
    ancestry_layers = read_config(folder).spec.layers
    if descendant.spec.layers > MAX_GROWTH * ancestry_layers and not job.quiet:
        print_note(
            f"{descendant.spec.layers} layers come from an ancestry model of {ancestry_layers}; "
            "expanding beyond twice the original depth has not been evaluated"
        )
    print_made(job.out, job, _describe_next(descendant, job.out))


def _describe_next(descendant: Descendant, out: Path) -> str:
    """Return the next command; without a head and a task also the one that needs no labels."""
    from learngene_zoo.families.text_spec import TextSpec
    from learngene_zoo.storage import TOKENIZER

    if isinstance(descendant.spec, TextSpec) and TOKENIZER not in descendant.files:
        return f"copy {TOKENIZER} of the ancestry model into {out}; without it no text is read"
    where = "" if str(out) == "descendant" else f" {quote_path(out)}"
    task = choose_task(descendant)
    advice = f"lgzoo finetune{where}{format_task_option(task)}"
    if task is None or task == descendant.task or descendant.classes:
        return advice
    return f"{advice}   (without labels: lgzoo heal{where} --images {task})"


def _is_like(spec: Spec, other: Spec) -> bool:
    """Return whether two models have blocks of the same sizes; heads may differ."""
    return all(
        getattr(spec, name) == getattr(other, name)
        for name in ("layers", "width", "heads", "mlp_ratio")
    )


def _describe_size(descendant: Descendant) -> str:
    """Return a summary of the size."""
    from learngene_zoo.families.family import count_cost
    from learngene_zoo.families.text_spec import TextSpec

    spec = descendant.spec
    size_cost = count_cost(spec)
    length = f" for {spec.tokens} tokens" if isinstance(spec, TextSpec) else ""
    return (
        f"{count_noun(spec.layers, 'layer')} of width {spec.width}, "
        f"{format_count(size_cost.params)} parameters, "
        f"{format_count(size_cost.flops)} FLOPs{length}"
    )


command = ExpandCommand(
    "expand",
    callback=expand,
    help="Build a descendant of any size from a learngene.\n\n"
    "LEARNGENE is a folder, a name on the shelf, or organisation/name@revision on the Hub "
    "(default: ./learngene). Give sizes, or budgets to get the largest model that fits. Sizes "
    "that are not given are those of the learngene. One FLOP is one multiply-add. `lgzoo expand "
    "LEARNGENE --help` also shows the options of its method.",
    epilog="\b\nExamples:\n"
    "  lgzoo expand --layers 7\n"
    "  lgzoo expand lsamd --layers 9 --task digits -o nine\n"
    "  lgzoo expand --max-params 20M --max-latency 15ms\n"
    "  lgzoo expand lsamd --layers 9 --control shuffled",
    params=[
        click.Argument(["learngene"], required=False, shell_complete=complete_learngenes),
        *make_size_options(),
        *make_budget_options(),
        click.Option(
            ["--control"],
            type=click.Choice(CONTROLS),
            help="Build a control for comparison. shuffled: the entries of every inherited tensor "
            "are permuted. stem: only patch embedding, tokens, positions and final norm are "
            "inherited; the blocks have timm's random initialisation. stem_fan_in: like stem, but "
            "the blocks have a standard deviation of 1/sqrt(fan in), which is often much stronger.",
        ),
        click.Option(
            ["--ancestry"],
            help="Ancestry model of the learngene, for methods that embed an unseen task with it. "
            "Not needed if it is bundled or a timm model.",
        ),
        *make_job_options(
            "descendant",
            without=("tracker", "precision"),
            force_help="Replace an existing descendant.",
            resume_help="Accept an existing descendant if it equals the one that this call builds; "
            "another one is an error.",
        ),
    ],
)


def plot(
    learngene: str | None, out: Path | None, force: bool, as_json: bool, **options: Any
) -> None:
    """Draw the learngene and print the path of the picture."""
    folder, method = click.get_current_context().meta[LEARNGENE_KEY]
    path = lifecycle.plot(
        folder,
        out or Path(f"{folder.resolve().name}.png"),
        expander=read_settings(method.expander),
        force=force,
    )
    if as_json:
        print_row({"path": str(path)}, as_json=True)
    else:
        print_lines([str(path)])


plot_command = ExpandCommand(
    "plot",
    callback=plot,
    help="Draw a learngene as PNG or SVG. Some methods highlight one descendant, which the "
    "options of the method select.\n\n"
    "LEARNGENE is a folder or a name on the shelf (default: ./learngene). `lgzoo plot LEARNGENE "
    "--help` shows the options of its method.",
    epilog="\b\nExamples:\n"
    "  lgzoo plot\n"
    "  lgzoo plot lsamd -o paths.svg\n"
    "  lgzoo plot learngene --low 3 --high 3 -o pool.png",
    params=[
        click.Argument(["learngene"], required=False, shell_complete=complete_learngenes),
        click.Option(
            ["-o", "--out"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Path of the picture, ending in .png or .svg.  [default: NAME.png, after the "
            "learngene's folder]",
        ),
        click.Option(["--force"], is_flag=True, help="Replace what already exists."),
        make_json_option(),
    ],
)
