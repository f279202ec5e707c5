"""How good is a learngene of a real pretrained model? From the ancestry model to the Hub.

Varied: the depth of the descendants; beside them the same descendants shuffled and with nothing but
their stem, and plain models from scratch with two initialisations.

Measured: the test accuracy after fine-tuning on the tasks of `--task`, which the extraction on
those of `--seen` has not seen. Every arm has the learning rate of `--rates` that is best on
validation images, with a separate seed. The results become the learngene's card.

Command: for one GPU and a network, resumable.

    python benchmarks/real.py --plan
            print images, hours and bytes; nothing is trained
    python benchmarks/real.py --yes
            DeiT-B
    python benchmarks/real.py dinov2-small --yes --publish me/learngene-dinov2-small
    python benchmarks/real.py --help
            other ancestry models, methods, tasks, depths, budgets

Results: build/real/NAME-METHOD; not yet run on real weights.
Page: docs/real.md describes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path

import real_plan
from grids import find_source, run_cells, summarise_gains
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.artifacts.records import CardRecord, CardResults
from learngene_zoo.bench.demo import spread_evenly
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.grid import list_cells, list_members, list_standard_arms
from learngene_zoo.bench.grid.search import choose, search
from learngene_zoo.bench.grid.tuning import GridTuning, apply_choices
from learngene_zoo.bench.report.report import write_grid, write_report
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.bench.running.executors import InProcess
from learngene_zoo.cli.options import parse_setting
from learngene_zoo.errors import ZooError
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.publishing.publish import publish
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.text import count_noun, quote_word

ANCESTRIES = {
    "deit-base": "timm:deit_base_patch16_224.fb_in1k",
    "dinov2-small": "timm:vit_small_patch14_dinov2.lvd142m",
    "dinov2-base": "timm:vit_base_patch14_dinov2.lvd142m",
    "dinov3-small": "timm:vit_small_patch16_dinov3.lvd1689m",
}
LARGEST = 224  # pixels; ancestry models of larger images are resized
SEEN, TASKS = "cifar100,food101,dtd", "flowers102,pets,cars"
# The paper's, but that the number of blocks is set: "more than half" of three tasks keeps anything
# from none to all.
SETTINGS = {"lsamd": ("top=5",)}
RECIPE = Recipe(weight_decay=0.05, clip=1.0, augment="light")
UNRECORDED = (
    "device",
    "precision",
    "workers",
    "offline",
    "out",
    "speed",
    "plan",
    "yes",
    "publish",
)  # options that change no number


@dataclass(frozen=True)
class Job:
    """A job with its options."""

    args: argparse.Namespace
    source: str
    run: Run

    @cached_property
    def spec(self) -> Spec:
        """The shape of the ancestry model, at the image size of the descendants."""
        spec = read_ancestry_spec(self.source, offline=self.run.offline)
        return spec.with_(image_size=self.args.image_size or min(spec.image_size, LARGEST))

    @cached_property
    def grid(self) -> list[Cell]:
        """The trainings of the table, with the first of the learning rates."""
        args, method = self.args, METHODS.load(self.args.method)
        pairs = [text.partition("=") for text in args.set or SETTINGS.get(args.method, ())]
        extractor = method.preset(args.preset)
        settings = {
            name.replace("-", "_"): parse_setting(extractor, name, text, "--set")
            for name, _, text in pairs
        }
        arms = list_standard_arms(
            [method.name],
            preset=args.preset,
            settings={method.name: settings},
            ancestries=[self.source],
            tasks=args.seen.split(","),
            image_size=self.spec.image_size,
        )
        depths = sorted({member.spec.layers for member in list_members(arms[0], self.run.offline)})
        grid_cells = list_cells(
            args.task.split(","),
            arms,
            layers=args.layers
            or spread_evenly([layers for layers in depths if layers <= self.spec.layers], 3),
            epochs=[args.epochs],
            seeds=[self.run.seed],
            recipe=replace(
                RECIPE, lr=args.rates[0], images=args.images, batch_size=args.batch_size
            ),
            offline=self.run.offline,
            say=lambda text: print(text, file=sys.stderr),
        )
        return [replace(cell, look=False) for cell in grid_cells]

    @property
    def trials(self) -> list[Cell]:
        """The trainings that choose the learning rates, from the same extraction; none if there is
        one rate.
        """
        if self.tuning.space.size < 2:
            return []
        return [
            self.tuning.cell_of(trial) for trial in search(self.tuning.space, lambda trial: None)[1]
        ]

    @property
    def tuning(self) -> GridTuning:
        """The tuning: every arm with each of the rates, on every task, as many trainings as were
        planned.
        """
        return GridTuning(self.grid, self.args.rates, (RECIPE.augment,), opening=None, widen=False)

    @property
    def command(self) -> str:
        """The call that repeats the job, without options that change no number."""
        defaults, words = (
            vars(make_parser().parse_args([])),
            ["python benchmarks/real.py", quote_word(self.args.ancestry)],
        )
        for name, value in vars(self.args).items():
            if name not in (*UNRECORDED, "ancestry") and value != defaults[name]:
                values = (
                    value
                    if name == "set"
                    else [",".join(map(str, value)) if isinstance(value, tuple) else value]
                )
                words += [f"--{name.replace('_', '-')} {quote_word(str(item))}" for item in values]
        return " ".join(words)


def run_job(job: Job, out: Path) -> Path:
    """Extract, choose the rates, train, and write the learngene with its card. Finished parts are
    not repeated.

    Returns the folder.
    """
    grid = job.grid
    if job.trials:
        measure = partial(run_cells, out=out, run=job.run, executor=InProcess())
        grid = apply_choices(grid, choose(job.tuning.space, job.tuning.cell_of, measure))
    rows = run_cells(grid, out, job.run, InProcess())
    write_grid(grid, out)
    write_report(out)
    card = CardRecord(
        command=job.command,
        paper=METHODS.load(job.args.method).paper,
        worth=summarise_results(job, rows),
    )
    learngene = load_learngene(grid[0].extraction.folder(out)).with_config(card=card)
    return learngene.save(out / "learngene", force=True)


def summarise_results(job: Job, rows: Sequence[Row]) -> CardResults:
    """Return the results of the learngene by task and depth."""
    args = job.args
    lines = [
        summarise_gains(Member(spec=job.spec.with_(layers=layers)), {}, list(group))
        for (_, layers), group in groupby(rows, key=lambda row: (row.task, row.layers))
    ]
    images = "all" if args.images is None else f"at most {args.images:,}"
    rates = " or ".join(f"{rate:g}" for rate in args.rates)
    chosen = "for each arm the best on validation images" if job.trials else "tuned for no arm"
    how = (
        f"Each model after {count_noun(args.epochs, 'epoch')} of {images} training images at"
        f" {job.spec.image_size} pixels, one seed, learning rate {rates}, {chosen}. Shuffled: the"
        " same inherited tensors, each with its numbers in another order. Stem: nothing but patch"
        " embedding, tokens, positions and final norm inherited. Scratch: plain models of as many"
        " layers, with timm's initialisation and with standard deviation 1/sqrt(fan in). Gains are"
        " in points, over the shuffled model and over the better of the two from scratch, with 95"
        " % intervals over the test images."
    )
    datasets = {row.task: find_source(row.task) for row in rows}
    return CardResults(
        command=job.command, split="test", how=how, rows=tuple(lines), datasets=datasets
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "ancestry",
        nargs="?",
        default="deit-base",
        help=f"{', '.join(ANCESTRIES)}, or any that `lgzoo extract` takes",
    )
    add("--method", default="lsamd")
    add("--preset", default="paper", help="of the method's settings")
    add(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a setting of the method; lsamd: top=5 unless you set one",
    )
    add(
        "--image-size",
        type=int,
        help=f"of all models (default: the ancestry model's, at most {LARGEST})",
    )
    add("--seen", default=SEEN, help="tasks of the extraction")
    add("--task", default=TASKS, help="tasks of the descendants")
    add(
        "--layers", type=lambda text: tuple(map(int, text.split(","))), help="default: three depths"
    )
    add("--epochs", type=int, default=20, help="of each training")
    add("--images", type=int, help="of each training at most (default: all)")
    add("--batch-size", type=int, default=128)
    add(
        "--rates",
        type=lambda text: tuple(map(float, text.split(","))),
        default=(1e-4, 1e-3),
        help="to choose from",
    )
    add("--seed", type=int, default=0)
    add("--device", default="auto")
    add("--precision", choices=("fp32", "bf16", "fp16"), help="default: bf16 on a GPU")
    add("--workers", type=int, default=8, help="processes that read pictures")
    add("--offline", action="store_true")
    add("-o", "--out", type=Path, help="default: build/real/ANCESTRY-METHOD")
    add(
        "--speed",
        type=float,
        help="training images of the ancestry model per second, if it is not to be measured",
    )
    add("--plan", action="store_true", help="only say what it takes")
    add("--yes", action="store_true", help="start")
    add(
        "--publish",
        metavar="ORG/NAME",
        help="publish the learngene at the end (first: hf auth login)",
    )
    return parser


def main(arguments: Sequence[str]) -> None:
    """Print the plan; with --yes, run the job."""
    args = make_parser().parse_args(arguments)
    run = Run(
        seed=args.seed,
        device=args.device,
        workers=args.workers,
        offline=args.offline,
        resume=True,
    )
    default_precision = "bf16" if run.device_name.startswith("cuda") else "fp32"
    job = Job(
        args,
        ANCESTRIES.get(args.ancestry, args.ancestry),
        replace(run, precision=args.precision or default_precision),
    )
    try:
        print(real_plan.describe_contacts(job, args.seen.split(","), args.publish), flush=True)
        print(real_plan.describe_work(job, args.seen.split(","), args.speed), flush=True)
        if args.plan or not args.yes:
            return print("nothing is started without --yes")
        folder = run_job(
            job,
            args.out
            or Path(
                "build", "real", f"{Path(args.ancestry.rpartition(':')[2]).name}-{args.method}"
            ),
        )
        print(publish(folder, args.publish).url if args.publish else folder)
    except ZooError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
