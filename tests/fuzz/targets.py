"""What is fuzzed: for each kind of file a folder with whole ones, a change by chance, and the calls
that open it.

A call ends in success or in a `ZooError`; the command line's ends in an exit code and one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from click.testing import CliRunner
from mutations import json_file, json_lines, pickle_file, spoilt, tensors_file, toml_file
from whole_files import BRIEF, CONFIG, OLD, RUN, TRAINING, WEIGHTS, toy_training

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.card import render_descendant_card, render_learngene_card
from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.cli.main import main
from learngene_zoo.errors import ZooError
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec

Mutation = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Target:
    """`files` says which files of the folder are changed, by what, and how often in relation to
    each other.
    """

    name: str
    share: int  # of all cases, in relation to the other targets
    files: Mapping[str, tuple[int, Mutation]]
    call: Callable[[Path, Random], object]
    template: str = ""  # the folder's name, if it is not the target's

    def spoil(self, folder: Path, random: Random) -> str:
        """Change one of the files; returns its name."""
        patterns = list(self.files)
        pattern = random.choices(patterns, [self.files[one][0] for one in patterns])[0]
        path = random.choice(sorted(folder.glob(pattern)))
        path.write_bytes(self.files[pattern][1](path.read_bytes(), random))
        return str(path.relative_to(folder))


class BrokenOutput(AssertionError):
    """What the command line printed is not what it promises."""


def lgzoo(*words: str) -> None:
    """One call of the command line: its exit code, its one line of error and its output keep their
    promises.

    Raises `ZooError` where it fails as it should.
    """
    result = CliRunner().invoke(main, [*words])
    printed = result.stdout + result.stderr
    wrong = [
        letter
        for letter in set(printed) - {"\n"}
        if not letter.isprintable() and letter not in "\u200c\u200d"
    ]
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if (
        wrong
        or "unexpected" in printed
        or "Traceback" in printed
        or "run again with --debug" in printed
    ):
        raise BrokenOutput(printed[-2000:])
    if "out of memory" in printed:
        raise BrokenOutput(f"sizes are not bounded before memory is asked for: {printed[-2000:]}")
    if (
        result.exit_code not in (0, 1, 2)
        or len(errors) != bool(result.exit_code)
        or (result.exit_code and result.stdout)
    ):
        raise BrokenOutput(f"exit {result.exit_code}: {printed[-2000:]}")
    if result.exit_code:
        raise ZooError(errors[0])
    if "--json" in words:
        json.loads(result.stdout)


# What is done with each


def use_learngene(folder: Path, random: Random) -> None:
    """Show it, build from it, and write its card."""
    place = folder / "learngene"
    if random.random() < 0.5:
        lgzoo("show", str(place), *random.choice(((), ("--json",))))
        return
    learngene = load_learngene(place)
    render_learngene_card(learngene.config)
    words = json.loads((folder / "expand.json").read_text())
    lgzoo("expand", str(place), *words, "-o", str(folder / "out"), "--offline", "--threads", "1")
    if random.random() < 0.2:
        lifecycle.expand(learngene, layers=2, task="digits", run=RUN).model()


def draw_learngene(folder: Path, random: Random) -> None:
    """Draw it."""
    lgzoo("plot", str(folder / "learngene"), "-o", str(folder / random.choice(("x.png", "x.svg"))))


def use_model(folder: Path, random: Random) -> None:
    """Show it, or build it, write its card and run it."""
    place = folder / "descendant"
    kind = random.random()
    if kind < 0.3:
        lgzoo("show", str(place), *random.choice(((), ("--json",))))
        return
    if kind > 0.95:
        lgzoo("evaluate", str(place), "--task", "digits", "--offline", "--threads", "1")
        return
    made = load_descendant(place)
    render_descendant_card(made.config())
    model = made.model()
    if made.cost().flops < 1e8:
        with torch.no_grad():
            model(torch.zeros(1, made.spec.channels, made.spec.image_size, made.spec.image_size))


def train_model(folder: Path, random: Random) -> None:
    """Fine-tune or evaluate it on pictures of the user's."""
    task = ("--task", f"folder:{folder / 'photos'}")
    if random.random() < 0.5:
        lgzoo("evaluate", str(folder / "descendant"), *task, "--offline", "--threads", "1")
    else:
        brief = (
            "--epochs",
            "1",
            "--images",
            "4",
            "--batch-size",
            "4",
            "--threads",
            "1",
            "-o",
            str(folder / "out"),
        )
        lgzoo("finetune", str(folder / "descendant"), *task, *brief, "--offline")


def use_ancestry(folder: Path, random: Random) -> None:
    """Plan from it, open it, extract from it."""
    source = str(folder / "ancestry")
    kind = random.random()
    if kind < 0.3:
        lgzoo("plan", "scratch", "--ancestry", source, "--json")
    elif kind < 0.6:
        read_ancestry_spec(source, offline=True)
        open_ancestry(source, offline=True).model()
    else:
        lgzoo("extract", "scratch", "--ancestry", source, "-o", str(folder / "out"), "--offline")


def read_bench(folder: Path, random: Random) -> None:
    """The tables of a bench and its page; now and then with all pictures."""
    from learngene_zoo.bench.report import report, text_table
    from learngene_zoo.bench.report.page import render_report

    if random.random() < 0.02:
        lgzoo("bench", "--report", "-o", str(folder), *random.choice(((), ("--json",))))
        return
    result = report.read_summary(folder)
    costs = report.read_costs(folder, result)
    text_table.render_markdown(report.build_overview(folder)[0])
    report.format_csv([report.flatten_line(line) for line in result.lines])
    render_report(result, report.read_grid(folder), {"cost": ""}, costs)


def resume_run(folder: Path, random: Random) -> None:
    """The call that the run belongs to, again."""
    how = random.choice((("--resume",), ("--resume",), ("--force",), ("--resume", "--force")))
    with chdir(folder):
        lgzoo("finetune", "model", "--task", "folder:photos", *BRIEF, "-o", "out", *how)


def resume_training(folder: Path, random: Random) -> None:
    """The newest checkpoint, given back to the training that it is of."""
    from learngene_zoo.training import checkpoint

    state = toy_training()
    loaded = checkpoint.load_newest(folder, TRAINING)
    if loaded is not None:
        state.restore(loaded)


def read_claim(folder: Path, random: Random) -> None:
    """A claim and the cells that it asks for."""
    from learngene_zoo.bench.claims.cells import list_tuning_cells
    from learngene_zoo.bench.claims.file import load_claim

    claim = load_claim(next(folder.glob("*.toml")), random.choice(("standard", "full")))
    if claim.tuning is not None and len(claim.targets) * claim.seeds < 1000:
        list_tuning_cells(claim)


def read_published(folder: Path, random: Random) -> None:
    """The manifest of a published artifact, and whether its files are what it says."""
    from learngene_zoo.hub.manifest import MANIFEST, read_manifest

    manifest = read_manifest(folder / MANIFEST, MANIFEST)
    assert all(
        (folder / name).resolve().is_relative_to(folder.resolve()) for name in manifest.files
    )
    if len(manifest.files) < 100:
        [record.holds(folder / name) for name, record in manifest.files.items()]


def read_release(folder: Path, random: Random) -> None:
    """A hypernetwork that somebody released."""
    from lgzoo_tal.modules.released import read_hypernet

    read_hypernet(next(path for path in sorted(folder.iterdir()) if path.suffix == ".pt"))


def manifest_file(data: bytes, random: Random) -> bytes:
    """A changed manifest, mostly with the digest that belongs to it: whoever changes one can
    compute that too.
    """
    from learngene_zoo.hub.manifest import FileRecord, make_manifest

    spoiled = json_file(data, random)
    with suppress(Exception):  # most changes leave nothing that has a digest
        found = json.loads(spoiled)
        records = {
            name: FileRecord(sha256=item["sha256"], bytes=item["bytes"])
            for name, item in found["files"].items()
        }
        return json.dumps({**found, "digest": make_manifest(records).digest}).encode()
    return spoiled


def targets() -> list[Target]:
    """All of them."""
    configs: dict[str, tuple[int, Mutation]] = {
        f"learngene/{CONFIG}": (7, json_file),
        f"learngene/{WEIGHTS}": (3, tensors_file),
    }
    model: dict[str, tuple[int, Mutation]] = {
        f"descendant/{CONFIG}": (7, json_file),
        f"descendant/{WEIGHTS}": (3, tensors_file),
    }
    ancestry: dict[str, tuple[int, Mutation]] = {
        f"ancestry/{CONFIG}": (7, json_file),
        f"ancestry/{WEIGHTS}": (3, tensors_file),
    }
    methods = sorted(folder.name for folder in OLD.iterdir())
    return [
        *(Target(f"learngene {method}", 6, configs, use_learngene) for method in methods),
        *(
            Target(f"plot {m}", 1, configs, draw_learngene, f"learngene {m}")
            for m in ("lsamd", "pool", "snnet", "tal")
        ),
        Target("models", 16, model, use_model),
        Target("trained", 8, model, train_model),
        Target("ancestry", 14, ancestry, use_ancestry),
        Target(
            "bench", 24, {"results.jsonl": (6, json_lines), "grid.json": (4, json_file)}, read_bench
        ),
        Target(
            "run",
            8,
            {
                "out.run/run.json": (6, json_file),
                "out.run/metrics.jsonl": (1, spoilt),
                "out.run/**/checkpoint.json": (3, json_file),
                "out.run/**/*.safetensors": (2, tensors_file),
            },
            resume_run,
        ),
        Target(
            "checkpoint",
            16,
            {
                "*/checkpoint.json": (5, json_file),
                "*/state.safetensors": (5, tensors_file),
            },
            resume_training,
        ),
        *(
            Target(f"claim {name}", 5, {"*.toml": (1, toml_file)}, read_claim)
            for name in ("pool-levels-wide", "lsamd-depth", "tal-unseen", "lsamd-storage")
        ),
        Target("manifest", 8, {"manifest.json": (1, manifest_file)}, read_published),
        *(
            Target(f"release {name}", 12, {"ghn.pt": (1, pickle_file)}, read_release)
            for name in ("pickle", "zip", "old")
        ),
    ]
