"""List or rank the models that could be built, before anything is trained.

`lgzoo plan METHOD` lists every size with its cost, and `lgzoo recommend --task TASK` ranks
learngenes for given pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.cli.extract import make_ancestry_option, make_preset_option, pool_option
from learngene_zoo.cli.job import (
    MAX_ROWS,
    Row,
    WholeNumber,
    advise,
    format_interval,
    make_all_option,
    make_choice_option,
    make_job_options,
    make_json_option,
    make_offline_option,
    print_rows,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    MethodGroup,
    add_options,
    check_tasks,
    complete_learngenes,
    list_typed,
    make_budget_options,
    make_options,
    make_size_options,
    make_task_option,
    read_settings,
)
from learngene_zoo.cli.process.messages import print_note
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.families.family import Convention
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import find_method
from learngene_zoo.method.sizes import AXES, Budget, Member, Target
from learngene_zoo.settings import list_settings
from learngene_zoo.text import count_noun, quote_path, quote_word

if TYPE_CHECKING:
    from learngene_zoo.lifecycle.recommendation import RankedDescendant

SHOWN = ("layers", "width", "heads")  # sizes in every row
FEW = 200  # training images, below which a ranking gets a note


def list_sizes(members: Iterable[Member], convention: Convention) -> list[Row]:
    """Return one row per member: its sizes, its cost, and the expander's settings that build it.

    Sizes beyond layers, width and heads are included only where the members differ in them, and
    `front`, the blocks before those of this size, only where a member has such blocks.
    """
    members = list(members)
    names = [
        name
        for name in AXES
        if name in SHOWN or len({getattr(member.spec, name) for member in members}) > 1
    ]
    several = any(len(member.spec.sizes) > 1 for member in members)
    rows: list[Row] = []
    for member in members:
        sizes = {name: getattr(member.spec, name) for name in names}
        front = {"front": format_front(member.spec)} if several else {}
        cost = member.cost(convention)
        rows.append(
            {**sizes, **front, "params": cost.params, "flops": cost.flops, **member.settings}
        )
    return rows


def print_sizes(rows: list[Row], as_json: bool, show_all: bool) -> None:
    """Print a table of sizes; without `show_all`, `MAX_ROWS` from the smallest to the largest."""
    most = None if show_all else MAX_ROWS
    print_rows(rows, as_json, drops=("heads",), most=most, spread=True)


def format_front(spec: Spec) -> str:
    """Return the segments before the last as `layers x width`, such as "4x192+5x384".

    Empty for a plain model. For unevenly pruned blocks, the widths of attention and MLP follow:
    "4x192/128/512".
    """
    segments = []
    for part, size in zip(spec.segments[:-1], spec.sizes):
        uneven = "" if size.stitch else f"/{part.heads_width}/{part.hidden}"
        segments.append(f"{part.layers}x{part.width}{uneven}")
    return "+".join(segments)


def make_convention_option() -> click.Option:
    """Return `--convention`: how parameters and FLOPs are counted."""
    return make_choice_option(
        "--convention",
        get_args(Convention),
        "exact",
        "How parameters and FLOPs are counted. exact: of the built model. fvcore: as published "
        "for Learngene Pool and SN-Net (stitched models without class token, positions and the "
        "FLOPs of the final norm). thop: as published for LSAMD (without attention products, "
        "tokens and positions).",
    )


def build(method: Method) -> click.Command:
    """Return the command of one method, with the options of its extractor and its expander."""
    extractor_names = tuple(setting.name for setting in list_settings(method.extractor))

    def plan(
        ancestry: tuple[str, ...],
        preset: str | None,
        pool: str | None,
        convention: Convention,
        offline: bool,
        show_all: bool,
        as_json: bool,
        max_params: int | None,
        max_flops: int | None,
        **options: Any,
    ) -> None:
        members = lifecycle.plan(
            method.name,
            preset=preset,
            **list_typed(method.preset(preset)),
            expander=read_settings(method.expander),
            ancestries=ancestry,
            target=read_settings(Target()),
            budget=Budget(max_params=max_params, max_flops=max_flops),
            pool=pool,
            convention=convention,
            offline=offline,
        )
        print_sizes(list_sizes(members, convention), as_json, show_all)

    return SettingsCommand(
        method.name,
        callback=plan,
        help=f"List every size that {method.name} would build, with its cost, smallest first. "
        "Nothing is extracted, trained or written.",
        epilog="\b\nExamples:\n"
        f"  lgzoo plan {method.name}\n"
        f"  lgzoo plan {method.name} --ancestry timm:deit_tiny_patch16_224\n"
        f"  lgzoo plan {method.name} --max-params 700K",
        params=add_options(
            method,
            [
                make_ancestry_option(),
                make_preset_option(method),
                pool_option(),
                *make_size_options("task"),
                *(option for option in make_budget_options() if option.name != "max_latency"),
                make_convention_option(),
                make_offline_option(),
                make_all_option(),
                make_json_option(),
            ],
            make_options(method.extractor),
            make_options(method.expander, without=extractor_names),
        ),
    )


command = MethodGroup(
    "plan",
    build=build,
    help="List every size that a method would build from an ancestry model, with its cost, without "
    "computing anything.",
    epilog="\b\nExample:\n"
    "  lgzoo plan lsamd --ancestry timm:deit_base_patch16_224 --keep 1,4,5,7,8",
)


# Ranking for given pictures.


def recommend(
    learngenes: tuple[str, ...],
    task: str,
    images: int,
    sizes: int,
    max_params: int | None,
    max_flops: int | None,
    show_all: bool,
    **options: Any,
) -> None:
    """Probe, print the ranking, and the command that builds the first candidate."""
    job = take_job(options)
    check_tasks(task)
    budget = Budget(max_params=max_params, max_flops=max_flops)

    def report(name: str, member: Member, probe: float, count: int, total: int) -> None:
        size = f"{count_noun(member.spec.layers, 'layer')} of width {member.spec.width}"
        say(f"{count}/{total} models: {name}, {size}: linear probe {probe:.3f}", job)

    ranking = lifecycle.recommend(
        task, learngenes, budget=budget, images=images, sizes=sizes, run=job.run, report=report
    )
    if job.as_json:
        print_rows([_make_row(candidate) for candidate in ranking], as_json=True)
        return
    noun = "text" if isinstance(ranking[0].member.spec, TextSpec) else "image"
    count = count_noun(ranking[0].images, f"training {noun}")
    title = f"linear probe on {count} of {task}, before any training"
    rows = [_format_row(candidate) for candidate in ranking]
    print_rows(
        rows, False, title, drops=DROPS, most=None if show_all else MAX_ROWS, quiet=job.quiet
    )
    if ranking[0].images < FEW and not job.quiet:
        print_note(
            f"{count} give an uncertain ranking: the 95 % interval of the first is "
            f"{_count_points(ranking[0])} points wide; fine-tune and compare"
        )
    tied = [candidate for candidate in ranking[1:] if candidate.is_tied]
    if tied:
        least = min([ranking[0], *tied], key=lambda candidate: candidate.member.cost())
        word = "1 more candidate" if len(tied) == 1 else f"{len(tied)} more candidates"
        say(
            f"these {noun}s do not distinguish {word} from the first; the smallest: "
            f"{_call(least, task)}",
            job,
        )
    advise(_call(ranking[0], task), job.quiet)


DROPS = ("heads", "flops", "settings", "params")


def _count_points(candidate: RankedDescendant) -> int:
    low, high = candidate.interval
    return round(100 * (high - low))


def _format_row(candidate: RankedDescendant) -> dict[str, Any]:
    """Return one row of the table, with intervals beside their values."""
    row, gain = _make_row(candidate), candidate.difference
    sizes = {name: row[name] for name in ("layers", "width", "heads", "params", "flops")}
    intervals = {
        "linear probe (95 %)": format_interval(candidate.probe, *candidate.interval),
        "to the first (95 %)": format_interval(gain.value, gain.low, gain.high),
    }
    return {
        "learngene": candidate.learngene,
        **sizes,
        **intervals,
        "settings": row["settings"] or None,
    }


def _make_row(candidate: RankedDescendant) -> dict[str, Any]:
    """Return one flat row: model, cost, probe, and difference to the first with its interval."""
    sizes = list_sizes([candidate.member], "exact")[0]
    settings = " ".join(f"{name}={value}" for name, value in candidate.member.settings.items())
    fixed = {name: sizes[name] for name in ("layers", "width", "heads", "params", "flops")}
    low, high = candidate.interval
    gain = candidate.difference
    return {
        "learngene": candidate.learngene,
        **fixed,
        "settings": settings,
        "probe": candidate.probe,
        "low": low,
        "high": high,
        "difference": gain.value,
        "difference_low": gain.low,
        "difference_high": gain.high,
    }


def _call(candidate: RankedDescendant, task: str) -> str:
    """Return the command line that builds a candidate."""
    config = read_config(shelf.find(candidate.learngene))
    free = find_method(config, candidate.learngene).expander.list_axes(config.spec)
    sizes = {
        name: getattr(candidate.member.spec, name)
        for name in ("layers", "width", "heads", "mlp_ratio")
        if name in free
    }
    words = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in (candidate.member.settings or sizes).items()
    ]
    return (
        f"lgzoo expand {quote_path(candidate.learngene)} {' '.join(words)} --task "
        f"{quote_word(task)}"
    )


recommend_command = SettingsCommand(
    "recommend",
    callback=recommend,
    help="Rank the descendants that could be built for a task, before anything is trained.\n\n"
    "LEARNGENE is a folder, a name on the shelf, or organisation/name@revision on the Hub "
    "(default: all on the shelf). A few sizes of each learngene are built (within a budget, the "
    "largest ones) and ranked by the leave-one-out accuracy of a linear probe on the training "
    "images or texts of the task. The intervals are those of this accuracy over the images or "
    "texts. The order may differ after fine-tuning: fine-tune the first few and compare them.",
    epilog="\b\nExamples:\n"
    "  lgzoo recommend --task digits\n"
    "  lgzoo recommend lsamd pool --task folder:photos --max-params 1M --json",
    params=[
        click.Argument(
            ["learngenes"], nargs=-1, metavar="[LEARNGENE]...", shell_complete=complete_learngenes
        ),
        make_task_option(
            "Task whose training images or texts are probed; also folder:PATH, csv:PATH.",
            required=True,
        ),
        click.Option(
            ["--images"],
            type=WholeNumber(10),
            default=1_000,
            show_default=True,
            help="Maximum number of images or texts for the probe.",
        ),
        click.Option(
            ["--sizes"],
            type=WholeNumber(1),
            default=3,
            show_default=True,
            help="Maximum number of sizes to build of each learngene.",
        ),
        *(option for option in make_budget_options() if option.name != "max_latency"),
        make_all_option(),
        *[
            option
            for option in make_job_options(None)
            if option.name not in ("out", "force", "resume", "tracker")
        ],
    ],
)
