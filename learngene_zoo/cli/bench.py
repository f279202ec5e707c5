"""`lgzoo bench SUITE`: compare methods with their controls and with training from scratch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from learngene_zoo.atomic import check_folder
from learngene_zoo.bench.grid.grid import (
    AUGMENTS,
    BUDGETS,
    RATES,
    RECIPE,
    BudgetName,
    tasks_of_budget,
)
from learngene_zoo.cli.extract import ancestry_option
from learngene_zoo.cli.job import (
    Job,
    WholeNumber,
    job_of,
    job_options,
    print_lines,
    print_rows,
    print_table,
)
from learngene_zoo.cli.job import say as say_now
from learngene_zoo.cli.options import (
    SettingsCommand,
    complete_tasks,
    list_typed,
    options_of,
    parse_setting,
    settings_from_options,
)
from learngene_zoo.errors import BadFile, TrainingFailed, WrongCall
from learngene_zoo.method.contract import METHODS
from learngene_zoo.runs.run import MAX_THREADS
from learngene_zoo.settings import to_json
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.catalogue import tasks_named

if TYPE_CHECKING:
    from learngene_zoo.bench.grid.cell import Cell
    from learngene_zoo.bench.grid.search import Choice
    from learngene_zoo.bench.grid.tuning import GridTuning
    from learngene_zoo.bench.results.rows import Row
    from learngene_zoo.bench.running.executors import Executor
    from learngene_zoo.settings import Json

# A bench always resumes, and its workers run whole cells.
NOT_OURS = ("workers", "resume", "tracker")
OF_THE_GRID = ("epochs", "warmup")  # fields of the recipe that the grid sets
COMPARED = ("lsamd",)  # compared by default
MANY = 1_000_000  # cells, if their number is not known yet


class Numbers(click.ParamType):
    """Numbers separated by commas, as 5,9,12."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind
        self.name = "integers" if kind is int else "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the numbers of an option. Raises click's usage error, which names the option."""
        if not isinstance(value, str):
            return tuple(value)
        try:
            numbers = tuple(self.kind(part) for part in value.split(",") if part.strip())
        except ValueError:
            numbers = ()
        if not numbers:
            self.fail(
                f"expected {self.name} separated by commas, as 5,9, got {value!r}", param, ctx
            )
        return numbers


def bench(
    suite: str | None, claim: tuple[str, ...], workers: int | None, ray: str | None, **options: Any
) -> None:
    """Measure what is missing, then print the results."""
    job = job_of({**options, "workers": 0, "resume": False, "tracker": None})
    check_folder(job.out)
    executor = partial(executor_for, job, workers, ray=ray)
    if claim:
        _claims(claim, options["budget"], job, executor)
        return
    if not options["report"]:
        _measure(suite or "mini", options, job, executor)
    _report(job)


def _measure(
    suite: str, options: dict[str, Any], job: Job, executor: Callable[..., Executor]
) -> None:
    """Run the grid that the command line describes."""
    from learngene_zoo.bench.grid.search import choose
    from learngene_zoo.bench.grid.tuning import describe_tuning, with_choices
    from learngene_zoo.bench.report.cost_curve import cost_cells
    from learngene_zoo.bench.report.report import note_grid
    from learngene_zoo.bench.running.runner import run_grid

    anew = job.force
    say = partial(say_now, job=job)
    cells = _cells(suite, options, job, say)
    cells = (
        cost_cells(cells, tasks_named(_words(options["extract_task"])))
        if options["cost"]
        else cells
    )
    tuning = _choose_tuning(cells, options, job.run.offline)
    choices: dict[str, Choice] = {}
    if tuning.space.arms and tuning.space.size > 1:

        def measure(trials: list[Cell]) -> list[Row]:
            nonlocal anew
            rows = run_grid(trials, job.out, job.run, executor(cells=len(trials)), say, anew=anew)
            anew = False
            return rows

        choices = choose(tuning.space, tuning.cell_of, measure)
    cells = with_choices(cells, tuning.default_choices if tuning.space.size == 1 else choices)

    def begin() -> None:
        methods = _words(options["method"]) or COMPARED
        small = tuning.small if tuning.space.size > 1 and not choices else {}
        note_grid(
            cells, job.out, cost=options["cost"], choices=choices, small=small, methods=methods
        )
        for line in describe_tuning(cells, choices, small):
            say(line)

    run_grid(cells, job.out, job.run, executor(cells=len(cells)), say, anew=anew, begin=begin)


def _choose_tuning(cells: Sequence[Cell], options: dict[str, Any], offline: bool) -> GridTuning:
    """Return how the arms are tuned.

    A learning rate or augmentation that the user typed is not tuned. Nothing is tuned on a task
    with few validation images, unless --tune lists the rates.
    """
    from learngene_zoo.bench.grid.tuning import GridTuning, find_small
    from learngene_zoo.tasks.catalogue import open_task

    typed = list_typed(RECIPE)
    rates = options["tune"] or ((typed["lr"],) if "lr" in typed else RATES)
    augments = (typed["augment"],) if "augment" in typed else AUGMENTS
    is_fixed = options["tune"] or len(rates) * len(augments) == 1
    small = (
        {}
        if is_fixed
        else find_small(cells, lambda task: open_task(task, offline=offline).sizes["validation"])
    )
    return GridTuning(cells, tuple(rates), augments, small=small)


def _cells(suite: str, options: dict[str, Any], job: Job, say: Callable[[str], None]) -> list[Cell]:
    """Return the cells of the grid that the command line describes."""
    from learngene_zoo.bench.grid.grid import cells, standard_arms, targets

    budget = BUDGETS[options["budget"]]
    tasks = targets(suite, _words(options["task"]))
    arms = standard_arms(
        _words(options["method"]) or COMPARED,
        preset=options["preset"],
        settings=_settings(options["set"], options["preset"]),
        ancestries=options["ancestry"],
        tasks=tasks_named(_words(options["extract_task"])),
        leave_out=options["leave_out"],
    )
    seeds = budget.seeds if options["seeds"] is None else options["seeds"]
    return cells(
        tasks if options["task"] else tasks_of_budget(budget, tasks),
        arms,
        layers=options["layers"] or (() if options["size"] else budget.layers),
        sizes=[_size(text) for text in options["size"]],
        epochs=options["epochs"] or budget.epochs,
        seeds=range(job.run.seed, job.run.seed + seeds),
        recipe=settings_from_options(replace(RECIPE, images=budget.images)),
        widths=options["width"] or (None,),
        split=options["split"],
        head=options["head"],
        offline=job.run.offline,
        say=say,
    )


def _words(values: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a repeated option: `--task a,b --task c` gives a, b and c.

    A reference with a colon may contain commas and is not split.
    """
    return tuple(
        word for value in values for word in ([value] if ":" in value else value.split(",")) if word
    )


def _size(text: str) -> dict[str, Json]:
    """Parse a size: `low=3,high=3` gives `{"low": 3, "high": 3}`."""
    sizes: dict[str, Json] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise WrongCall(f"--size: expected NAME=VALUE,..., as low=3,high=3, got {text!r}")
        sizes[name.strip().replace("-", "_")] = _value(value)
    return sizes


def _settings(values: Sequence[str], preset: str | None) -> dict[str, dict[str, Json]]:
    """Parse the values of `--set`: `lsamd.keep=1,3` gives `{"lsamd": {"keep": (1, 3)}}`.

    Values are parsed as those of the options of `lgzoo extract METHOD`.
    """
    settings: dict[str, dict[str, Json]] = {}
    for value in values:
        name, equals, text = value.partition("=")
        method, dot, setting = name.partition(".")
        if not (equals and dot):
            raise WrongCall(f"--set: expected METHOD.NAME=VALUE, as lsamd.top=4, got {value!r}")
        extractor = METHODS.load(method).preset(preset)
        settings.setdefault(method, {})[setting.replace("-", "_")] = parse_setting(
            extractor, setting, text, f"--set {name}"
        )
    return settings


def _value(text: str) -> Json:
    """Return the text as a JSON value, or unchanged if it is not JSON."""
    try:
        return parse_json(text.encode())
    except ValueError:
        return text


def executor_for(job: Job, workers: int | None, cells: int, ray: str | None = None) -> Executor:
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
    page = write_report(job.out)[0]
    if job.as_json:
        print_rows([to_json(row) for row in summary.read], as_json=True)
    else:
        tables, lines = build_overview(job.out)
        for table in tables:
            numeric = [index >= table.texts for index in range(len(table.columns))]
            print_table(table.columns, table.rows, numeric, table.title, quiet=job.quiet)
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


def _claims(
    names: Sequence[str], budget: BudgetName, job: Job, executor: Callable[..., Executor]
) -> None:
    """Measure each claim and print its verdict; the claim's file describes the grid."""
    from learngene_zoo.bench.claims.file import load_claim
    from learngene_zoo.bench.claims.run import run_claim, verdict_path, verdict_text

    context = click.get_current_context()
    for option in MEASURED:
        typed = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if typed and option.name != "budget":
            word = option.opts[0] if isinstance(option, click.Option) else "SUITE"
            raise WrongCall(
                f"{word} cannot be combined with --claim, whose file sets it; leave {word} out"
            )
    if job.force:
        raise WrongCall(
            f"--force does not apply to claims; remove {job.out} to measure everything again"
        )
    size: Literal["standard", "full"] = "full" if budget == "full" else "standard"
    claims = [load_claim(name, size) for name in names]
    rows: list[dict[str, Json]] = []
    for claim in claims:
        verdict = run_claim(
            claim, job.out, job.run, executor(cells=MANY), partial(say_now, job=job), budget=size
        )
        if not job.as_json:
            print_lines([*verdict_text(claim, verdict), ""])
        about = {"claim": claim.name, "verdict": verdict.verdict, "expected": claim.expected}
        path = str(verdict_path(claim, job.out, size))
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


def grid_options() -> list[click.Option]:
    """Return the options that describe the grid."""
    names = ", ".join(BUDGETS)
    return [
        click.Option(
            ["--budget"],
            type=click.Choice(list(BUDGETS)),
            default="quick",
            show_default=True,
            help=f"Default sizes, epochs, seeds and images: {names}.",
        ),
        click.Option(
            ["--method"],
            multiple=True,
            help="A method to compare; may be repeated.  [default: lsamd]",
        ),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            multiple=True,
            help="Only this task of the suite; may be repeated.",
        ),
        click.Option(
            ["--layers", "--depth"],
            type=Numbers(int),
            help="Depths of the descendants, e.g. 5,9,12.",
        ),
        click.Option(
            ["--width", "--embed-dim"],
            type=Numbers(int),
            help="Widths of the descendants.  [default: the learngene's]",
        ),
        click.Option(
            ["--size"],
            multiple=True,
            metavar="NAME=VALUE,...",
            help="A size given by options of the expander, e.g. low=3,high=3; may be repeated.",
        ),
        click.Option(
            ["--epochs"],
            type=Numbers(int),
            help="Epochs of each training budget, e.g. 1,4,16; each budget has a complete "
            "schedule.",
        ),
        click.Option(
            ["--seeds"],
            type=WholeNumber(1),
            help="Number of repetitions, including the extraction.",
        ),
        click.Option(
            ["--tune"],
            type=Numbers(float),
            help="Learning rates from which each arm chooses on validation images; a single rate "
            f"is not tuned.  [default: {','.join(f'{rate:g}' for rate in RATES)}, or that of --lr]",
        ),
        click.Option(
            ["--extract-task"], multiple=True, help="A task to extract from; may be repeated."
        ),
        click.Option(
            ["--leave-out"],
            is_flag=True,
            help="Hide from each extraction the task on which it is evaluated.",
        ),
        click.Option(["--preset"], help="Preset of the methods' settings.  [default: mini]"),
        click.Option(
            ["--set"],
            multiple=True,
            metavar="METHOD.NAME=VALUE",
            help="One setting of a method, e.g. lsamd.top=4.",
        ),
        click.Option(
            ["--cost"],
            is_flag=True,
            help="Also pretrain and distil every size separately, and report from how many "
            "descendants on the learngene is cheaper; no controls.",
        ),
        click.Option(
            ["--report"],
            is_flag=True,
            help="Only write the report again, from the results in -o.",
        ),
        click.Option(
            ["--split"],
            type=click.Choice(["validation", "test"]),
            default="test",
            show_default=True,
            help="Split on which descendants are evaluated.",
        ),
        click.Option(
            ["--head"],
            type=click.Choice(["ridge", "random"]),
            default="ridge",
            show_default=True,
            help="Initial weights of a new head, in every arm: a ridge regression of the arm's "
            "features, or random.",
        ),
        ancestry_option(),
    ]


def bench_options(out: str) -> list[click.Option]:
    """Return the common options of grids; `--workers` counts processes that run cells."""
    options = job_options(out, "Folder of the results; an existing bench is continued.")
    helps = {
        "force": "Delete existing results and start over.",
        "seed": "First random seed.",
    }
    helps["threads"] = "CPU threads of each cell.  [default: 1]"
    for option in options:
        option.help = helps.get(str(option.name), option.help)
    processes = "Processes that run cells.  [default: one per core; 1 on a GPU]"
    workers = click.Option(["--workers"], type=WholeNumber(1, MAX_THREADS), help=processes)
    return [workers, *(option for option in options if option.name not in NOT_OURS)]


# Parameters that a claim's file sets.
MEASURED = [
    click.Argument(["suite"], required=False),
    *grid_options(),
    *options_of(RECIPE, without=OF_THE_GRID),
]
command = SettingsCommand(
    "bench",
    callback=bench,
    help="Compare methods with their controls and with training from scratch, on every task of a "
    "suite.\n\n"
    "SUITE is a suite or a task (default: mini). Each combination of arm, size, task, budget and "
    "seed is one cell, and one line in results.jsonl. The same command continues an interrupted "
    "bench: finished cells are skipped, failed cells are retried.",
    epilog="\b\nExamples:\n"
    "  lgzoo bench --budget quick\n"
    "  lgzoo bench mini --method lsamd --layers 5,9 --epochs 1,4 --seeds 3 -o depth\n"
    "  lgzoo bench --claim lsamd-scratch",
    params=[
        click.Option(
            ["--claim"],
            multiple=True,
            help="Test a claim instead of comparing methods; may be repeated (docs/claims.md).",
        ),
        *MEASURED,
        click.Option(
            ["--ray"],
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Run cells on a Ray cluster: HOST:PORT, ray://HOST:PORT or auto; without an "
            "address, on this machine.",
        ),
        *bench_options("bench"),
    ],
)
