"""`lgzoo compare FIRST SECOND`: evaluate two models on the same images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import (
    format_interval,
    make_choice_option,
    make_job_options,
    print_row,
    print_rows,
    say,
    take_job,
)
from learngene_zoo.cli.options import check_tasks, find_any_model
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.pretrained.timm_model import open_model
from learngene_zoo.tasks.task import SPLITS

if TYPE_CHECKING:
    from learngene_zoo.lifecycle.comparison import Comparison, Contender


def compare(
    first: str,
    second: str,
    task: str | None,
    split: Literal["train", "validation", "test"],
    latency: bool,
    **options: Any,
) -> None:
    """Evaluate both models, and print their results and the difference."""
    job = take_job(options)
    check_tasks(task)
    models = [find_any_model(named, offline=job.run.offline) for named in (first, second)]
    first_model = open_model(models[0], offline=job.run.offline)
    noun = "text" if isinstance(first_model.input_format, TextFormat) else "image"
    comparison = lifecycle.compare(
        first_model, models[1], task=task, split=split, timed=latency, run=job.run
    )
    if job.as_json:
        print_row(_flatten(first, second, comparison), as_json=True)
        return
    test = comparison.first.evaluation
    title = f"{test.metric} on {test.images} {test.split} {noun}s of {test.task}"
    rows = [
        _make_row(name, contender)
        for name, contender in ((first, comparison.first), (second, comparison.second))
    ]
    print_rows(rows, False, title, drops=("latency", "flops", "params"))
    print_row({"difference (second less first)": _format_difference(comparison)}, as_json=False)
    if comparison.difference.low <= 0 <= comparison.difference.high:
        say(f"the interval includes 0: these {noun}s do not show which model is better", job)


def _make_row(name: str, contender: Contender) -> dict[str, Any]:
    measured = format_interval(contender.evaluation.value, *contender.evaluation.interval)
    facts = {"model": name, f"{contender.evaluation.metric} (95 %)": measured}
    return {
        **facts,
        "params": contender.params,
        "flops": contender.flops,
        **({"latency": f"{1000 * contender.latency:.3g} ms"} if contender.latency else {}),
    }


def _format_difference(comparison: Comparison) -> str:
    gain = comparison.difference
    text = (
        f"{100 * gain.value:+.2f} points, 95 % interval {100 * gain.low:+.2f} to "
        f"{100 * gain.high:+.2f}"
    )
    if comparison.p is None:
        return text
    return (
        f"{text}; correct only with the first: {comparison.only_first}, only with the second: "
        f"{comparison.only_second} (McNemar p = {comparison.p:.2g})"
    )


def _flatten(first: str, second: str, comparison: Comparison) -> dict[str, Any]:
    test, gain = comparison.first.evaluation, comparison.difference
    row: dict[str, Any] = {
        "task": test.task,
        "split": test.split,
        "metric": test.metric,
        "images": test.images,
    }
    for word, name, contender in (
        ("first", first, comparison.first),
        ("second", second, comparison.second),
    ):
        low, high = contender.evaluation.interval
        facts = {"": name, "_value": contender.evaluation.value, "_low": low, "_high": high}
        facts |= {
            "_params": contender.params,
            "_flops": contender.flops,
            "_latency": contender.latency,
        }
        row |= {word + key: value for key, value in facts.items() if value is not None}
    row |= {"difference": gain.value, "low": gain.low, "high": gain.high}
    return row | (
        {
            "p": comparison.p,
            "only_first": comparison.only_first,
            "only_second": comparison.only_second,
        }
        if comparison.p is not None
        else {}
    )


command = SettingsCommand(
    "compare",
    callback=compare,
    help="Evaluate two models on the same images or texts: the accuracy of each (mIoU for "
    "segmentation), the difference with a paired 95 % interval, parameters and FLOPs.\n\n"
    "FIRST and SECOND are folders, organisation/name@revision on the Hub, or names of timm "
    "classifiers, trained for the task.",
    epilog="\b\nExamples:\n"
    "  lgzoo compare deit finetuned --task folder:photos\n"
    "  lgzoo compare deit finetuned --task folder:photos --latency --json",
    params=[
        click.Argument(["first"]),
        click.Argument(["second"]),
        click.Option(
            ["--task"],
            help="Task to evaluate on (default: the task that the first model was trained for).",
        ),
        make_choice_option("--split", SPLITS, "test", "Split of the task."),
        click.Option(["--latency"], is_flag=True, help="Also measure the latency for one image."),
        *[
            option
            for option in make_job_options(None)
            if option.name not in ("out", "force", "resume", "tracker")
        ],
    ],
)
