"""The cost of the meta-trainings of TAL's claims by stage: whether all took equally long, and v1
and v2 compared with TAL.

    python benchmarks/tal_cost.py        about five minutes on one core

The claims (benchmarks/claims/tal-*.toml) choose the numbers of images so that all trainings take
equally long. Here each kind of step is timed: forward, backward and update, on 64 images in memory,
over the same 30 architectures for all kinds. The kinds take turns, so that a busy machine slows
them alike. The seconds of a training are its images times the seconds of one, in both stages; the
stored numbers are those of a learngene. The paper's TAL took 28.47 hours for stage 1 and 7.72 for
stage 2 on an RTX 4090. Results in benchmarks/results/tal_cost.json, the table in
docs/methods/tal.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from learngene_zoo.bench.claims.cells import arm_of
from learngene_zoo.bench.claims.file import load_claim
from learngene_zoo.method.record import METHODS
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.catalogue import open_task
from lgzoo_tal import ghn3, logah, tal
from lgzoo_tal.architectures import draw_training_set
from lgzoo_tal.config import Stage
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.mixture import TaskBatch
from lgzoo_tal.modules.objective import Guide, MetaObjective, TaskSpec
from machine import medians, write
from pages import DOCS, replace_between
from tal_forms import ANCESTRY

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
BATCH, STEPS, CLASSES = 64, 30, {1: 326, 2: 43}  # of the source task, and of `signs`


@dataclass(frozen=True)
class Kind:
    """What a step's time depends on."""

    stage: int
    hypernet: HypernetSpec
    guided: bool


def main() -> None:
    """Time every kind of step, print and keep the table."""
    torch.set_num_threads(1)
    extractors = {name: extractor_of(name, claim) for name, claim in ARMS.items()}
    kinds = list(
        dict.fromkeys(kind for extractor in extractors.values() for kind, _ in stages(extractor))
    )
    first, _ = extractors["tal"].build_stages(ANCESTRY.spec)
    seconds = medians([Steps(kind, first) for kind in kinds], repeats=1)
    each = {kind: taken / STEPS / BATCH for kind, taken in zip(kinds, seconds)}
    rows = [row(name, extractor, each) for name, extractor in extractors.items()]
    print(write("tal_cost", {"rows": rows, "threads": 1}))
    replace_between(DOCS / "methods" / "tal.md", "cost", markdown(rows))
    print(markdown(rows))


def extractor_of(name: str, claim: str) -> Meta:
    """The extractor of an arm of a claim."""
    arm = arm_of(load_claim(claim), name, 0)
    extractor = with_settings(METHODS.load(arm.method).preset(arm.preset), arm.settings)
    assert isinstance(extractor, Meta)
    return extractor


def stages(extractor: Meta) -> Iterator[tuple[Kind, int]]:
    """The kinds of step of a training, and the number of images that each is trained on."""
    first, second = extractor.build_stages(ANCESTRY.spec)
    if extractor.curriculum.source is not None:
        assert first.recipe.images is not None
        yield (
            Kind(1, first.hypernet, first.guidance is not None),
            first.recipe.images * first.recipe.epochs,
        )
    images = sum(min(second.recipe.images or each, each) for each in tasks())
    yield Kind(2, second.hypernet, False), images * second.recipe.epochs


def tasks() -> list[int]:
    """The training images of each task of stage 2."""
    return [open_task(name).sizes["train"] for name in load_claim("tal-parts").targets]


class Steps:
    """Trains with one kind of step, always the same steps."""

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
        """One pass."""
        for step in range(STEPS):
            self.objective.finished.fill_(step)
            self.optimiser.zero_grad(set_to_none=True)
            losses = self.objective(self.batch)
            sum(losses.values(), start=torch.zeros(())).backward()
            self.optimiser.step()


def row(name: str, extractor: Meta, each: dict[Kind, float]) -> dict[str, Any]:
    """The images and seconds of both stages, and the numbers kept."""
    found = {kind.stage: (images, images * each[kind]) for kind, images in stages(extractor)}
    _, second = extractor.build_stages(ANCESTRY.spec)
    kept = sum(parameter.numel() for parameter in Hypernet(second.hypernet, None).parameters())
    embeddings = (len(tasks()) + 1) * ANCESTRY.spec.width if extractor.curriculum.task_layer else 0
    return {
        "name": name,
        "images": [found.get(stage, (0, 0.0))[0] for stage in (1, 2)],
        "seconds": [round(found.get(stage, (0, 0.0))[1], 1) for stage in (1, 2)],
        "kept": kept * (1 if extractor.curriculum.joint else len(tasks())) + embeddings,
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A line per training."""
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
