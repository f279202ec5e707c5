"""`lgzoo recommend [LEARNGENE...] --task TASK`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.cli.job import advise, job_of, job_options, print_rows, say
from learngene_zoo.cli.options import budget_options
from learngene_zoo.cli.plan import size_rows
from learngene_zoo.method import Budget, Member, method_of
from learngene_zoo.text import shell_word

if TYPE_CHECKING:
    from learngene_zoo.recommendation import Candidate


def recommend(
    learngenes: tuple[str, ...],
    task: str,
    images: int,
    sizes: int,
    max_params: int | None,
    max_flops: int | None,
    **given: Any,
) -> None:
    """Probe, print the ranking, and how to build the first of it."""
    job = job_of(given)
    budget = Budget(max_params=max_params, max_flops=max_flops)

    def report(name: str, member: Member, probe: float) -> None:
        say(f"{name}: {member.spec.layers} layers of width {member.spec.width}, probe {probe:.3f}", job)

    found = lifecycle.recommend(task, learngenes, budget=budget, images=images, sizes=sizes, run=job.run, report=report)
    print_rows([_row(one) for one in found], job.as_json, f"linear probe on {task}, before any training")
    tied = [one for one in found[1:] if one.tied]
    if tied and not job.as_json:
        least = min([found[0], *tied], key=lambda one: one.member.cost())
        word = "one more is" if len(tied) == 1 else f"{len(tied)} more are"
        say(f"{word} not told apart from the first by these images; the smallest: {_call(least, task)}", job)
    if not job.as_json:
        advise(_call(found[0], task), job.quiet)


def _row(one: Candidate) -> dict[str, Any]:
    """One flat row: what would be built, its cost, the probe, and the difference to the first with its interval."""
    sizes = size_rows([one.member], "exact")[0]
    settings = " ".join(f"{name}={value}" for name, value in one.member.settings.items())
    fixed = {name: sizes[name] for name in ("layers", "width", "heads", "params", "flops")}
    low, high = one.interval
    behind = {"behind": one.behind.value, "behind_low": one.behind.low, "behind_high": one.behind.high}
    return {
        "learngene": one.learngene,
        **fixed,
        "settings": settings,
        "probe": one.probe,
        "low": low,
        "high": high,
        **behind,
    }


def _call(one: Candidate, task: str) -> str:
    """The command line that builds a candidate."""
    config = shelf.read_config(shelf.find(one.learngene))
    free = method_of(config, one.learngene).expander.axes
    sizes = {name: getattr(one.member.spec, name) for name in ("layers", "width", "heads") if name in free}
    words = [f"--{name.replace('_', '-')} {value}" for name, value in (one.member.settings or sizes).items()]
    return f"lgzoo expand {shell_word(one.learngene)} {' '.join(words)} --task {shell_word(task)}"


command = click.Command(
    "recommend",
    callback=recommend,
    help="Rank what could be built for given pictures, before anything is trained.\n\n"
    "Of each LEARNGENE (a folder, a name on the shelf, organisation/name@revision on the Hub; default: all on the shelf) a few sizes "
    "within the budgets are built, and a linear probe of their features names the training images of the task, each left out in turn. "
    "Intervals are over these images. What fine-tuning makes of a model may rank otherwise: compare the first few by finetune.",
    epilog="\b\nExamples:\n  lgzoo recommend --task digits\n"
    "  lgzoo recommend lsamd pool --task folder:photos --max-params 1M --json",
    params=[
        click.Argument(["learngenes"], nargs=-1, metavar="[LEARNGENE]..."),
        click.Option(["--task"], required=True, help="Whose training images are probed; also folder:PATH."),
        click.Option(
            ["--images"],
            type=click.IntRange(10),
            default=1_000,
            show_default=True,
            help="Probe this many of them at most.",
        ),
        click.Option(
            ["--sizes"], type=click.IntRange(1), default=3, show_default=True, help="Build this many of each learngene."
        ),
        *(option for option in budget_options() if option.name != "max_latency"),
        *[option for option in job_options(None) if option.name not in ("out", "force", "resume", "tracker")],
    ],
)
