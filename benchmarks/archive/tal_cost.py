"""How long do the meta-trainings of TAL's claims take, and do all take equally long?

Varied: the training: TAL, without its task layer, without its ancestry model, LoGAH v1 to v4, and
GHN-3, as in the claims of protocol 1 (benchmarks/results/claims/tal-*.json), which choose the
numbers of images for equal time.

Measured: the seconds of each kind of step (forward, backward and update, on 64 images in memory),
over the same 30 architectures for all kinds, which take turns, so that a busy machine slows them
alike. The seconds of a training are its images times the seconds of one, in both stages; the stored
numbers are those of a learngene. The paper's TAL took 28.47 hours for stage 1 and 7.72 for stage 2
on an RTX 4090.

Command: about five minutes on one core.

    python benchmarks/archive/tal_cost.py

Results: benchmarks/results/tal_cost.json.
Page: docs/results/speed.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from learngene_zoo.bench.claims.cells import build_arm
from learngene_zoo.bench.claims.file import Claim
from learngene_zoo.bench.claims.run import read_verdict
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import open_task
from lgzoo_tal import ghn3, logah, tal
from lgzoo_tal.architectures import draw_training_set
from lgzoo_tal.config import Stage
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.mixture import TaskBatch
from lgzoo_tal.modules.objective import Guide, MetaObjective, TaskSpec

sys.path.append(str(Path(__file__).resolve().parents[1]))
from machine import write
from pages import DOCS, replace_between
from run_claims import KEPT
from timings.case import Row, measure_medians

ARMS = {  # arm -> the claim that describes it
    "tal": "tal-parts",
    "tal without task layer": "tal-parts",
    "tal without ancestry": "tal-parts",
    "logah v4": "tal-parts",
    "logah v3": "tal-v3-v2",
    "logah v2": "tal-v2-v1",
    "logah v1": "tal-v2-v1",
    "ghn3": "tal-v1-ghn3",
}
Meta = tal.TalExtractor | logah.LogahExtractor | ghn3.Ghn3Extractor
ANCESTRY = open_ancestry("bundled")
BATCH, STEPS, CLASSES = 64, 30, {1: 326, 2: 43}  # of the source task, and of `signs`


@dataclass(frozen=True)
class Kind:
    """Everything that the time of a step depends on."""

    stage: int
    hypernet: HypernetSpec
    guided: bool


def main() -> None:
    """Time every kind of step, print and keep the table."""
    torch.set_num_threads(1)
    extractors = {name: make_extractor(name, claim) for name, claim in ARMS.items()}
    kinds = dict.fromkeys(
        kind for extractor in extractors.values() for kind, _ in list_stages(extractor)
    )
    first, _ = extractors["tal"].build_stages(ANCESTRY.spec)
    seconds = measure_medians({str(kind): Steps(kind, first) for kind in kinds}, repeats=1)
    each = {kind: seconds[str(kind)] / STEPS / BATCH for kind in kinds}
    rows = [make_row(name, extractor, each) for name, extractor in extractors.items()]
    print(write("tal_cost", {"rows": rows, "threads": 1}))
    replace_between(DOCS / "results" / "speed.md", "cost", make_table(rows))
    print(make_table(rows))


def load_kept_claim(name: str) -> Claim:
    """Return a claim as it was filed when it was decided; some are not filed any more."""
    return read_verdict(KEPT / f"{name}.json")[0]


def make_extractor(name: str, claim: str) -> Meta:
    """Return the extractor of an arm of a claim."""
    arm = build_arm(load_kept_claim(claim), name, 0)
    extractor = with_settings(METHODS.load(arm.method).preset(arm.preset), arm.settings)
    assert isinstance(extractor, Meta)
    return extractor


def list_stages(extractor: Meta) -> Iterator[tuple[Kind, int]]:
    """Yield the kinds of step of a training, with the number of images that each is trained on."""
    first, second = extractor.build_stages(ANCESTRY.spec)
    if extractor.curriculum.source is not None:
        assert first.recipe.images is not None
        yield (
            Kind(1, first.hypernet, first.guidance is not None),
            first.recipe.images * first.recipe.epochs,
        )
    images = sum(min(second.recipe.images or each, each) for each in count_task_images())
    yield Kind(2, second.hypernet, False), images * second.recipe.epochs


def count_task_images() -> list[int]:
    """Return the number of training images of each task of stage 2."""
    return [open_task(name).sizes["train"] for name in load_kept_claim("tal-parts").targets]


class Steps:
    """A training with one kind of step; each call runs the same steps."""

    def __init__(self, kind: Kind, guided: Stage) -> None:
        classes = CLASSES[kind.stage]
        embedding = torch.randn(ANCESTRY.spec.width) if kind.hypernet.task else None
        guide = (
            Guide(ANCESTRY.model(), guided.guidance) if kind.guided and guided.guidance else None
        )
        zoo = draw_training_set(guided.step.architectures, guided.step.hold_out, ANCESTRY.spec)[
            :STEPS
        ]
        task_specs = [TaskSpec(classes=classes, embedding=embedding)]
        self.objective = MetaObjective(
            Hypernet(kind.hypernet), zoo, task_specs, 0, label_smoothing=0.1, guide=guide
        )
        learnt = [parameter for parameter in self.objective.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(learnt, lr=1e-5)
        images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(classes, (BATCH,))
        place = torch.arange(BATCH)
        self.batch = TaskBatch(images, labels, place, None, torch.zeros_like(place))

    def __call__(self) -> None:
        """Run `STEPS` steps."""
        for step in range(STEPS):
            self.objective.finished.fill_(step)
            self.optimiser.zero_grad(set_to_none=True)
            losses = self.objective(self.batch)
            sum(losses.values(), start=torch.zeros(())).backward()
            self.optimiser.step()


def make_row(name: str, extractor: Meta, each: dict[Kind, float]) -> Row:
    """Return the images and seconds of both stages, and the number of stored values."""
    found = {kind.stage: (images, images * each[kind]) for kind, images in list_stages(extractor)}
    _, second = extractor.build_stages(ANCESTRY.spec)
    kept = sum(parameter.numel() for parameter in Hypernet(second.hypernet, None).parameters())
    tasks = len(count_task_images())
    embeddings = (tasks + 1) * ANCESTRY.spec.width if extractor.curriculum.task_layer else 0
    return {
        "name": name,
        "images": [found.get(stage, (0, 0.0))[0] for stage in (1, 2)],
        "seconds": [round(found.get(stage, (0, 0.0))[1], 1) for stage in (1, 2)],
        "kept": kept * (1 if extractor.curriculum.joint else tasks) + embeddings,
    }


def make_table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown, a line per training."""
    lines = [
        (
            "| | images of stage 1 | seconds | images of stage 2 | seconds | together | beside TAL"
            " | numbers kept |"
        ),
        f"|---|{'---:|' * 7}",
    ]
    first = sum(rows[0]["seconds"])
    for found in rows:
        (one, two), (early, late) = found["images"], found["seconds"]
        line = (
            f"| {found['name']} | {one:,} | {early:.0f} | {two:,} | {late:.0f} | {early + late:.0f}"
        )
        lines.append(f"{line} | {(early + late) / first:.2f} | {found['kept']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
