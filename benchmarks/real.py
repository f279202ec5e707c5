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
from grids import find_source, finished, summarise_gains
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.artifacts.records import CardRecord, CardResults
from learngene_zoo.bench.demo import spread_evenly
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.grid import cells, family, standard_arms
from learngene_zoo.bench.grid.search import choose, search
from learngene_zoo.bench.grid.tuning import GridTuning, with_choices
from learngene_zoo.bench.report.report import note_grid, write_report
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.bench.running.executors import InProcess
from learngene_zoo.cli.options import parse_setting
from learngene_zoo.errors import ZooError
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.contract import METHODS
from learngene_zoo.method.sizes import Member
from learngene_zoo.pretrained.ancestry import ancestry_spec
from learngene_zoo.publishing.publish import publish
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.text import count_noun, shell_word

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
WHERE = (
    "device",
    "precision",
    "workers",
    "offline",
    "out",
    "speed",
    "plan",
    "yes",
    "publish",
)  # change no number


@dataclass(frozen=True)
class Job:
    """What is asked for, by the names of the options."""

    asked: argparse.Namespace
    source: str
    run: Run

    @cached_property
    def spec(self) -> Spec:
        """The shape of the ancestry model, at the image size of the descendants."""
        own = ancestry_spec(self.source, offline=self.run.offline)
        return own.with_(image_size=self.asked.image_size or min(own.image_size, LARGEST))

    @cached_property
    def grid(self) -> list[Cell]:
        """The trainings of the table, with the first of the learning rates."""
        asked, method = self.asked, METHODS.load(self.asked.method)
        pairs = [text.partition("=") for text in asked.set or SETTINGS.get(asked.method, ())]
        extractor = method.preset(asked.preset)
        settings = {
            name.replace("-", "_"): parse_setting(extractor, name, text, "--set")
            for name, _, text in pairs
        }
        arms = standard_arms(
            [method.name],
            preset=asked.preset,
            settings={method.name: settings},
            ancestries=[self.source],
            tasks=asked.seen.split(","),
        )
        arms = [replace(arm, image_size=self.spec.image_size) for arm in arms]
        built = sorted({member.spec.layers for member in family(arms[0], self.run.offline)})
        found = cells(
            asked.task.split(","),
            arms,
            layers=asked.layers
            or spread_evenly([layers for layers in built if layers <= self.spec.layers], 3),
            epochs=[asked.epochs],
            seeds=[self.run.seed],
            recipe=replace(
                RECIPE, lr=asked.rates[0], images=asked.images, batch_size=asked.batch_size
            ),
            offline=self.run.offline,
            say=lambda text: print(text, file=sys.stderr),
        )
        return [replace(cell, look=False) for cell in found]

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
        """Every arm with each of the rates that were asked for, on every task: as many trainings as
        were planned.
        """
        return GridTuning(self.grid, self.asked.rates, (RECIPE.augment,), opening=None, widen=False)

    @property
    def command(self) -> str:
        """The call that makes it, without what changes no number."""
        usual, words = (
            vars(options().parse_args([])),
            ["python benchmarks/real.py", shell_word(self.asked.ancestry)],
        )
        for name, value in vars(self.asked).items():
            if name not in (*WHERE, "ancestry") and value != usual[name]:
                each = (
                    value
                    if name == "set"
                    else [",".join(map(str, value)) if isinstance(value, tuple) else value]
                )
                words += [f"--{name.replace('_', '-')} {shell_word(str(one))}" for one in each]
        return " ".join(words)


def carry_out(job: Job, out: Path) -> Path:
    """Extract, choose the rates, train, and write the learngene with its card: the folder. What is
    finished is not repeated.
    """
    grid = job.grid
    if job.trials:
        measure = partial(finished, out=out, run=job.run, executor=InProcess())
        grid = with_choices(grid, choose(job.tuning.space, job.tuning.cell_of, measure))
    rows = finished(grid, out, job.run, InProcess())
    note_grid(grid, out)
    write_report(out)
    about = CardRecord(
        command=job.command, paper=METHODS.load(job.asked.method).paper, worth=worth(job, rows)
    )
    made = load_learngene(grid[0].extraction.folder(out)).with_config(card=about)
    return made.save(out / "learngene", force=True)


def worth(job: Job, rows: Sequence[Row]) -> CardResults:
    """What the learngene is worth, by task and depth."""
    asked = job.asked
    lines = [
        summarise_gains(Member(spec=job.spec.with_(layers=layers)), {}, list(group))
        for (_, layers), group in groupby(rows, key=lambda row: (row.task, row.layers))
    ]
    images = "all" if asked.images is None else f"at most {asked.images:,}"
    rates = " or ".join(f"{rate:g}" for rate in asked.rates)
    chosen = "for each arm the best on validation images" if job.trials else "tuned for no arm"
    how = (
        f"Each model after {count_noun(asked.epochs, 'epoch')} of {images} training images at"
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


def options() -> argparse.ArgumentParser:
    """What can be said on the command line."""
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
    """Say what it takes; with --yes, do it."""
    asked = options().parse_args(arguments)
    run = Run(
        seed=asked.seed,
        device=asked.device,
        workers=asked.workers,
        offline=asked.offline,
        resume=True,
    )
    usual = "bf16" if run.device_name.startswith("cuda") else "fp32"
    job = Job(
        asked,
        ANCESTRIES.get(asked.ancestry, asked.ancestry),
        replace(run, precision=asked.precision or usual),
    )
    try:
        print(real_plan.announced(job, asked.seen.split(","), asked.publish), flush=True)
        print(real_plan.text(job, asked.seen.split(","), asked.speed), flush=True)
        if asked.plan or not asked.yes:
            return print("nothing is started without --yes")
        folder = carry_out(
            job,
            asked.out
            or Path(
                "build", "real", f"{Path(asked.ancestry.rpartition(':')[2]).name}-{asked.method}"
            ),
        )
        print(publish(folder, asked.publish).url if asked.publish else folder)
    except ZooError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
