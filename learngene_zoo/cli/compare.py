"""`lgzoo compare FIRST SECOND`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import choice_option, job_of, job_options, print_row, print_rows, say
from learngene_zoo.cli.options import any_model_of
from learngene_zoo.tasks.task import SPLITS

if TYPE_CHECKING:
    from learngene_zoo.comparison import Comparison, Contender


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
    models = [any_model_of(named, offline=job.run.offline) for named in (first, second)]
    found = lifecycle.compare(models[0], models[1], task=task, split=split, timed=latency, run=job.run)
    if job.as_json:
        print_row(_flat(first, second, found), as_json=True)
        return
    test = found.first.evaluation
    title = f"{test.metric} on {test.images} {test.split} images of {test.task}"
    print_rows([_row(name, one) for name, one in ((first, found.first), (second, found.second))], False, title)
    print_row({"difference (second less first)": _difference(found)}, as_json=False)
    if found.difference.low <= 0 <= found.difference.high:
        say("the interval includes 0: these images do not tell which is better", job)


def _row(name: str, one: Contender) -> dict[str, Any]:
    low, high = one.evaluation.interval
    facts = {"model": name, one.evaluation.metric: one.evaluation.value, "low": low, "high": high}
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


command = click.Command(
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
