"""Options of `lgzoo bench`, and the grid of cells that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from learngene_zoo.bench.grid.grid import AUGMENTS, BUDGETS, RATES, RECIPE
from learngene_zoo.cli.extract import make_ancestry_option, make_image_size_option
from learngene_zoo.cli.job import Job, WholeNumber, make_job_options, print_note
from learngene_zoo.cli.options import (
    complete_tasks,
    list_typed,
    make_options,
    parse_setting,
    read_settings,
)
from learngene_zoo.cli.sections import DetailOption, RunningOption
from learngene_zoo.errors import WrongCall
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import MAX_THREADS
from learngene_zoo.storage import parse_json
from learngene_zoo.tasks.catalogue import expand_suites

if TYPE_CHECKING:
    from learngene_zoo.bench.grid.cell import Cell
    from learngene_zoo.bench.grid.tuning import GridTuning
    from learngene_zoo.settings import Json

# A bench always resumes, and its workers run whole cells.
NOT_OURS = ("workers", "resume", "tracker")
OF_THE_GRID = ("epochs", "warmup")  # fields of the recipe that the grid sets
COMPARED = ("lsamd",)  # compared by default


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


def choose_tuning(cells: Sequence[Cell], options: dict[str, Any], offline: bool) -> GridTuning:
    """Return how the arms are tuned.

    A learning rate or augmentation that the user gave is not tuned. Nothing is tuned on a task with
    few validation images, unless --tune lists several rates.

    Raises:
        WrongCall: an augmentation is given, and the samples are texts.
    """
    from learngene_zoo.bench.grid.tuning import GridTuning, find_small, takes_texts
    from learngene_zoo.tasks.catalogue import open_task

    given = list_given(options)
    listed = () if "lr" in given else options["tune"] or ()
    rates = (given["lr"],) if "lr" in given else listed or RATES
    augments = (given["augment"],) if "augment" in given else AUGMENTS
    if takes_texts(cells[0].arm, offline):
        if given.get("augment", "none") != "none":
            raise WrongCall(f"texts are not augmented; leave out --augment {given['augment']}")
        augments = ("none",)
    is_wanted = bool(listed) or len(rates) * len(augments) == 1
    small = (
        {}
        if is_wanted
        else find_small(cells, lambda task: open_task(task, offline=offline).sizes["validation"])
    )
    return GridTuning(cells, tuple(rates), augments, small=small)


def list_given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the recipe that the user gave, by name.

    Rates of --tune come before --lr: a single one is the learning rate, and several are chosen
    from.
    """
    given, rates = list_typed(RECIPE), set(options["tune"] or ())
    if rates:
        given.pop("lr", None)
    return {**given, "lr": rates.pop()} if len(rates) == 1 else given


def build_cells(suites: Sequence[str], options: dict[str, Any], job: Job) -> list[Cell]:
    """Return the cells of the grid that the command line describes.

    Prints a note for sizes that a method cannot build, and for a method that is given twice.
    """
    from learngene_zoo.bench.grid.grid import choose_tasks, list_cells, list_standard_arms

    budget = BUDGETS[options["budget"]]
    tasks = choose_tasks(budget, suites, split_words(options["task"]))
    methods = split_words(options["method"]) or COMPARED
    for name in dict.fromkeys(methods):
        if methods.count(name) > 1:
            print_note(f"{name} is given {methods.count(name)} times; it is measured once")
    extraction_tasks = expand_suites(split_words(options["extract_task"]))
    if extraction_tasks and not options["cost"]:
        check_extraction_tasks(methods)
    arms = list_standard_arms(
        methods,
        preset=options["preset"],
        settings=_parse_settings(options["set"], options["preset"]),
        ancestries=options["ancestry"],
        tasks=extraction_tasks,
        leave_out=options["leave_out"],
        image_size=options["image_size"],
    )
    seeds = budget.seeds if options["seeds"] is None else options["seeds"]
    recipe = read_settings(replace(RECIPE, images=budget.images))
    recipe = replace(recipe, lr=list_given(options).get("lr", recipe.lr))
    return list_cells(
        tasks,
        arms,
        layers=options["layers"] or (() if options["size"] else budget.layers),
        sizes=[_parse_size(text) for text in options["size"]],
        epochs=options["epochs"] or budget.epochs,
        seeds=range(job.run.seed, job.run.seed + seeds),
        recipe=recipe,
        widths=options["width"] or (None,),
        split=options["split"],
        head=options["head"],
        offline=job.run.offline,
        say=print_note,
    )


def check_extraction_tasks(methods: Sequence[str]) -> None:
    """Raise `WrongCall` if no method extracts from a task."""
    from learngene_zoo.method.installed import METHODS

    if all(METHODS.load(name).tasks == "none" for name in methods):
        names = ", ".join(dict.fromkeys(methods))
        raise WrongCall(f"no task is read by the extraction of {names}; leave out --extract-task")


def split_words(values: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a repeated option: `--task a,b --task c` gives a, b and c.

    A reference with a colon may contain commas and is not split.
    """
    return tuple(
        word for value in values for word in ([value] if ":" in value else value.split(",")) if word
    )


def _parse_size(text: str) -> dict[str, Json]:
    """Parse a size: `low=3,high=3` gives `{"low": 3, "high": 3}`."""
    sizes: dict[str, Json] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise WrongCall(f"--size: expected NAME=VALUE,..., as low=3,high=3, got {text!r}")
        sizes[name.strip().replace("-", "_")] = _parse_value(value)
    return sizes


def _parse_settings(values: Sequence[str], preset: str | None) -> dict[str, dict[str, Json]]:
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


def _parse_value(text: str) -> Json:
    """Return the text as a JSON value, or unchanged if it is not JSON."""
    try:
        return parse_json(text.encode())
    except ValueError:
        return text


def make_grid_options() -> list[click.Option]:
    """Return the options that describe the grid."""
    return [
        *_make_cell_options(),
        *_make_measurement_options(),
        make_ancestry_option(),
        make_image_size_option(),
    ]


def _make_cell_options() -> list[click.Option]:
    """Return the options of methods, tasks, sizes, budgets and seeds."""
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
            help="Only these tasks, separated by commas; may be repeated. Without SUITE: tasks of "
            "any suite, or your own data.",
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
        DetailOption(
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
    ]


def _make_measurement_options() -> list[click.Option]:
    """Return the options of extractions, tuning and evaluation."""
    return [
        DetailOption(
            ["--tune"],
            type=Numbers(float),
            help="Learning rates from which each arm chooses on validation images. A single rate "
            "is used as --lr is. On fewer than 100 validation images nothing is chosen, no "
            "augmentation either, unless several rates are given here (docs/bench.md).  "
            f"[default: {','.join(f'{rate:g}' for rate in RATES)}, or that of --lr]",
        ),
        DetailOption(
            ["--extract-task"], multiple=True, help="A task to extract from; may be repeated."
        ),
        DetailOption(
            ["--leave-out"],
            is_flag=True,
            help="Hide from each extraction the task on which it is evaluated.",
        ),
        DetailOption(["--preset"], help="Preset of the methods' settings.  [default: mini]"),
        DetailOption(
            ["--set"],
            multiple=True,
            metavar="METHOD.NAME=VALUE",
            help="One setting of a method, e.g. lsamd.top=4.",
        ),
        DetailOption(
            ["--cost"],
            is_flag=True,
            help="Also pretrain and distil every size separately, and report from how many "
            "descendants on the learngene is cheaper; no controls.",
        ),
        click.Option(
            ["--plan"],
            is_flag=True,
            help="Print how much would be computed, and start nothing.",
        ),
        DetailOption(
            ["--report"],
            is_flag=True,
            help="Only write the report again, from the results in -o.",
        ),
        DetailOption(
            ["--split"],
            type=click.Choice(["validation", "test"]),
            default="test",
            show_default=True,
            help="Split on which descendants are evaluated.",
        ),
        DetailOption(
            ["--head"],
            type=click.Choice(["ridge", "random"]),
            default="ridge",
            show_default=True,
            help="Initial weights of a new head, in every arm: a ridge regression of the arm's "
            "features, or random.",
        ),
    ]


def make_bench_options(out: str) -> list[click.Option]:
    """Return the common options of grids; `--workers` counts processes that run cells."""
    options = make_job_options(out, "Folder of the results; an existing bench is continued.")
    helps = {
        "force": "Delete existing results and start over.",
        "seed": "First random seed.",
    }
    helps["threads"] = "CPU threads of each cell.  [default: 1]"
    for option in options:
        option.help = helps.get(str(option.name), option.help)
    processes = "Processes that run cells.  [default: one per core; 1 on a GPU]"
    workers = RunningOption(["--workers"], type=WholeNumber(1, MAX_THREADS), help=processes)
    return [workers, *(option for option in options if option.name not in NOT_OURS)]


# Parameters that a claim's file sets.
MEASURED = [
    click.Argument(["suites"], metavar="[SUITE]...", nargs=-1),
    *make_grid_options(),
    *make_options(
        RECIPE,
        without=OF_THE_GRID,
        defaults={
            "lr": "chosen for each arm, see --tune",
            "augment": "chosen for each arm",
            "images": "those of --budget",
            "layer_decay": "1.0; with few validation images that of finetune",
        },
    ),
]
