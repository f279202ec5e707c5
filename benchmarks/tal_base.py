"""Does TAL+ predict ViT-Base of 16 and 18 layers, deeper than anything it is trained on?

Varied: the depth: 12, 16 and 18 layers; beside them the same weights shuffled.

Measured: the test accuracy on ImageNet-1K without any training of the models, after meta-training
with the preset `plus` (TAL+'s set of architectures, 3 to 12 layers, up to ViT-Base) on ImageNet-1K
alone, guided by ViT-Base as in the paper. The authors' answer to their reviewers, which does not
say whether after one stage or both, reports 31.52 % with 16 layers (115 M parameters) and 22.25 %
with 18 (129 M).

Command: on a GPU for days, resumable.

    python benchmarks/tal_base.py             print images, hours, the models; nothing is started
    python benchmarks/tal_base.py --yes       start
    python benchmarks/tal_base.py --smoke     the same steps with the bundled ancestry model and a
                                              few pictures of digits, less than a minute

Results: build/tal_base; not yet run: neither the data nor a GPU was at hand. The smoke run, and
that the preset's decoder predicts models of these sizes, are tested.
Page: docs/results/tal.md describes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.records import Control
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.bench.grid.cell import Arm, Extraction
from learngene_zoo.bench.running.extraction import estimate_work
from learngene_zoo.families.family import count_cost
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.storage import CONFIG
from learngene_zoo.text import format_count, format_seconds
from pages import ROOT
from real_plan import find_entry, measure_speed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The training and the predicted models."""

    ancestry: str = "timm:vit_base_patch16_224.orig_in21k_ft_in1k"
    task: str = "imagenet-1k"  # of stage 1, which is all there is: the accuracies are ImageNet's
    preset: str = "plus"
    settings: dict[str, object] = field(default_factory=dict)
    depths: tuple[int, ...] = (12, 16, 18)
    build: Path = ROOT / "build" / "tal_base"

    @property
    def arm(self) -> Arm:
        """The extraction."""
        settings = {**self.settings, "source": self.task}
        return Arm(
            name="tal",
            method="tal",
            preset=self.preset,
            settings=settings,
            ancestries=(self.ancestry,),
            tasks=(self.task,),
        )  # type: ignore[arg-type]


SMOKE = Plan(
    ancestry=BUNDLED,
    task="digits",
    preset="smoke",
    settings={"architectures": "tal+", "images": 64, "batch_size": 16, "embedding_images": 16},
    build=ROOT / "build" / "tal_base_smoke",
)


def describe_plan(plan: Plan, speed: float | None, run: Run) -> Iterator[str]:
    """Yield the cost of the extraction, and the sizes of the predicted models."""
    spec = read_ancestry_spec(plan.ancestry, offline=run.offline)
    extraction = Extraction(arm=plan.arm, seed=run.seed)
    images = estimate_work(extraction, run.offline) / spec.layers
    speed = speed or measure_speed(spec, 64, run)
    yield (
        f"meta-training: the work of {format_count(round(images))} training images of"
        f" {plan.ancestry}"
    )
    yield f"{format_seconds(images / speed)} at {speed:.3g} of them per second"
    for layers in plan.depths:
        counted = count_cost(spec.with_(layers=layers, classes=find_entry(plan.task).classes))
        yield f"{layers} layers of width {spec.width}: {format_count(counted.params)} parameters"


def run_plan(plan: Plan, run: Run) -> Path:
    """Extract unless that is finished, predict, evaluate, and write the table. Returns its path."""
    gene = plan.build / "learngene"
    if not (gene / CONFIG).is_file():
        extractor = with_settings(METHODS.load("tal").preset(plan.preset), plan.arm.settings)
        lifecycle.extract(
            "tal", ancestries=plan.ancestry, tasks=plan.task, extractor=extractor, out=gene, run=run
        )
    lines = ["| layers | parameters | untrained | shuffled |", "|---:|---:|---:|---:|"]
    for layers in plan.depths:
        predicted, shuffled = (
            measure_accuracy(plan, layers, control, run) for control in (None, "shuffled")
        )
        lines.append(
            f"| {layers} | {format_count(predicted[1])} | {predicted[0]:.2f} | {shuffled[0]:.2f} |"
        )
    path = plan.build / "table.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def measure_accuracy(
    plan: Plan, layers: int, control: Control | None, run: Run
) -> tuple[float, int]:
    """Return the test accuracy of an untrained model in per cent, and its parameters."""
    model = lifecycle.expand(
        plan.build / "learngene", layers=layers, task=plan.task, control=control, run=run
    )
    evaluation = lifecycle.evaluate(model, task=plan.task, run=run)
    return 100 * evaluation.value, count_cost(model.spec).params


def main() -> None:
    """Print the plan; with --yes, run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--yes", action="store_true", help="start")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument(
        "--speed",
        type=float,
        help="training images of the ancestry model per second (default: measured)",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=8, help="processes that read pictures")
    parser.add_argument("--offline", action="store_true")
    args = parser.parse_args()
    run = Run(
        seed=0,
        device=args.device,
        workers=args.workers,
        offline=args.offline,
        resume=True,
        progress=True,
    )
    if run.device_name.startswith("cuda"):
        run = replace(run, precision="bf16")
    plan = SMOKE if args.smoke else Plan()
    print("\n".join(describe_plan(plan, args.speed, run)))
    if not (args.yes or args.smoke):
        return print("nothing is started without --yes")
    print(run_plan(plan, run).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
