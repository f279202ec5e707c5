"""`lgzoo bench SUITE`: methods against their controls and scratch, on every task of a suite."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from learngene_zoo.bench.grid import BUDGETS, RECIPE, Name, some_of
from learngene_zoo.cli.bench_progress import telling
from learngene_zoo.cli.extract import ancestry_option
from learngene_zoo.cli.job import Job, job_of, job_options
from learngene_zoo.cli.options import SettingsCommand, chosen, options_of
from learngene_zoo.cli.output import print_lines, print_rows
from learngene_zoo.cli.output import say as say_now
from learngene_zoo.errors import TrainingFailed, WrongCall
from learngene_zoo.settings import to_json

if TYPE_CHECKING:
    from learngene_zoo.bench.cell import Cell
    from learngene_zoo.bench.executors import Executor
    from learngene_zoo.settings import Json

NOT_OURS = ("workers", "resume", "tracker")  # a bench resumes by itself, and its workers do whole cells
OF_THE_GRID = ("epochs", "warmup")  # of the recipe, but set by the budget
METHODS = ("lsamd",)  # what is compared if nothing is named
MANY = 1_000_000  # cells, where their number is not known yet


class Numbers(click.ParamType):
    """Numbers with commas between them, as 5,9,12."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind
        self.name = "integers" if kind is int else "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Raises click's usage error, which names the option."""
        if not isinstance(value, str):
            return tuple(value)
        try:
            found = tuple(self.kind(part) for part in value.split(",") if part.strip())
        except ValueError:
            found = ()
        if not found:
            self.fail(f"{value!r} are no {self.name}; write them with commas, as 5,9", param, ctx)
        return found


def bench(suite: str | None, claim: tuple[str, ...], workers: int | None, ray: str | None, **given: Any) -> None:
    """Measure what is missing, then say what came out."""
    job = job_of({**given, "workers": 0, "resume": False, "tracker": None})
    executor = partial(_executor, workers, ray, job)
    if claim:
        _claims(claim, given["budget"], job, executor)
        return
    if given["report"]:
        _report(job)
        return
    from learngene_zoo.bench.report import note_grid
    from learngene_zoo.bench.runner import run_grid
    from learngene_zoo.bench.tuning import chosen_rates, tuning_cells, with_rates

    anew = job.force
    with telling(job) as (say, watch):
        cells = _cells(suite or "mini", given, job, say)
        if given["cost"]:
            from learngene_zoo.bench.cost_curve import cost_cells

            cells = cost_cells(cells)
        if given["tune"]:
            trials = tuning_cells(cells, given["tune"])
            tried = run_grid(trials, job.out, job.run, executor(len(trials)), say, watch, anew=anew)
            rates, anew = chosen_rates(tried), False
            say("learning rates: " + ", ".join(f"{arm} {rate:g}" for arm, rate in rates.items()))
            cells = with_rates(cells, rates)
        begin = partial(note_grid, cells, job.out, cost=given["cost"])
        run_grid(cells, job.out, job.run, executor(len(cells)), say, watch, anew=anew, begin=begin)
    _report(job)


def _cells(suite: str, given: dict[str, Any], job: Job, say: Any) -> list[Cell]:
    """The grid that the command line asks for."""
    from learngene_zoo.bench.grid import cells, standard_arms, targets

    budget = BUDGETS[given["budget"]]
    tasks = targets(suite, _words(given["task"]))
    arms = standard_arms(
        _words(given["method"]) or METHODS,
        preset=given["preset"],
        settings=_settings(given["set"]),
        ancestries=given["ancestry"],
        tasks=_words(given["extract_task"]),
        leave_out=given["leave_out"],
    )
    seeds = budget.seeds if given["seeds"] is None else given["seeds"]
    return cells(
        tasks if given["task"] else some_of(budget, tasks),
        arms,
        layers=given["layers"] or (() if given["size"] else budget.layers),
        sizes=[_size(text) for text in given["size"]],
        epochs=given["epochs"] or budget.epochs,
        seeds=range(job.run.seed, job.run.seed + seeds),
        recipe=chosen(replace(RECIPE, images=budget.images)),
        widths=given["width"] or (None,),
        split=given["split"],
        offline=job.run.offline,
        say=say,
    )


def _words(values: Sequence[str]) -> tuple[str, ...]:
    """`--task a,b --task c` is a, b and c; a place on disk may hold a comma."""
    return tuple(word for value in values for word in ([value] if ":" in value else value.split(",")) if word)


def _size(text: str) -> dict[str, Json]:
    """`low=3,high=3` as `{"low": 3, "high": 3}`."""
    found: dict[str, Json] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise WrongCall(f"--size is {text!r}; write NAME=VALUE, as low=3,high=3")
        found[name.strip().replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> Json:
    """JSON, or text as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _settings(values: Sequence[str]) -> dict[str, dict[str, Json]]:
    """`lsamd.top=4` as `{"lsamd": {"top": 4}}`. A value is JSON, or text as it stands."""
    found: dict[str, dict[str, Json]] = {}
    for value in values:
        name, equals, text = value.partition("=")
        method, dot, setting = name.partition(".")
        if not (equals and dot):
            raise WrongCall(f"--set is {value!r}; write METHOD.NAME=VALUE, as lsamd.top=4")
        told = _value(text)
        found.setdefault(method, {})[setting.replace("-", "_")] = tuple(told) if isinstance(told, list) else told
    return found


def _executor(workers: int | None, ray: str | None, job: Job, cells: int) -> Executor:
    """Where the cells are computed: by default in as many processes as there are cores, on a GPU in this one."""
    from learngene_zoo.bench.executors import InProcess, Workers

    if ray is not None:
        if workers is not None:
            raise WrongCall("--workers and --ray exclude each other; choose one")
        from learngene_zoo.bench.ray_executor import Ray

        return Ray(ray)
    if workers is None:
        workers = (os.cpu_count() or 1) // (job.run.threads or 1) if job.run.device == "cpu" else 1
    count = min(workers, cells)
    return Workers(count) if count > 1 else InProcess()


def _report(job: Job) -> None:
    """Write the report and print its table, or every row as JSON. Raises `TrainingFailed` if no cell has a number."""
    from learngene_zoo.bench.report import print_summary, read_summary, write_report

    summary = read_summary(job.out)
    failures = len(summary.failures)
    if not summary.rows:
        first = f"; the first: {summary.failures[0].error}" if failures else ""
        raise TrainingFailed(f"all {failures} cells failed{first}")
    page = write_report(job.out)[0]
    if job.as_json:
        print_rows([to_json(row) for row in summary.read], as_json=True)
        return
    print_summary(job.out)
    print_lines([str(page)])
    if failures:
        of = f"{failures} of {failures + len(summary.rows)} cells failed"
        say_now(f"{of} and are tried again by the same command; the first: {summary.failures[0].error}", job)


def _claims(names: Sequence[str], budget: Name, job: Job, executor: Callable[[int], Executor]) -> None:
    """The verdict on each claim; a claim's file says everything about its grid."""
    from learngene_zoo.bench.claims import load_claim, run_claim, tell, verdict_path

    context = click.get_current_context()
    for option in (SUITE, *grid_options(), *chosen_options()):
        typed = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if typed and option.name != "budget":
            word = option.opts[0] if isinstance(option, click.Option) else "SUITE"
            raise WrongCall(f"a claim's file says what is measured; leave {word} out")
    if job.force:
        raise WrongCall(f"what claims have measured is kept; remove {job.out} to measure it again")
    asked: Literal["standard", "full"] = "full" if budget == "full" else "standard"
    claims = [load_claim(name, asked) for name in names]
    rows: list[dict[str, Json]] = []
    for claim in claims:
        with telling(job) as (say, _):
            verdict = run_claim(claim, job.out, job.run, executor(MANY), say, budget=asked)
        if not job.as_json:
            print_lines([*tell(claim, verdict), ""])
        about = {"claim": claim.name, "verdict": verdict.verdict, "expected": claim.expected}
        path = str(verdict_path(claim, job.out, asked))
        for one in verdict.findings:
            rows.append({**about, "what": one.what, "value": one.value, "low": one.low, "high": one.high, "path": path})
    if job.as_json:
        print_rows(rows, as_json=True)


SUITE = click.Argument(["suite"], required=False)


def grid_options() -> list[click.Option]:
    """What is measured."""
    names = ", ".join(BUDGETS)
    return [
        click.Option(["--budget"], type=click.Choice(list(BUDGETS)), default="quick", show_default=True,
                     help=f"Where sizes, epochs, seeds and images come from that are not given: {names}."),
        click.Option(["--method"], multiple=True, help="A method to compare; may be repeated.  [default: lsamd]"),
        click.Option(["--task"], multiple=True, help="Only this task of the suite; may be repeated."),
        click.Option(["--layers"], type=Numbers(int), help="Depths of the descendants, as 5,9,12."),
        click.Option(["--width"], type=Numbers(int), help="Their widths.  [default: the learngene's]"),
        click.Option(["--size"], multiple=True, metavar="NAME=VALUE,...", help="A size that the expander's own options name, as "
                     "low=3,high=3; may be repeated."),
        click.Option(["--epochs"], type=Numbers(int), help="Training budgets, each with a schedule of its own, as 1,4,16."),
        click.Option(["--seeds"], type=click.IntRange(min=1), help="How often all is repeated, the extraction too."),
        click.Option(["--tune"], type=Numbers(float), help="Choose each arm's learning rate among these, on validation images."),
        click.Option(["--extract-task"], multiple=True, help="A task that extractions see; may be repeated."),
        click.Option(["--leave-out"], is_flag=True, help="No extraction sees the task it is judged on."),
        click.Option(["--preset"], help="Where the methods' settings come from.  [default: mini]"),
        click.Option(["--set"], multiple=True, metavar="METHOD.NAME=VALUE", help="One setting of a method, as lsamd.top=4."),
        click.Option(["--cost"], is_flag=True, help="Also pretrain and distil every size by itself, and say from how many "
                     "descendants the learngene pays; no controls."),
        click.Option(["--report"], is_flag=True, help="Measure nothing; write the report of what -o holds again."),
        click.Option(["--split"], type=click.Choice(["validation", "test"]), default="test", show_default=True,
                     help="The images that judge."),
        ancestry_option(),
    ]  # fmt: skip


def chosen_options() -> list[click.Option]:
    """The recipe of every cell's training."""
    return options_of(RECIPE, without=OF_THE_GRID)


def _job_options() -> list[click.Option]:
    """The common ones, as far as they mean something here."""
    found = job_options("bench", "The folder of the results; the same one continues.")
    helps = {"force": "Forget what is there and measure all again.", "seed": "The first of the seeds."}
    helps["threads"] = "CPU threads of each cell.  [default: 1]"
    for option in found:
        option.help = helps.get(str(option.name), option.help)
    return [option for option in found if option.name not in NOT_OURS]


command = SettingsCommand(
    "bench",
    callback=bench,
    help="Methods against their controls and both scratch arms, on every task of a suite.\n\n"
    "SUITE is a suite or a task (default: mini). Every arm at every size on every task with every budget and seed is one cell, "
    "and one line in results.jsonl. The same command continues: finished cells are skipped, failed ones tried again.",
    epilog="\b\nExamples:\n  lgzoo bench --budget quick\n  lgzoo bench mini --method lsamd --layers 5,9 --epochs 1,4 --seeds 3 -o depth"
    "\n  lgzoo bench --claim lsamd-scratch",
    params=[
        SUITE,
        click.Option(["--claim"], multiple=True, help="Decide a claim instead; may be repeated (docs/claims.md)."),
        *grid_options(),
        *chosen_options(),
        click.Option(
            ["--workers"],
            type=click.IntRange(min=1),
            help="Processes that do cells.  [default: one per core; 1 on a GPU]",
        ),
        click.Option(
            ["--ray"],
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Do cells on a Ray cluster: HOST:PORT, ray://HOST:PORT, auto, or without an address this machine's own.",
        ),
        *_job_options(),
    ],
)
