"""`lgzoo bench SUITE...`: compare methods with their controls and with training from scratch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.atomic import check_folder
from learngene_zoo.bench.grid.grid import BudgetName
from learngene_zoo.cli.bench_options import (
    COMPARED,
    MEASURED,
    build_cells,
    choose_tuning,
    list_given,
    make_bench_options,
    split_words,
)
from learngene_zoo.cli.job import Job, print_lines, print_rows, print_table, take_job
from learngene_zoo.cli.job import say as say_now
from learngene_zoo.cli.options import check_tasks
from learngene_zoo.cli.sections import RunningOption, SettingsCommand
from learngene_zoo.errors import BadFile, TrainingFailed, WrongCall
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.settings import to_json
from learngene_zoo.tasks.catalogue import expand_suites
from learngene_zoo.text import format_seconds

if TYPE_CHECKING:
    from learngene_zoo.bench.grid.cell import Cell
    from learngene_zoo.bench.grid.search import Choice
    from learngene_zoo.bench.grid.tuning import GridTuning
    from learngene_zoo.bench.results.rows import Row
    from learngene_zoo.bench.running.executors import Executor
    from learngene_zoo.settings import Json

MANY = 1_000_000  # cells, if their number is not known yet


def bench(
    suites: tuple[str, ...],
    claim: tuple[str, ...],
    workers: int | None,
    ray: str | None,
    **options: Any,
) -> None:
    """Measure what is missing, then print the results."""
    job = take_job({**options, "workers": 0, "resume": False, "tracker": None})
    check_folder(job.out)
    references = split_words(suites)
    check_tasks(*filter(is_own_data, [*references, *split_words(options["task"])]))
    for source in options["ancestry"]:
        check_source(source)
    executor = partial(choose_executor, job, workers, ray=ray)
    if claim:
        _measure_claims(claim, options["budget"], job, executor)
        return
    if options["plan"] and options["report"]:
        raise WrongCall("--plan and --report exclude each other; choose one")
    if not options["report"]:
        _measure(references, options, job, executor)
    if not options["plan"]:
        _report(job)


def _measure(
    suites: Sequence[str], options: dict[str, Any], job: Job, executor: Callable[..., Executor]
) -> None:
    """Run the grid that the command line describes."""
    from learngene_zoo.bench.grid.search import choose
    from learngene_zoo.bench.grid.tuning import (
        apply_choices,
        apply_default_rates,
        describe_tuning,
    )
    from learngene_zoo.bench.report.cost_curve import list_cost_cells
    from learngene_zoo.bench.report.report import write_grid
    from learngene_zoo.bench.running.runner import run_grid

    anew = job.force
    say = partial(say_now, job=job)
    with report_activity("planning the cells"):
        cells = build_cells(suites, options, job)
    cells = (
        list_cost_cells(cells, expand_suites(split_words(options["extract_task"])))
        if options["cost"]
        else cells
    )
    tuning = choose_tuning(cells, options, job.run.offline)
    if options["plan"]:
        _print_plan(cells, tuning, job)
        return
    choices: dict[str, Choice] = {}
    if tuning.space.arms and tuning.space.size > 1:

        def measure(trials: list[Cell]) -> list[Row]:
            nonlocal anew
            rows = run_grid(trials, job.out, job.run, executor(cells=len(trials)), say, anew=anew)
            anew = False
            return rows

        choices = choose(tuning.space, tuning.cell_of, measure)
    named = list_given(options)
    if tuning.small and not choices and "lr" not in named:
        cells = apply_default_rates(cells, named, job.run.offline)
    cells = apply_choices(cells, tuning.default_choices if tuning.space.size == 1 else choices)

    def begin() -> None:
        methods = split_words(options["method"]) or COMPARED
        small = tuning.small if tuning.space.size > 1 and not choices else {}
        write_grid(
            cells, job.out, cost=options["cost"], choices=choices, small=small, methods=methods
        )
        for line in describe_tuning(cells, choices, small):
            say(line)

    run_grid(cells, job.out, job.run, executor(cells=len(cells)), say, anew=anew, begin=begin)


def _print_plan(cells: list[Cell], tuning: GridTuning, job: Job) -> None:
    """Print how much each stage computes."""
    from learngene_zoo.bench.running.plan import plan_stages

    run = replace(job.run, threads=job.run.threads or 1)
    stages = plan_stages(cells, tuning, job.out, run)
    print_rows([to_json(stage) for stage in stages], job.as_json, quiet=job.quiet)
    more = "where trials do not tell rates apart, tuning adds some; " if stages[1:] else ""
    say_now(f"{more}nothing was started; images are those of training, over all epochs", job)
    seconds = [stage.seconds for stage in stages if stage.seconds is not None]
    if sum(seconds):
        text = format_seconds(sum(seconds))
        say_now(f"one process takes about {text}; several at once (--workers) share it", job)


def choose_executor(job: Job, workers: int | None, cells: int, ray: str | None = None) -> Executor:
    """Return the executor of the cells.

    By default there is one process for each core on a CPU; on a GPU the cells run in this process.
    """
    from learngene_zoo.bench.running.executors import InProcess, Workers

    if ray is not None:
        if workers is not None:
            raise WrongCall("--workers and --ray exclude each other; choose one")
        from learngene_zoo.bench.running.on_ray import Ray

        return Ray(ray)
    if workers is None:
        workers = (
            (os.cpu_count() or 1) // (job.run.threads or 1) if job.run.device_name == "cpu" else 1
        )
    count = min(workers, cells)
    return Workers(count) if count > 1 else InProcess()


def _report(job: Job) -> None:
    """Write the report and print its table, or every row as JSON.

    Raises:
        TrainingFailed: every cell failed; or, after printing, every cell of an arm failed, or a
            method builds none of the sizes.
    """
    from learngene_zoo.bench.report.report import (
        build_overview,
        read_grid,
        read_summary,
        write_report,
    )

    summary = read_summary(job.out)
    failures = summary.failures
    if not summary.rows and not failures:
        raise BadFile(f"{job.out} contains no results; run the bench without --report")
    if not summary.rows:
        raise TrainingFailed(f"all {len(failures)} cells failed; the first: {failures[0].error}")
    with report_activity("writing the report"):
        page = write_report(job.out)[0]
    if job.as_json:
        print_rows([to_json(row) for row in summary.read], as_json=True)
    else:
        tables, lines = build_overview(job.out)
        for table in tables:
            numeric = [index >= table.texts for index in range(len(table.columns))]
            print_table(table.columns, table.rows, numeric, table.title, quiet=job.quiet)
            print_lines(table.note.splitlines())
        print_lines([*lines, str(page)])
    grid = read_grid(job.out)
    # An interrupted bench may lack results of an arm.
    measured_arms = [arm.get("name") for arm in grid.arms]
    unbuilt = [method for method in grid.methods if method not in measured_arms]
    lost = [
        arm
        for arm in dict.fromkeys([*unbuilt, *(row.arm for row in failures)])
        if arm not in summary.arms
    ]
    if lost:
        reason = next(
            (f"; its first cell failed: {row.error}" for row in failures if row.arm == lost[0]), ""
        )
        raise TrainingFailed(
            f"no results of {', '.join(lost)}{reason or '; it builds none of these sizes'}"
        )
    if failures and not job.as_json:
        counts = f"{len(failures)} of {len(failures) + len(summary.rows)} cells failed"
        say_now(f"{counts}; the same command retries them. The first: {failures[0].error}", job)


def _measure_claims(
    names: Sequence[str], budget: BudgetName, job: Job, executor: Callable[..., Executor]
) -> None:
    """Measure each claim and print its verdict; the claim's file describes the grid."""
    from learngene_zoo.bench.claims.arms import check_arms
    from learngene_zoo.bench.claims.file import find_claim, load_claim
    from learngene_zoo.bench.claims.run import format_verdict, locate_verdict, run_claim

    context = click.get_current_context()
    for option in MEASURED:
        name = str(option.name)
        # click states the command line as the source of an empty list of arguments.
        is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_typed and context.params[name] != () and option.name != "budget":
            word = option.opts[0] if isinstance(option, click.Option) else "SUITE"
            why = "" if name in ("plan", "report") else ", whose file sets it"
            raise WrongCall(f"{word} cannot be combined with --claim{why}; leave {word} out")
    if job.force:
        raise WrongCall(
            f"--force does not apply to claims; remove {job.out} to measure everything again"
        )
    size: Literal["standard", "full"] = "full" if budget == "full" else "standard"
    claims = [load_claim(name, size) for name in names]
    for name, claim in zip(names, claims):
        check_arms(claim, find_claim(name), job.run.offline)
    rows: list[dict[str, Json]] = []
    for claim in claims:
        verdict = run_claim(
            claim, job.out, job.run, executor(cells=MANY), partial(say_now, job=job), budget=size
        )
        if not job.as_json:
            print_lines([*format_verdict(claim, verdict), ""])
        about = {"claim": claim.name, "verdict": verdict.verdict, "expected": claim.expected}
        path = str(locate_verdict(claim, job.out, size))
        for finding in verdict.findings:
            rows.append(
                {
                    **about,
                    "what": finding.what,
                    "value": finding.value,
                    "low": finding.low,
                    "high": finding.high,
                    "path": path,
                }
            )
    if job.as_json:
        print_rows(rows, as_json=True)


command = SettingsCommand(
    "bench",
    callback=bench,
    help="Compare methods with their controls and with training from scratch, on every task of a "
    "suite or of several.\n\n"
    "SUITE is a suite, a task or your own data (default: mini). Each combination of arm, size, "
    "task, budget and seed is one cell, and one line in results.jsonl. The same command continues "
    "an interrupted bench: finished cells are skipped, failed cells are retried.",
    epilog="\b\nExamples:\n"
    "  lgzoo bench --budget quick\n"
    "  lgzoo bench mini --method lsamd --layers 5,9 --epochs 1,4 --seeds 3\n"
    "  lgzoo bench --task digits,stamps,textures -o three\n"
    "  lgzoo bench --claim lsamd-scratch",
    params=[
        click.Option(
            ["--claim"],
            multiple=True,
            help="Test a claim instead of comparing methods; may be repeated (docs/claims.md).",
        ),
        *MEASURED,
        RunningOption(
            ["--ray"],
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Run cells on a Ray cluster: HOST:PORT, ray://HOST:PORT or auto; without an "
            "address, on this machine.",
        ),
        *make_bench_options("bench"),
    ],
)
