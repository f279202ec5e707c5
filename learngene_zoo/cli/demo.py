"""`lgzoo demo`: an end-to-end comparison with the bundled models."""

import shutil
from functools import partial
from typing import Any

import click

from learngene_zoo.atomic import check_folder, claim, new_folder
from learngene_zoo.cli.bench import choose_executor
from learngene_zoo.cli.bench_options import make_bench_options
from learngene_zoo.cli.job import (
    Job,
    advise,
    print_lines,
    print_row,
    print_rows,
    print_table,
    take_job,
)
from learngene_zoo.cli.job import say as say_now
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import TrainingFailed
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.text import format_count, quote_path

COUNTS = {"params": "params", "flops": "FLOPs"}  # keys, and their names in the table
ARMS = ("descendant", "shuffled", "stem", "stem_fan_in", "scratch_timm", "scratch_fan_in")


def demo(full: bool, workers: int | None, **options: Any) -> None:
    """Run the grid, and print its table and one sentence for each depth."""
    job = take_job({**options, "workers": 0, "resume": False, "tracker": None})
    check_folder(job.out)
    from learngene_zoo.bench.demo import demo_rows, sentence

    lines = demo_rows(_measure_rows(job, full, workers))
    if job.as_json:
        print_rows([{**line, "path": str(job.out)} for line in lines], as_json=True)
        return
    columns, rows = _build_table(lines)
    print_table(columns, rows, [False, *(True for _ in lines)], "accuracy on digits, %")
    print_lines([sentence(line) for line in lines])
    print_row(
        {"report": str(job.out / "report.html"), "numbers": str(job.out / "results.jsonl")},
        as_json=False,
    )
    advise(f"lgzoo expand {quote_path(job.out / 'learngene')} --layers 7", job.quiet)


def _measure_rows(job: Job, full: bool, workers: int | None) -> list[Any]:
    """Measure the grid and return its rows.

    Also writes the bench's report into the output folder, and the learngene into its `learngene`.
    """
    from learngene_zoo.bench.demo import demo_grid
    from learngene_zoo.bench.report.report import write_grid, write_report
    from learngene_zoo.bench.running.runner import run_grid

    with report_activity("planning the cells"):
        cells = demo_grid(job.run.seed, full=full, offline=job.run.offline)
    executor, say = choose_executor(job, workers, len(cells)), partial(say_now, job=job)
    begin = partial(write_grid, cells, job.out)
    # Checked before minutes are spent on a result that could not be written.
    claim(job.out / "learngene", force=True)
    rows = run_grid(cells, job.out, job.run, executor, say, anew=job.force, begin=begin)
    failed = [row for row in rows if row.error]
    if failed:
        raise TrainingFailed(
            f"{len(failed)} of {len(rows)} cells failed; the same command retries them; the "
            f"first: {failed[0].error}"
        )
    with report_activity("writing the report"):
        write_report(job.out)
    with new_folder(job.out / "learngene", force=True) as draft:
        shutil.copytree(cells[0].extraction.folder(job.out), draft, dirs_exist_ok=True)
    return rows


def _build_table(lines: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of a table with one column for each depth.

    Accuracies are in per cent. The sentences below the table give the gains.
    """
    columns = ["", *(f"{line['layers']} layers" for line in lines)]
    rows = [[name, *(format_count(line[key]) for line in lines)] for key, name in COUNTS.items()]
    rows += [
        [name.replace("scratch_", "scratch "), *(f"{100 * line[name]:.1f}" for line in lines)]
        for name in ARMS
    ]
    return columns, rows


command = SettingsCommand(
    "demo",
    callback=demo,
    help="Run an end-to-end comparison with the bundled models: one learngene, and descendants of "
    "several depths, fine-tuned and compared with their controls and with models of the same size "
    "from scratch. It takes a few minutes and writes a bench with a table and a report.\n\n"
    "The same command continues an interrupted demo: finished cells are skipped, failed cells are "
    "retried.",
    epilog="\b\nExamples:\n  lgzoo demo\n  lgzoo demo --full -o story",
    params=[
        click.Option(
            ["--full"],
            is_flag=True,
            help="Five depths instead of three, and three seeds instead of two.",
        ),
        *make_bench_options("demo"),
    ],
)
